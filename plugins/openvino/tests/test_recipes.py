"""What the recipes are made of: the partitioner, the pass that rounds weights, the quantizer."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("openvino", reason="OpenVINO has no wheel for this host")

import torch
from torch import nn

from recipes import ModelFacts, OptionValue, RecipesWarning
from recipes_openvino import OpenVINORecipeType as Type
from recipes_openvino.partitioner import SkippingPartitioner
from recipes_openvino.provider import OpenVINOProvider
from recipes_openvino.quantizer import OpenVINOQuantizer
from recipes_openvino.recipes import store_weights_in_half

IMAGE = (torch.rand(1, 3, 8, 8),)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.LayerNorm(6)
        self.linear = nn.Linear(144, 10)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - a name that copies of graphs lose
        found: torch.Tensor = self.linear(self.norm(self.conv(input).relu()).flatten(1))
        return found


def captured() -> torch.export.ExportedProgram:
    return torch.export.export(Net().eval(), IMAGE)


def test_the_recipes_differ_in_what_their_names_say() -> None:
    fp32, fp16, int8 = (OpenVINOProvider().create_recipe(one) for one in Type)
    assert [bool(one.aten_transform_passes) for one in (fp32, fp16, int8)] == [False, True, False]
    assert [bool(one.quantization_recipe) for one in (fp32, fp16, int8)] == [False, False, True]
    for one in (fp32, fp16, int8):
        (partitioner,) = one.lowering_recipe.partitioners
        assert partitioner.delegation_spec.backend_id == "OpenvinoBackend"
        (spec,) = partitioner.delegation_spec.compile_specs
        assert (spec.key, spec.value) == ("device", b"CPU")


def test_weights_are_rounded_to_half_and_the_given_program_is_not_changed() -> None:
    program = captured()
    before, names = str(program.graph), {name: value.dtype for name, value in program.state_dict.items()}
    rounded = store_weights_in_half("forward", program)
    assert str(program.graph) == before
    assert {name: value.dtype for name, value in program.state_dict.items()} == names
    assert {name for name, value in rounded.state_dict.items() if value.dtype is torch.float16} == {
        "conv.weight",
        "linear.weight",
    }
    with torch.no_grad():
        model = Net().eval()
        for weight in (model.conv.weight, model.linear.weight):
            weight.copy_(weight.half())
        assert torch.equal(rounded.module()(*IMAGE), model(*IMAGE))
        assert not torch.equal(program.module()(*IMAGE), model(*IMAGE))


def test_the_weights_of_skipped_operators_and_those_beyond_half_stay_as_they_are() -> None:
    program = captured()
    with torch.no_grad():
        program.state_dict["linear.weight"][0, 0] = 1e6
    rounded = store_weights_in_half("forward", program, skipped=("aten.conv2d.default",))
    assert {value.dtype for value in rounded.state_dict.values()} == {torch.float32}


def test_a_weight_beyond_half_is_named_by_the_float16_recipe_alone() -> None:
    facts = ModelFacts("forward", None, {"x": torch.ones(1)}, {"big": torch.tensor([[1e6]])}, {})
    options = {"device": OptionValue("CPU", "default")}
    found = {one.name: [f.code for f in OpenVINOProvider().check_model(one, options, facts)[1]] for one in Type}
    assert found == {"FP32": [], "FP16": ["beyond-half-range"], "INT8": []}


def test_a_model_without_inputs_is_refused() -> None:
    facts = ModelFacts("forward", None, {}, {}, {})
    (finding,) = OpenVINOProvider().check_model(Type.FP32, {}, facts)[1]
    assert (finding.level, finding.code) == ("error", "no-inputs")


def edge(partitioner: Any, inputs: tuple[torch.Tensor, ...] = IMAGE, **kwargs: Any) -> torch.fx.GraphModule:
    from executorch.exir import to_edge_transform_and_lower

    program = torch.export.export(Net().eval(), inputs, **kwargs)
    module: torch.fx.GraphModule = (
        to_edge_transform_and_lower(program, partitioner=[partitioner]).exported_program().graph_module
    )
    return module


def left(module: torch.fx.GraphModule) -> list[str]:
    """The operators outside of delegates."""
    named = [str(getattr(n.target, "_op", n.target)) for n in module.graph.nodes if n.op == "call_function"]
    return [name for name in named if name.startswith("aten.")]


def test_openvino_takes_a_model_whole_and_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert left(edge(SkippingPartitioner("CPU"))) == []
    edge(SkippingPartitioner("CPU", ["aten.relu.default"]))
    assert "not supported" not in capsys.readouterr().out


def test_a_skipped_operator_is_left_with_what_prepares_its_weight() -> None:
    module = edge(SkippingPartitioner("CPU", ["aten.addmm.default"]))
    assert left(module) == ["aten.permute_copy.default", "aten.addmm.default"]


def test_dynamic_sizes_are_kept_off_with_a_warning() -> None:
    batch = {0: torch.export.Dim("batch", min=1, max=8)}
    with pytest.warns(RecipesWarning, match="dynamic sizes are kept off OpenVINO, aten.convolution.default"):
        module = edge(SkippingPartitioner("CPU"), (torch.rand(2, 3, 8, 8),), dynamic_shapes=(batch,))
    assert "aten.convolution.default" in left(module)


def annotated(quantizer: OpenVINOQuantizer) -> dict[str, list[str]]:
    """The annotated operators, each with its inputs that are quantized."""
    module = captured().module(check_guards=False)
    quantizer.annotate(module)
    found: dict[str, list[str]] = {}
    for node in module.graph.nodes:
        annotation = node.meta.get("quantization_annotation")
        if annotation is not None:
            found[node.name] = [s.name for s, spec in annotation.input_qspec_map.items() if spec is not None]
    return found


def test_weights_of_two_dimensions_are_quantized_and_those_of_a_normalization_are_not() -> None:
    found = annotated(OpenVINOQuantizer())
    assert found["conv2d"] == ["conv_weight"]
    assert found["linear"] == ["linear_weight"]
    assert found.get("layer_norm", []) == []


def test_a_skipped_operator_is_not_quantized() -> None:
    found = annotated(OpenVINOQuantizer(["aten.linear.default"]))
    assert found.get("linear", []) == []
    assert found["conv2d"] == ["conv_weight"]


class Lookup(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(10, width)
        self.linear = nn.Linear(width, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(self.table(ids))
        return found


@pytest.mark.parametrize(("width", "kept_off"), [(8, True), (16, True), (17, False), (64, False)])
def test_lookups_of_short_rows_are_kept_off_the_cpu_and_out_of_quantization(width: int, kept_off: bool) -> None:
    from executorch.exir import to_edge_transform_and_lower

    ids = (torch.tensor([[1, 2, 3]]),)
    program = torch.export.export(Lookup(width).eval(), ids)
    lowered = to_edge_transform_and_lower(program, partitioner=[SkippingPartitioner("CPU")])
    assert left(lowered.exported_program().graph_module) == (["aten.embedding.default"] if kept_off else [])
    rounded = store_weights_in_half("forward", program)
    assert (rounded.state_dict["table.weight"].dtype is torch.float32) == kept_off
    module = program.module(check_guards=False)
    OpenVINOQuantizer().annotate(module)
    lookups = [n for n in module.graph.nodes if "embedding" in str(n.target)]
    assert [bool(n.meta.get("quantization_annotation")) for n in lookups] == [not kept_off]

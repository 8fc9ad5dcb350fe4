"""Recipes of both plugins merged: each config field in turn, quantizers in any order, three at once, and strangers."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import executorch.export
import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
from executorch.exir.dynamic_shape import DynamicMemoryPlanningMode
from executorch.exir.passes import MemoryPlanningPass, ToOutVarPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.passes.sym_shape_eval_pass import HintBasedSymShapeEvalPass
from executorch.export import LoweringRecipe, StageType

from recipes import (
    ExportRecipe,
    OptionError,
    RecipeConflictError,
    RecipesWarning,
    export,
    get_recipe,
    get_target_recipe,
)
from recipes_coreml import CoreMLRecipeType
from recipes_xnnpack import XNNPackRecipeType

pytestmark = pytest.mark.filterwarnings("ignore:.*calibration-one-sample:recipes.RecipesWarning")


def coreml() -> ExportRecipe:
    return get_recipe(CoreMLRecipeType.FP16)


def with_backend_config(**fields: Any) -> ExportRecipe:
    return ExportRecipe(name="mine", executorch_backend_config=ExecutorchBackendConfig(**fields))


OPINIONS: dict[str, Any] = {
    "passes": [ToOutVarPass()],
    "memory_planning_pass": MemoryPlanningPass(alloc_graph_input=False),
    "propagate_device_config": PropagateDeviceConfig(skip_h2d_for_method_inputs=True),
    "to_out_var_pass": ToOutVarPass(ignore_to_out_var_failure=True),
    "dynamic_memory_planning_mode": DynamicMemoryPlanningMode.MEMORY_PLANNING_ONLY
    if hasattr(DynamicMemoryPlanningMode, "MEMORY_PLANNING_ONLY")
    else list(DynamicMemoryPlanningMode)[-1],
    "emit_stacktrace": True,
    "extract_delegate_segments": False,
    "segment_alignment": 512,
    "constant_tensor_alignment": 64,
    "delegate_alignment": 64,
    "sym_shape_eval_pass": HintBasedSymShapeEvalPass(),
    "remove_view_copy": False,
    "external_constants": True,
    "external_mutable_weights": True,
    "emit_mutable_buffer_names": True,
    "do_quant_fusion_and_const_prop": True,
    "run_reinplace_pass": True,
    "enable_non_cpu_memory_planning": False,
    "reinplace_extra_ops": frozenset({torch.ops.aten.add.Tensor}),
}


def test_every_field_of_the_backend_config_is_tried() -> None:
    assert set(OPINIONS) == {field.name for field in dataclasses.fields(ExecutorchBackendConfig)}


@pytest.mark.parametrize("field", OPINIONS)
@pytest.mark.parametrize("mine_first", [True, False])
def test_an_opinion_on_a_config_field_stands_whatever_the_order_and_is_explained(field: str, mine_first: bool) -> None:
    mine = with_backend_config(**{field: OPINIONS[field]})
    others = [get_recipe(XNNPackRecipeType.FP32)]
    merged = ExportRecipe.combine([mine, *others] if mine_first else [*others, mine])
    value = getattr(merged.executorch_backend_config, field)
    if isinstance(value, list):
        assert [type(item) for item in value] == [type(item) for item in OPINIONS[field]]
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        assert type(value) is type(OPINIONS[field])
    else:
        assert value == OPINIONS[field]
    rows = [origin for origin in merged.explain().provenance.origins if origin.field.endswith(f".{field}")]
    assert [source.recipe for origin in rows for source in origin.sources] == ["mine"]


def test_two_opinions_on_one_field_are_a_conflict_that_names_both() -> None:
    first, second = with_backend_config(segment_alignment=256), with_backend_config(segment_alignment=512)
    second.name = "other"
    with pytest.raises(RecipeConflictError) as caught:
        ExportRecipe.combine([first, second, coreml()])
    for part in ("segment_alignment", "256", "512", "mine", "other"):
        assert part in str(caught.value)


def test_a_kernel_that_must_be_whole_for_the_accelerator_wins_over_a_fallback_in_a_target_only() -> None:
    from recipes.recipe.merging import merge

    def keeping(name: str, op: Any) -> ExportRecipe:
        config = EdgeCompileConfig(_check_ir_validity=False, preserve_ops=[op])
        return ExportRecipe(name=name, lowering_recipe=LoweringRecipe(edge_compile_config=config))

    one, other = keeping("fast", torch.ops.aten.gelu.default), keeping("slow", torch.ops.aten.silu.default)
    with pytest.raises(RecipeConflictError, match="preserve_ops"):
        ExportRecipe.combine([one, other])
    merged = merge([one, other], "target", roles=["accelerator", "fallback"])
    assert merged.lowering_recipe.edge_compile_config.preserve_ops == [torch.ops.aten.gelu.default]
    (decision,) = merged.explain().provenance.decisions
    assert (decision.winner, decision.losers[0][0]) == ("fast", "slow")
    assert "gelu" in str(merged.explain())


def test_three_recipes_merge_alike_however_they_are_grouped() -> None:
    a, b, c = coreml(), get_recipe(XNNPackRecipeType.FP32), with_backend_config(segment_alignment=512)
    combine = ExportRecipe.combine
    results = [combine([a, b, c]), combine([combine([a, b]), c]), combine([a, combine([b, c])])]
    for merged in results:
        assert [type(p).__name__ for p in merged.lowering_recipe.partitioners] == [
            "CoreMLPartitioner",
            "XnnpackPartitioner",
        ]
        assert merged.executorch_backend_config.segment_alignment == 512
        assert merged.name == results[0].name


def test_a_recipe_of_executorchs_own_provider_combines_with_ours() -> None:
    from executorch.backends.xnnpack.recipes import XNNPACKRecipeProvider
    from executorch.backends.xnnpack.recipes import XNNPackRecipeType as Theirs

    theirs = XNNPACKRecipeProvider().create_recipe(Theirs.FP32)
    merged = ExportRecipe.combine([coreml(), theirs], recipe_name="both")
    assert [type(p).__name__ for p in merged.lowering_recipe.partitioners] == [
        "CoreMLPartitioner",
        "XnnpackPartitioner",
    ]
    assert isinstance(get_recipe(Theirs.FP32), ExportRecipe), "ExecuTorch's own member stands for ours of that name"


def test_an_option_that_one_component_takes_goes_there_and_a_misspelt_one_is_refused() -> None:
    recipe = get_target_recipe("ios-arm64-coreml-fp16", skip_ops_for_coreml_delegation=["aten.relu.default"])
    assert recipe.lowering_recipe.partitioners[0].skip_ops_for_coreml_delegation == ["aten.relu.default"]
    with pytest.raises(OptionError, match="Did you mean 'skip_ops_for_coreml_delegation'"):
        get_target_recipe("ios-arm64-coreml-fp16", skip_ops_for_coreml_delegatoin=["aten.relu.default"])
    with pytest.raises(OptionError, match="Did you mean 'compute_unit'"):
        get_target_recipe("ios-arm64-coreml-fp16", coreml={"compute_units": "ALL"})
    with pytest.raises(OptionError, match="group_size"):
        get_target_recipe("ios-arm64-coreml-fp16", xnnpack={"group_size": 32})
    with pytest.raises(OptionError, match="must be a mapping"):
        get_target_recipe("ios-arm64-coreml-fp16", coreml="ALL")


class ConvLinear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.linear = torch.nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.conv(x).relu().mean((2, 3)))


QUANTIZED = ("coreml:pt2e_int8_static", "coreml:pt2e_int8_weight_only", "xnnpack:pt2e_int8_static_per_channel",
             "xnnpack:pt2e_int8_dynamic_per_channel", "xnnpack:pt2e_int8_static_per_tensor")  # fmt: skip


@pytest.mark.parametrize("pair", itertools.permutations(QUANTIZED, 2), ids="+".join)
def test_any_two_quantizers_compose_and_the_first_ones_annotations_stand(pair: tuple[str, str]) -> None:
    from recipes.executorch.quantizers import ANNOTATION, PrecedenceQuantizer

    torch.manual_seed(0)
    model, x = ConvLinear().eval(), torch.rand(1, 3, 8, 8)

    def annotated(ids: tuple[str, ...]) -> dict[str, set[str]]:
        merged = ExportRecipe.combine([get_recipe(recipe) for recipe in ids])
        graph = torch.export.export(model, (x,)).module(check_guards=False)
        quantizer = PrecedenceQuantizer(merged.quantization_recipe.quantizers)
        quantizer.annotate(quantizer.transform_for_annotation(graph))
        return {
            node.name: {f"{source}: {getattr(spec, 'dtype', spec)}" for source, spec in a.input_qspec_map.items()}
            for node in graph.graph.nodes
            if node.op == "call_function" and (a := node.meta.get(ANNOTATION)) is not None
        }

    alone, both = annotated(pair[:1]), annotated(pair)
    assert alone, "the first quantizer knows the model"
    assert {name: both[name] for name in alone} == alone


@pytest.mark.parametrize("pair", [QUANTIZED[:1] + QUANTIZED[2:3], QUANTIZED[2:3] + QUANTIZED[:1]], ids="+".join)
def test_a_model_with_two_quantizers_is_exported_through_both_backends(pair: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model, samples = ConvLinear().eval(), [(torch.rand(1, 3, 8, 8),) for _ in range(3)]
    merged = ExportRecipe.combine([get_recipe(recipe) for recipe in pair])
    captured = merged.derive(pipeline_stages=[StageType.SOURCE_TRANSFORM, StageType.QUANTIZE, StageType.TORCH_EXPORT])
    session = export(model, captured, samples)
    quantized = session.get_exported_program().module()
    assert "dequantize" in str(session.get_exported_program().graph)
    torch.testing.assert_close(quantized(*samples[0]), model(*samples[0]), atol=0.1, rtol=0.1)


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.reshape(1, 2, 6, 8) for part in self.qkv(x).chunk(3, -1))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


class Pooled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.pool = torch.nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.conv(x))


@pytest.mark.parametrize(
    ("model", "x", "kept"),
    [
        (Attention(), torch.rand(1, 6, 16), "scaled_dot_product_attention"),
        (Pooled(), torch.rand(1, 3, 10, 10), "max_pool2d"),
    ],
    ids=["attention", "max_pool2d"],
)
def test_ops_that_backends_want_whole_go_through_both_and_the_report_says_who_got_what(
    model: torch.nn.Module, x: torch.Tensor, kept: str
) -> None:
    session = export(model.eval(), "ios-arm64-coreml-fp16", x)
    assert session.fallbacks == []
    report = session.report().to_dict()
    assert kept in str(report)
    assert "coreml" in str(report).lower()


def test_executorchs_export_takes_a_merged_recipe() -> None:
    model, x = ConvLinear().eval(), torch.rand(1, 3, 8, 8)
    merged = ExportRecipe.combine([get_recipe("xnnpack:fp32"), with_backend_config(segment_alignment=512)])
    session = executorch.export.export(model, [(x,)], merged)
    torch.testing.assert_close(session.run_method("forward", (x,))[0], model(x), atol=1e-5, rtol=1e-4)
    assert any(isinstance(p, XnnpackPartitioner) for p in merged.lowering_recipe.partitioners)


@pytest.mark.parametrize(
    "recipe",
    [
        "coreml:torchao_int4_weight_only_per_group",
        "coreml:torchao_int8_weight_only_per_group",
        "xnnpack:torchao_int8_dynamic_act_int4_weight_per_tensor",
    ],
)
def test_a_layer_whose_size_a_group_does_not_divide_stays_in_float_and_is_named_in_the_report(recipe: str) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 20), torch.nn.Linear(20, 16)).eval(), torch.rand(1, 64)
    with pytest.warns(RecipesWarning, match="Layer '1' is left in float: its 20 input features"):
        session = export(model, recipe, x)
    assert any("Layer '1' is left in float" in finding.message for finding in session.findings)
    assert "Layer '1' is left in float" in " ".join(str(session.report()).split())
    torch.testing.assert_close(session.get_exported_program().module()(x), model(x), atol=0.2, rtol=0.2)

"""Several quantizers act as one: precedence, and integer tensors that are left alone."""

from __future__ import annotations

import pytest

pytest.importorskip("executorch", reason="quantizers are torchao's, and these tests use real ones")

import copy

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from torchao.quantization.pt2e.observer import MinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
)

from recipes.executorch.quantizers import ANNOTATION, PrecedenceQuantizer, mark_unbounded, quantized_nodes


def xnnpack_quantizer(*, per_channel: bool = True, dynamic: bool = False) -> XNNPACKQuantizer:
    return XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=per_channel, is_dynamic=dynamic)
    )


class RelentlessQuantizer(Quantizer):  # type: ignore[misc]
    """Annotates every op of a kind, whether or not somebody else did: as some vendors' quantizers do."""

    def __init__(self, *targets: object) -> None:
        super().__init__()
        self.targets = targets
        self.seen: list[str] = []

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        spec = QuantizationSpec(torch.uint8, MinMaxObserver.with_args(eps=2**-12), 0, 255, torch.per_tensor_affine)
        for node in model.graph.nodes:
            if node.op == "call_function" and node.target in self.targets:
                self.seen.append(node.name)
                inputs = {node.args[0]: spec}
                node.meta[ANNOTATION] = QuantizationAnnotation(inputs, output_qspec=spec, _annotated=True)
        model.graph.eliminate_dead_code()
        model.recompile()
        return model

    def validate(self, model: torch.fx.GraphModule) -> None:
        pass


class ConvLinear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.linear = torch.nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.conv(x).relu().mean((2, 3))).sigmoid()


IMAGE = (torch.rand(1, 3, 8, 8),)


def captured(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.fx.GraphModule:
    return torch.export.export(model.eval(), inputs).module(check_guards=False)


def annotated(model: torch.fx.GraphModule) -> dict[str, str]:
    return {n.name: repr(n.meta[ANNOTATION]) for n in model.graph.nodes if ANNOTATION in n.meta}


def test_one_quantizer_annotates_as_it_does_alone() -> None:
    alone, ours = captured(ConvLinear(), IMAGE), captured(ConvLinear(), IMAGE)
    xnnpack_quantizer().annotate(alone)
    PrecedenceQuantizer([xnnpack_quantizer()]).annotate(ours)
    assert {n.name for n in alone.graph.nodes if ANNOTATION in n.meta} == set(annotated(ours))
    assert "conv2d" in annotated(ours)


@pytest.mark.parametrize("relentless_first", [True, False])
def test_a_later_quantizer_neither_sees_nor_changes_what_an_earlier_one_annotated(relentless_first: bool) -> None:
    relentless = RelentlessQuantizer(torch.ops.aten.conv2d.default, torch.ops.aten.sigmoid.default)
    order = [relentless, xnnpack_quantizer()] if relentless_first else [xnnpack_quantizer(), relentless]
    first_alone, both = captured(ConvLinear(), IMAGE), captured(ConvLinear(), IMAGE)
    copy.deepcopy(order[0]).annotate(first_alone)
    PrecedenceQuantizer(order).annotate(both)
    expected, found = annotated(first_alone), annotated(both)
    assert expected
    taken = {n.name for n in first_alone.graph.nodes if ANNOTATION in n.meta and n.op == "call_function"}
    for name in taken:
        assert found[name].replace("\n", "").split("observer")[0] == expected[name].split("observer")[0]
    assert ("conv2d" in relentless.seen) is relentless_first
    assert "sigmoid" in relentless.seen
    assert "linear" in found


@pytest.mark.parametrize("relentless_first", [True, False])
def test_quantizers_that_torchaos_composition_refuses_give_a_model_that_runs(relentless_first: bool) -> None:
    relentless = RelentlessQuantizer(torch.ops.aten.conv2d.default, torch.ops.aten.sigmoid.default)
    order = [relentless, xnnpack_quantizer()] if relentless_first else [xnnpack_quantizer(), relentless]
    model = ConvLinear()
    prepared = prepare_pt2e(captured(model, IMAGE), PrecedenceQuantizer(order))
    for _ in range(4):
        prepared(torch.rand(1, 3, 8, 8))
    converted = convert_pt2e(prepared)
    assert len(list(quantized_nodes(converted))) > 4
    torch.testing.assert_close(converted(*IMAGE), model(*IMAGE), atol=0.05, rtol=0)


def test_hiding_a_node_leaves_the_graph_as_it_was() -> None:
    class Updates(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            return x * 2

    graph = captured(Updates(), (torch.ones(3),))
    before = [(n.name, n.target) for n in graph.graph.nodes]
    first = RelentlessQuantizer(torch.ops.aten.add_.Tensor)
    PrecedenceQuantizer([first, RelentlessQuantizer(torch.ops.aten.mul.Tensor)]).annotate(graph)
    assert first.seen, "the in-place op must be among those that are hidden"
    assert [(n.name, n.target) for n in graph.graph.nodes] == before
    assert all("val" in n.meta or n.op == "output" for n in graph.graph.nodes)


def test_a_failing_quantizer_leaves_the_graph_as_it_was() -> None:
    class Failing(RelentlessQuantizer):
        def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
            raise RuntimeError("no")

    graph = captured(ConvLinear(), IMAGE)
    before = [(n.name, n.target) for n in graph.graph.nodes]
    with pytest.raises(RuntimeError, match="no"):
        PrecedenceQuantizer([xnnpack_quantizer(), Failing()]).annotate(graph)
    assert [(n.name, n.target) for n in graph.graph.nodes] == before


class Embedded(torch.nn.Module):
    """Indices are computed on: an op that quantizers know, on integers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.tensor([3]))
        self.table = torch.nn.Embedding(16, 8)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        embedded = self.table(ids * 2 + self.offset)
        return self.linear(embedded * mask.unsqueeze(-1))


TOKENS = (torch.tensor([[1, 2, 3]]), torch.tensor([[True, True, False]]))


def observed_integers(graph: torch.fx.GraphModule) -> list[str]:
    """The nodes whose integer or boolean inputs or outputs have a spec."""
    found = []
    for node in graph.graph.nodes:
        annotation = node.meta.get(ANNOTATION)
        if annotation is None:
            continue
        specs = [*annotation.input_qspec_map.items(), (node, annotation.output_qspec)]
        if any(spec is not None and not source.meta["val"].is_floating_point() for source, spec in specs):
            found.append(node.name)
    return found


def test_integer_and_boolean_tensors_are_never_observed() -> None:
    aten = torch.ops.aten
    arithmetic = (aten.mul.Tensor, aten.add.Tensor, aten.unsqueeze.default, aten.linear.default)
    alone, ours = captured(Embedded(), TOKENS), captured(Embedded(), TOKENS)
    RelentlessQuantizer(*arithmetic).annotate(alone)
    assert len(observed_integers(alone)) > 2
    PrecedenceQuantizer([RelentlessQuantizer(*arithmetic)]).annotate(ours)
    assert observed_integers(ours) == []
    model = Embedded()
    prepared = prepare_pt2e(captured(model, TOKENS), PrecedenceQuantizer([RelentlessQuantizer(*arithmetic)]))
    prepared(*TOKENS)
    converted = convert_pt2e(prepared)
    assert list(quantized_nodes(converted)), "the linear layer is still quantized"
    torch.testing.assert_close(converted(*TOKENS), model(*TOKENS), atol=0.05, rtol=0)


def test_a_number_that_is_added_to_an_index_stays_an_integer() -> None:
    class Offset(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(16, 8)
            self.linear = torch.nn.Linear(8, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.linear(self.table(ids + 3) * 2)

    model, ids = Offset(), (torch.tensor([[1, 2, 3]]),)
    prepared = prepare_pt2e(captured(model, ids), PrecedenceQuantizer([xnnpack_quantizer()]))
    prepared(*ids)
    torch.testing.assert_close(convert_pt2e(prepared)(*ids), model(*ids), atol=0.05, rtol=0)


def test_a_spec_that_is_shared_with_or_derived_from_an_integer_tensor_goes_with_it() -> None:
    class Sharing(RelentlessQuantizer):
        def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
            super().annotate(model)
            for node in model.graph.nodes:
                if node.target == torch.ops.aten.mul.Tensor and node.meta["val"].is_floating_point():
                    first, second = node.args
                    spec = node.meta[ANNOTATION].output_qspec
                    node.meta[ANNOTATION] = QuantizationAnnotation(
                        {second: spec, first: SharedQuantizationSpec((second, node))},
                        output_qspec=SharedQuantizationSpec((first, node)),
                    )
            return model

    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x * mask

    graph = captured(Masked(), (torch.rand(3), torch.tensor([1, 0, 1])))
    PrecedenceQuantizer([Sharing(torch.ops.aten.mul.Tensor)]).annotate(graph)
    (annotation,) = [n.meta[ANNOTATION] for n in graph.graph.nodes if ANNOTATION in n.meta]
    assert set(annotation.input_qspec_map.values()) == {None}
    assert annotation.output_qspec is None


class Masked(torch.nn.Module):
    """Scores of which some are masked, as attention does it."""

    def __init__(self, hidden: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.hidden = hidden

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x) + (1.0 - keep) * self.hidden, -1)


@pytest.mark.parametrize("hidden", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_a_masks_infinity_does_not_take_the_scale_from_all_other_values(hidden: float) -> None:
    torch.manual_seed(0)
    model, inputs = Masked(hidden), (torch.rand(4, 8) * 4, torch.tensor([1.0] * 6 + [0.0] * 2))
    errors = {}
    for marked in (False, True):
        graph = captured(model, inputs)
        if marked:
            mark_unbounded(graph, inputs)
        prepared = prepare_pt2e(graph, PrecedenceQuantizer([xnnpack_quantizer()]))
        prepared(*inputs)
        converted = convert_pt2e(prepared)
        assert list(quantized_nodes(converted))
        errors[marked] = float((converted(*inputs) - model(*inputs)).abs().max())
    assert errors[True] < 0.02
    assert errors[False] > 5 * errors[True], "without the mark the scores are lost"


def test_a_graph_without_such_numbers_is_not_run() -> None:
    mark_unbounded(captured(ConvLinear(), IMAGE), ("this would fail",))

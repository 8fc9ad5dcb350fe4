"""What a backend's compiler refuses goes elsewhere, and finding it costs few compilations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

pytest.importorskip("executorch", reason="export works on torch models")

import torch
from executorch.exir import EdgeCompileConfig
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from executorch.export import LoweringRecipe
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from recipes import ExportError, ExportRecipe, ExportSession, RecipesWarning, export


class PickyBackend(BackendDetails):  # type: ignore[misc]
    """A compiler that refuses what `refuses` tells, and counts what it compiles."""

    compilations: ClassVar[int] = 0
    refuses: ClassVar[Any] = staticmethod(lambda node: False)
    fails_always: ClassVar[bool] = False

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
        PickyBackend.compilations += 1
        if PickyBackend.fails_always:
            raise RuntimeError("the licence has expired")
        for node in edge_program.graph.nodes:
            if node.op == "call_function" and PickyBackend.refuses(node):
                raise RuntimeError(f"no rule for {node.target}\nand a page of text")
        return PreprocessResult(processed_bytes=b"picky")


class ClaimsEverything(OperatorSupportBase):
    def is_node_supported(self, submodules: Any, node: torch.fx.Node) -> bool:
        # as a real backend does, by the operator: what it refuses depends on more
        return node.op == "call_function" and "aten" in str(node.target)


class PickyPartitioner(Partitioner):  # type: ignore[misc]
    def __init__(self, *, lower_full_graph: bool = False, keeps: tuple[Any, ...] = ()) -> None:
        self.delegation_spec = DelegationSpec("PickyBackend", [])
        self.lower_full_graph = lower_full_graph
        self.keeps = keeps

    def ops_to_not_decompose(self, ep: Any) -> Any:
        return list(self.keeps), None

    def partition(self, exported_program: Any) -> PartitionResult:
        tags = {}
        for part in CapabilityBasedPartitioner(
            exported_program.graph_module, ClaimsEverything(), allows_single_node_partition=True
        ).propose_partitions():
            for node in part.nodes:
                node.meta["delegation_tag"] = f"picky{part.id}"
                tags[f"picky{part.id}"] = self.delegation_spec
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, tags)


@pytest.fixture(autouse=True)
def _fresh_backend() -> Iterator[None]:
    yield
    PickyBackend.compilations = 0
    PickyBackend.refuses = staticmethod(lambda node: False)
    PickyBackend.fails_always = False


def refuse(predicate: Any) -> None:
    PickyBackend.refuses = staticmethod(predicate)


def named(*names: str) -> Any:
    return lambda node: any(f"aten.{name}." in str(node.target) for name in names)


def recipe(**options: Any) -> ExportRecipe:
    config = EdgeCompileConfig(_check_ir_validity=False)
    lowering = LoweringRecipe([PickyPartitioner(**options)], edge_compile_config=config)
    return ExportRecipe(name="picky", lowering_recipe=lowering)


def delegates(session: ExportSession) -> int:
    graph = session.get_edge_program_manager().exported_program().graph
    return sum("call_delegate" in str(node.target) for node in graph.nodes)


class Chain(torch.nn.Module):
    """Elementwise ops, each several times."""

    def __init__(self, *ops: Any, times: int = 1) -> None:
        super().__init__()
        self.ops = ops * times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for op in self.ops:
            x = op(x)
        return x


X = torch.rand(2, 4)
MANY = (torch.sin, torch.cos, torch.tanh, torch.exp, torch.relu, torch.sigmoid, torch.abs, torch.neg)


def test_a_model_whose_ops_all_compile_is_compiled_once() -> None:
    session = export(Chain(*MANY, times=3), recipe(), X)
    assert PickyBackend.compilations == 1
    assert session.fallbacks == []
    assert delegates(session) == 1


def test_a_refused_op_goes_elsewhere_and_is_named_with_its_line_and_the_compilers_reason() -> None:
    refuse(named("tanh"))
    with pytest.warns(RecipesWarning, match=r"PickyBackend.*aten\.tanh\.default"):
        session = export(Chain(*MANY), recipe(), X)
    (fallback,) = session.fallbacks
    assert (fallback.method, fallback.op, fallback.backend) == ("forward", "aten.tanh.default", "PickyBackend")
    assert fallback.reason.startswith("RuntimeError: no rule for")
    assert "page of text" not in fallback.reason
    assert fallback.source_line.endswith(" in forward")
    assert "test_lower_stage.py:" in fallback.source_line
    assert delegates(session) == 2
    assert any(finding.code == "fallback" for finding in session.findings)


@pytest.mark.parametrize("times", [1, 12])
def test_compilations_grow_with_the_kinds_that_are_refused_not_with_the_nodes(times: int) -> None:
    refuse(named("tanh"))
    with pytest.warns(RecipesWarning):
        session = export(Chain(*MANY, times=times), recipe(), X)
    assert len(session.fallbacks) == times
    # once as asked, seven to find one of eight by halving, one to see that the rest passes
    assert PickyBackend.compilations - delegates(session) == 1 + 7 + 1


def test_all_kinds_that_are_refused_are_found_together() -> None:
    refuse(named("tanh", "sin", "neg"))
    with pytest.warns(RecipesWarning):
        session = export(Chain(*MANY), recipe(), X)
    assert {fallback.op.split(".")[1] for fallback in session.fallbacks} == {"tanh", "sin", "neg"}


def test_an_op_is_withheld_where_it_is_refused_and_not_by_its_name() -> None:
    class Pools(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.avg_pool2d(torch.nn.functional.avg_pool2d(x, 2), 3)

    refuse(lambda node: named("avg_pool2d")(node) and node.args[1] == [3, 3])
    with pytest.warns(RecipesWarning):
        session = export(Pools(), recipe(), torch.rand(1, 1, 12, 12))
    assert len(session.fallbacks) == 1
    assert delegates(session) == 1


def test_an_op_that_was_kept_whole_for_the_backend_is_taken_apart_where_it_is_refused() -> None:
    refuse(named("hardswish"))
    whole = recipe(keeps=(torch.ops.aten.hardswish.default,))
    session = export(Chain(torch.nn.functional.hardswish), whole, X)
    assert session.get_pte_buffer()
    assert session.fallbacks == []


def test_a_backend_that_compiles_nothing_is_left_out_and_named() -> None:
    PickyBackend.fails_always = True
    with pytest.warns(RecipesWarning, match="the licence has expired"):
        session = export(Chain(*MANY), recipe(), X)
    assert delegates(session) == 0
    assert {fallback.backend for fallback in session.fallbacks} == {"PickyBackend"}


def test_what_one_backend_refuses_the_next_one_takes() -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 1, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x.exp()).cos()

    refuse(named("convolution"))
    both = recipe()
    assert both.lowering_recipe is not None
    both.lowering_recipe.partitioners.append(XnnpackPartitioner())
    with pytest.warns(RecipesWarning, match="PickyBackend"):
        session = export(Two().eval(), both, torch.rand(1, 1, 6, 6))
    backends = {d.id for d in session.get_executorch_program().execution_plan[0].delegates}
    assert backends == {"PickyBackend", "XnnpackBackend"}


@pytest.mark.parametrize("strict", ["strict_delegation", "lower_full_graph"])
def test_where_everything_must_be_delegated_all_that_cannot_be_is_named_at_once(strict: str) -> None:
    refuse(named("tanh", "neg"))
    arguments: dict[str, Any] = {"strict_delegation": True} if strict == "strict_delegation" else {}
    with pytest.raises(ExportError, match=r"These operators cannot be delegated as requested") as caught:
        export(Chain(*MANY), recipe(lower_full_graph=strict == "lower_full_graph"), X, **arguments)
    assert "aten.tanh.default" in str(caught.value)
    assert "aten.neg.default" in str(caught.value)


def test_a_lowering_that_fails_without_a_backend_fails_as_it_did() -> None:
    def bad_pass(method: str, program: Any) -> Any:
        raise RuntimeError("a pass of one's own")

    broken = ExportRecipe(name="broken", lowering_recipe=LoweringRecipe(edge_transform_passes=[bad_pass]))
    with pytest.raises(ExportError, match="a pass of one's own"):
        export(Chain(*MANY), broken, X)

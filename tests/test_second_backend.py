"""A backend that is asked after another one takes what is left, whatever the other one took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult

from recipes import ExportError, ExportRecipe, LoweringRecipe, export, get_recipe


class ReluBackend(BackendDetails):  # type: ignore[misc]
    """A backend for one operator; its delegates are never run."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: list[Any]) -> Any:
        return PreprocessResult(processed_bytes=b"relu")


class ReluPartitioner(Partitioner):  # type: ignore[misc]
    """Takes every ReLU, and keeps whole what the next backend wants whole."""

    def __init__(self, after: Sequence[Any]) -> None:
        super().__init__()
        self.after = after
        self.delegation_spec = DelegationSpec("ReluBackend", [])

    def ops_to_not_decompose(self, ep: Any) -> tuple[list[Any], None]:
        return [op for partitioner in self.after for op in partitioner.ops_to_not_decompose(ep)[0]], None

    def partition(self, exported_program: Any) -> Any:
        tags = {}
        for node in exported_program.graph.nodes:
            if node.op == "call_function" and "relu" in str(node.target):
                node.meta["delegation_tag"] = node.name
                tags[node.name] = self.delegation_spec
        return PartitionResult(exported_program, tags)


@pytest.mark.filterwarnings("ignore::recipes.RecipesWarning")  # of what falls back, which is the point
@pytest.mark.parametrize(
    ("name", "delegate"),
    [
        ("coreml:fp16", "CoreMLBackend"),
        ("coreml:torchao_int8_weight_only_per_channel", "CoreMLBackend"),
        ("xnnpack:fp32", "XnnpackBackend"),
        ("xnnpack:pt2e_int8_static_per_channel", "XnnpackBackend"),
    ],
)
def test_it_takes_what_the_first_one_left(name: str, delegate: str, read_delegates: Callable[[bytes], Any]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)).eval()
    second = get_recipe(name)
    assert second.lowering_recipe is not None
    partitioner = ReluPartitioner(second.lowering_recipe.partitioners)
    first = ExportRecipe(name="relu", lowering_recipe=LoweringRecipe(partitioners=[partitioner]))
    session = export(model, ExportRecipe.combine([first, second]), [(torch.randn(1, 64),) for _ in range(3)])
    found = read_delegates(bytes(session.get_pte_buffer()))
    assert found["ReluBackend"] == 1
    assert found[delegate] >= 1, session.fallbacks


def test_a_backend_without_a_compiler_ends_the_export_at_once() -> None:
    partitioner = ReluPartitioner([])
    partitioner.delegation_spec = DelegationSpec("NowhereBackend", [])
    recipe = ExportRecipe(name="nowhere", lowering_recipe=LoweringRecipe(partitioners=[partitioner]))
    with pytest.raises(ExportError, match="Backend NowhereBackend was not found"):
        export(torch.nn.ReLU(), recipe, torch.rand(1, 4))

"""A backend that comes before the one under test and takes all of a model or a part. Imports torch and ExecuTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import executorch.export
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.export import LoweringRecipe

from recipes.recipe import ExportRecipe


class ConformanceBackend(BackendDetails):
    """Takes any program and makes an empty delegate from it."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
        """Nothing is compiled: the program is inspected and never run."""
        return PreprocessResult(processed_bytes=b"conformance")


class TakesFirst(Partitioner):
    """Gives every operation to `ConformanceBackend`, or the last one alone.

    Args:
        everything: Whether to take every operation.
        before: The partitioners that come after. ExecuTorch decomposes for each partitioner in turn, so operations
            that they need whole must be kept here too.
    """

    def __init__(self, everything: bool, before: Sequence[Partitioner]) -> None:
        super().__init__()
        self.everything = everything
        self.before = before

    def ops_to_not_decompose(self, ep: Any) -> tuple[list[Any], None]:
        """The operations that the partitioners that come after need whole."""
        return [op for partitioner in self.before for op in partitioner.ops_to_not_decompose(ep)[0]], None

    def partition(self, exported_program: Any) -> PartitionResult:
        """One partition with the operations that are taken."""
        nodes = [node for node in exported_program.graph.nodes if node.op == "call_function"]
        for node in nodes if self.everything else nodes[-1:]:
            node.meta["delegation_tag"] = "conformance"
        specification = DelegationSpec(ConformanceBackend.__name__, [])
        return PartitionResult(exported_program, {"conformance": specification} if nodes else {})


def in_front_of(recipe: ExportRecipe, *, everything: bool) -> ExportRecipe:
    """A recipe, with `ConformanceBackend` put before it.

    Args:
        recipe: The recipe.
        everything: Whether it takes every operation of the model, or the last alone.
    """
    lowering = recipe.lowering_recipe
    partitioners = (lowering.partitioners if lowering is not None else None) or []
    if isinstance(partitioners, dict):  # by method
        partitioners = [partitioner for several in partitioners.values() for partitioner in several]
    taking = TakesFirst(everything, partitioners)
    first = executorch.export.ExportRecipe(name="conformance", lowering_recipe=LoweringRecipe(partitioners=[taking]))
    return ExportRecipe.combine([first, recipe])

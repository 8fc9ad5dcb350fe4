"""A backend that comes before the one under test and takes all of a model or a part. Imports torch and ExecuTorch."""

from __future__ import annotations

from typing import Any

import executorch.export
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.export import LoweringRecipe


class ConformanceBackend(BackendDetails):  # type: ignore[misc]
    """Takes whatever it is given and makes an empty delegate of it."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
        """Nothing is compiled: the program is looked at and never run."""
        return PreprocessResult(processed_bytes=b"conformance")


class TakesFirst(Partitioner):  # type: ignore[misc]
    """Gives every operation to `ConformanceBackend`, or the last one alone.

    Args:
        everything: Whether to take every operation.
    """

    def __init__(self, everything: bool) -> None:
        super().__init__()
        self.everything = everything

    def partition(self, exported_program: Any) -> PartitionResult:
        """One partition with what is taken."""
        nodes = [node for node in exported_program.graph.nodes if node.op == "call_function"]
        for node in nodes if self.everything else nodes[-1:]:
            node.meta["delegation_tag"] = "conformance"
        specification = DelegationSpec(ConformanceBackend.__name__, [])
        return PartitionResult(exported_program, {"conformance": specification} if nodes else {})


def recipe(everything: bool) -> executorch.export.ExportRecipe:
    """A recipe to combine with, as the first.

    Args:
        everything: Whether it takes every operation of the model, or the last alone.
    """
    return executorch.export.ExportRecipe(
        name="conformance", lowering_recipe=LoweringRecipe(partitioners=[TakesFirst(everything)])
    )

"""Lower a model although a backend's compiler refuses ops that its partitioner claimed.

A model whose ops all compile is lowered once, by ExecuTorch's own stage. If that fails, each partitioner claims ops
again, and its compiler gets tiny programs that have one op of each kind that was claimed. A binary search finds the
kinds that the compiler refuses. They are withheld from the partitioner, so that they go to the next one or to the
portable kernels. The number of compilations grows with the number of refused kinds, and with the logarithm of the
number of all kinds.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import torch
from executorch.export.stages import EdgeTransformAndLowerStage, PipelineArtifact
from torch.export import ExportedProgram
from torch.utils._sympy.numbers import int_oo

from recipes.common import ArgumentError, ExportError
from recipes.executorch.probe import Attempt, Fallback, Probe, RefusalError
from recipes.executorch.programs import to_lower
from recipes.executorch.ranges import keeping_ranges, unbounded

_UNDELEGATED = re.compile(r"EdgeOpOverload: (\S+)>.* was not decomposed or delegated", re.DOTALL)
"""ExecuTorch's error if a backend does not take an operator that was kept whole for it."""


_NO_BACKEND = re.compile(r"Backend \S+ was not found")
"""ExecuTorch's error if a partitioner names a backend that has no compiler, so that nothing can be compiled again."""


class LowerStage(EdgeTransformAndLowerStage):
    """Lower to the backends, and withhold from each backend the ops that its compiler refuses.

    Args:
        partitioners: As in `executorch.export.LoweringRecipe`.
        transform_passes: Its `edge_transform_passes`.
        compile_config: Its `edge_compile_config`; it is not changed.
        strict: Whether an op that a backend claims and cannot compile is an error.
    """

    def __init__(self, partitioners: Any, transform_passes: Any, compile_config: Any, *, strict: bool) -> None:
        super().__init__(partitioners, transform_passes, compile_config)
        self._partitioners: Any
        self._compile_config: Any
        self._strict = strict
        self.fallbacks: list[Fallback] = []

    def run(self, artifact: PipelineArtifact) -> None:
        """Lower the programs; if a compiler refuses ops, find them and lower again without them.

        Raises:
            ExportError: Ops are refused, and `strict` is true or a partitioner must take the whole model. The message
                names all of these ops.
        """
        self.fallbacks = []
        for method, program in artifact.data.items():
            _check_bounds(method, program)
        asked, config = self._partitioners, self._compile_config
        self._compile_config = copy.deepcopy(config)  # ExecuTorch adds ops to the config
        try:
            with keeping_ranges(artifact.data.values()):
                try:
                    super().run(to_lower(artifact))
                except Exception as error:
                    if not asked or _NO_BACKEND.search(str(error)):
                        raise
                    self._lower_without_refused(to_lower(artifact, again=True), asked, config, error)
        finally:
            self._partitioners, self._compile_config = asked, config

    def _lower_without_refused(self, artifact: PipelineArtifact, asked: Any, config: Any, first: Exception) -> None:
        progress = Attempt()
        by_method = asked if isinstance(asked, Mapping) else dict.fromkeys(artifact.data, asked)
        probes = {
            method: [Probe(p, method, artifact.data[method], config, progress) for p in partitioners]
            for method, partitioners in by_method.items()
        }
        while True:
            self._partitioners, self._compile_config = probes, copy.deepcopy(config)
            progress.current = None
            try:
                super().run(artifact)
                break
            except RefusalError:
                continue  # lower again without the ops that were found
            except Exception as error:
                probe = progress.current
                if probe is None or probe.withholds_all:
                    raise first from error
                # An operator that was kept whole for a backend, but not taken by it, is decomposed for the next one.
                whole_in_vain = _UNDELEGATED.search(str(error))
                if whole_in_vain is not None and probe.decompose(whole_in_vain[1]):
                    continue
                probe.withhold_all(first)
        found = [fallback for group in probes.values() for probe in group for fallback in probe.fallbacks()]
        whole = [probe for group in probes.values() for probe in group if probe.must_take_all]
        if found and (self._strict or whole):
            lines = "\n".join(f"  {fallback.backend} cannot take {fallback}" for fallback in found)
            raise ExportError(
                f"These operators cannot be delegated as requested:\n{lines}", "to_edge_transform_and_lower"
            )
        self.fallbacks = found


def _check_bounds(method: str, program: ExportedProgram) -> None:
    """Refuse a dynamic input size without an upper bound: memory would be planned only for the example's size."""
    endless = {str(s) for s, limits in program.range_constraints.items() if limits.upper == int_oo}
    for name in program.graph_signature.user_inputs:
        value = next((n.meta.get("val") for n in program.graph.nodes if n.name == name), None)
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if str(size) in endless:
                raise ArgumentError(unbounded(f"dimension {axis} of {name!r} in method {method!r}"))

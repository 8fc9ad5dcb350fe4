"""Work that several exports of one model share, so that it is done once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from executorch.export import QuantizationRecipe
from executorch.export.stages import PipelineArtifact
from torch.export import ExportedProgram

from recipes.common import same

CONTEXT_KEY = "recipes_shared_work"
"""The key of a session's `SharedWork` in the context of its artifacts."""

Made = TypeVar("Made")
Decompositions = dict[Hashable, ExportedProgram]


class SharedWork:
    """Results that the exports of one model share, for the same inputs, shapes and calibration data.

    Args:
        quantizations: The quantization recipes of all exports. None may have been used yet, because a used
            quantizer no longer equals a fresh one.
    """

    def __init__(self, quantizations: Sequence[QuantizationRecipe | None] = ()) -> None:
        self._quantizations = list(quantizations)  # kept, so that no other object can get their ids
        self._number = {
            id(recipe): next(number for number, other in enumerate(quantizations) if same(recipe, other))
            for recipe in quantizations
        }
        self._made: dict[Hashable, tuple[Any, Any, list[warnings.WarningMessage]]] = {}

    def quantization(self, recipe: QuantizationRecipe | None) -> Hashable:
        """A key that is equal for recipes that quantize in the same way."""
        return self._number.get(id(recipe), id(recipe))

    def once(self, what: str, models: Sequence[Any], key: Hashable, make: Callable[[], Made]) -> Made:
        """Return the result of `make` for a key; it is called only the first time, but its warnings are repeated.

        Args:
            what: The kind of work.
            models: The models that are worked on; they are compared by identity.
            key: Everything else that decides the result.
            make: The function that does the work.
        """
        whole = (what, *map(id, models), key)
        if whole not in self._made:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                made = make()
            self._made[whole] = made, models, caught  # the models are kept, so that no other object can get their ids
        made, _, caught = self._made[whole]
        for warning in caught:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        return made

    def decompositions(self, program: ExportedProgram) -> Decompositions:
        """The dict that keeps the decompositions of a captured program."""
        return self.once("decompositions", [program], (), dict)


def shared_work(artifact: PipelineArtifact) -> SharedWork:
    """The work that an export shares with others; an empty one if it shares none."""
    return artifact.get_context(CONTEXT_KEY) or SharedWork()

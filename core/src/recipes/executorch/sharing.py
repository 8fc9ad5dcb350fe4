"""Work that the exports of one model have in common, done once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from executorch.export import QuantizationRecipe
from executorch.export.stages import PipelineArtifact
from torch.export import ExportedProgram

from recipes.common import same

CONTEXT_KEY = "recipes_shared_work"
"""Where the stages of a session find its `SharedWork`, in the context of their artefacts."""

Made = TypeVar("Made")
Decompositions = dict[Hashable, ExportedProgram]


class SharedWork:
    """What the exports of one model, with the same inputs, shapes and calibration data, make only once.

    Args:
        quantizations: The quantization recipes of all exports, none of which has been used yet: a quantizer
            that worked is no longer like a fresh one.
    """

    def __init__(self, quantizations: Sequence[QuantizationRecipe | None] = ()) -> None:
        self._quantizations = list(quantizations)  # kept, so that no other object can get their ids
        self._number = {
            id(recipe): next(number for number, other in enumerate(quantizations) if same(recipe, other))
            for recipe in quantizations
        }
        self._made: dict[Hashable, tuple[Any, Any, list[warnings.WarningMessage]]] = {}

    def quantization(self, recipe: QuantizationRecipe | None) -> Hashable:
        """A key that is equal for recipes that quantize alike."""
        return self._number.get(id(recipe), id(recipe))

    def once(self, what: str, models: Sequence[Any], key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` made for this key; it is called where nothing was made yet, and its warnings are given each time.

        Args:
            what: The kind of work.
            models: What is worked on; known again by identity.
            key: What else decides the result.
            make: Does the work.
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
        """Where the decompositions of a captured program are kept."""
        return self.once("decompositions", [program], (), dict)


def shared_work(artifact: PipelineArtifact) -> SharedWork:
    """What an export shares with others; where it is alone, nothing that anybody else made."""
    return artifact.get_context(CONTEXT_KEY) or SharedWork()

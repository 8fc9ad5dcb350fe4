"""The calibration inputs that an export is given, for each method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import executorch.export
import torch

from recipes.arguments.samples import bind
from recipes.common import ArgumentError
from recipes.recipe import ExportRecipe


def calibrates(recipe: executorch.export.ExportRecipe) -> bool:
    """Whether a recipe measures ranges on samples, so that it uses `calibration_inputs`."""
    quantization = recipe.quantization_recipe
    return quantization is not None and bool(quantization.quantizers) and not quantization.is_qat


def calibration_functions(
    given: Any, models: Mapping[str, Any], kind: str, recipe: ExportRecipe
) -> dict[str, Callable[[], Iterable[Any]]] | None:
    if given is None:
        return None
    quantization = recipe.quantization_recipe
    if quantization is None or not calibrates(recipe) or kind != "nn.Module":
        why = f"the recipe {recipe.name!r} does not calibrate" if kind == "nn.Module" else f"a {kind} is not quantized"
        raise ArgumentError(f"calibration_inputs cannot be used here: {why}. Leave them out.")
    if quantization.calibration_inputs_fn is not None:
        raise ArgumentError(
            f"The recipe {recipe.name!r} has its own calibration_inputs_fn; give calibration_inputs or set it in the "
            "recipe, not both."
        )
    if isinstance(given, Mapping):
        unknown = [str(key) for key in given if key not in models]
        if unknown or len(given) != len(models):
            raise ArgumentError(
                f"A dict of calibration_inputs must have a key for each method; it has "
                f"{', '.join(map(str, given))}, but the methods are {', '.join(models)}."
            )
        return {method: _samples_function(value, method, models[method]) for method, value in given.items()}
    return {method: _samples_function(given, method, model) for method, model in models.items()}


def _samples_function(value: Any, method: str, model: Any) -> Callable[[], Iterable[Any]]:
    if callable(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, torch.Tensor) or not isinstance(value, Iterable):
        raise ArgumentError(
            f"calibration_inputs for method {method!r} is a {type(value).__name__}; it must be an iterable of "
            "tuples of forward's arguments, or a function that returns one."
        )
    if isinstance(value, list | tuple):
        for index, sample in enumerate(value):
            inputs = (sample,) if isinstance(sample, torch.Tensor) else sample
            if not isinstance(inputs, tuple | list):
                raise ArgumentError(f"calibration_inputs[{index}] is a {type(sample).__name__}; it must be a tuple.")
            bind(method, model, inputs, f"calibration_inputs[{index}]")
        if not value:
            raise ArgumentError(f"calibration_inputs for method {method!r} is empty.")
    return lambda: value

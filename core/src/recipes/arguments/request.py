"""Check and normalize the arguments of `export`, and refuse what would fail later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import executorch.export
import torch
from torch.export import ExportedProgram

from recipes.arguments.calibration import calibration_functions
from recipes.arguments.models import models_by_method
from recipes.arguments.samples import USAGE, Sample, bind, samples_by_method
from recipes.arguments.shapes import check_shapes, shapes_by_method
from recipes.common import ArgumentError
from recipes.plugins import split_target_name
from recipes.recipe import ExportRecipe
from recipes.registry import default_registry


@dataclass(frozen=True)
class Request:
    """The checked arguments of an export.

    Args:
        models: A model for each method.
        kind: The kind of all of them: `nn.Module`, `GraphModule` or `ExportedProgram`.
        recipe: How to lower them.
        samples: For each method its example inputs; the first is used for capture.
        dynamic_shapes: For each method with dynamic shapes one entry for each of its parameters, in order.
        calibration_inputs: For each method a function that returns its calibration samples, or None.
    """

    models: dict[str, Any]
    kind: str
    recipe: ExportRecipe
    samples: dict[str, list[Sample]]
    dynamic_shapes: dict[str, Any]
    calibration_inputs: dict[str, Callable[[], Iterable[Any]]] | None


def check_arguments(
    model: Any, recipe: Any, example_inputs: Any, dynamic_shapes: Any = None, calibration_inputs: Any = None
) -> Request:
    """Check the arguments of `export`, which documents them.

    Raises:
        ArgumentError: An argument is missing, swapped with another, or not what it must be.
        RecipesError: The recipe cannot be made.
    """
    _refuse_swapped(model, recipe, example_inputs)
    models, kind = models_by_method(model)
    made = resolve_recipe(recipe)
    samples = samples_by_method(example_inputs, models, kind)
    for method, module in models.items():
        for index, sample in enumerate(samples.get(method, ())):
            bind(method, module, sample, f"example_inputs[{index}]")
    shapes = shapes_by_method(dynamic_shapes, models, kind, samples)
    check_shapes(shapes, models, samples)
    calibration = calibration_functions(calibration_inputs, models, kind, made)
    return Request(models, kind, made, samples, shapes, calibration)


def check_constant_methods(constant_methods: Any, models: Mapping[str, Any]) -> None:
    """Refuse constant methods that are not a dict, or that have the name of a method of the model.

    Raises:
        ArgumentError: The constant methods are refused.
    """
    if constant_methods is None:
        return
    if not isinstance(constant_methods, dict):
        raise ArgumentError(
            f"constant_methods is a {type(constant_methods).__name__}; it must be a dict by method name."
        )
    for name in constant_methods:
        if name in models:
            raise ArgumentError(
                f"constant_methods names {name!r}, which is a method of the model; choose another name."
            )


def resolve_recipe(recipe: Any) -> ExportRecipe:
    """Turn a target's name, a recipe type or its id, a recipe, or a list of these into one recipe.

    Raises:
        ArgumentError: It is none of these.
        RecipesError: It is one, but cannot be made here.
    """
    if recipe is None:
        raise ArgumentError(f"export needs a recipe: {USAGE}, where recipe is a target's name, a recipe or a list.")
    if isinstance(recipe, executorch.export.ExportRecipe):
        return ExportRecipe.combine([recipe])  # returns ours unchanged, and ExecuTorch's as ours
    if isinstance(recipe, str):
        registry = default_registry()
        return registry.get_recipe(recipe) if ":" in recipe else registry.get_target_recipe(recipe)
    if _is_recipe_type(recipe):
        return default_registry().get_recipe(recipe)
    if isinstance(recipe, list | tuple):
        if not recipe:
            raise ArgumentError("The list of recipes is empty.")
        return ExportRecipe.combine([resolve_recipe(item) for item in recipe])
    raise ArgumentError(
        f"recipe is a {type(recipe).__name__}; it must be an ExportRecipe, a RecipeType, a target's name, or a list "
        f"of these: {USAGE}."
    )


def _is_recipe_type(value: Any) -> bool:
    return callable(getattr(value, "get_backend_name", None)) and isinstance(getattr(value, "name", None), str)


def _like_a_recipe(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(_like_a_recipe(item) for item in value)
    if isinstance(value, str):
        return ":" in value or split_target_name(value) is not None
    return isinstance(value, executorch.export.ExportRecipe) or _is_recipe_type(value)


def _like_inputs(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(_like_inputs(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_like_inputs(item) for item in value)
    return isinstance(value, torch.Tensor)


def _refuse_swapped(model: Any, recipe: Any, example_inputs: Any) -> None:
    if _like_inputs(recipe) and _like_a_recipe(example_inputs):
        raise ArgumentError(f"recipe and example_inputs are swapped; write {USAGE}.")
    if _like_a_recipe(model) and (isinstance(recipe, torch.nn.Module | ExportedProgram)):
        raise ArgumentError(f"model and recipe are swapped; write {USAGE}.")
    if _like_inputs(model) and isinstance(recipe, torch.nn.Module | ExportedProgram):
        raise ArgumentError(f"model and example inputs are swapped; write {USAGE}.")
    if _like_inputs(recipe):
        raise ArgumentError(f"The second argument must be the recipe, but it holds example inputs; write {USAGE}.")

"""Bring the arguments of `export` into one form, and refuse what could only fail later."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import executorch.export
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils._sympy.numbers import int_oo

from recipes.errors import ArgumentError, did_you_mean
from recipes.export_recipe import ExportRecipe
from recipes.registry import default_registry
from recipes.targets import split_target_name

USAGE = "export(model, recipe, example_inputs)"

Sample = tuple[Any, ...]


@dataclass(frozen=True)
class Request:
    """What an export is asked to do, checked.

    Args:
        models: A model for each method.
        kind: What they all are: `nn.Module`, `GraphModule` or `ExportedProgram`.
        recipe: How to lower them.
        samples: For each method its example inputs; the first is used for capture.
        dynamic_shapes: For each method with dynamic shapes one entry for each of its parameters, in order.
        calibration_inputs: For each method what gives its calibration samples, or None.
    """

    models: dict[str, Any]
    kind: str
    recipe: ExportRecipe
    samples: dict[str, list[Sample]]
    dynamic_shapes: dict[str, Any]
    calibration_inputs: dict[str, Callable[[], Iterable[Any]]] | None


def check(
    model: Any, recipe: Any, example_inputs: Any, dynamic_shapes: Any = None, calibration_inputs: Any = None
) -> Request:
    """Check the arguments of `export`; they are described there.

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
            _bind(method, module, sample, f"example_inputs[{index}]")
    shapes = _dynamic_shapes(dynamic_shapes, models, kind, samples)
    _check_shapes(shapes, models, samples)
    calibration = _calibration_inputs(calibration_inputs, models, kind, made)
    return Request(models, kind, made, samples, shapes, calibration)


def check_constant_methods(constant_methods: Any, models: Mapping[str, Any]) -> None:
    """Refuse constant methods that are no dict, or that are called like a method of the model.

    Raises:
        ArgumentError: They are.
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
    """The recipe that a target's name, a recipe type or its id, a recipe, or a list of these stands for.

    Raises:
        ArgumentError: It is none of these.
        RecipesError: It is one, but cannot be made here.
    """
    if recipe is None:
        raise ArgumentError(f"export needs a recipe: {USAGE}, where recipe is a target's name, a recipe or a list.")
    if isinstance(recipe, executorch.export.ExportRecipe):
        return ExportRecipe.combine([recipe])  # ours comes back as it is, ExecuTorch's as ours
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
        raise ArgumentError(f"The second argument is the recipe, and these are example inputs; write {USAGE}.")


def _kind(model: Any) -> str:
    if isinstance(model, ExportedProgram):
        return "ExportedProgram"
    if isinstance(model, GraphModule):
        return "GraphModule"
    return "nn.Module" if isinstance(model, torch.nn.Module) else ""


def models_by_method(model: Any) -> tuple[dict[str, Any], str]:
    if isinstance(model, str | os.PathLike):
        model = _load(Path(model))
    models = dict(model) if isinstance(model, Mapping) else {"forward": model}
    if not models:
        raise ArgumentError("model is an empty dict; give a model for each method.")
    for method, value in models.items():
        if not (isinstance(method, str) and method.isidentifier()):
            raise ArgumentError(f"model has the method name {method!r}, which is not an identifier.")
        if not _kind(value):
            hint = " Give an instance, not the class." if isinstance(value, type) else ""
            raise ArgumentError(
                f"model is a {type(value).__name__}; it must be a torch.nn.Module, a GraphModule, an "
                f"ExportedProgram, the path of a .pt2 file, or a dict of these by method.{hint}"
            )
    kinds = {method: _kind(value) for method, value in models.items()}
    if len(set(kinds.values())) > 1:
        raise ArgumentError(
            "The methods of a model must be of one kind, and these are of several: "
            + ", ".join(f"{method} is a {kind}" for method, kind in kinds.items())
            + "."
        )
    return models, next(iter(kinds.values()))


def _load(path: Path) -> ExportedProgram:
    if not path.is_file():
        beside = [file.name for file in path.parent.glob("*.pt2")]
        raise ArgumentError(f"model names {str(path)!r}, and there is no such file.{did_you_mean(path.name, beside)}")
    try:
        return torch.export.load(path)
    except Exception as error:
        raise ArgumentError(
            f"The file {str(path)!r} cannot be read as an exported program ({type(error).__name__}: {error}). "
            "Make it with torch.export.save."
        ) from error


def samples_by_method(example_inputs: Any, models: Mapping[str, Any], kind: str) -> dict[str, list[Sample]]:
    if example_inputs is None:
        if kind != "ExportedProgram":
            raise ArgumentError(f"example_inputs are needed to capture a {kind}: {USAGE}.")
        kept = {method: program.example_inputs for method, program in models.items()}
        return {method: [tuple(inputs[0])] for method, inputs in kept.items() if inputs is not None}
    if isinstance(example_inputs, Mapping):
        unknown = [str(key) for key in example_inputs if key not in models]
        missing = [method for method in models if method not in example_inputs]
        if unknown:
            raise ArgumentError(
                f"A dict of example_inputs gives them by method, and {', '.join(map(repr, unknown))} is none; "
                f"methods: {', '.join(models)}. Arguments of forward are given in order, as a tuple."
            )
        if missing and kind != "ExportedProgram":
            raise ArgumentError(f"example_inputs has nothing for the method {', '.join(map(repr, missing))}.")
        return {
            method: _method_samples(value, f"example_inputs[{method!r}]") for method, value in example_inputs.items()
        }
    if len(models) > 1:
        raise ArgumentError(f"A model with the methods {', '.join(models)} needs example_inputs as a dict by method.")
    (method,) = models
    return {method: _method_samples(example_inputs, "example_inputs")}


def _method_samples(value: Any, what: str) -> list[Sample]:
    if isinstance(value, torch.Tensor):
        return [(value,)]
    if isinstance(value, tuple):
        return [value]
    if not isinstance(value, list):
        raise ArgumentError(
            f"{what} is a {type(value).__name__}; it must be a tensor, a tuple of forward's arguments, or a list of "
            "such tuples."
        )
    if not value:
        raise ArgumentError(f"{what} is an empty list; give at least one tuple of forward's arguments.")
    for index, sample in enumerate(value):
        if not isinstance(sample, tuple):
            raise ArgumentError(
                f"{what}[{index}] is a {type(sample).__name__}; a list holds one tuple for each sample: [(x, y), ...]. "
                "Arguments of one sample are a tuple: (x, y)."
            )
    return list(value)


def _signature(model: Any) -> inspect.Signature | None:
    """The parameters of forward, or None where they cannot be told (an ExportedProgram has its own)."""
    if isinstance(model, ExportedProgram):
        return None
    try:
        return inspect.signature(model.forward)
    except (TypeError, ValueError):
        return None


def _bind(method: str, model: Any, sample: Sequence[Any], what: str) -> list[str]:
    """The parameters that a sample fills, in order; refuses one that does not fit."""
    signature = _signature(model)
    if signature is None:
        return []
    try:
        return list(signature.bind(*sample).arguments)
    except TypeError as error:
        raise ArgumentError(
            f"{what} does not fit {type(model).__name__}.forward{signature} of method {method!r}: it has "
            f"{len(sample)} argument{'' if len(sample) == 1 else 's'} ({error})."
        ) from None


def _dynamic_shapes(
    dynamic_shapes: Any, models: Mapping[str, Any], kind: str, samples: Mapping[str, list[Sample]]
) -> dict[str, Any]:
    if dynamic_shapes is None:
        return {}
    if kind == "ExportedProgram":
        raise ArgumentError("dynamic_shapes have no use here: an ExportedProgram keeps the shapes of its capture.")
    parameters = {method: _bind(method, model, samples[method][0], "") for method, model in models.items()}
    by_method = isinstance(dynamic_shapes, dict) and bool(dynamic_shapes) and set(dynamic_shapes) <= set(models)
    if by_method and len(models) == 1 and set(dynamic_shapes) <= set(next(iter(parameters.values()))):
        by_method = False  # a parameter that is called like the method
    if by_method:
        return {m: _method_shapes(s, m, parameters[m]) for m, s in dynamic_shapes.items() if s is not None}
    if len(models) > 1:
        raise ArgumentError(
            f"A model with the methods {', '.join(models)} needs dynamic_shapes as a dict by method, not "
            f"{dynamic_shapes!r}."
        )
    (method,) = models
    return {method: _method_shapes(dynamic_shapes, method, parameters[method])}


def _check_shapes(shapes: Mapping[str, Any], models: Mapping[str, Any], samples: Mapping[str, list[Sample]]) -> None:
    for method, specs in shapes.items():
        signature = _signature(models[method])
        if isinstance(specs, tuple) and signature is not None:
            filled = signature.bind(*samples[method][0]).arguments
            for (name, value), spec in zip(filled.items(), specs, strict=True):
                _check_dimensions(method, name, spec, value)


def _method_shapes(shapes: Any, method: str, parameters: list[str]) -> Any:
    """One entry for each parameter, in order, as `torch.export` takes it for any name of theirs."""
    if isinstance(shapes, dict):
        for name in shapes:
            if parameters and name not in parameters:
                raise ArgumentError(
                    f"dynamic_shapes names {name!r}, which is no argument of method {method!r}."
                    f"{did_you_mean(str(name), parameters)} Arguments: {', '.join(parameters)}."
                )
        return tuple(shapes.get(name) for name in parameters) if parameters else shapes
    if isinstance(shapes, tuple | list):
        if parameters and len(shapes) != len(parameters):
            raise ArgumentError(
                f"dynamic_shapes has {len(shapes)} entries for method {method!r}, whose example inputs fill "
                f"{len(parameters)} arguments: {', '.join(parameters)}."
            )
        return tuple(shapes)
    if isinstance(shapes, torch.export.ShapesCollection | torch.export.AdditionalInputs):
        return shapes
    raise ArgumentError(
        f"dynamic_shapes is a {type(shapes).__name__}; it must be a dict by argument name, a tuple with an entry for "
        "each argument, or a dict of these by method."
    )


def calibrates(recipe: executorch.export.ExportRecipe) -> bool:
    """Whether a recipe measures ranges on samples, so that `calibration_inputs` are of use to it."""
    quantization = recipe.quantization_recipe
    return quantization is not None and bool(quantization.quantizers) and not quantization.is_qat


def _check_dimensions(method: str, name: str, spec: Any, value: Any) -> None:
    """Refuse a dynamic dimension that a tensor does not have, or that has no end."""
    if isinstance(value, list | tuple) and isinstance(spec, list | tuple) and len(spec) == len(value):
        for index, (inner, item) in enumerate(zip(spec, value, strict=True)):
            _check_dimensions(method, f"{name}[{index}]", inner, item)
    if not isinstance(value, torch.Tensor) or not isinstance(spec, dict | list | tuple):
        return
    dimensions = dict(spec) if isinstance(spec, dict) else dict(enumerate(spec))
    for axis, dimension in dimensions.items():
        if not isinstance(axis, int) or not -value.dim() <= axis < value.dim():
            raise ArgumentError(
                f"dynamic_shapes gives dimension {axis!r} of {name!r} in method {method!r}, which has "
                f"{value.dim()} dimensions: 0 to {value.dim() - 1}."
            )
        if getattr(dimension, "max", 0) == int_oo:
            raise ArgumentError(unbounded(f"dimension {axis} of {name!r} in method {method!r}"))


def unbounded(what: str) -> str:
    """What to say of a dynamic size that has no end."""
    return (
        f"The dynamic {what} has no upper bound, and ExecuTorch plans memory for the largest size: give one, such as "
        "torch.export.Dim('batch', min=1, max=64)."
    )


def _calibration_inputs(
    given: Any, models: Mapping[str, Any], kind: str, recipe: ExportRecipe
) -> dict[str, Callable[[], Iterable[Any]]] | None:
    if given is None:
        return None
    quantization = recipe.quantization_recipe
    if quantization is None or not calibrates(recipe) or kind != "nn.Module":
        why = f"the recipe {recipe.name!r} does not calibrate" if kind == "nn.Module" else f"a {kind} is not quantized"
        raise ArgumentError(f"calibration_inputs have no use here: {why}. Leave them out.")
    if quantization.calibration_inputs_fn is not None:
        raise ArgumentError(
            f"The recipe {recipe.name!r} brings its own calibration_inputs_fn; give calibration_inputs, or have it in "
            "the recipe, not both."
        )
    if isinstance(given, Mapping):
        unknown = [str(key) for key in given if key not in models]
        if unknown or len(given) != len(models):
            raise ArgumentError(
                f"A dict of calibration_inputs gives them for each method; it has "
                f"{', '.join(map(str, given))}, and the methods are {', '.join(models)}."
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
            _bind(method, model, inputs, f"calibration_inputs[{index}]")
        if not value:
            raise ArgumentError(f"calibration_inputs for method {method!r} is empty.")
    return lambda: value

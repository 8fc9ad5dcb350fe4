"""The dynamic shapes that an export is given, for each method."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.export.dynamic_shapes import _DimHint
from torch.utils._sympy.numbers import int_oo

from recipes.arguments.samples import Sample, bind, signature_of
from recipes.common import ArgumentError, did_you_mean
from recipes.executorch import unbounded


def shapes_by_method(
    dynamic_shapes: Any, models: Mapping[str, Any], kind: str, samples: Mapping[str, list[Sample]]
) -> dict[str, Any]:
    if dynamic_shapes is None:
        return {}
    if kind == "ExportedProgram":
        raise ArgumentError("dynamic_shapes cannot be used here: an ExportedProgram keeps the shapes of its capture.")
    parameters = {method: bind(method, model, samples[method][0], "") for method, model in models.items()}
    by_method = isinstance(dynamic_shapes, dict) and bool(dynamic_shapes) and set(dynamic_shapes) <= set(models)
    if by_method and len(models) == 1 and set(dynamic_shapes) <= set(next(iter(parameters.values()))):
        by_method = False  # a parameter with the name of the method
    if by_method:
        return {
            m: _method_shapes(_grouped(s, models[m], samples[m][0]), m, parameters[m])
            for m, s in dynamic_shapes.items()
            if s is not None
        }
    if len(models) > 1:
        raise ArgumentError(
            f"A model with the methods {', '.join(models)} needs dynamic_shapes as a dict by method, not "
            f"{dynamic_shapes!r}."
        )
    (method,) = models
    grouped = _grouped(dynamic_shapes, models[method], samples[method][0])
    return {method: _method_shapes(grouped, method, parameters[method])}


def _grouped(shapes: Any, model: Any, sample: Sample) -> Any:
    """Shapes in which those of `*args` stand together, as `torch.export` wants them; they may be given one by one."""
    signature = signature_of(model)
    kinds = [parameter.kind for parameter in signature.parameters.values()] if signature is not None else []
    if inspect.Parameter.VAR_POSITIONAL not in kinds or not isinstance(shapes, tuple | list):
        return shapes
    first = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    stands_together = len(shapes) == first + 1 and _is_of_several(shapes[first], len(sample) - first)
    if stands_together or len(shapes) != len(sample):
        return shapes
    return (*shapes[:first], tuple(shapes[first:]))


def _is_of_several(shapes: Any, count: int) -> bool:
    """Whether there is an entry for each of several arguments, rather than one for each dimension of a tensor."""
    if not isinstance(shapes, tuple | list) or len(shapes) != count:
        return False
    return all(entry is None or isinstance(entry, dict | tuple | list) for entry in shapes)


def check_shapes(shapes: Mapping[str, Any], models: Mapping[str, Any], samples: Mapping[str, list[Sample]]) -> None:
    for method, specs in shapes.items():
        signature = signature_of(models[method])
        if isinstance(specs, tuple) and signature is not None:
            filled = signature.bind(*samples[method][0]).arguments
            for (name, value), spec in zip(filled.items(), specs, strict=True):
                _check_dimensions(method, name, spec, value)


def _method_shapes(shapes: Any, method: str, parameters: list[str]) -> Any:
    """One entry for each parameter, in order: `torch.export` accepts that whatever the parameters' names."""
    if isinstance(shapes, dict):
        for name in shapes:
            if parameters and name not in parameters:
                raise ArgumentError(
                    f"dynamic_shapes names {name!r}, which is not an argument of method {method!r}."
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


def _check_dimensions(method: str, name: str, spec: Any, value: Any) -> None:
    """Refuse a dynamic dimension that a tensor does not have, or that has no upper bound."""
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
        # What torch.export decides (`Dim.AUTO`, `Dim.DYNAMIC`) may get its end from another argument.
        if not isinstance(dimension, _DimHint) and getattr(dimension, "max", 0) == int_oo:
            raise ArgumentError(unbounded(f"dimension {axis} of {name!r} in method {method!r}"))

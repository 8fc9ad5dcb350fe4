"""The example inputs that an export is given, for each method."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from recipes.common import ArgumentError

USAGE = "export(model, recipe, example_inputs)"

Sample = tuple[Any, ...]


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
                f"A dict of example_inputs must have methods as keys, not {', '.join(map(repr, unknown))}; "
                f"methods: {', '.join(models)}. Give the arguments of forward in order, as a tuple."
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
                "Give the arguments of one sample as a tuple: (x, y)."
            )
    return list(value)


def signature_of(model: Any) -> inspect.Signature | None:
    """The parameters of forward, or None where they are unknown (an ExportedProgram has its own)."""
    if isinstance(model, ExportedProgram):
        return None
    try:
        return inspect.signature(model.forward)
    except (TypeError, ValueError):
        return None


def bind(method: str, model: Any, sample: Sequence[Any], what: str) -> list[str]:
    """Return the parameters that a sample fills, in order; raise where it does not fit."""
    signature = signature_of(model)
    if signature is None:
        return []
    try:
        return list(signature.bind(*sample).arguments)
    except TypeError as error:
        raise ArgumentError(
            f"{what} does not fit {type(model).__name__}.forward{signature} of method {method!r}: it has "
            f"{len(sample)} argument{'' if len(sample) == 1 else 's'} ({error})."
        ) from None

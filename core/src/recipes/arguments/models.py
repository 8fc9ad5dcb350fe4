"""The models that an export is given, one for each method."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from recipes.common import ArgumentError, did_you_mean


def kind_of(model: Any) -> str:
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
        if not kind_of(value):
            hint = " Give an instance, not the class." if isinstance(value, type) else ""
            raise ArgumentError(
                f"model is a {type(value).__name__}; it must be a torch.nn.Module, a GraphModule, an "
                f"ExportedProgram, the path of a .pt2 file, or a dict of these by method.{hint}"
            )
    kinds = {method: kind_of(value) for method, value in models.items()}
    if len(set(kinds.values())) > 1:
        raise ArgumentError(
            "The methods of a model must all be of one kind, but these are not: "
            + ", ".join(f"{method} is a {kind}" for method, kind in kinds.items())
            + "."
        )
    return models, next(iter(kinds.values()))


def _load(path: Path) -> ExportedProgram:
    if not path.is_file():
        beside = [file.name for file in path.parent.glob("*.pt2")]
        raise ArgumentError(f"model names {str(path)!r}, but there is no such file.{did_you_mean(path.name, beside)}")
    try:
        return torch.export.load(path)
    except Exception as error:
        raise ArgumentError(
            f"The file {str(path)!r} cannot be read as an exported program ({type(error).__name__}: {error}). "
            "Make it with torch.export.save."
        ) from error

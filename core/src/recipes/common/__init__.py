"""Helpers for every room: errors, findings, values, tables as text, and files that are never half written.

May be imported by every room. May import no other room, and neither torch nor ExecuTorch.
"""

from recipes.common.errors import (
    ArgumentError,
    BackendUnavailableError,
    ExportError,
    ExportManyError,
    MissingKernelError,
    OptionError,
    PluginError,
    RecipeConflictError,
    RecipesError,
    RecipesWarning,
    SaveError,
    TargetUnavailableError,
    UnknownFieldError,
    UnknownPluginError,
    UnknownRecipeError,
    UnknownTargetError,
    did_you_mean,
)
from recipes.common.files import Writer, check_destination, finish_saving, write_atomically
from recipes.common.findings import Finding, PreflightError
from recipes.common.rendering import as_text, size, table
from recipes.common.values import CALLABLES, OPERATORS, Copier, describe, same

__all__ = [
    "CALLABLES",
    "OPERATORS",
    "ArgumentError",
    "BackendUnavailableError",
    "Copier",
    "ExportError",
    "ExportManyError",
    "Finding",
    "MissingKernelError",
    "OptionError",
    "PluginError",
    "PreflightError",
    "RecipeConflictError",
    "RecipesError",
    "RecipesWarning",
    "SaveError",
    "TargetUnavailableError",
    "UnknownFieldError",
    "UnknownPluginError",
    "UnknownRecipeError",
    "UnknownTargetError",
    "Writer",
    "as_text",
    "check_destination",
    "describe",
    "did_you_mean",
    "finish_saving",
    "same",
    "size",
    "table",
    "write_atomically",
]

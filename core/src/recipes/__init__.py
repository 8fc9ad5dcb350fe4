"""recipes: from a PyTorch model to a device in three lines, through whichever ExecuTorch plugins are installed.

    from recipes import export, get_ios_recipe
    session = export(model, get_ios_recipe(), example_inputs)
    session.save_pte_file("model.pte")

Importing this package, and listing what is possible, imports no torch: names are resolved when they
are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recipes.errors import ArgumentError as ArgumentError
    from recipes.errors import BackendUnavailableError as BackendUnavailableError
    from recipes.errors import ExportError as ExportError
    from recipes.errors import ExportManyError as ExportManyError
    from recipes.errors import MissingKernelError as MissingKernelError
    from recipes.errors import OptionError as OptionError
    from recipes.errors import PluginError as PluginError
    from recipes.errors import RecipeConflictError as RecipeConflictError
    from recipes.errors import RecipesError as RecipesError
    from recipes.errors import RecipesWarning as RecipesWarning
    from recipes.errors import SaveError as SaveError
    from recipes.errors import TargetUnavailableError as TargetUnavailableError
    from recipes.errors import UnknownFieldError as UnknownFieldError
    from recipes.errors import UnknownPluginError as UnknownPluginError
    from recipes.errors import UnknownRecipeError as UnknownRecipeError
    from recipes.errors import UnknownTargetError as UnknownTargetError
    from recipes.export_recipe import ExportRecipe as ExportRecipe
    from recipes.facts import ModelFacts as ModelFacts
    from recipes.findings import Finding as Finding
    from recipes.findings import PreflightError as PreflightError
    from recipes.hookspecs import hookimpl as hookimpl
    from recipes.inspection import Inspection as Inspection
    from recipes.inspection import inspect_program as inspect_program
    from recipes.many import export_many as export_many
    from recipes.merge import FIELD_POLICIES as FIELD_POLICIES
    from recipes.plugins import Plugin as Plugin
    from recipes.provider import Availability as Availability
    from recipes.provider import Option as Option
    from recipes.provider import OptionValue as OptionValue
    from recipes.provider import RecipeInfo as RecipeInfo
    from recipes.provider import RecipeProvider as RecipeProvider
    from recipes.provider import RecipeType as RecipeType
    from recipes.registry import Registry as Registry
    from recipes.registry import default_registry as default_registry
    from recipes.registry import get_android_recipe as get_android_recipe
    from recipes.registry import get_ios_recipe as get_ios_recipe
    from recipes.registry import get_linux_recipe as get_linux_recipe
    from recipes.registry import get_macos_recipe as get_macos_recipe
    from recipes.registry import get_recipe as get_recipe
    from recipes.registry import get_target_recipe as get_target_recipe
    from recipes.registry import list_plugins as list_plugins
    from recipes.registry import list_recipes as list_recipes
    from recipes.registry import list_targets as list_targets
    from recipes.registry import refresh as refresh
    from recipes.report import Report as Report
    from recipes.session import ExportSession as ExportSession
    from recipes.session import check as check
    from recipes.session import export as export
    from recipes.targets import Component as Component
    from recipes.targets import Target as Target
    from recipes.targets import TargetExtension as TargetExtension
    from recipes.targets import TargetProfile as TargetProfile
    from recipes.verification import Verification as Verification
    from recipes.verification import verify_program as verify_program
    from recipes.watching import StageProgress as StageProgress

__version__ = "0.1.0"

_HOMES = {
    "recipes.errors": (
        "ArgumentError",
        "BackendUnavailableError",
        "ExportError",
        "ExportManyError",
        "MissingKernelError",
        "OptionError",
        "PluginError",
        "RecipeConflictError",
        "RecipesError",
        "RecipesWarning",
        "SaveError",
        "TargetUnavailableError",
        "UnknownFieldError",
        "UnknownPluginError",
        "UnknownRecipeError",
        "UnknownTargetError",
    ),
    "recipes.export_recipe": ("ExportRecipe",),
    "recipes.facts": ("ModelFacts",),
    "recipes.findings": ("Finding", "PreflightError"),
    "recipes.hookspecs": ("hookimpl",),
    "recipes.inspection": ("Inspection", "inspect_program"),
    "recipes.many": ("export_many",),
    "recipes.merge": ("FIELD_POLICIES",),
    "recipes.plugins": ("Plugin",),
    "recipes.provider": ("Availability", "Option", "OptionValue", "RecipeInfo", "RecipeProvider", "RecipeType"),
    "recipes.registry": (
        "Registry",
        "default_registry",
        "get_android_recipe",
        "get_ios_recipe",
        "get_linux_recipe",
        "get_macos_recipe",
        "get_recipe",
        "get_target_recipe",
        "list_plugins",
        "list_recipes",
        "list_targets",
        "refresh",
    ),
    "recipes.report": ("Report",),
    "recipes.session": ("ExportSession", "check", "export"),
    "recipes.targets": ("Component", "Target", "TargetExtension", "TargetProfile"),
    "recipes.verification": ("Verification", "verify_program"),
    "recipes.watching": ("StageProgress",),
    # Not ours: ExecuTorch's own, so that one import line serves.
    "executorch.export": ("AOQuantizationConfig", "LoweringRecipe", "QuantizationRecipe", "StageType"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

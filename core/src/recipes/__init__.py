"""recipes: from a PyTorch model to a device in three lines, through whichever ExecuTorch plugins are installed.

    from recipes import export, get_ios_recipe
    session = export(model, get_ios_recipe(), example_inputs)
    session.save_pte_file("model.pte")

Importing this package, and listing targets and recipes, imports no torch: names are resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recipes.artifact import Inspection as Inspection
    from recipes.artifact import Report as Report
    from recipes.artifact import Verification as Verification
    from recipes.artifact import inspect_program as inspect_program
    from recipes.artifact import verify_program as verify_program
    from recipes.common import ArgumentError as ArgumentError
    from recipes.common import BackendUnavailableError as BackendUnavailableError
    from recipes.common import ExportError as ExportError
    from recipes.common import ExportManyError as ExportManyError
    from recipes.common import Finding as Finding
    from recipes.common import MissingKernelError as MissingKernelError
    from recipes.common import OptionError as OptionError
    from recipes.common import PluginError as PluginError
    from recipes.common import PreflightError as PreflightError
    from recipes.common import RecipeConflictError as RecipeConflictError
    from recipes.common import RecipesError as RecipesError
    from recipes.common import RecipesWarning as RecipesWarning
    from recipes.common import SaveError as SaveError
    from recipes.common import TargetUnavailableError as TargetUnavailableError
    from recipes.common import UnknownFieldError as UnknownFieldError
    from recipes.common import UnknownPluginError as UnknownPluginError
    from recipes.common import UnknownRecipeError as UnknownRecipeError
    from recipes.common import UnknownTargetError as UnknownTargetError
    from recipes.executorch import StageProgress as StageProgress
    from recipes.lowering import ExportSession as ExportSession
    from recipes.lowering import check as check
    from recipes.lowering import export as export
    from recipes.lowering import export_many as export_many
    from recipes.plugins import Availability as Availability
    from recipes.plugins import Component as Component
    from recipes.plugins import ModelFacts as ModelFacts
    from recipes.plugins import Option as Option
    from recipes.plugins import OptionValue as OptionValue
    from recipes.plugins import Plugin as Plugin
    from recipes.plugins import RecipeInfo as RecipeInfo
    from recipes.plugins import RecipeProvider as RecipeProvider
    from recipes.plugins import RecipeType as RecipeType
    from recipes.plugins import Target as Target
    from recipes.plugins import TargetExtension as TargetExtension
    from recipes.plugins import TargetProfile as TargetProfile
    from recipes.plugins import hookimpl as hookimpl
    from recipes.recipe import FIELD_POLICIES as FIELD_POLICIES
    from recipes.recipe import ExportRecipe as ExportRecipe
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

__version__ = "0.1.0"

_HOMES = {
    "recipes.artifact": (
        "Inspection",
        "Report",
        "Verification",
        "inspect_program",
        "verify_program",
    ),
    "recipes.common": (
        "ArgumentError",
        "BackendUnavailableError",
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
    ),
    "recipes.executorch": ("StageProgress",),
    "recipes.lowering": (
        "ExportSession",
        "check",
        "export",
        "export_many",
    ),
    "recipes.plugins": (
        "Availability",
        "Component",
        "ModelFacts",
        "Option",
        "OptionValue",
        "Plugin",
        "RecipeInfo",
        "RecipeProvider",
        "RecipeType",
        "Target",
        "TargetExtension",
        "TargetProfile",
        "hookimpl",
    ),
    "recipes.recipe": (
        "ExportRecipe",
        "FIELD_POLICIES",
    ),
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
    # ExecuTorch's own classes, so that one import line is enough.
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

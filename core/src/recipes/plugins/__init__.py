"""What a plugin declares, and what is installed: hooks, options, providers, targets, discovery, the catalog.

May be imported by every room but `common` and `executorch`. May import `common`; imports neither torch nor ExecuTorch,
so that listing targets and recipes is fast.
"""

from recipes.plugins.catalog import (
    Catalog,
    MadeRecipe,
    RecipeReference,
    RegisteredRecipe,
    default_catalog,
    known_plugin_packages,
    no_plugins,
)
from recipes.plugins.facts import ModelFacts
from recipes.plugins.hookspecs import PROJECT, hookimpl
from recipes.plugins.options import Option, OptionValue
from recipes.plugins.provider import Availability, RecipeInfo, RecipeProvider, RecipeType
from recipes.plugins.rows import Plugin
from recipes.plugins.targets import (
    Component,
    Role,
    Target,
    TargetComponent,
    TargetExtension,
    TargetProfile,
    split_target_name,
)

__all__ = [
    "PROJECT",
    "Availability",
    "Catalog",
    "Component",
    "MadeRecipe",
    "ModelFacts",
    "Option",
    "OptionValue",
    "Plugin",
    "RecipeInfo",
    "RecipeProvider",
    "RecipeReference",
    "RecipeType",
    "RegisteredRecipe",
    "Role",
    "Target",
    "TargetComponent",
    "TargetExtension",
    "TargetProfile",
    "default_catalog",
    "hookimpl",
    "known_plugin_packages",
    "no_plugins",
    "split_target_name",
]

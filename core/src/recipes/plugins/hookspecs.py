"""The hooks that a plugin may implement. Read this first to write one.

A plugin is a module named by an entry point in the group `recipes`:

    [project.entry-points.recipes]
    acme = "recipes_acme.plugin"

The module must be light: it imports no torch, ExecuTorch or toolchain; only the
provider's `build_recipe` may. Each hook is a function marked with `recipes.hookimpl`:

    from recipes import hookimpl

    @hookimpl
    def recipes_register_providers():
        return [AcmeProvider()]

Hooks return values and are called once per scan. A later version may pass more arguments to a hook; an implementation
names only those that it uses.
"""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from recipes.plugins.provider import RecipeProvider
from recipes.plugins.targets import TargetExtension, TargetProfile

PROJECT = "recipes"
"""The pluggy project name, and the entry point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def recipes_register_providers() -> Sequence[RecipeProvider]:
    """The backends that this plugin can lower to, one provider for each."""
    raise NotImplementedError


@hookspec
def recipes_register_targets() -> Sequence[TargetProfile | TargetExtension]:
    """The targets that this plugin owns, and the components that it adds to targets of others."""
    raise NotImplementedError

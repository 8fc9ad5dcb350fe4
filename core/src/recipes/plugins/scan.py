"""One scan of the installed plugins, and what follows from it: backends, targets, clashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import importlib_metadata

from recipes.common import did_you_mean
from recipes.plugins.discovery import find_clashes, load_plugins
from recipes.plugins.provider import Availability, RecipeInfo, RecipeProvider, RecipeType
from recipes.plugins.rows import Plugin
from recipes.plugins.targets import Component, Target, TargetExtension, assemble


@dataclass(frozen=True)
class Backend:
    """A backend that exactly one plugin provides.

    Args:
        plugin: The plugin.
        provider: Its provider for this backend.
    """

    plugin: Plugin
    provider: RecipeProvider

    def availability(self, recipe: str) -> Availability:
        """Whether a recipe, given by its id, can be made on this host."""
        return self.plugin.recipe_availability[recipe]

    @property
    def recipes(self) -> Mapping[RecipeType, RecipeInfo]:
        """The recipe types of this backend, each with what it does."""
        return self.plugin.recipes[self.provider.backend_name]

    def recipe_type(self, recipe: str) -> RecipeType | None:
        """The recipe type that has an id; None where there is none."""
        return next((r for r in self.recipes if r.id == recipe), None)


class Scan:
    """What the installed plugins declare. Each part is computed on first use, then cached.

    Args:
        entry_points: The plugins to use; None for all that are installed.
        environ: Where `RECIPES_DISABLE`, `RECIPES_ONLY` and `RECIPES_STRICT` are looked up.
    """

    def __init__(
        self, entry_points: tuple[importlib_metadata.EntryPoint, ...] | None, environ: Mapping[str, str]
    ) -> None:
        self.entry_points = entry_points
        self.environ = environ

    def forget(self) -> None:
        """Clear the cache, so that the next use scans again."""
        for cached in ("plugins", "clashes", "backends", "targets"):
            self.__dict__.pop(cached, None)

    @cached_property
    def plugins(self) -> tuple[Plugin, ...]:
        """A row for each installed plugin, whatever its state."""
        return load_plugins(self.entry_points, self.environ)

    @cached_property
    def clashes(self) -> dict[tuple[str, str], str]:
        """What is declared more than once: (`backend` or `target`, its name) to the reason."""
        return find_clashes(self.plugins)

    @cached_property
    def backends(self) -> dict[str, Backend]:
        """The backends that one plugin alone provides, by name."""
        return {
            provider.backend_name: Backend(plugin, provider)
            for plugin in self.plugins
            for provider in plugin.providers
            if ("backend", provider.backend_name) not in self.clashes
        }

    @cached_property
    def targets(self) -> dict[str, Target]:
        """Every declared target, assembled, by name."""
        # An extension whose recipe does not exist is reported in its plugin's row, and does not affect other plugins'
        # targets.
        extensions: list[tuple[str, TargetExtension]] = [
            (plugin.name, extension)
            for plugin in self.plugins
            for extension in plugin.extensions
            if self._may_exist(extension.component)
        ]
        targets = {}
        for plugin in self.plugins:
            for profile in plugin.targets:
                reason = self.clashes.get(("target", profile.name))
                targets[profile.name] = (
                    Target(profile.name, "unavailable", (), plugin.name, reason=reason)
                    if reason
                    else assemble(plugin.name, profile, extensions, self.check)
                )
        return dict(sorted(targets.items()))

    def _may_exist(self, component: Component) -> bool:
        """Whether the backend has the component's recipe; True if the backend is not installed."""
        backend = self.backends.get(component.backend)
        return backend is None or backend.recipe_type(component.recipe) is not None

    def check(self, component: Component) -> tuple[str, str]:
        """Why a component's recipe cannot be made here and how to fix that; two empty strings when it can."""
        clash = self.clashes.get(("backend", component.backend))
        if clash:
            return clash, "uninstall all but one of them"
        backend = self.backends.get(component.backend)
        if backend is None:
            bad = self.unusable_plugin(component.backend, component.distribution)
            if bad is not None:
                return f"the {bad.origin} is {bad.state}: {bad.reason}", f"fix, switch on or reinstall {bad.name}"
            return f"{component.distribution} is not installed", f"pip install {component.distribution}"
        if backend.recipe_type(component.recipe) is None:
            known = [r.id for r in backend.recipes]
            return f"the {backend.plugin.origin} has no such recipe.{did_you_mean(component.recipe, known)}", ""
        availability = backend.availability(component.recipe)
        if availability.available:
            return "", ""
        return (
            availability.reason or f"the {backend.plugin.origin} reports that it cannot lower here, without a reason",
            availability.hint,
        )

    def unusable_plugin(self, name: str, distribution: str) -> Plugin | None:
        """An installed plugin of that name or distribution that registered nothing, if there is one."""
        return next(
            (
                plugin
                for plugin in self.plugins
                if (plugin.name == name or plugin.distribution == distribution)
                and plugin.state != "ok"
                and not plugin.providers
            ),
            None,
        )

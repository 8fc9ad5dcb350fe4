"""The catalog of what the installed plugins declare; its queries import no torch."""

from __future__ import annotations

import importlib
import os
import threading
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import importlib_metadata

from recipes.common import (
    ArgumentError,
    OptionError,
    PluginError,
    RecipesWarning,
    UnknownRecipeError,
    UnknownTargetError,
    did_you_mean,
)
from recipes.plugins.discovery import unknown_names
from recipes.plugins.options import OptionValue
from recipes.plugins.provider import Availability, RecipeInfo, RecipeProvider, RecipeType
from recipes.plugins.rows import STRICT, Plugin
from recipes.plugins.scan import Scan
from recipes.plugins.targets import Target, split_target_name

if TYPE_CHECKING:
    import executorch.export
    from typing_extensions import Self

RecipeReference: TypeAlias = "RecipeType | str | executorch.export.RecipeType"
"""A reference to a recipe type: a plugin's enum member, its id, or ExecuTorch's own member of that name."""


@dataclass(frozen=True)
class RegisteredRecipe:
    """One recipe type of one plugin.

    Args:
        id: `backend:name`.
        recipe_type: The enum member.
        info: What it does, and its options.
        plugin: The plugin that provides it.
        availability: Whether it can be made on this host.
    """

    id: str
    recipe_type: RecipeType
    info: RecipeInfo
    plugin: str
    availability: Availability


@dataclass(frozen=True)
class MadeRecipe:
    """A recipe that a plugin made for one of its recipe types.

    Args:
        recipe: The recipe.
        plugin: The plugin.
        recipe_type: The recipe type.
        options: The effective options that it was made with.
    """

    recipe: executorch.export.ExportRecipe
    plugin: Plugin
    recipe_type: RecipeType
    options: Mapping[str, OptionValue]


class Catalog:
    """Everything that the installed plugins declare. It is scanned on first use, then cached.

    Args:
        entry_points: The plugins to use; by default all that are installed.
        environ: Where `RECIPES_DISABLE`, `RECIPES_ONLY` and `RECIPES_STRICT` are looked up; `os.environ` by default.
    """

    def __init__(
        self,
        entry_points: Iterable[importlib_metadata.EntryPoint] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._scan = Scan(
            None if entry_points is None else tuple(entry_points), os.environ if environ is None else environ
        )

    def refresh(self) -> None:
        """Scan again, for plugins that were installed, removed or switched off since.

        A plugin that was upgraded in place keeps its old code until Python is restarted.
        """
        importlib.invalidate_caches()
        self._scan.forget()

    def list_plugins(self) -> list[Plugin]:
        """A row for each installed plugin, whatever its state, sorted by name."""
        return list(self._scan.plugins)

    def tolerant(self) -> Self:
        """A catalog of the same plugins in which `RECIPES_STRICT` has no effect, to find out what is wrong."""
        environ = self._scan.environ
        return type(self)(self._scan.entry_points, {name: environ[name] for name in environ if name != STRICT})

    def unknown_plugin_names(self) -> list[tuple[str, str]]:
        """The names in `RECIPES_DISABLE` and `RECIPES_ONLY` that no plugin has, as (variable, name)."""
        return unknown_names((plugin.name for plugin in self._scan.plugins), self._scan.environ)

    def list_recipes(self) -> list[RegisteredRecipe]:
        """Every recipe type that the plugins provide, sorted by id."""
        recipes = [
            RegisteredRecipe(
                recipe_type.id,
                recipe_type,
                info,
                backend.plugin.name,
                backend.availability(recipe_type.id),
            )
            for backend in self._scan.backends.values()
            for recipe_type, info in backend.recipes.items()
        ]
        return sorted(recipes, key=lambda recipe: recipe.id)

    def list_targets(self, os: str | None = None, *, include_unavailable: bool = False) -> list[Target]:
        """The targets that the installed plugins can build for, sorted by name; imports no torch.

        Args:
            os: List only targets of this operating system: `ios`, `android`, `linux`.
            include_unavailable: Whether to list also targets that are known but cannot be built for here, with the
                reason.

        Warns:
            RecipesWarning: No plugin is installed at all; the message says which to install.
        """
        if not self._scan.plugins:
            warnings.warn(no_plugins(), RecipesWarning, stacklevel=2)
        return [
            target
            for target in self._scan.targets.values()
            if (os is None or target.os == os.lower()) and (include_unavailable or target.state != "unavailable")
        ]

    def get_target(self, name: str) -> Target:
        """A target by name, in whatever state it is.

        Raises:
            UnknownTargetError: No plugin declares it; the message names the nearest target, and the package that
                likely provides it.
            PluginError: The plugin that likely declares it is installed, but does not work.
        """
        if not isinstance(name, str):
            raise ArgumentError(f"The name of a target must be a string, not a {type(name).__name__}: {name!r}.")
        target = self._scan.targets.get(name)
        if target is not None:
            return target
        parts = split_target_name(name)
        accelerator = parts["accelerator"] if parts else ""
        bad = self._scan.unusable_plugin(accelerator, f"recipes-{accelerator}") if parts else None
        if bad is not None:
            raise bad.unusable()
        raise UnknownTargetError(self._explain_unknown_target(name, accelerator))

    def _explain_unknown_target(self, name: str, accelerator: str) -> str:
        lines = [f"No installed plugin declares the target {name!r}.{did_you_mean(name, self._scan.targets)}"]
        if accelerator and accelerator not in {target.accelerator for target in self._scan.targets.values()}:
            package = f"recipes-{accelerator}"
            sure = package in known_plugin_packages()
            lines.append(f"It is {'' if sure else 'likely '}provided by {package}: pip install {package}")
        elif not accelerator:
            lines.append("Target names have the form <os>-<arch>-<accelerator>-<precision>.")
        if not self._scan.plugins:
            lines.append(no_plugins())
        elif self._scan.targets:
            lines.append(f"Targets here: {', '.join(self._scan.targets)}.")
        return "\n".join(lines)

    def find_recipe(self, recipe: RecipeReference) -> tuple[Plugin, RecipeProvider, RecipeType]:
        """The plugin, the provider and the recipe type that an id or an enum member stands for.

        Args:
            recipe: A plugin's recipe type, its id (`acme:fp16`), or a member of ExecuTorch's own enum for
                the same backend, which stands for the plugin's member of that name.

        Raises:
            UnknownRecipeError: No installed plugin provides it; the message names the nearest recipe.
            PluginError: The plugin that provides it does not work.
        """
        backend_of = getattr(recipe, "get_backend_name", None)
        member = getattr(recipe, "name", None)
        if isinstance(recipe, str):
            wanted = recipe
        elif callable(backend_of) and isinstance(member, str):
            wanted = f"{backend_of()}:{member.lower()}"
        else:
            raise UnknownRecipeError(
                f"A recipe must be a RecipeType or its id ('backend:name'), not a {type(recipe).__name__}: {recipe!r}."
            )
        name = wanted.partition(":")[0]
        clash = self._scan.clashes.get(("backend", name))
        if clash:
            raise PluginError(f"Recipe {wanted!r} cannot be made: {clash}. Uninstall all but one.")
        backend = self._scan.backends.get(name)
        if backend is None:
            bad = self._scan.unusable_plugin(name, f"recipes-{name}")
            if bad is not None:
                raise bad.unusable()
        found = backend.recipe_type(wanted) if backend is not None else None
        if backend is None or found is None:
            known = [r.id for b in self._scan.backends.values() for r in b.recipes]
            package = f" It is likely provided by recipes-{name}: pip install recipes-{name}" if backend is None else ""
            raise UnknownRecipeError(
                f"No installed plugin provides the recipe {wanted!r}.{did_you_mean(wanted, known)}{package}"
                + (f"\nRecipes here: {', '.join(sorted(known))}." if known else f"\n{no_plugins()}")
            )
        return backend.plugin, backend.provider, found

    def _make(self, recipe: RecipeReference, options: Mapping[str, Any]) -> MadeRecipe:
        """Have a plugin make a recipe; only here does a plugin import torch and its toolchain.

        Args:
            recipe: As in `find_recipe`.
            options: Values for the options that the recipe type declares.

        Raises:
            UnknownRecipeError: No installed plugin provides it.
            OptionError: An option is unknown, missing, or has a value that is not allowed.
            BackendUnavailableError: The backend's toolchain does not work here.
        """
        plugin, provider, recipe_type = self.find_recipe(recipe)
        effective = provider.resolve_options(recipe_type, options)
        return MadeRecipe(provider.create_recipe(recipe_type, **effective), plugin, recipe_type, effective)

    def resolve_target_options(self, target: Target, options: Mapping[str, Any]) -> list[dict[str, OptionValue]]:
        """The effective options of each active component of a target, in partitioning order; imports no torch.

        Args:
            target: An assembled target.
            options: Values by option name, for every component that takes the option, or by backend name, as a
                mapping for that backend alone. The latter win.

        Raises:
            OptionError: No component takes an option, or a value is not allowed.
        """
        providers = [self.find_recipe(component.recipe) for component in target.active]
        takes = [
            {option.name for option in provider.describe(recipe_type).options} for _, provider, recipe_type in providers
        ]
        backends = {component.backend for component in target.active}
        shared: dict[str, Any] = {}
        addressed: dict[str, dict[str, Any]] = {backend: {} for backend in backends}
        for name, value in options.items():
            if name in backends:
                if not isinstance(value, Mapping):
                    raise OptionError(
                        f"Target {target.name}: {name}=... addresses the backend {name!r} and must be a mapping of its "
                        f"options, not {value!r}."
                    )
                addressed[name].update(value)
            elif any(name in names for names in takes):
                shared[name] = value
            else:
                known = sorted(set().union(*takes))
                each = "; ".join(
                    f"{component.recipe} takes {', '.join(sorted(names)) or 'none'}"
                    for component, names in zip(target.active, takes, strict=True)
                )
                raise OptionError(
                    f"No component of the target {target.name} takes an option {name!r}."
                    f"{did_you_mean(name, [*known, *backends])}\n{each}."
                )
        resolved = []
        for component, names, (_, provider, recipe_type) in zip(target.active, takes, providers, strict=True):
            given: dict[str, Any] = {k: OptionValue(v, "target") for k, v in component.options.items()}
            given |= {k: v for k, v in shared.items() if k in names and v is not None}
            given |= {k: v for k, v in addressed[component.backend].items() if v is not None or k not in names}
            resolved.append(provider.resolve_options(recipe_type, given))
        return resolved


def known_plugin_packages() -> list[str]:
    """The plugins that recipes-core lists in its own metadata, in the extra `all`."""
    from packaging.requirements import Requirement

    requirements = (Requirement(text) for text in importlib_metadata.requires("recipes-core") or ())
    return sorted(r.name for r in requirements if r.marker is not None and r.marker.evaluate({"extra": "all"}))


def no_plugins() -> str:
    """The message for an installation without plugins."""
    return f"No plugin is installed, so there is nothing to build for: pip install {' '.join(known_plugin_packages())}"


_lock = threading.Lock()
_default: Catalog | None = None


def default_catalog() -> Catalog:
    """The catalog of the installed plugins, built on first use."""
    global _default
    with _lock:
        if _default is None:
            _default = Catalog()
        return _default

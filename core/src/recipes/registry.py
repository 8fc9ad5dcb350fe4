"""The registry: plugins, the providers and targets that they declare, and the recipes made from them."""

from __future__ import annotations

import importlib
import os
import threading
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import importlib_metadata

from recipes.errors import (
    ArgumentError,
    OptionError,
    PluginError,
    RecipesWarning,
    TargetUnavailableError,
    UnknownRecipeError,
    UnknownTargetError,
    did_you_mean,
)
from recipes.plugins import STRICT, Plugin, clashes, load_plugins, unknown_names
from recipes.provider import Availability, OptionValue, RecipeInfo, RecipeProvider, RecipeType
from recipes.targets import Component, Target, TargetExtension, assemble, split_target_name

if TYPE_CHECKING:
    import executorch.export

    from recipes.export_recipe import ExportRecipe

    RecipeReference: TypeAlias = RecipeType | str | executorch.export.RecipeType
    """What stands for a recipe type: a plugin's enum member, its id, or ExecuTorch's own member of that name."""


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
class _Backend:
    plugin: Plugin
    provider: RecipeProvider

    def availability(self, recipe: str) -> Availability:
        return self.plugin.recipe_availability[recipe]

    @property
    def recipes(self) -> Mapping[RecipeType, RecipeInfo]:
        return self.plugin.recipes[self.provider.backend_name]

    def recipe_type(self, recipe: str) -> RecipeType | None:
        return next((r for r in self.recipes if r.id == recipe), None)


class Registry:
    """Everything that the installed plugins declare. Scanned when first asked, then kept.

    Args:
        entry_points: The plugins to use; those of everything that is installed by default.
        environ: Where `RECIPES_DISABLE`, `RECIPES_ONLY` and `RECIPES_STRICT` are looked up; `os.environ` by default.
    """

    def __init__(
        self,
        entry_points: Iterable[importlib_metadata.EntryPoint] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._entry_points = None if entry_points is None else tuple(entry_points)
        self._environ = os.environ if environ is None else environ

    @cached_property
    def _plugins(self) -> tuple[Plugin, ...]:
        return load_plugins(self._entry_points, self._environ)

    @cached_property
    def _clashes(self) -> dict[tuple[str, str], str]:
        return clashes(self._plugins)

    @cached_property
    def _backends(self) -> dict[str, _Backend]:
        return {
            provider.backend_name: _Backend(plugin, provider)
            for plugin in self._plugins
            for provider in plugin.providers
            if ("backend", provider.backend_name) not in self._clashes
        }

    @cached_property
    def _targets(self) -> dict[str, Target]:
        # One whose recipe does not exist is told in its plugin's row, and is not the trouble of targets of others.
        extensions: list[tuple[str, TargetExtension]] = [
            (plugin.name, extension)
            for plugin in self._plugins
            for extension in plugin.extensions
            if self._may_exist(extension.component)
        ]
        targets = {}
        for plugin in self._plugins:
            for profile in plugin.targets:
                reason = self._clashes.get(("target", profile.name))
                targets[profile.name] = (
                    Target(profile.name, "unavailable", (), plugin.name, reason=reason)
                    if reason
                    else assemble(plugin.name, profile, extensions, self._check)
                )
        return dict(sorted(targets.items()))

    def _may_exist(self, component: Component) -> bool:
        """Whether the backend has the component's recipe, as far as can be told: it may not be installed."""
        backend = self._backends.get(component.backend)
        return backend is None or backend.recipe_type(component.recipe) is not None

    def _check(self, component: Component) -> tuple[str, str]:
        """Why a component's recipe cannot be made here and what mends that; two empty strings when it can."""
        clash = self._clashes.get(("backend", component.backend))
        if clash:
            return clash, "uninstall all but one of them"
        backend = self._backends.get(component.backend)
        if backend is None:
            bad = self._unusable_plugin(component.backend, component.distribution)
            if bad is not None:
                return f"the {bad.origin} is {bad.state}: {bad.reason}", f"mend, switch on or reinstall {bad.name}"
            return f"{component.distribution} is not installed", f"pip install {component.distribution}"
        if backend.recipe_type(component.recipe) is None:
            known = [r.id for r in backend.recipes]
            return f"the {backend.plugin.origin} has no such recipe.{did_you_mean(component.recipe, known)}", ""
        availability = backend.availability(component.recipe)
        if availability.available:
            return "", ""
        return (
            availability.reason or f"the {backend.plugin.origin} says that it cannot lower here, and not why",
            availability.hint,
        )

    def _unusable_plugin(self, name: str, distribution: str) -> Plugin | None:
        """An installed plugin of that name or distribution that registered nothing, if there is one."""
        return next(
            (
                plugin
                for plugin in self._plugins
                if (plugin.name == name or plugin.distribution == distribution)
                and plugin.state != "ok"
                and not plugin.providers
            ),
            None,
        )

    def refresh(self) -> None:
        """Scan again, for plugins that were installed, removed or switched off since.

        A plugin that was upgraded in place keeps its old code until Python is restarted.
        """
        importlib.invalidate_caches()
        for cached in ("_plugins", "_clashes", "_backends", "_targets"):
            self.__dict__.pop(cached, None)

    def list_plugins(self) -> list[Plugin]:
        """A row for each installed plugin, whatever its state, sorted by name."""
        return list(self._plugins)

    def tolerant(self) -> Registry:
        """A registry of the same plugins in which `RECIPES_STRICT` raises nothing: to find out what is wrong."""
        return Registry(self._entry_points, {name: self._environ[name] for name in self._environ if name != STRICT})

    def unknown_plugin_names(self) -> list[tuple[str, str]]:
        """What `RECIPES_DISABLE` and `RECIPES_ONLY` name and no plugin is called: (variable, name)."""
        return unknown_names((plugin.name for plugin in self._plugins), self._environ)

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
            for backend in self._backends.values()
            for recipe_type, info in backend.recipes.items()
        ]
        return sorted(recipes, key=lambda recipe: recipe.id)

    def list_targets(self, os: str | None = None, *, include_unavailable: bool = False) -> list[Target]:
        """What can be built for with the installed plugins, sorted by name; imports no torch.

        Args:
            os: Only targets of this operating system: `ios`, `android`, `linux`.
            include_unavailable: Also targets that are known but cannot be built for here, with the reason.

        Warns:
            RecipesWarning: No plugin is installed at all; the text says which to install.
        """
        if not self._plugins:
            warnings.warn(no_plugins(), RecipesWarning, stacklevel=2)
        return [
            target
            for target in self._targets.values()
            if (os is None or target.os == os.lower()) and (include_unavailable or target.state != "unavailable")
        ]

    def get_target(self, name: str) -> Target:
        """A target by name, in whatever state it is.

        Raises:
            UnknownTargetError: No plugin declares it; names the nearest, and the package that likely has it.
            PluginError: The plugin that likely declares it is installed and does not work.
        """
        if not isinstance(name, str):
            raise ArgumentError(f"A target is named by a string, not by a {type(name).__name__}: {name!r}.")
        target = self._targets.get(name)
        if target is not None:
            return target
        parts = split_target_name(name)
        accelerator = parts["accelerator"] if parts else ""
        bad = self._unusable_plugin(accelerator, f"recipes-{accelerator}") if parts else None
        if bad is not None:
            raise bad.unusable()
        raise UnknownTargetError(self._unknown_target(name, accelerator))

    def _unknown_target(self, name: str, accelerator: str) -> str:
        lines = [f"No installed plugin declares the target {name!r}.{did_you_mean(name, self._targets)}"]
        if accelerator and accelerator not in {target.accelerator for target in self._targets.values()}:
            package = f"recipes-{accelerator}"
            sure = package in known_plugin_packages()
            lines.append(f"It is {'' if sure else 'likely '}provided by {package}: pip install {package}")
        elif not accelerator:
            lines.append("Target names read <os>-<arch>-<accelerator>-<precision>.")
        if not self._plugins:
            lines.append(no_plugins())
        elif self._targets:
            lines.append(f"Targets here: {', '.join(self._targets)}.")
        return "\n".join(lines)

    def find_recipe(self, recipe: RecipeReference) -> tuple[Plugin, RecipeProvider, RecipeType]:
        """The plugin, the provider and the recipe type that an id or an enum member stands for.

        Args:
            recipe: A plugin's recipe type, its id (`acme:fp16`), or a member of ExecuTorch's own enum for
                the same backend, which stands for the plugin's member of that name.

        Raises:
            UnknownRecipeError: No installed plugin provides it; names the nearest.
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
                f"A recipe is a RecipeType or its id ('backend:name'), not a {type(recipe).__name__}: {recipe!r}."
            )
        name = wanted.partition(":")[0]
        clash = self._clashes.get(("backend", name))
        if clash:
            raise PluginError(f"Recipe {wanted!r} cannot be made: {clash}. Uninstall all but one.")
        backend = self._backends.get(name)
        if backend is None:
            bad = self._unusable_plugin(name, f"recipes-{name}")
            if bad is not None:
                raise bad.unusable()
        found = backend.recipe_type(wanted) if backend is not None else None
        if backend is None or found is None:
            known = [r.id for b in self._backends.values() for r in b.recipes]
            package = f" It is likely provided by recipes-{name}: pip install recipes-{name}" if backend is None else ""
            raise UnknownRecipeError(
                f"No installed plugin provides the recipe {wanted!r}.{did_you_mean(wanted, known)}{package}"
                + (f"\nRecipes here: {', '.join(sorted(known))}." if known else f"\n{no_plugins()}")
            )
        return backend.plugin, backend.provider, found

    def get_recipe(self, recipe: RecipeReference, /, **options: Any) -> ExportRecipe:
        """Make a recipe for one backend.

        Args:
            recipe: As in `find_recipe`.
            options: Values for the options that the recipe type declares.

        Raises:
            UnknownRecipeError: No installed plugin provides it.
            OptionError: An option is unknown, missing, or has a value that is not allowed.
            BackendUnavailableError: The backend's toolchain does not work here.
        """
        plugin, provider, recipe_type = self.find_recipe(recipe)
        return _make(plugin, provider, recipe_type, options)

    def resolve_target_options(self, target: Target, options: Mapping[str, Any]) -> list[dict[str, OptionValue]]:
        """The effective options of each active component of a target, in partitioning order. Light.

        Args:
            target: An assembled target.
            options: Values by option name, for all components that take it, or by backend name, a
                mapping for that backend alone; the latter wins.

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

    def get_target_recipe(self, name: str, /, **options: Any) -> ExportRecipe:
        """The recipe of a target: one for each component that is installed, merged into one.

        Args:
            name: The target's name.
            options: As in `resolve_target_options`.

        Raises:
            UnknownTargetError: No plugin declares it.
            TargetUnavailableError: Something that it requires is missing; says what mends it.
            OptionError: No component takes an option, or a value is not allowed.

        Warns:
            RecipesWarning: The target is degraded: an optional component is missing.
        """
        target = self.get_target(name)
        hint = f" {target.hint}" if target.hint else ""
        if target.state == "unavailable":
            raise TargetUnavailableError(f"Target {name} is unavailable: {target.reason}.{hint}")
        resolved = self.resolve_target_options(target, options)
        if target.state == "degraded":
            warnings.warn(f"Target {name} is degraded: {target.reason}.{hint}", RecipesWarning, stacklevel=2)
        from recipes import merge

        recipes = [
            _make(*self.find_recipe(component.recipe), effective)
            for component, effective in zip(target.active, resolved, strict=True)
        ]
        return merge.merge(recipes, name, roles=[component.role for component in target.active])

    def get_os_recipe(self, os: str, target_config: str | None, options: Mapping[str, Any]) -> ExportRecipe:
        """The recipe of a target that must be of one operating system.

        Args:
            os: The operating system.
            target_config: The target's name; None for the one that its owner declares to be the default.
            options: As in `resolve_target_options`.

        Raises:
            ArgumentError: The target is of another system, or there is no single default.
        """
        if target_config is None:
            defaults = [target.name for target in self._targets.values() if target.os == os and target.default]
            if len(defaults) != 1:
                names = [target.name for target in self._targets.values() if target.os == os]
                which = "several defaults: " + ", ".join(defaults) if defaults else "no default"
                raise UnknownTargetError(
                    f"There is {which} for {os}; name a target."
                    + (f" Targets for {os}: {', '.join(names)}." if names else f" {self._unknown_target(os, '')}")
                )
            target_config = defaults[0]
        parts = split_target_name(target_config) if isinstance(target_config, str) else None
        if parts and parts["os"] != os:
            raise ArgumentError(
                f"{target_config!r} is a target for {parts['os']}, not for {os}. "
                f"Use get_target_recipe({target_config!r}) for a target of any system."
            )
        return self.get_target_recipe(target_config, **options)


def _make(
    plugin: Plugin, provider: RecipeProvider, recipe_type: RecipeType, options: Mapping[str, Any]
) -> ExportRecipe:
    """Make a provider's recipe and wrap it in ours, with where it came from."""
    effective = provider.resolve_options(recipe_type, options)
    made = provider.create_recipe(recipe_type, **effective)
    from recipes.export_recipe import ExportRecipe
    from recipes.provenance import Source

    source = Source(plugin.name, plugin.distribution, plugin.version, recipe_type.id, effective)
    return ExportRecipe.from_executorch(made, source)


def known_plugin_packages() -> list[str]:
    """The plugins that recipes-core names in its own metadata, as the extra `all`."""
    from packaging.requirements import Requirement

    requirements = (Requirement(text) for text in importlib_metadata.requires("recipes-core") or ())
    return sorted(r.name for r in requirements if r.marker is not None and r.marker.evaluate({"extra": "all"}))


def no_plugins() -> str:
    """What to say when no plugin is installed."""
    return f"No plugin is installed, so there is nothing to build for: pip install {' '.join(known_plugin_packages())}"


_lock = threading.Lock()
_default: Registry | None = None


def default_registry() -> Registry:
    """The registry of what is installed, built when first asked for."""
    global _default
    with _lock:
        if _default is None:
            _default = Registry()
        return _default


def refresh() -> None:
    """Scan the installed plugins again: people install in a running notebook."""
    default_registry().refresh()


def list_plugins() -> list[Plugin]:
    """A row for each installed plugin, whatever its state; see `Registry.list_plugins`."""
    return default_registry().list_plugins()


def list_recipes() -> list[RegisteredRecipe]:
    """Every recipe type that the installed plugins provide; see `Registry.list_recipes`."""
    return default_registry().list_recipes()


def list_targets(os: str | None = None, *, include_unavailable: bool = False) -> list[Target]:
    """What can be built for here, without importing torch; see `Registry.list_targets`."""
    return default_registry().list_targets(os, include_unavailable=include_unavailable)


def get_recipe(recipe: RecipeReference, /, **options: Any) -> ExportRecipe:
    """A recipe for one backend; see `Registry.get_recipe`."""
    return default_registry().get_recipe(recipe, **options)


def get_target_recipe(name: str, /, **options: Any) -> ExportRecipe:
    """The recipe of a target; see `Registry.get_target_recipe`."""
    return default_registry().get_target_recipe(name, **options)


def get_ios_recipe(target_config: str = "ios-arm64-coreml-fp16", **options: Any) -> ExportRecipe:
    """The recipe of an iOS target; see `Registry.get_os_recipe`."""
    return default_registry().get_os_recipe("ios", target_config, options)


def get_macos_recipe(target_config: str | None = None, **options: Any) -> ExportRecipe:
    """The recipe of a macOS target; see `Registry.get_os_recipe`."""
    return default_registry().get_os_recipe("macos", target_config, options)


def get_android_recipe(target_config: str | None = None, **options: Any) -> ExportRecipe:
    """The recipe of an Android target; see `Registry.get_os_recipe`."""
    return default_registry().get_os_recipe("android", target_config, options)


def get_linux_recipe(target_config: str | None = None, **options: Any) -> ExportRecipe:
    """The recipe of a Linux target; see `Registry.get_os_recipe`."""
    return default_registry().get_os_recipe("linux", target_config, options)

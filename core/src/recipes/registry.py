"""The registry: the catalog of the installed plugins, and the recipes that are made from it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from recipes.common import ArgumentError, RecipesWarning, TargetUnavailableError, UnknownTargetError
from recipes.plugins import Catalog, Plugin, RegisteredRecipe, Target, default_catalog, split_target_name

if TYPE_CHECKING:
    from recipes.plugins import RecipeReference
    from recipes.recipe import ExportRecipe


class Registry(Catalog):
    """Everything that the installed plugins declare. It is scanned on first use, then cached.

    Args:
        entry_points: The plugins to use; by default all that are installed.
        environ: Where `RECIPES_DISABLE`, `RECIPES_ONLY` and `RECIPES_STRICT` are looked up; `os.environ` by default.
    """

    @classmethod
    def _over(cls, catalog: Catalog) -> Registry:
        """A registry that shares a catalog's scan, so that a refresh of one is a refresh of both."""
        registry = cls()
        registry._scan = catalog._scan
        return registry

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
        made = self._make(recipe, options)
        from recipes.recipe import ExportRecipe

        return ExportRecipe._from_plugin(made)

    def get_target_recipe(self, name: str, /, **options: Any) -> ExportRecipe:
        """The recipe of a target: one for each component that is installed, merged into one.

        Args:
            name: The target's name.
            options: As in `resolve_target_options`.

        Raises:
            UnknownTargetError: No plugin declares it.
            TargetUnavailableError: A required component is missing; the message says how to fix that.
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
        made = [
            self._make(component.recipe, effective)
            for component, effective in zip(target.active, resolved, strict=True)
        ]
        from recipes.recipe import ExportRecipe, merge

        recipes = [ExportRecipe._from_plugin(one) for one in made]
        return merge(recipes, name, roles=[component.role for component in target.active])

    def get_os_recipe(self, os: str, target_config: str | None, options: Mapping[str, Any]) -> ExportRecipe:
        """The recipe of a target that must be for one operating system.

        Args:
            os: The operating system.
            target_config: The target's name; None for the one that is declared as the default.
            options: As in `resolve_target_options`.

        Raises:
            ArgumentError: The target is for another system.
            UnknownTargetError: No plugin declares the target, or none is named and there is no
                single default.
        """
        if target_config is None:
            defaults = [target.name for target in self._scan.targets.values() if target.os == os and target.default]
            if len(defaults) != 1:
                names = [target.name for target in self._scan.targets.values() if target.os == os]
                which = f"several default targets, {', '.join(defaults)}," if defaults else "no default target"
                raise UnknownTargetError(
                    f"The installed plugins declare {which} for {os}; name a target."
                    + (
                        f" Targets for {os}: {', '.join(names)}."
                        if names
                        else f" {self._explain_unknown_target(os, '')}"
                    )
                )
            target_config = defaults[0]
        parts = split_target_name(target_config) if isinstance(target_config, str) else None
        if parts and parts["os"] != os:
            raise ArgumentError(
                f"{target_config!r} is a target for {parts['os']}, not for {os}. "
                f"Use get_target_recipe({target_config!r}) for a target of any system."
            )
        return self.get_target_recipe(target_config, **options)


_default = Registry._over(default_catalog())


def default_registry() -> Registry:
    """The registry of the installed plugins, built on first use."""
    return _default


def refresh() -> None:
    """Scan the installed plugins again, for example after an installation in a running notebook."""
    default_registry().refresh()


def list_plugins() -> list[Plugin]:
    """A row for each installed plugin, whatever its state; see `Registry.list_plugins`."""
    return default_registry().list_plugins()


def list_recipes() -> list[RegisteredRecipe]:
    """Every recipe type that the installed plugins provide; see `Registry.list_recipes`."""
    return default_registry().list_recipes()


def list_targets(os: str | None = None, *, include_unavailable: bool = False) -> list[Target]:
    """The targets that can be built for on this host, without importing torch; see `Registry.list_targets`."""
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

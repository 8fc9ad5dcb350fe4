"""One row for each installed plugin, in whatever state it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from recipes.common import PluginError
from recipes.plugins.provider import Availability, RecipeInfo, RecipeProvider, RecipeType
from recipes.plugins.targets import TargetExtension, TargetProfile

PluginState = Literal["ok", "disabled", "incompatible", "conflict", "broken"]

DISABLE = "RECIPES_DISABLE"
ONLY = "RECIPES_ONLY"
STRICT = "RECIPES_STRICT"


@dataclass(frozen=True)
class Plugin:
    """One installed plugin, in whatever state it is.

    Args:
        name: The entry point's name.
        distribution: The distribution that provides it, by its name for `pip`.
        version: The distribution's version.
        state: `ok`: all that it declares is in use. `disabled`: switched off by the environment.
            `incompatible`: made for another version of recipes-core or ExecuTorch; not imported.
            `conflict`: what `reason` names is declared twice and not used; the rest is in use.
            `broken`: what `reason` names is not used; what the plugin did register is.
        reason: What is wrong, as text for the user; empty when nothing is.
        stage: Where it went wrong: `metadata`, `import`, `register`, a hook's name, or empty.
        providers: What it registered, one for each backend.
        availability: Whether each of its backends can lower here, by the backend's name.
        recipes: What each recipe type of each backend does, by the backend's name.
        recipe_availability: Whether each of its recipes can be made here, by the recipe's id.
        targets: The targets that it declares.
        extensions: The components that it adds to targets of others.
        error: The exception, if there was one.
        seconds: How long it took to import and query the plugin, in seconds.
        heavy_imports: The heavy packages that this imported, or that the plugin's module holds. A plugin should
            import them only when it builds a recipe.
    """

    name: str
    distribution: str
    version: str
    state: PluginState = "ok"
    reason: str = ""
    stage: str = ""
    providers: tuple[RecipeProvider, ...] = ()
    availability: Mapping[str, Availability] = field(default_factory=dict)
    recipes: Mapping[str, Mapping[RecipeType, RecipeInfo]] = field(default_factory=dict)
    recipe_availability: Mapping[str, Availability] = field(default_factory=dict)
    targets: tuple[TargetProfile, ...] = ()
    extensions: tuple[TargetExtension, ...] = ()
    error: BaseException | None = field(default=None, compare=False, repr=False)
    seconds: float = field(default=0.0, compare=False)
    heavy_imports: tuple[str, ...] = field(default=(), compare=False)

    @property
    def origin(self) -> str:
        """`plugin 'acme' (recipes-acme 1.0)`."""
        distribution = f"{self.distribution} {self.version}".rstrip()
        return f"plugin {self.name!r} ({distribution})"

    @property
    def way_out(self) -> str:
        """What to do about the state that it is in; empty when it is `ok`."""
        if self.state == "ok":
            return ""
        if self.state == "disabled":
            return f"Remove it from {DISABLE} or {ONLY} to use it."
        return f"Fix or uninstall {self.distribution}, or switch the plugin off with {DISABLE}={self.name}."

    def unusable(self) -> PluginError:
        """The error to raise when this plugin is needed; it names the plugin, the stage, the reason and what to do."""
        stage = f" at {self.stage}" if self.stage else ""
        error = PluginError(f"The {self.origin} is {self.state}{stage}: {self.reason}. {self.way_out}")
        error.__cause__ = self.error
        return error

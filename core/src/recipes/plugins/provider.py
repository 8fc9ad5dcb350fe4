"""What a plugin provides for a backend: recipe types, their options, and the factory.

Everything here is light: declaring a provider imports neither torch nor a toolchain. Only
`RecipeProvider.build_recipe` may import them, because it creates ExecuTorch's objects.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recipes.common import BackendUnavailableError, OptionError, UnknownRecipeError, did_you_mean
from recipes.plugins.options import Option, OptionValue

if TYPE_CHECKING:
    import executorch.export

    from recipes.common import Finding
    from recipes.plugins.facts import ModelFacts


class RecipeType(enum.Enum):
    """Base of a backend's enum of recipe types; a member names one way to lower to that backend.

    It is the light counterpart of `executorch.export.RecipeType`, which imports torch. A plugin derives an enum
    from it and overrides `get_backend_name`.
    """

    @classmethod
    def get_backend_name(cls) -> str:
        """The backend that these recipe types belong to, such as `acme`."""
        raise NotImplementedError(f"{cls.__name__} must override get_backend_name()")

    @property
    def id(self) -> str:
        """`backend:name`, in lower case: `acme:fp16`."""
        return f"{self.get_backend_name()}:{self.name.lower()}"


@dataclass(frozen=True)
class RecipeInfo:
    """What a recipe type does, described without a toolchain.

    Args:
        summary: One line.
        weights: The precision of weights: `float32`, `float16`, `int8`, `int4`.
        activations: The precision of activations, in the same way; `int8 dynamic` if ranges are measured at run time.
        needs_calibration: Whether representative inputs decide the result.
        options: Every option that the recipe takes.
        deployment_target: The lowest version of the operating system that can run the result, or an
            empty string where any can.
    """

    summary: str
    weights: str
    activations: str
    needs_calibration: bool = False
    options: tuple[Option, ...] = ()
    deployment_target: str = ""


@dataclass(frozen=True)
class Availability:
    """Whether a backend can lower on this host.

    Args:
        available: True when it can.
        reason: Why not, in one sentence; empty when available.
        hint: How to fix it, preferably as a command; empty when there is no fix.
    """

    available: bool
    reason: str = ""
    hint: str = ""

    @staticmethod
    def of_host(
        *,
        modules: Mapping[str, str],
        platforms: Sequence[tuple[str, str]] = (),
        python_below: tuple[int, int] | None = None,
    ) -> Availability:
        """Determine availability without importing anything.

        Args:
            modules: Top-level modules that must be present, each with its requirement for `pip install`.
            platforms: The (system, machine) pairs that work, as `platform.system()` and
                `platform.machine()` return them; empty for all.
            python_below: The first Python version without a toolchain, such as (3, 14).
        """
        host = (platform.system(), platform.machine())
        if platforms and host not in platforms:
            works = ", ".join(" ".join(pair) for pair in platforms)
            return Availability(False, f"works on {works}, but this is {' '.join(host)}")
        if python_below is not None and sys.version_info >= python_below:
            limit = ".".join(map(str, python_below))
            return Availability(
                False,
                f"needs Python below {limit}, but this is {platform.python_version()}",
                "use an older Python",
            )
        missing = {name: requirement for name, requirement in modules.items() if importlib.util.find_spec(name) is None}
        if missing:
            are = "is" if len(missing) == 1 else "are"
            quoted = " ".join(f"'{r}'" if set(r) & set("<>=~! ") else r for r in missing.values())
            return Availability(False, f"{', '.join(missing)} {are} not installed", f"pip install {quoted}")
        return Availability(True)


class RecipeProvider(ABC):
    """A backend's recipes. One instance is registered for each backend of a plugin.

    Everything but `build_recipe` must be light: it imports neither torch nor a toolchain.
    """

    @property
    @abstractmethod
    def backend_name(self) -> str:
        """The backend's name, in lower case: `acme`."""

    @abstractmethod
    def get_supported_recipes(self) -> Sequence[RecipeType]:
        """The recipe types that this provider can make."""

    @abstractmethod
    def describe(self, recipe_type: RecipeType) -> RecipeInfo:
        """What a recipe type does, and every option that it takes."""

    @abstractmethod
    def availability(self) -> Availability:
        """Whether this backend can lower on this host, determined without importing its toolchain."""

    def recipe_availability(self, recipe_type: RecipeType) -> Availability:
        """Whether one recipe type can be made on this host, where the backend can lower.

        Override it where some recipe types need more than the others, such as a package that only
        quantization uses. It must be light, as `availability` is.

        Args:
            recipe_type: One of `get_supported_recipes()`.
        """
        return Availability(True)

    @abstractmethod
    def build_recipe(
        self, recipe_type: RecipeType, options: Mapping[str, OptionValue]
    ) -> executorch.export.ExportRecipe:
        """Make a new recipe, from options that are complete and checked.

        Args:
            recipe_type: One of `get_supported_recipes()`.
            options: Every declared option by name, as `settle_options` returned it.

        Returns:
            A recipe that shares no mutable object with any other.
        """

    def settle_options(self, recipe_type: RecipeType, options: Mapping[str, OptionValue]) -> Mapping[str, OptionValue]:
        """Decide the options whose values depend on the recipe or on each other.

        Override it to fill in unset options, or to refuse combinations. It must be light.

        Args:
            recipe_type: One of `get_supported_recipes()`.
            options: Every declared option, each checked on its own.

        Returns:
            The effective options, with the same names.

        Raises:
            OptionError: The options contradict each other or the recipe.
        """
        return options

    def check_model(
        self, recipe_type: RecipeType, options: Mapping[str, OptionValue], facts: ModelFacts
    ) -> tuple[Mapping[str, OptionValue], Sequence[Finding]]:
        """Check a model before it is exported: which options it needs changed, and what cannot work.

        Override it where a backend has such rules. It is called with torch imported and may use it, but it must
        not lower anything.

        Args:
            recipe_type: One of `get_supported_recipes()`.
            options: The effective options.
            facts: One method of the model.

        Returns:
            The options that must change, with sources that say why, and the findings. Options that the user gave are
            never changed: a finding of level `error` says what they must be.
        """
        return {}, ()

    def supports_recipe(self, recipe_type: RecipeType) -> bool:
        """Whether `recipe_type` is one of `get_supported_recipes()`."""
        return recipe_type in self.get_supported_recipes()

    def resolve_options(
        self, recipe_type: RecipeType, given: Mapping[str, Any], source: str = "given"
    ) -> dict[str, OptionValue]:
        """The effective value of every option of a recipe type; imports neither torch nor a toolchain.

        Args:
            recipe_type: One of `get_supported_recipes()`.
            given: Values by option name; an `OptionValue` keeps its own source.
            source: Where the other values came from.

        Raises:
            UnknownRecipeError: This provider does not make that recipe type.
            OptionError: An option is unknown, missing, or has a value that is not allowed.
        """
        if not self.supports_recipe(recipe_type):
            names = ", ".join(r.name for r in self.get_supported_recipes())
            raise UnknownRecipeError(f"Backend {self.backend_name!r} has no recipe {recipe_type!r}. It has: {names}.")
        declared = {option.name: option for option in self.describe(recipe_type).options}
        for name in given:
            if name not in declared:
                takes = f"It takes: {', '.join(declared)}." if declared else "It takes no options."
                raise OptionError(
                    f"Recipe {recipe_type.id} takes no option {name!r}.{did_you_mean(name, declared)} {takes}"
                )
        values: dict[str, OptionValue] = {}
        for name, option in declared.items():
            raw = given.get(name, OptionValue(option.default, "default"))
            wrapped = raw if isinstance(raw, OptionValue) else OptionValue(raw, source)
            try:
                parsed = option.parse(wrapped.value)
            except OptionError as error:
                raise OptionError(f"Recipe {recipe_type.id}: {error}") from error.__cause__
            # None means "unset": the default applies, as if the option had not been given.
            values[name] = (
                OptionValue(option.parse(option.default), "default")
                if parsed is None
                else OptionValue(parsed, wrapped.source)
            )
        return dict(self.settle_options(recipe_type, values))

    def create_recipe(self, recipe_type: RecipeType, **options: Any) -> executorch.export.ExportRecipe:
        """Make a recipe.

        Args:
            recipe_type: One of `get_supported_recipes()`.
            options: Values for options that `describe` declares.

        Raises:
            UnknownRecipeError: This provider does not make that recipe type.
            OptionError: An option is unknown, missing, or has a value that is not allowed.
            BackendUnavailableError: The toolchain does not work here, or lacks what this recipe type needs.
        """
        effective = self.resolve_options(recipe_type, options)
        for what, availability in (
            (f"Backend {self.backend_name!r} cannot lower here", self.availability()),
            (f"Recipe {recipe_type.id} cannot be made here", self.recipe_availability(recipe_type)),
        ):
            if not availability.available:
                hint = f" {availability.hint}" if availability.hint else ""
                raise BackendUnavailableError(f"{what}: {availability.reason}.{hint}")
        return self.build_recipe(recipe_type, effective)

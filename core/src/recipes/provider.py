"""What a plugin provides for a backend: recipe types, their options, and the factory.

Everything here is light: declaring a provider imports neither torch nor a toolchain. Only
`RecipeProvider.build_recipe` may, since it is the one that makes ExecuTorch's objects.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from recipes.errors import BackendUnavailableError, OptionError, UnknownRecipeError, did_you_mean

if TYPE_CHECKING:
    import executorch.export

    from recipes.facts import ModelFacts
    from recipes.findings import Finding


class RecipeType(enum.Enum):
    """Base of a backend's enum of recipe types; a member names one way to lower to that backend.

    The light twin of `executorch.export.RecipeType`, which imports torch. A plugin derives an enum
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


OPTION_TYPES: Mapping[str, str] = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "ints": "a list of whole numbers",
    "strs": "a list of strings",
    "callable": "a callable (as text: package.module:name)",
}
"""What `Option.type` may say, with the words that errors and help use for it."""


@dataclass(frozen=True)
class Option:
    """One option of a recipe type, declared so that it can be listed, checked and routed.

    Args:
        name: A Python identifier; it is the keyword argument and the command line's `-O name=value`.
        type: A key of `OPTION_TYPES`: `int`, `float`, `bool`, `str`, `ints`, `strs` or `callable`.
        help: One line, with the unit where there is one.
        default: The value when none is given. None means "unset": the recipe decides.
        choices: For `str`: the values allowed. Compared exactly; an error gives the nearest.
        aliases: For `str` with choices: other spellings, each mapped to the choice that it stands for.
        minimum: For `int`, `float` and each of `ints`: the smallest value allowed.
        maximum: The largest value allowed.
        multiple_of: For `int` and each of `ints`: a number that must divide the value.
        toolchain_enum: For `str`: the module prefix of the toolchain's own enum whose members may be
            given instead of their names, such as `acme_sdk` for `acme_sdk.Device.GPU`.
        required: Whether a value must be given: there is no default that would be right.
    """

    name: str
    type: str
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    minimum: float | None = None
    maximum: float | None = None
    multiple_of: int | None = None
    toolchain_enum: str = ""
    required: bool = False

    def __post_init__(self) -> None:
        if self.type not in OPTION_TYPES:
            raise TypeError(f"Option {self.name!r}: type must be one of {', '.join(OPTION_TYPES)}, not {self.type!r}.")

    @property
    def expects(self) -> str:
        """What a value must be, in words: `a whole number, at least 32, a multiple of 32`."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        words = [OPTION_TYPES[self.type]]
        if self.minimum is not None:
            words.append(f"at least {self.minimum:g}")
        if self.maximum is not None:
            words.append(f"at most {self.maximum:g}")
        if self.multiple_of is not None:
            words.append(f"a multiple of {self.multiple_of}")
        return ", ".join(words)

    def parse(self, value: Any) -> Any:
        """The canonical form of a value that was given in Python or, as text, on the command line.

        Args:
            value: An object of the option's type, its text, or (with `toolchain_enum`) the toolchain's
                own enum member. None means "unset".

        Returns:
            An int, float, bool, str, tuple of these, or a callable; equal values have one form.

        Raises:
            OptionError: The value has the wrong type, is out of range, or is none of the choices.
        """
        if value is None:
            if self.required:
                raise self._error(value)
            return None
        parsed = self._convert(value)
        if self.choices:
            parsed = self.aliases.get(parsed, parsed)
            if parsed not in self.choices:
                raise self._error(value, did_you_mean(parsed, [*self.choices, *self.aliases]))
        numbers = parsed if self.type == "ints" else (parsed,) if self.type in ("int", "float") else ()
        if not all(self._in_range(number) for number in numbers):
            raise self._error(value)
        return parsed

    def _in_range(self, number: float) -> bool:
        return (
            number == number  # not a NaN, which compares with nothing
            and (self.minimum is None or number >= self.minimum)
            and (self.maximum is None or number <= self.maximum)
            and (self.multiple_of is None or number % self.multiple_of == 0)
        )

    def _convert(self, value: Any) -> Any:
        if isinstance(value, str) and self.type != "str":
            return self._from_text(value)
        if isinstance(value, enum.Enum):
            module = type(value).__module__
            ours = self.toolchain_enum and (module + ".").startswith(self.toolchain_enum + ".")
            if not (self.type == "str" and ours):
                raise self._error(value)
            return value.name
        if self.type == "int" and isinstance(value, int) and not isinstance(value, bool):
            return int(value)
        if self.type == "float" and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if self.type == "bool" and isinstance(value, bool):
            return value
        if self.type == "str" and isinstance(value, str):
            return value
        if self.type == "callable" and callable(value):
            return value
        if self.type in ("ints", "strs") and isinstance(value, list | tuple):
            item = int if self.type == "ints" else str
            if all(isinstance(x, item) and not isinstance(x, bool) for x in value):
                return tuple(value)
        raise self._error(value)

    def _from_text(self, text: str) -> Any:
        words = text.strip()
        try:
            if self.type == "int":
                return int(words)
            if self.type == "float":
                return float(words)
            if self.type == "bool":
                return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[words.lower()]
            if self.type in ("ints", "strs"):
                items = [item.strip() for item in words.strip("[]()").split(",") if item.strip()]
                return tuple(int(item) for item in items) if self.type == "ints" else tuple(items)
            module, _, name = words.partition(":")
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
            if not callable(found):
                raise ValueError(text)
            return found
        except (ValueError, KeyError, ImportError, AttributeError) as error:
            raise self._error(text) from error

    def _error(self, value: Any, advice: str = "") -> OptionError:
        got = "nothing" if value is None else f"{value!r} ({type(value).__name__})"
        return OptionError(f"Option {self.name!r} must be {self.expects}; got {got}.{advice}")


@dataclass(frozen=True)
class OptionValue:
    """The effective value of an option, and where it came from.

    Args:
        value: The canonical value, as `Option.parse` gives it.
        source: `default`, `given`, `target`, or a sentence where a recipe settled it
            (`raised to iOS17: needed by int8`).
    """

    value: Any
    source: str


@dataclass(frozen=True)
class RecipeInfo:
    """What a recipe type does, told without a toolchain.

    Args:
        summary: One line.
        weights: The precision of weights: `float32`, `float16`, `int8`, `int4`.
        activations: The precision of activations, likewise; `int8 dynamic` where ranges are measured at run time.
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
        hint: What mends it, best a command; empty when nothing does.
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
        """Availability from what is plain without importing anything.

        Args:
            modules: Top-level modules that must be present, each with what `pip install` calls it.
            platforms: The (system, machine) pairs that work, as `platform.system()` and
                `platform.machine()` give them; empty for all.
            python_below: The first Python version without a toolchain, such as (3, 14).
        """
        host = (platform.system(), platform.machine())
        if platforms and host not in platforms:
            works = ", ".join(" ".join(pair) for pair in platforms)
            return Availability(False, f"works on {works}, and this is {' '.join(host)}")
        if python_below is not None and sys.version_info >= python_below:
            limit = ".".join(map(str, python_below))
            return Availability(
                False,
                f"needs Python below {limit}, and this is {platform.python_version()}",
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

    Everything but `build_recipe` must be light: no torch, no toolchain.
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
        """Whether this backend can lower on this host; found out without importing its toolchain."""

    def recipe_availability(self, recipe_type: RecipeType) -> Availability:
        """Whether one recipe type can be made on this host, where the backend can lower.

        Override it where some recipe types need more than the others, such as a package that only
        quantization uses. Light, as `availability` is.

        Args:
            recipe_type: One of `get_supported_recipes()`.
        """
        return Availability(True)

    @abstractmethod
    def build_recipe(
        self, recipe_type: RecipeType, options: Mapping[str, OptionValue]
    ) -> executorch.export.ExportRecipe:
        """Make a fresh recipe. Called with options that are complete and checked.

        Args:
            recipe_type: One of `get_supported_recipes()`.
            options: Every declared option by name, as `settle_options` left it.

        Returns:
            A recipe that shares no mutable object with any other.
        """

    def settle_options(self, recipe_type: RecipeType, options: Mapping[str, OptionValue]) -> Mapping[str, OptionValue]:
        """Decide what no single option can: values that depend on the recipe or on each other.

        Override it to fill in unset options, or to refuse combinations. Light.

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
        """Look at a model before it is exported: what it needs of the options, and what cannot work.

        Override it where a backend has such rules. It is called with torch imported and may use it, but it must
        not lower anything.

        Args:
            recipe_type: One of `get_supported_recipes()`.
            options: The effective options.
            facts: One method of the model.

        Returns:
            The options that must change, with sources that say why, and what was found. Options that the user
            gave are never changed: a finding of level `error` says what they must be.
        """
        return {}, ()

    def supports_recipe(self, recipe_type: RecipeType) -> bool:
        """Whether `recipe_type` is one of `get_supported_recipes()`."""
        return recipe_type in self.get_supported_recipes()

    def resolve_options(
        self, recipe_type: RecipeType, given: Mapping[str, Any], source: str = "given"
    ) -> dict[str, OptionValue]:
        """The effective value of every option of a recipe type. Light.

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
            # None is "unset" and leaves the default standing, as if the option had not been named.
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

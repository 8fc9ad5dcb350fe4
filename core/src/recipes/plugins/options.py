"""The options of a recipe type: declared once, then listed, checked and routed by what was declared."""

from __future__ import annotations

import enum
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from recipes.common import OptionError, did_you_mean

if TYPE_CHECKING:
    pass


OPTION_TYPES: Mapping[str, str] = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "ints": "a list of whole numbers",
    "strs": "a list of strings",
    "callable": "a callable (as text: package.module:name)",
}
"""The values that `Option.type` may have, with the words that errors and help use for each."""


@dataclass(frozen=True)
class Option:
    """One option of a recipe type, declared so that it can be listed, checked and routed.

    Args:
        name: A Python identifier; it is the keyword argument and the command line's `-O name=value`.
        type: A key of `OPTION_TYPES`: `int`, `float`, `bool`, `str`, `ints`, `strs` or `callable`.
        help: One line, with the unit where there is one.
        default: The value when none is given. None means "unset": the recipe decides.
        choices: For `str`: the allowed values. They are compared exactly; an error names the nearest.
        aliases: For `str` with choices: other spellings, each mapped to the choice that it stands for.
        minimum: For `int`, `float` and each of `ints`: the smallest value allowed.
        maximum: The largest value allowed.
        multiple_of: For `int` and each of `ints`: a number that must divide the value.
        toolchain_enum: For `str`: the module prefix of the toolchain's own enum whose members may be
            given instead of their names, such as `acme_sdk` for `acme_sdk.Device.GPU`.
        required: Whether a value must be given, because no default would be right.
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
            An int, float, bool, str, tuple of these, or a callable; equal values have the same form.

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
            number == number  # not NaN, for which every comparison is false
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
        value: The canonical value, as `Option.parse` returns it.
        source: `default`, `given`, `target`, or a sentence where a recipe decided it
            (`raised to iOS17: needed by int8`).
    """

    value: Any
    source: str

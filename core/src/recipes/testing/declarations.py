"""Check the declaration of an option, and derive values to try from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recipes.common import OptionError
from recipes.plugins import Option, RecipeInfo, RecipeProvider, RecipeType


def text(info: RecipeInfo, name: str) -> str:
    """The text of an attribute, or an empty string where it is not text."""
    value = getattr(info, name)
    return value.strip() if isinstance(value, str) else ""


def faults(option: Option) -> Iterator[str]:
    """What is wrong with the declaration of an option."""
    if not option.name.isidentifier():
        yield "has a name that is not a Python identifier"
    if not option.help.strip():
        yield "has no help"
    if option.type != "str" and (option.choices or option.aliases or option.toolchain_enum):
        yield f"has choices, aliases or a toolchain_enum, which are only for str, but its type is {option.type}"
    if option.aliases and not option.choices:
        yield "has aliases but no choices"
    stray = [alias for alias, choice in option.aliases.items() if choice not in option.choices]
    if option.choices and stray:
        yield f"has aliases that stand for no choice: {', '.join(stray)}"
    if len(set(option.choices)) < len(option.choices):
        yield "has the same choice twice"
    if option.minimum is not None and option.maximum is not None and option.minimum > option.maximum:
        yield f"has a minimum of {option.minimum:g} above its maximum of {option.maximum:g}"
    if option.required and option.default is not None:
        yield "is required but has a default"
    if not option.required:
        try:
            option.parse(option.default)
        except OptionError as error:
            yield f"has a default that it does not allow: {error}"


def refusal(provider: RecipeProvider, recipe_type: RecipeType, given: Mapping[str, Any]) -> str:
    """Why options do not resolve, or an empty string."""
    try:
        provider.resolve_options(recipe_type, given)
    except OptionError as error:
        return str(error)
    return ""


def _chooses_all(*arguments: Any) -> bool:
    return True


def values(option: Option) -> list[Any]:
    """Values around an option's default and bounds, or its choices; some of them may not be allowed."""
    if option.choices:
        return list(option.choices)
    if option.type == "bool":
        return [True, False]
    if option.type == "callable":
        return [_chooses_all]
    if option.type in ("str", "strs"):
        return ["other"] if option.type == "str" else [["other"]]
    step = option.multiple_of or 1
    start = option.default if isinstance(option.default, int | float) else option.minimum or 0
    numbers = [start + step, start - step, start * 2, option.minimum, option.maximum]
    if option.type == "float":
        numbers += [start + 0.5, start / 2]
    else:
        numbers = [int(number) for number in numbers if number is not None]
    allowed = [number for number in numbers if number is not None]
    return [[number] for number in allowed] if option.type == "ints" else allowed

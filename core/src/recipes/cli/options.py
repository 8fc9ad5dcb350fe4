"""Parse `-O name=value` and `-O backend.name=value`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recipes.common import OptionError

if TYPE_CHECKING:
    from recipes.plugins import OptionValue, Target
    from recipes.registry import Registry


def from_texts(given: Sequence[str]) -> dict[str, Any]:
    """The options as `Registry.resolve_target_options` takes them: values by name, or mappings by backend.

    Args:
        given: Each `name=value` or `backend.name=value`; the value is kept as text.

    Raises:
        OptionError: A text has no valid form, or an option is given twice.
    """
    values: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        backend, dot, short = name.strip().rpartition(".")
        if not equals or not short.isidentifier() or (dot and not backend.isidentifier()):
            raise OptionError(f"-O {text}: write an option as name=value or backend.name=value.")
        group: dict[str, Any] = values.setdefault(backend, {}) if backend else values
        if not isinstance(group, dict) or short in group:
            raise OptionError(f"-O {text}: {backend or short!r} is given more than once; keep one of them.")
        group[short] = value
    return values


def resolve(registry: Registry, target: Target, values: Mapping[str, Any]) -> list[dict[str, OptionValue]]:
    """The effective options of each active component; points out a name and a value that are swapped.

    Raises:
        OptionError: No component takes an option, or a value is not allowed.
    """
    try:
        return registry.resolve_target_options(target, values)
    except OptionError as error:
        takes = {
            option.name
            for component in target.active
            for option in registry.find_recipe(component.recipe)[1]
            .describe(registry.find_recipe(component.recipe)[2])
            .options
        }
        for name, value in values.items():
            if isinstance(value, str) and value in takes and name not in takes:
                raise OptionError(f"{error}\nName and value look swapped: -O {value}={name}") from error
        raise


def unavailable(target: Target) -> str:
    """The error text for a target that cannot be built for here."""
    return f"Target {target.name} is unavailable: {target.reason}." + (f"\n{target.hint}" if target.hint else "")

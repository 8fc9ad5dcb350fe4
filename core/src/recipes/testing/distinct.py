"""The mutable objects that two recipes have in common."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Iterator, Mapping
from typing import Any

from recipes.common import CALLABLES, OPERATORS

_ATOMS: tuple[type, ...] = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    enum.Enum,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
)


def in_common(left: Any, right: Any) -> list[str]:
    """The places in `left` of mutable objects that are also in `right`.

    Frozen dataclasses, tuples and functions count as values and may be shared; so may the default values of
    ExecuTorch's fields, and the user's own callables.

    Args:
        left: One recipe.
        right: Another one.
    """
    theirs = {id(item): item for _, item in _mutable("", right, set())}
    return [place for place, item in _mutable("", left, set()) if id(item) in theirs]


def _mutable(place: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Every mutable object inside a value, outer ones first, with its place."""
    if value is None or isinstance(value, _ATOMS) or id(value) in seen or not _made_by_python(value):
        return
    seen.add(id(value))
    frozen = isinstance(value, tuple | frozenset | types.MappingProxyType) or _is_frozen(value)
    if not frozen:
        yield place or type(value).__name__, value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _mutable(f"{place}[{key!r}]", item, seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for number, item in enumerate(value):
            yield from _mutable(f"{place}[{number}]", item, seen)
    elif not _is_frozen(value):
        defaults = {f.name: f.default for f in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else {}
        for name, item in getattr(value, "__dict__", {}).items():
            if name not in (*CALLABLES, *OPERATORS) and item is not defaults.get(name):
                yield from _mutable(f"{place}.{name}".lstrip("."), item, seen)


def _is_frozen(value: Any) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def _made_by_python(value: Any) -> bool:
    """Whether a value is a container or has attributes: data types and handles of C++ have neither."""
    return isinstance(value, Mapping | list | tuple | set | frozenset) or hasattr(value, "__dict__")

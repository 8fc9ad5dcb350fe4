"""Compare, describe and copy the values in a recipe."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import types
from typing import Any

OPERATORS = ("_core_aten_ops_exception_list", "preserve_ops", "reinplace_extra_ops")
"""Fields that hold sets of operators, whatever their type: order does not matter, and operators are never copied."""

CALLABLES = (
    "aten_transform_passes",
    "calibration_inputs_fn",
    "edge_manager_transform_passes",
    "edge_transform_passes",
    "post_convert_passes",
    "post_prepare_passes",
    "pre_convert_passes",
    "pre_prepare_passes",
    "train_fn",
)
"""Fields that hold the user's own callables. They are shared on purpose: copying one could copy a data set."""


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, type)


def same(left: Any, right: Any, comparing: frozenset[tuple[int, int]] = frozenset()) -> bool:
    """Whether two values mean the same, though they may be different objects.

    Containers, dataclasses, functions and objects without an `__eq__` of their own are compared by
    their contents, because a provider makes new objects on each call.

    Args:
        left: One value.
        right: The other.
        comparing: Pairs that are being compared already, by `id`: objects may refer back to themselves.
    """
    if left is right or (id(left), id(right)) in comparing:
        return True
    if type(left) is not type(right):
        # True and 1, or an enum of strings and its text, are equal for ExecuTorch too.
        plain = (int, float, str)
        return isinstance(left, plain) and isinstance(right, plain) and left == right
    inside = comparing | {(id(left), id(right))}
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(a, b, inside) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key], inside) for key in left)
    if isinstance(left, types.FunctionType):
        return left.__code__ == right.__code__ and same(_around(left), _around(right), inside)
    if isinstance(left, functools.partial):
        return same((left.func, left.args, left.keywords), (right.func, right.args, right.keywords), inside)
    structural = dataclasses.is_dataclass(left) or _inherits(left, "__eq__")
    if structural and not isinstance(left, enum.Enum | type) and hasattr(left, "__dict__"):
        return same(_settings(left), _settings(right), inside)
    try:
        return bool(left == right)
    except (RuntimeError, ValueError):  # tensors and arrays compare element by element
        return left.shape == right.shape and bool((left == right).all())


def _inherits(value: Any, method: str) -> bool:
    """Whether a method is inherited from `object`, so that it says nothing about the contents."""
    return getattr(type(value), method) is getattr(object, method)


def _around(function: types.FunctionType) -> list[Any]:
    """What a function's code depends on, besides its arguments."""
    closed_over = [cell.cell_contents for cell in function.__closure__ or ()]
    return [function.__module__, function.__defaults__, function.__kwdefaults__, closed_over]


_RUN_STATE = {
    # MemoryPlanningPass. ExecuTorch's default one is a single object for the whole process, so without this
    # an export would change what the default is.
    "memory_planning_algo": ("state", "enable_non_cpu_memory_planning"),
    # ExportPass: the objects with which it walks a graph, which are never equal between two passes.
    "node_debug_str": ("interpreter", "tracer", "fake_tensor_mode", "node_debug_str"),
}
"""Attributes that ExecuTorch's passes use while they run, by an attribute that only such a pass has."""


def _settings(value: Any) -> dict[str, Any]:
    """An object's attributes, without those that only matter while it runs."""
    skipped = [name for mark, names in _RUN_STATE.items() if mark in vars(value) for name in names]
    return {name: item for name, item in vars(value).items() if name not in skipped}


def describe(value: Any) -> str:
    """A value in a few words, for messages and tables."""
    text = _describe(value)
    return text if len(text) <= 200 else text[:197] + "..."


def _describe(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_describe(item) for item in value) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(_describe(item) for item in value)) + "}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_describe(item)}" for key, item in value.items()) + "}"
    if isinstance(value, types.MethodType | types.FunctionType | type):
        return value.__qualname__
    if isinstance(value, functools.partial):
        return f"partial({_describe(value.func)})"
    if dataclasses.is_dataclass(value) or _inherits(value, "__repr__"):
        inside = vars(value) if dataclasses.is_dataclass(value) else _plain_settings(value)
        return f"{type(value).__name__}({', '.join(f'{name}={_describe(item)}' for name, item in inside.items())})"
    return repr(value)


def _plain_settings(value: Any) -> dict[str, Any]:
    plain = (bool, int, float, str, enum.Enum)
    return {n: v for n, v in _settings(value).items() if isinstance(v, plain) and not n.startswith("_")}


class Copier:
    """Copies the parts of one recipe; an object that occurs twice in it is copied once.

    Attributes:
        shared: Why an object could not be copied, by the object's `id`: the exception as text.
    """

    def __init__(self) -> None:
        self.shared: dict[int, str] = {}
        self._made: dict[int, Any] = {}

    def __call__(self, name: str, value: Any) -> Any:
        """A copy of an element or value of the field `name`, or the same object where it is shared."""
        if value is None or isinstance(value, _FUNCTIONS) or name in CALLABLES:
            return value
        if name in OPERATORS:
            return copy.copy(value)
        if name == "ao_quantization_configs" and getattr(value, "filter_fn", None) is not None:
            self._made[id(value.filter_fn)] = value.filter_fn
        before = dict(self._made)
        try:
            for attribute in getattr(value, "__dict__", {}).values():
                if isinstance(attribute, types.MappingProxyType):  # every partitioner has one; deepcopy cannot copy it
                    self._made[id(attribute)] = types.MappingProxyType(copy.deepcopy(dict(attribute), self._made))
            return copy.deepcopy(value, self._made)
        except Exception as error:  # whatever the object's own __deepcopy__ or __reduce__ raises
            # A failed copy leaves incomplete objects in the dict. It must stay the same dict: its id is a key in it.
            self._made.clear()
            self._made.update(before)
            self.shared[id(value)] = f"{type(error).__name__}: {error}"
            return value

    def copied(self, value: Any) -> Any:
        """The copy that was made of an object, or the object itself where there is none."""
        return self._made.get(id(value), value)

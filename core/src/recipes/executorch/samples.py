"""Tiny programs of single operators, to find out which operators a compiler accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from recipes.executorch.ranges import size_for_estimates


@dataclass(frozen=True)
class Weight:
    value: torch.Tensor


@dataclass(frozen=True)
class Sample:
    """An op and its arguments; if the op has several results, `used` are those that the model uses."""

    op: Any
    args: Any
    kwargs: Any
    used: frozenset[Any]


class Operators(torch.nn.Module):
    """Ops side by side, each on inputs of its own."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__()
        self.inputs: tuple[torch.Tensor, ...] = ()
        self._calls = [replace(s, args=self._bind(s.args), kwargs=self._bind(s.kwargs)) for s in samples]

    def _bind(self, arguments: Any) -> Any:
        def bind(value: Any) -> Any:
            if isinstance(value, Weight):
                name = f"weight_{len(self._buffers)}"
                self.register_buffer(name, value.value)
                return _Reference(name)
            if isinstance(value, torch.Tensor):
                self.inputs = (*self.inputs, value)
                return _Reference(len(self.inputs) - 1)
            return value

        return tree_map(bind, arguments, is_leaf=lambda v: isinstance(v, Weight))

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        def resolve(value: Any) -> Any:
            if not isinstance(value, _Reference):
                return value
            return inputs[value.key] if isinstance(value.key, int) else getattr(self, value.key)

        results = []
        for call in self._calls:
            made = call.op(*tree_map(resolve, call.args), **tree_map(resolve, call.kwargs))
            if call.used and isinstance(made, tuple | list):
                made = [value for index, value in enumerate(made) if index in call.used]
            results += [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        return results


@dataclass(frozen=True)
class _Reference:
    key: int | str


def runs(sample: Sample) -> bool:
    module = Operators([sample])
    try:
        with torch.no_grad():
            module(*module.inputs)
    except Exception:
        return False  # the generated inputs do not suit the op, so it cannot test the compiler
    return True


def made_up(fake: torch.Tensor) -> torch.Tensor:
    shape = [hint_of(size) for size in fake.shape]
    return torch.rand(shape).to(fake.dtype) if fake.is_floating_point() else torch.zeros(shape, dtype=fake.dtype)


def hint_of(value: Any) -> Any:
    """A number for a size that is only known as a symbol."""
    if isinstance(value, torch.SymInt):
        return size_for_estimates(value)
    return value.node.hint if isinstance(value, torch.SymFloat | torch.SymBool) else value

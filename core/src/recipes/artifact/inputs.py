"""Inputs to verify a program with: examples in other orders, the ends of dynamic ranges, and generated inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from recipes.artifact.comparison import Sample, Verification
from recipes.executorch import Method, Value

if TYPE_CHECKING:
    pass


_SAMPLES = 3
"""The least number of samples if the user passed none: the examples, and their values in other orders."""


def varied(examples: Sequence[tuple[Any, ...]]) -> list[Sample]:
    """The examples, and samples with the values of the first one in other orders, which are as realistic."""
    samples = [Sample(f"example {number}", tuple(sample)) for number, sample in enumerate(examples, 1)]
    generator = torch.Generator().manual_seed(0)

    def shuffled(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.numel() < 2:
            return value
        order = torch.randperm(value.numel(), generator=generator)
        return value.detach().reshape(-1)[order].reshape(value.shape)

    for number in range(1, _SAMPLES - len(samples) + 1):
        samples.append(Sample(f"shuffled {number}", tuple(tree_map(shuffled, examples[0]))))
    return samples


def range_ends(
    method: str, program: ExportedProgram, example: tuple[Any, ...], result: Verification
) -> Iterator[Sample]:
    """Yield the example at the lower and the upper end of each dynamic size; the other sizes are unchanged."""
    leaves, structure = tree_flatten(example)
    values_by_name = {node.name: node.meta.get("val") for node in program.graph.nodes}
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    inputs = [values_by_name.get(spec.arg.name) for spec in specs]
    if len(inputs) != len(leaves):
        result.not_run.append(f"Method {method!r}, ends of ranges: its inputs could not be matched with the example.")
        return
    shapes = [v.shape if isinstance(v, torch.Tensor) else () for v in inputs]
    sizes = _sizes_of_symbols(shapes, leaves)
    for symbol in sizes:
        bounds = program.range_constraints[symbol]
        for end in (bounds.lower, bounds.upper):
            if not getattr(end, "is_Integer", isinstance(end, int)):
                result.not_run.append(f"Method {method!r}: the upper end of {symbol}, whose range has no upper bound.")
                continue
            values = {**sizes, symbol: int(end)}
            resized = [
                _resized(leaf, [_length(length, values) for length in shape]) if shape else leaf
                for shape, leaf in zip(shapes, leaves, strict=True)
            ]
            yield Sample(f"{symbol}={int(end)}", tuple(tree_unflatten(resized, structure)))


def _sizes_of_symbols(shapes: Sequence[Sequence[Any]], leaves: Sequence[Any]) -> dict[Any, int]:
    """What each symbol is in the example; one that only occurs in a derived size, such as `8*s + 1`, is solved for."""
    sizes: dict[Any, int] = {}
    for shape, leaf in zip(shapes, leaves, strict=True):
        for dim, length in enumerate(shape):
            expression = length.node.expr if isinstance(length, torch.SymInt) else None
            if expression is None or len(expression.free_symbols) != 1:
                continue
            (symbol,) = expression.free_symbols
            solutions = sympy.solve(expression - int(leaf.shape[dim]), symbol)
            if len(solutions) == 1 and solutions[0].is_Integer:
                sizes[symbol] = int(solutions[0])
    return sizes


def _length(length: Any, values: Mapping[Any, int]) -> int:
    return int(length.node.expr.subs(values)) if isinstance(length, torch.SymInt) else int(length)


def _resized(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Cut or repeat a tensor to a shape, so that its values stay realistic, such as ids in a vocabulary."""
    for dim, length in enumerate(shape):
        if tensor.shape[dim] != length:
            index = torch.arange(length) % max(tensor.shape[dim], 1)
            tensor = tensor.detach().index_select(dim, index)
    return tensor


_PLAIN = ("int", "bool", "double", "string", "null")


def made_up(method: Method, declared: Sequence[Mapping[str, Any]] | None, result: Verification) -> list[Sample]:
    """Generate inputs of the declared shapes.

    If a manifest has the ranges, the shapes are those of the capture and both ends of the ranges, else the largest
    shapes. All dynamic sizes are at the same end, because it is not known here which of them depend on each other.
    """
    odd = sorted({value.kind for value in method.inputs if value.kind != "tensor" and value.kind not in _PLAIN})
    if odd:
        result.not_run.append(f"Method {method.name!r}: no {', '.join(odd)} can be generated for it; pass inputs.")
        return []
    generator = torch.Generator().manual_seed(0)

    def make(shape_of: Callable[[int, Value], Sequence[int]]) -> tuple[Any, ...]:
        return tuple(
            _noise(value.dtype, shape_of(index, value), generator) if value.kind == "tensor" else value.value
            for index, value in enumerate(method.inputs)
        )

    if declared is None or len(declared) != len(method.inputs):
        return [
            Sample(f"generated input {number}", make(lambda _, value: value.shape), True)
            for number in range(1, _SAMPLES)
        ]

    def at(end: str) -> Callable[[int, Value], Sequence[int]]:
        def shape(index: int, value: Value) -> Sequence[int]:
            sizes = list(declared[index]["shape"])
            for dynamic in declared[index]["dynamic"] if end else ():
                sizes[dynamic["dim"]] = value.shape[dynamic["dim"]] if dynamic[end] is None else dynamic[end]
            return sizes

        return shape

    samples = [Sample(f"generated input {number}", make(at("")), True) for number in range(1, _SAMPLES)]
    if any(value["dynamic"] for value in declared):
        samples += [
            Sample(f"generated input at the {end} of its ranges", make(at(end)), True) for end in ("min", "max")
        ]
    return samples


def _noise(dtype: str, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.randn(list(shape), generator=generator).to(kind)
    return torch.zeros(list(shape), dtype=kind)

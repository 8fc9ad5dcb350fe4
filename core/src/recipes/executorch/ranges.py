"""The ranges of dynamic sizes, which lowering must not change."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.symbol import SymT, symbol_is_type


def size_for_estimates(value: Any) -> int:
    """A number for a size that may be a symbol: its value in the example inputs.

    If a size depends on data, this value is unknown. Its upper bound is used then, or its lower bound if it has none.
    """
    if not isinstance(value, torch.SymInt):
        return int(value)
    if value.node.hint is not None:
        return int(value.node.hint)
    bounds = value.node.shape_env.bound_sympy(value.node.expr)
    return int(bounds.lower if bounds.upper is int_oo else bounds.upper)


@contextmanager
def keeping_ranges(programs: Collection[ExportedProgram]) -> Iterator[None]:
    """Let passes compare a dynamic size with a number without narrowing its range.

    Passes run fake tensors through the graph, and fake kernels that choose an algorithm by size compare a dynamic
    size with a number (torch's convolution with 16). Such a guard narrows the symbol's range although nothing in the
    graph depends on it. A backend would get the smaller range, and memory would be planned for it.

    Args:
        programs: The programs that the passes work on. If sizes depend on data, torch's checks on them are guards
            too, which the passes need. In this case, ranges that were narrowed before are restored instead.
    """
    # A derived size, such as twice another one, has a range of its own under its expression.
    symbols = {symbol for program in programs for expr in program.range_constraints for symbol in expr.free_symbols}
    if any(symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)) for symbol in symbols):
        for program in programs:
            _restore(program)
        yield
        return
    with ShapeEnv().suppress_guards():  # this holds for all environments in this thread
        yield


def _restore(program: ExportedProgram) -> None:
    values = (node.meta.get("val") for node in program.graph.nodes)
    fake = (v for v in tree_leaves(list(values)) if isinstance(v, FakeTensor))
    environments = {id(env): env for v in fake if (env := v.fake_mode.shape_env) is not None}
    for environment in environments.values():
        for symbol, asked in program.range_constraints.items():
            if symbol in environment.var_to_range:
                environment.var_to_range[symbol] = asked


def unbounded(what: str) -> str:
    """The message for a dynamic size that has no upper bound."""
    return (
        f"The dynamic {what} has no upper bound, but ExecuTorch plans memory for the largest size. Set a bound, such "
        "as torch.export.Dim('batch', min=1, max=64) or torch.export.Dim.AUTO(min=1, max=64)."
    )

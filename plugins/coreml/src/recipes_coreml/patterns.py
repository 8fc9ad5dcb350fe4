"""The patterns that ExecuTorch's Core ML quantizer looks for, as chains of ATen operators that are cheap to trace."""

from __future__ import annotations

import functools
import itertools
import operator
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch.fx.experimental.proxy_tensor import make_fx

TensorFunction = Callable[..., torch.Tensor]


Shapes = tuple[tuple[int, ...], ...]


Chain = tuple[Any, ...]
"""The ATen ops of a pattern, producers first, each fed by the one before."""


ACTIVATIONS_WITH_IN_PLACE_FORM: tuple[TensorFunction, ...] = (
    F.relu,
    F.relu6,
    F.leaky_relu,
    F.silu,
    F.elu,
    F.celu,
    F.selu,
    F.mish,
    F.hardtanh,
    F.hardswish,
    F.hardsigmoid,
)


ACTIVATIONS_WITHOUT_IN_PLACE_FORM: tuple[TensorFunction, ...] = (F.gelu, F.sigmoid, F.logsigmoid, F.tanh)


CONVOLUTIONS: Mapping[int, TensorFunction] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class Pattern:
    """An operation, optionally followed by batch norm, an activation or both.

    Args:
        operation: A function of two tensors, or of input, weight and bias.
        shapes: Shapes of tensors that `operation` can be called with. The graph does not depend on them.
        batch_norm: Whether batch norm, in training mode, follows.
        activation: The activation at the end, if there is one.
    """

    operation: TensorFunction
    shapes: Shapes
    batch_norm: bool = False
    activation: TensorFunction | None = None

    @property
    def is_weighted(self) -> bool:
        """Whether the operation has a weight and a bias."""
        return len(self.shapes) == 3

    @property
    def all_shapes(self) -> Shapes:
        """The shapes of all arguments of the pattern; those of batch norm have the shape of the bias."""
        return self.shapes + self.shapes[-1:] * (4 if self.batch_norm else 0)

    @property
    def steps(self) -> int:
        """How many functions the pattern calls."""
        return 1 + self.batch_norm + (self.activation is not None)

    def __call__(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Compute the pattern.

        Args:
            tensors: One for each of `all_shapes`.

        Returns:
            The result, and the tensors that ExecuTorch's annotation functions look up by name.
        """
        operands = tensors[: len(self.shapes)]
        result = self.operation(*operands)
        if self.is_weighted:
            named = dict(zip(("input", "weight", "bias"), operands, strict=True), mod=result)
        else:
            named = {"binary_op": result}
        if self.batch_norm:
            result = _batch_norm(result, *tensors[len(self.shapes) :])
        if self.activation is not None:
            result = self.activation(result)
        if self.batch_norm or self.activation is not None:
            named["output"] = result
        return result, named


def _batch_norm(
    values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor
) -> torch.Tensor:
    return F.batch_norm(values, mean, variance, weight, bias, training=True)


def _with_batch_norm(patterns: Iterable[Pattern]) -> list[Pattern]:
    return [replace(pattern, batch_norm=True) for pattern in patterns]


def _with_each_activation(patterns: Iterable[Pattern]) -> list[Pattern]:
    """Combine each pattern with each activation, in the order in which ExecuTorch looks for them."""
    patterns = list(patterns)
    in_place_or_not = [
        form
        for activation in ACTIVATIONS_WITH_IN_PLACE_FORM
        for form in (functools.partial(activation, inplace=True), activation)
    ]
    return [
        replace(pattern, activation=activation)
        for activations in (in_place_or_not, ACTIVATIONS_WITHOUT_IN_PLACE_FORM)
        for pattern, activation in itertools.product(patterns, activations)
    ]


@functools.cache
def patterns_by_annotator() -> Mapping[str, tuple[Pattern, ...]]:
    """Every pattern that ExecuTorch looks for, by the name of the annotator and in its order."""
    convolutions = [
        Pattern(function, ((1, 1, *[3] * dimensions), (1, 1, *[1] * dimensions), (1,)))
        for dimensions, function in CONVOLUTIONS.items()
    ]
    # Batch norm in training mode requires more than one value for each channel, hence the two rows.
    linear = [Pattern(F.linear, ((2, 1), (3, 1), (3,)))]
    add, mul, matmul = (
        [Pattern(function, ((1,), (1,))) for function in functions]
        for functions in (
            (operator.add, torch.add, operator.iadd),
            (operator.mul, torch.mul, operator.imul),
            (torch.matmul,),
        )
    )
    patterns = {
        "conv_act": _with_each_activation(convolutions),
        "conv_bn_act": _with_each_activation(_with_batch_norm(convolutions)),
        "conv_bn": _with_batch_norm(convolutions),
        "conv": convolutions,
        "linear_act": _with_each_activation(linear),
        "linear_bn_act": _with_each_activation(_with_batch_norm(linear)),
        "linear_bn": _with_batch_norm(linear),
        "linear": linear,
        "add_act": _with_each_activation(add),
        "add": add,
        "mul_act": _with_each_activation(mul),
        "mul": mul,
        "matmul_act": _with_each_activation(matmul),
        "matmul": matmul,
    }
    return MappingProxyType({annotator: tuple(listed) for annotator, listed in patterns.items()})


# make_fx patches torch.nn.Module while it traces, so two threads must not trace at the same time.
_tracing = threading.Lock()


def _trace(function: Callable[[tuple[torch.Tensor, ...]], Any], shapes: Shapes) -> torch.fx.GraphModule:
    """Trace a function of a tuple of tensors to a graph of ATen ops."""
    # The tensors are zeros, because random numbers would change those that a seeded caller gets next. Type and device
    # are explicit, because the caller may have changed the defaults.
    tensors = tuple(torch.zeros(shape, dtype=torch.float32, device="cpu") for shape in shapes)
    with _tracing:
        # With one tuple instead of several tensors, make_fx records how the result is nested, which the matcher needs
        # to find the names.
        return make_fx(function, pre_dispatch=True)(tensors)


@functools.cache
def trace_pattern(pattern: Pattern) -> torch.fx.GraphModule:
    """Trace a pattern to a graph that matches the same nodes as ExecuTorch's graph from a strict `torch.export`.

    The graph is shared by all callers: copy it before changing it.
    """
    return _trace(pattern, pattern.all_shapes)


@functools.cache
def _aten_ops(function: TensorFunction, shapes: Shapes) -> Chain:
    """Find the ATen ops of a function by tracing it, so that there is no table that could be out of date."""
    graph = _trace(lambda tensors: function(*tensors), shapes).graph
    return tuple(node.target for node in graph.nodes if node.op == "call_function")


def chain_of(pattern: Pattern) -> Chain:
    """Find the ATen ops of a pattern without tracing it: each function is traced once for all patterns."""
    chain = _aten_ops(pattern.operation, pattern.shapes)
    if pattern.batch_norm:
        chain += _aten_ops(_batch_norm, ((2, 1), *[(1,)] * 4))
    if pattern.activation is not None:
        chain += _aten_ops(pattern.activation, ((1,),))
    return chain


@functools.cache
def distinct_patterns() -> Mapping[str, Mapping[Chain, Pattern]]:
    """The patterns of each annotator, without patterns that have the same chain as an earlier one.

    Such a pattern would only find nodes that the earlier one found and annotated, or that were filtered out.
    """
    distinct: dict[str, dict[Chain, Pattern]] = {}
    for annotator, patterns in patterns_by_annotator().items():
        chains = distinct.setdefault(annotator, {})
        for pattern in patterns:
            chains.setdefault(chain_of(pattern), pattern)
    return MappingProxyType(distinct)


def links_of(graph: torch.fx.Graph) -> set[Chain]:
    """Every chain of one op and of two ops in a graph."""
    links: set[Chain] = set()
    for node in graph.nodes:
        if node.op == "call_function":
            links.add((node.target,))
            links.update((source.target, node.target) for source in node.all_input_nodes if source.op == node.op)
    return links


def may_occur(chain: Chain, links: set[Chain]) -> bool:
    """Whether all ops and edges of a chain are among the links; otherwise the matcher cannot find it."""
    return all(link in links for link in (chain[:1], *itertools.pairwise(chain)))

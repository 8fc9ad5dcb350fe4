"""ExecuTorch's Core ML quantizer without the minute that it spends on tracing patterns.

ExecuTorch's `CoreMLQuantizer` looks for about 400 patterns in a model, and traces each of them with a
strict `torch.export` first, for every model anew. Only a handful occur in any one model. The quantizer
here gives ExecuTorch's own annotation functions only the patterns that can match, in the same order and
with the same configs, so the annotations are the same and with them everything that follows.

This module imports torch and ExecuTorch: only recipe factories import it.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import itertools
import operator
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from executorch.backends.apple.coreml.quantizer import CoreMLQuantizer as ExecuTorchCoreMLQuantizer
from executorch.backends.apple.coreml.quantizer import _coreml_quantizer as executorch_quantizer
from executorch.backends.apple.coreml.quantizer import _coreml_quantizer_utils as executorch_utils
from executorch.backends.apple.coreml.quantizer._annotation_config import AnnotationConfig
from torch.fx.experimental.proxy_tensor import make_fx

from recipes import RecipesWarning

TensorFunction = Callable[..., torch.Tensor]
Shapes = tuple[tuple[int, ...], ...]
Chain = tuple[Any, ...]
"""The ATen ops of a pattern, producers first, each fed by the one before."""

_ACTIVATIONS_WITH_IN_PLACE_FORM: tuple[TensorFunction, ...] = (
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
_ACTIVATIONS_WITHOUT_IN_PLACE_FORM: tuple[TensorFunction, ...] = (F.gelu, F.sigmoid, F.logsigmoid, F.tanh)

_CONVOLUTIONS: Mapping[int, TensorFunction] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

# Annotators that trace nothing, so they are called as they are.
_ANNOTATORS_WITHOUT_PATTERNS = frozenset(
    f"{pool}{dimensions}d" for pool in ("max_pool", "avg_pool", "adaptive_avg_pool") for dimensions in (1, 2, 3)
) | {"flatten"}

# What this module relies on, each with a digest of its source text (see `_digest`). The patterns below restate
# what these functions do, and trying fewer of them is right only because of how matches are annotated. A version
# number would say too little: it misses what is registered or replaced at run time, and it refuses a release
# that changes nothing here. Source text is the same under every Python, which byte code and syntax trees are not;
# the price is that a changed comment counts as a change, which errs on the slow side and never on the wrong one.
# To take up a change: read it, adapt the patterns, run the slow tests, then put the new digests here.
_KNOWN_ANNOTATORS: Mapping[str, str] = {
    "conv_act": "04820d97b0bd",
    "conv_bn_act": "15f244b1fde5",
    "conv_bn": "3d96a0635bb0",
    "conv": "d8d03f080303",
    "linear_act": "dc80d8e7212c",
    "linear_bn_act": "a9e3537ac476",
    "linear_bn": "2e0587a74987",
    "linear": "6a177167367f",
    "add_act": "a52be47eea23",
    "add": "4db859a1d452",
    "mul_act": "70b78ce78078",
    "mul": "0b22f96cde82",
    "matmul_act": "77c4564272d1",
    "matmul": "0be1a5db0eae",
}
_KNOWN_METHODS: Mapping[str, str] = {
    "annotate": "258b3d92448d",
    "_annotate_all_patterns": "ff2898457fed",
}
_KNOWN_HELPERS: Mapping[str, str] = {
    "_is_annotated": "ad069a1f3ab1",
    "_mark_nodes_as_annotated": "2bb9af6cf37f",
    "_get_aten_graph_module": "1f6870093476",
    "_get_aten_graph_module_for_pattern": "2760e12e1e6e",
    "_get_weighted_mod_pattern": "b3d2b185fcc2",
    "_get_weighted_mod_bn_pattern": "4890cc84ffba",
    "get_binary_op_act_pattern": "7924294e0d6e",
    "get_conv_pattern": "fe6dbc0184cd",
    "get_conv_bn_pattern": "6fca7957a1ad",
    "get_linear_pattern": "958c79b57e18",
    "get_linear_bn_pattern": "bf42c8afda25",
    "annotate_weighted_mod_pattern": "f1c9363a1930",
    "annotate_binary_op_act_pattern": "0cfa611afb43",
    "annotate_conv_bn_act_helper": "2214be74ec24",
    "annotate_linear_bn_act_helper": "f124d227b5f0",
    "annotate_binary_op_helper": "b08f7a29b86d",
}


@dataclass(frozen=True)
class Pattern:
    """An operation, perhaps batch norm, perhaps an activation, each fed by the one before.

    Args:
        operation: A function of two tensors, or of input, weight and bias.
        shapes: Shapes of tensors that `operation` can be called with. They leave no trace in the graph.
        batch_norm: Whether batch norm, in training mode, follows.
        activation: What follows last.
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
        """Shapes of everything that the pattern takes; those that batch norm takes are shaped like the bias."""
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
            The result, and the tensors that ExecuTorch's annotation functions ask for by name.
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
    """Each pattern with each activation, in the order in which ExecuTorch looks for them."""
    patterns = list(patterns)
    in_place_or_not = [
        form
        for activation in _ACTIVATIONS_WITH_IN_PLACE_FORM
        for form in (functools.partial(activation, inplace=True), activation)
    ]
    return [
        replace(pattern, activation=activation)
        for activations in (in_place_or_not, _ACTIVATIONS_WITHOUT_IN_PLACE_FORM)
        for pattern, activation in itertools.product(patterns, activations)
    ]


@functools.cache
def patterns_by_annotator() -> Mapping[str, tuple[Pattern, ...]]:
    """Every pattern that ExecuTorch looks for, by the name of the annotator and in its order."""
    convolutions = [
        Pattern(function, ((1, 1, *[3] * dimensions), (1, 1, *[1] * dimensions), (1,)))
        for dimensions, function in _CONVOLUTIONS.items()
    ]
    # Batch norm in training mode wants more than one value for each channel, hence the two rows.
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


# make_fx patches torch.nn.Module while it traces, so two threads must not trace at a time.
_tracing = threading.Lock()


def _trace(function: Callable[[tuple[torch.Tensor, ...]], Any], shapes: Shapes) -> torch.fx.GraphModule:
    """The graph of ATen ops that a function of a tuple of tensors becomes."""
    # Zeros, since drawing numbers would change what a seeded caller draws next; type and device are
    # spelled out, since the caller may have changed the defaults.
    tensors = tuple(torch.zeros(shape, dtype=torch.float32, device="cpu") for shape in shapes)
    with _tracing:
        # Given one tuple rather than several tensors, make_fx records how the result is nested, and the
        # matcher needs that to find the names.
        return make_fx(function, pre_dispatch=True)(tensors)


@functools.cache
def trace_pattern(pattern: Pattern) -> torch.fx.GraphModule:
    """The pattern as a graph that matches what ExecuTorch's own, from strict `torch.export`, matches.

    The graph is shared by all callers: copy it before changing it.
    """
    return _trace(pattern, pattern.all_shapes)


@functools.cache
def _aten_ops(function: TensorFunction, shapes: Shapes) -> Chain:
    """The ATen ops that a function becomes, found by tracing, so there is no table that could be out of date."""
    graph = _trace(lambda tensors: function(*tensors), shapes).graph
    return tuple(node.target for node in graph.nodes if node.op == "call_function")


def chain_of(pattern: Pattern) -> Chain:
    """The ATen ops of a pattern without tracing it: each function in it is traced once for all patterns."""
    chain = _aten_ops(pattern.operation, pattern.shapes)
    if pattern.batch_norm:
        chain += _aten_ops(_batch_norm, ((2, 1), *[(1,)] * 4))
    if pattern.activation is not None:
        chain += _aten_ops(pattern.activation, ((1,),))
    return chain


@functools.cache
def _distinct_patterns() -> Mapping[str, Mapping[Chain, Pattern]]:
    """The patterns of each annotator without those that become the same chain as an earlier one.

    The later one finds what the earlier one found, and each of these is annotated by then or was filtered out.
    """
    distinct: dict[str, dict[Chain, Pattern]] = {}
    for annotator, patterns in patterns_by_annotator().items():
        chains = distinct.setdefault(annotator, {})
        for pattern in patterns:
            chains.setdefault(chain_of(pattern), pattern)
    return MappingProxyType(distinct)


def _links(graph: torch.fx.Graph) -> set[Chain]:
    """Every chain of one op and of two ops in a graph."""
    links: set[Chain] = set()
    for node in graph.nodes:
        if node.op == "call_function":
            links.add((node.target,))
            links.update((source.target, node.target) for source in node.all_input_nodes if source.op == node.op)
    return links


def _may_occur(chain: Chain, links: set[Chain]) -> bool:
    """Whether a chain's ops and edges are all among the links, without which the matcher cannot find it."""
    return all(link in links for link in (chain[:1], *itertools.pairwise(chain)))


@functools.cache
def _digest(function: object) -> str:
    """A short digest of a function's source text; empty where there is none to read."""
    try:
        source = inspect.getsource(function)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


@functools.cache
def _annotators_without_chains() -> list[str]:
    """The annotators with a pattern in which some function does not become exactly one ATen op."""
    return [
        annotator
        for annotator, patterns in patterns_by_annotator().items()
        if any(len(chain_of(pattern)) != pattern.steps for pattern in patterns)
    ]


def unexpected_changes() -> list[str]:
    """How the installed ExecuTorch and torch differ from those that this module was written against.

    Returns:
        One phrase for each difference. Empty: both quantizers annotate alike.
    """
    annotators = executorch_quantizer._AnnotationPatternRegistry.get_annotators()
    utilities = vars(executorch_utils)
    changes = [
        f"annotator {name!r} is new"
        for name in annotators
        if name not in _KNOWN_ANNOTATORS and name not in _ANNOTATORS_WITHOUT_PATTERNS
    ]
    changes += [f"annotator {name!r} is gone" for name in sorted(_ANNOTATORS_WITHOUT_PATTERNS - annotators.keys())]
    for kind, digests, present in (
        ("annotator", _KNOWN_ANNOTATORS, annotators),
        ("method", _KNOWN_METHODS, vars(ExecuTorchCoreMLQuantizer)),
        ("function", _KNOWN_HELPERS, utilities),
    ):
        for name, digest in digests.items():
            if name not in present:
                changes.append(f"{kind} {name!r} is gone")
            elif _digest(present[name]) != digest:
                changes.append(f"{kind} {name!r} has changed")
    for name, expected in (
        ("_supported_activations", _ACTIVATIONS_WITH_IN_PLACE_FORM),
        ("_supported_activations_no_inplace", _ACTIVATIONS_WITHOUT_IN_PLACE_FORM),
        ("_conv_fn_map", _CONVOLUTIONS),
    ):
        if utilities.get(name) != expected:
            changes.append(f"table {name!r} has changed")
    changes += [f"torch no longer traces annotator {name!r} to plain chains" for name in _annotators_without_chains()]
    return changes


class CoreMLQuantizer(ExecuTorchCoreMLQuantizer):
    """ExecuTorch's Core ML quantizer, a minute faster: the same annotations, only patterns that can match are tried.

    Where ExecuTorch's annotators are not those that this class was written against, it warns and does
    what ExecuTorch does.

    Args:
        config: A `coremltools.optimize.torch.quantization.LinearQuantizerConfig`, as ExecuTorch's takes.
    """

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Annotate a model for `prepare_pt2e`, in place.

        Args:
            model: A graph module of ATen ops, from `torch.export`.

        Returns:
            The same graph module.
        """
        if changes := unexpected_changes():
            warnings.warn(
                "The installed ExecuTorch's Core ML quantizer is not the one that recipes-coreml knows "
                f"({'; '.join(changes)}), so its own search for patterns is used: right, but about a minute slower "
                "for each model. Install versions of recipes-coreml and executorch that go together to be fast again.",
                RecipesWarning,
                stacklevel=2,
            )
        super().annotate(model)
        return model

    def _annotate_all_patterns(
        self,
        model: torch.fx.GraphModule,
        quantization_config: Any,
        filter_fn: Callable[[torch.fx.Node], bool] | None = None,
    ) -> None:
        if unexpected_changes():
            super()._annotate_all_patterns(model, quantization_config, filter_fn)
            return
        # ExecuTorch does this before each pattern. Annotating adds no nodes, so once is enough; without it
        # a model in which nothing can match would keep its dead code.
        model.graph.eliminate_dead_code()
        model.recompile()
        links = _links(model.graph)
        for name, annotator in executorch_quantizer._AnnotationPatternRegistry.get_annotators().items():
            # One for each annotator, as in ExecuTorch: which specs are one object decides which observers are shared.
            config = AnnotationConfig.from_quantization_config(quantization_config)
            if name not in patterns_by_annotator():
                annotator(model, config, filter_fn)
                continue
            for chain, pattern in _distinct_patterns()[name].items():
                if not _may_occur(chain, links):
                    continue
                annotate = (
                    executorch_utils.annotate_weighted_mod_pattern
                    if pattern.is_weighted
                    else executorch_utils.annotate_binary_op_act_pattern
                )
                # A copy, since the matcher rewrites the pattern that it is given.
                annotate(model, copy.deepcopy(trace_pattern(pattern)), config, filter_fn)

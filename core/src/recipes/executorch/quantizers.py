"""Make several quantizers act as one, in the order of a recipe's components."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import has_side_effect
from torch.utils._pytree import tree_leaves
from torchao.quantization.pt2e.quantizer import Quantizer

from recipes.common import RecipeConflictError, describe

if TYPE_CHECKING:
    from executorch.export import AOQuantizationConfig

ANNOTATION = "quantization_annotation"
"""The key of a node's meta under which PT2E quantizers leave their annotation."""

UNBOUNDED = 1e4
"""A number of at least this size stands for infinity: attention masks add -1e4, -1e9 or a data type's minimum."""

_UNBOUNDED_MARK = "recipes_unbounded"
_VISIBLE_META = ("val", "tensor_meta", ANNOTATION, _UNBOUNDED_MARK)


@has_side_effect  # so that a quantizer that removes dead code leaves a hidden in-place op where it is
def out_of_sight(*args: Any, **kwargs: Any) -> Any:
    """Replace an op that a quantizer must not see; it is never called."""
    raise AssertionError("a graph is not run while it is being annotated")


class PrecedenceQuantizer(Quantizer):
    """Quantizers in order of precedence: a later one sees only what no earlier one annotated.

    While a quantizer annotates, opaque calls replace the nodes that earlier ones annotated, so that no pattern
    matches them. torchao's own `ComposableQuantizer` raises an error, or fails an assertion, if two of its
    quantizers support the same op.

    Some tensors are never observed:

    - Integer and boolean tensors. Fake quantization has no kernel for them, and quantization would change an index.
    - Tensors that `mark_unbounded` marked. A mask's minus infinity leaves one step of the scale for all other values.
    - Buffers that the model updates. Quantization would make them constants.

    Everything else is annotated as by the quantizers alone.

    Args:
        quantizers: PT2E quantizers, the first with the highest precedence.
    """

    def __init__(self, quantizers: Sequence[Any]) -> None:
        super().__init__()
        self.quantizers = tuple(quantizers)

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Let each quantizer prepare the graph, in order, except for ops on integers.

        Quantizers turn scalars into float tensors here, so that an index to which a number is added becomes a float.
        """
        for quantizer in self.quantizers:
            integers = [n for n in model.graph.nodes if n.op == "call_function" and _is_integer(n, model)]
            with _hidden(integers):
                model = quantizer.transform_for_annotation(model)
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Let each quantizer annotate what the earlier ones left."""
        for quantizer in self.quantizers:
            taken = [n for n in model.graph.nodes if n.op == "call_function" and n.meta.get(ANNOTATION) is not None]
            before = [(a, dict(a.input_qspec_map), a.output_qspec) for a in (n.meta[ANNOTATION] for n in taken)]
            with _hidden(taken):
                quantizer.annotate(model)
            for annotation, inputs, output in before:
                annotation.input_qspec_map, annotation.output_qspec = inputs, output
            model.recompile()
        _drop_unfit_specs(model)
        return model

    def validate(self, model: GraphModule) -> None:
        """Let each quantizer check the annotated graph."""
        for quantizer in self.quantizers:
            quantizer.validate(model)

    def prepare_obs_or_fq_callback(self, model: GraphModule, edge_or_node_to_obs_or_fq: Any) -> None:
        """Let each quantizer adjust the observers."""
        for quantizer in self.quantizers:
            quantizer.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)


@contextmanager
def _hidden(nodes: Sequence[Node]) -> Iterator[None]:
    """Hide nodes from pattern matchers, which look at the target of a node or at its origin."""
    before = [(node, node.target, node.meta) for node in nodes]
    for node in nodes:
        node.target = out_of_sight
        node.meta = {key: node.meta[key] for key in _VISIBLE_META if key in node.meta}
    try:
        yield
    finally:
        for node, target, meta in before:
            node.target, node.meta = target, meta


def _drop_unfit_specs(model: GraphModule) -> None:
    """Remove the specs of tensors that must not be observed, and specs that are shared with or derived from them."""
    annotations = [(n, n.meta[ANNOTATION]) for n in model.graph.nodes if n.meta.get(ANNOTATION) is not None]
    moving = _moving(model.graph)
    dropped: set[Any] = set()
    changed = True
    while changed:
        changed = False
        for node, annotation in annotations:
            for source, spec in annotation.input_qspec_map.items():
                if spec is not None and (_is_unfit(source, model, moving) or _depends_on(spec, dropped)):
                    annotation.input_qspec_map[source] = None
                    dropped.add((source, node))
                    changed = True
            spec = annotation.output_qspec
            if spec is not None and (_is_unfit(node, model, moving) or _depends_on(spec, dropped)):
                annotation.output_qspec = None
                dropped.add(node)
                changed = True


def _depends_on(spec: Any, dropped: set[Any]) -> bool:
    references = [*getattr(spec, "derived_from", ()), getattr(spec, "edge_or_node", None)]
    return any(reference in dropped for reference in references if reference is not None)


def folds_weights(quantizer: Any) -> bool:
    """Whether weights become integer constants, as backends expect unless their quantizer has `fold_quantize = False`.

    Without folding, a weight stays a float constant, and operators quantize and dequantize it. Some backends need
    this form, because their compilers fold these operators themselves.
    """
    return bool(getattr(quantizer, "fold_quantize", True))


def mark_unbounded(model: GraphModule, sample: Sequence[Any]) -> None:
    """Mark the tensors of a captured graph that contain a number for infinity, as masks have, when it runs on a sample.

    Args:
        model: The graph; it runs once, and only if its constants contain such a number.
        sample: The arguments of its forward.
    """
    numbers = [v for n in model.graph.nodes for v in tree_leaves((n.args, n.kwargs)) if isinstance(v, float)]
    constants = [_attribute(model, str(n.target)) for n in model.graph.nodes if n.op == "get_attr"]
    if not any(abs(v) >= UNBOUNDED for v in numbers) and not any(map(_holds_unbounded, constants)):
        return

    class Marking(torch.fx.Interpreter):
        def run_node(self, n: Node) -> Any:
            value = super().run_node(n)
            if _holds_unbounded(value):
                n.meta[_UNBOUNDED_MARK] = True
            return value

    with torch.no_grad():
        Marking(model).run(*tree_leaves(tuple(sample)))


def _holds_unbounded(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.numel() > 0
        and bool((value.abs() >= UNBOUNDED).any())
    )


def _is_unfit(node: Node, model: GraphModule, moving: set[Node]) -> bool:
    return _UNBOUNDED_MARK in node.meta or node in moving or _is_integer(node, model)


def _moving(graph: Graph) -> set[Node]:
    """Nodes that use no input but buffers that the graph writes to: quantization would make them constants."""
    written = {user.args[0].target for user in graph.nodes if _writes_to_buffer(user)}
    constant: set[Node] = set()
    moving: set[Node] = set()
    for node in graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "get_attr" or (node.op == "call_function" and inputs and constant.issuperset(inputs)):
            constant.add(node)
            if node.target in written if node.op == "get_attr" else not moving.isdisjoint(inputs):
                moving.add(node)
    return moving


def _writes_to_buffer(node: Node) -> bool:
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and node.target._schema.is_mutable
        and isinstance(node.args[0], Node)
        and node.args[0].op == "get_attr"
    )


def _is_integer(node: Node, model: GraphModule) -> bool:
    value = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = _attribute(model, str(node.target))
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()


def _attribute(model: torch.nn.Module, path: str) -> Any:
    value: Any = model
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def quantized_nodes(model: GraphModule) -> Iterator[Node]:
    """The nodes of a converted graph that dequantize something; if there are none, nothing was quantized."""
    return (n for n in model.graph.nodes if n.op == "call_function" and "dequantize" in str(n.target))


def check_disjoint(configs: Sequence[AOQuantizationConfig], model: torch.nn.Module) -> None:
    """Refuse torchao configs if two of them would quantize the same layer.

    Args:
        configs: The configs of a recipe; with more than one, each must have a `filter_fn`.
        model: The model that they will be applied to; it is not changed.

    Raises:
        RecipeConflictError: Two configs take the same layer; the message names the layers.
    """
    if len(configs) < 2:
        return
    if any(config.filter_fn is None for config in configs):
        raise RecipeConflictError(
            "ao_quantization_configs: each of several torchao configs needs a filter_fn, because a config without one "
            "takes every linear layer."
        )
    claims = {
        name: [config for config in configs if config.filter_fn(module, name)] for name, module in model.named_modules()
    }
    twice = [f"  {name or '(the model)'}: {describe(takers)}" for name, takers in claims.items() if len(takers) > 1]
    if twice:
        more = [f"  and {len(twice) - 10} more"] if len(twice) > 10 else []
        raise RecipeConflictError(
            "\n".join(
                [
                    "ao_quantization_configs: more than one torchao config takes these layers:",
                    *twice[:10],
                    *more,
                    "Change their filter_fns so that at most one of them selects each layer.",
                ]
            )
        )

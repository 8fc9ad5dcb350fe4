"""Make several quantizers act as one, in the order of a recipe's components."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import has_side_effect
from torchao.quantization.pt2e.quantizer import Quantizer

ANNOTATION = "quantization_annotation"
"""The key of a node's meta under which PT2E quantizers leave their annotation."""

_VISIBLE_META = ("val", "tensor_meta", ANNOTATION)


@has_side_effect  # so that a quantizer that removes dead code leaves a hidden in-place op where it is
def annotated_earlier(*args: Any, **kwargs: Any) -> Any:
    """Stand for an op that an earlier quantizer annotated; never run."""
    raise AssertionError("a graph is not run while it is being annotated")


class PrecedenceQuantizer(Quantizer):
    """Quantizers in order of precedence: a later one sees only what no earlier one annotated.

    While a quantizer annotates, the nodes that earlier ones took stand as opaque calls, so that no
    pattern matches them. torchao's own `ComposableQuantizer` refuses, or fails an assertion, when
    two of its quantizers know an op.

    Integer and boolean tensors are never observed: fake quantization has no kernel for them, and an
    index that was quantized is another index. Floating-point models are annotated as their
    quantizers would alone.

    Args:
        quantizers: PT2E quantizers, the first with the highest precedence.
    """

    def __init__(self, quantizers: Sequence[Any]) -> None:
        super().__init__()
        self.quantizers = tuple(quantizers)

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Let each quantizer prepare the graph, in order."""
        for quantizer in self.quantizers:
            model = quantizer.transform_for_annotation(model)
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Let each quantizer annotate what the earlier ones left."""
        for quantizer in self.quantizers:
            taken = [n for n in model.graph.nodes if n.op == "call_function" and n.meta.get(ANNOTATION) is not None]
            reveal = [_hide(node) for node in taken]
            try:
                quantizer.annotate(model)
            finally:
                for restore in reveal:
                    restore()
                model.recompile()
        _drop_integer_specs(model)
        return model

    def validate(self, model: GraphModule) -> None:
        """Let each quantizer check the annotated graph."""
        for quantizer in self.quantizers:
            quantizer.validate(model)

    def prepare_obs_or_fq_callback(self, model: GraphModule, edge_or_node_to_obs_or_fq: Any) -> None:
        """Let each quantizer adjust the observers."""
        for quantizer in self.quantizers:
            quantizer.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)


def _hide(node: Node) -> Callable[[], None]:
    """Make a node opaque, and give back what undoes that."""
    target, meta = node.target, node.meta
    annotation = meta[ANNOTATION]
    inputs, output = dict(annotation.input_qspec_map), annotation.output_qspec
    node.target = annotated_earlier
    node.meta = {key: meta[key] for key in _VISIBLE_META if key in meta}

    def restore() -> None:
        node.target, node.meta = target, meta
        annotation.input_qspec_map, annotation.output_qspec = inputs, output

    return restore


def _drop_integer_specs(model: GraphModule) -> None:
    """Take the specs from integer and boolean tensors, and those that are shared with or derived from them."""
    annotations = [(n, n.meta[ANNOTATION]) for n in model.graph.nodes if n.meta.get(ANNOTATION) is not None]
    dropped: set[Any] = set()
    changed = True
    while changed:
        changed = False
        for node, annotation in annotations:
            for source, spec in annotation.input_qspec_map.items():
                if spec is not None and (_is_integer(source, model) or _depends_on(spec, dropped)):
                    annotation.input_qspec_map[source] = None
                    dropped.add((source, node))
                    changed = True
            spec = annotation.output_qspec
            if spec is not None and (_is_integer(node, model) or _depends_on(spec, dropped)):
                annotation.output_qspec = None
                dropped.add(node)
                changed = True


def _depends_on(spec: Any, dropped: set[Any]) -> bool:
    references = [*getattr(spec, "derived_from", ()), getattr(spec, "edge_or_node", None)]
    return any(reference in dropped for reference in references if reference is not None)


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
    """The nodes of a converted graph that dequantize something: none means that nothing was quantized."""
    return (n for n in model.graph.nodes if n.op == "call_function" and "dequantize" in str(n.target))

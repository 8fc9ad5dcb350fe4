"""OpenVINO's quantizer. Imports torch and NNCF: only the factory of the int8 recipe imports this module."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Collection, Iterator
from typing import Any

import torch
from executorch.backends.openvino.quantizer import OpenVINOQuantizer as ExecuTorchQuantizer
from executorch.backends.openvino.quantizer import QuantizationMode
from nncf.common.logging import nncf_logger
from torch.fx import GraphModule, Node

from recipes_openvino.partitioner import looks_up_short_rows

_ANNOTATION = "quantization_annotation"
_PER_CHANNEL = (torch.per_channel_symmetric, torch.per_channel_affine)


class OpenVINOQuantizer(ExecuTorchQuantizer):
    """ExecuTorch's quantizer for OpenVINO, in the mode that was the best for all measured models.

    Args:
        skipped: Operators that are kept off OpenVINO, as `namespace.operator.overload`; they stay in float.
    """

    fold_quantize = False
    """OpenVINO cannot convert the dequantization of a weight that is an integer constant."""

    def __init__(self, skipped: Collection[str] = ()) -> None:
        super().__init__(mode=QuantizationMode.INT8_TRANSFORMER)
        # All algorithms of NNCF share the objects that are its defaults, and its key for statistics is the address of
        # the algorithm. Without a copy and a fixed key, quantizers would be neither independent nor equal.
        self._algo: Any = copy.deepcopy(vars(self)["_algo"])
        self._algo._algorithm_key = "recipes"
        self.skipped = frozenset(skipped)

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate the operators that OpenVINO computes in int8."""
        names = [n.name for n in model.graph.nodes if n.op == "call_function" and str(n.target) in self.skipped]
        if names:
            self.set_ignored_scope(names=names)
        with _quiet_nncf():
            model = super().annotate(model)
        for node in model.graph.nodes:
            annotation = node.meta.get(_ANNOTATION)
            if annotation is not None and looks_up_short_rows(str(node.target), node):
                del node.meta[_ANNOTATION]  # it is kept off OpenVINO
                continue
            for source, spec in annotation.input_qspec_map.items() if annotation is not None else ():
                # These are weights of a normalization: torchao's observer of channels fails on one dimension.
                if getattr(spec, "qscheme", None) in _PER_CHANNEL and _dimensions(source, model) < 2:
                    annotation.input_qspec_map[source] = None
        return model


@contextlib.contextmanager
def _quiet_nncf() -> Iterator[None]:
    """Suppress NNCF's messages about every operator that it leaves."""
    level = nncf_logger.level
    nncf_logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        nncf_logger.setLevel(level)


def _dimensions(node: Node, model: GraphModule) -> int:
    value: Any = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = model
        for part in str(node.target).split("."):
            value = getattr(value, part)
    return int(value.ndim)

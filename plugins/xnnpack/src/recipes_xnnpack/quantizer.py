"""ExecuTorch's quantizer for XNNPACK without the search for what is not there."""

from __future__ import annotations

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer


class QuickXNNPACKQuantizer(XNNPACKQuantizer):
    """Annotates the same nodes as ExecuTorch's quantizer.

    For each model, ExecuTorch's captures twelve patterns of a convolution with batch norm, which takes seconds. Such a
    pattern occurs in a model that is trained with quantization; before a calibration, batch norm is folded into the
    convolution. So this class looks for batch norm first.
    """

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Annotate the nodes of a graph, in place, with what is to be quantized, and return the graph."""
        if any("batch_norm" in str(node.target) for node in model.graph.nodes):
            self.SUPPORTED_PATTERNS = XNNPACKQuantizer.SUPPORTED_PATTERNS
        else:
            self.SUPPORTED_PATTERNS = [p for p in XNNPACKQuantizer.SUPPORTED_PATTERNS if "_bn" not in p.name]
            model.graph.eliminate_dead_code()  # as ExecuTorch's does where it looks for the patterns
            model.recompile()
        annotated: torch.fx.GraphModule = super().annotate(model)
        return annotated

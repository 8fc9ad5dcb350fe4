"""Everything that uses internals of ExecuTorch, torchao and torch.export: check it with each of their releases.

This is where stages, partitioning, quantization, kernels and the format of programs are. `workarounds` lists the code
that is needed only because of a fault in another package.

May be imported by `recipe` and every room above it. May import `common`.
"""

from recipes.executorch.contents import Contents, Method, Value, contents_of, contents_of_file
from recipes.executorch.delegation import MethodDelegation, OperatorShare, delegations, kept_whole, operator_counts
from recipes.executorch.lower_stage import LowerStage
from recipes.executorch.probe import Fallback
from recipes.executorch.quantizers import folds_weights, quantized_nodes
from recipes.executorch.ranges import unbounded
from recipes.executorch.sharing import CONTEXT_KEY, SharedWork
from recipes.executorch.stages import CaptureStage, QuantizeStage, SourceTransformStage, ToExecutorchStage
from recipes.executorch.watching import Progress, StageProgress, WatchedStage

__all__ = [
    "CONTEXT_KEY",
    "CaptureStage",
    "Contents",
    "Fallback",
    "LowerStage",
    "Method",
    "MethodDelegation",
    "OperatorShare",
    "Progress",
    "QuantizeStage",
    "SharedWork",
    "SourceTransformStage",
    "StageProgress",
    "ToExecutorchStage",
    "Value",
    "WatchedStage",
    "contents_of",
    "contents_of_file",
    "delegations",
    "folds_weights",
    "kept_whole",
    "operator_counts",
    "quantized_nodes",
    "unbounded",
]

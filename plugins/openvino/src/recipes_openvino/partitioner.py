"""A partitioner for OpenVINO that can keep operators off it. Imports torch and openvino."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Collection
from typing import Any

import torch
from executorch.backends.openvino.partitioner import OpenvinoPartitioner
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from recipes import RecipesWarning

SHORT_ROW = 16
"""The longest row, in values, of the lookups that are kept off OpenVINO's CPU."""


def _skipped(*args: Any, **kwargs: Any) -> Any:
    """Replace an operator that is kept off OpenVINO while it partitions; it is never called."""
    raise AssertionError("a graph is not run while it is partitioned")


class SkippingPartitioner(Partitioner):
    """Gives OpenVINO the operators that ExecuTorch's partitioner finds, except for some.

    ExecuTorch's partitioner is `@final` and prints every operator that it leaves. Its `op_types_to_skip` has no
    effect, because it is only used for operators that OpenVINO does not support anyway.

    Args:
        device: The device to compile for.
        skipped: Operators to keep off, as `namespace.operator.overload`.
    """

    def __init__(self, device: str, skipped: Collection[str] = ()) -> None:
        super().__init__()
        self.device = device
        self.skipped = frozenset(skipped)
        self._inner = OpenvinoPartitioner([CompileSpec("device", device.encode())])
        self.delegation_spec = self._inner.delegation_spec

    def ops_to_not_decompose(self, ep: ExportedProgram) -> Any:
        """Return the operators of ExecuTorch's partitioner without those that are skipped."""
        operators, check = self._inner.ops_to_not_decompose(ep)
        return [one for one in operators if str(one) not in self.skipped], check

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the operators that OpenVINO takes."""
        dynamic = [n for n in exported_program.graph.nodes if n.op == "call_function" and _is_dynamic(n)]
        named = [n for n in dynamic if isinstance(n.meta.get("val"), torch.Tensor)]
        if named:
            warnings.warn(
                f"{len(named)} operators on tensors of dynamic sizes are kept off OpenVINO, {dotted(named[0].target)} "
                f"[{named[0].name}] first, because ExecuTorch's OpenVINO runtime always returns outputs of the "
                "largest size.",
                RecipesWarning,
                stacklevel=2,
            )
        hidden = [(node, node.target) for node in self._kept_off(exported_program, dynamic)]
        try:
            for node, _ in hidden:
                node.target = _skipped
            with contextlib.redirect_stdout(io.StringIO()):
                return self._inner.partition(exported_program)
        finally:
            for node, target in hidden:
                node.target = target

    def _kept_off(self, program: ExportedProgram, dynamic: Collection[Node]) -> set[Node]:
        """The skipped and the dynamic operators, unsafe lookups, and operators that only prepare constants for these.

        A linear layer becomes a transposition of its weight and an `addmm`. If OpenVINO took the transposition, the
        next backend would leave the `addmm`, because its weight would not be a constant.
        """
        constants = _constants(program)
        found = set(dynamic)
        for node in reversed(program.graph.nodes):
            if node.op != "call_function":
                continue
            name = dotted(node.target)
            unsafe = self.device == "CPU" and looks_up_short_rows(name, node) and node.args[0] in constants
            prepares = node in constants and node.users and found.issuperset(node.users)
            if name in self.skipped or unsafe or prepares:
                found.add(node)
        return found


def _constants(program: ExportedProgram) -> set[Node]:
    """Weights and buffers, and nodes that depend only on them."""
    inputs = program.graph_signature.user_inputs
    found: set[Node] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            constant = node.name not in inputs
        else:
            constant = node.op == "call_function" and found.issuperset(node.all_input_nodes)
        if constant:
            found.add(node)
    return found


def looks_up_short_rows(name: str, node: Node) -> bool:
    """Whether an operator looks up rows of 16 values or fewer.

    On a processor where OpenVINO 2025.4 computes in bfloat16, such a lookup in a constant table accesses memory out
    of bounds: the outputs are wrong, or the process is aborted.
    """
    if name not in ("aten.embedding.default", "aten.index_select.default", "aten.index.Tensor"):
        return False
    table = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else None
    return isinstance(table, torch.Tensor) and table.ndim > 0 and table.shape[1:].numel() <= SHORT_ROW


def _is_dynamic(node: Node) -> bool:
    values = tree_leaves([n.meta.get("val") for n in (node, *node.all_input_nodes)])
    sizes = [size for v in values for size in (v.shape if isinstance(v, torch.Tensor) else (v,))]
    return any(isinstance(size, torch.SymInt) for size in sizes)


def dotted(target: Any) -> str:
    """Return the name of an ATen or edge operator: `aten.add.Tensor`."""
    return str(getattr(target, "_op", target))

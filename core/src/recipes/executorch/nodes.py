"""Nodes of an edge program: which operator each calls, and where the model's code calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from executorch.exir.passes.dim_order_ops_registry import MemoryFormatOpsMap
from torch.fx import Node


def overload_of(node: Node) -> Callable[..., Any] | None:
    """The ATen operator that a node of an edge program calls, or None if it calls none."""
    if node.op != "call_function":
        return None
    target = MemoryFormatOpsMap.get(node.target, node.target)
    if not isinstance(target, torch._ops.OpOverload):
        target = getattr(target, "_op", None)  # an edge operator wraps an ATen operator
    return target if isinstance(target, torch._ops.OpOverload) else None


def is_quantization(node: Node) -> bool:
    return "quantize" in str(node.target)


def name_of(node: Node) -> str:
    return str(overload_of(node) or node.target)


def source_line(node: Node) -> str:
    """The last line of the model's own code in a capture, as `model.py:12 in forward`; else the module's name."""
    places = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if '"' in line]
    own = [place for place in places if place.startswith("File ") and "/torch/" not in place]
    if own:
        file, line, function = (part.strip() for part in own[-1].split(",", 2))
        return f"{file.split(chr(34))[1]}:{line.removeprefix('line ')} {function}"
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    return f"module {modules[-1][0]}" if modules and modules[-1][0] else ""

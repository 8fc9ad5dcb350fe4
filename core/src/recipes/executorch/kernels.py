"""The operators that a program leaves to ExecuTorch's own kernels, and whether each of them has a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import Node

from recipes.common import MissingKernelError
from recipes.executorch.nodes import overload_of, source_line

QUANTIZED = "quantized_decomposed"
"""The operator namespace of the kernels in `executorch.kernels.quantized`."""

# What a kernel of the portable library does not support although it is registered for the operator. The method fails
# when it is executed: https://github.com/pytorch/executorch/tree/main/kernels/portable/cpu
_LIMITS: Mapping[str, tuple[Callable[[torch.Tensor], bool], str]] = {
    "aten.convolution.default": (lambda x: x.dim() > 4, "the kernel takes one or two spatial dimensions"),
    "aten._log_softmax.default": (lambda x: x.dtype == torch.float64, "the kernel takes no float64"),
}


def undelegated(program: Any) -> Iterator[Node]:
    """The operators of an edge program that no backend took.

    Args:
        program: An `ExportedProgram` in the edge dialect, after lowering.
    """
    return (node for node in program.graph_module.graph.nodes if overload_of(node) is not None)


def load_quantized_kernels(program: Any) -> None:
    """Register the out variants of the quantized operators if a program needs them; ExecuTorch does not do that."""
    if any(QUANTIZED in str(overload_of(node)) for node in undelegated(program)):
        import executorch.kernels.quantized  # noqa: F401


def check_limits(method: str, program: Any) -> None:
    """Refuse operators whose kernel in ExecuTorch does not support the inputs that the model gives them.

    Raises:
        MissingKernelError: There are such operators; the message names each with its place in the model.
    """
    bad = []
    for node in undelegated(program):
        exceeds, limit = _LIMITS.get(str(overload_of(node)), (None, ""))
        value = node.all_input_nodes[0].meta.get("val") if exceeds is not None else None
        if exceeds is not None and isinstance(value, torch.Tensor) and exceeds(value):
            bad.append(f"{overload_of(node)}{_place(node)}: {limit}")
    if bad:
        raise MissingKernelError(_message(method, bad))


def check_registered(method: str, operators: Any, program: Any) -> None:
    """Refuse ATen operators that ExecuTorch's kernel libraries lack; custom operators bring their own kernels.

    Args:
        method: The method's name.
        operators: The operators of the method in the emitted program.
        program: The edge program, which has the places in the model.

    Raises:
        MissingKernelError: There are such operators; the message names each with its place in the model.
    """
    wanted = {
        f"{op.name}.{op.overload}" if op.overload else op.name for op in operators if op.name.startswith("aten::")
    }
    if not wanted:
        return
    from executorch.runtime import Runtime

    missing = sorted(wanted - set(Runtime.get().operator_registry.operator_names))
    places = {str(overload_of(node)).split(".")[1]: _place(node) for node in undelegated(program)}
    bad = [f"{name}{places.get(name.removeprefix('aten::').split('.')[0], '')}" for name in missing]
    if bad:
        raise MissingKernelError(_message(method, bad))


def _message(method: str, bad: list[str]) -> str:
    lines = "\n".join(f"  {line}" for line in bad)
    return (
        f"No backend of the recipe took these operators of method {method!r}, and ExecuTorch has no kernel for them, "
        f"so the file could not run:\n{lines}\n"
        "Use other operators in the model, or add a backend that supports these."
    )


def _place(node: Node) -> str:
    line = source_line(node)
    return f" ({line})" if line else ""

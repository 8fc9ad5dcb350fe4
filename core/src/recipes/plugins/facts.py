"""Facts about a model and what it does with its example inputs, for the checks before an export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ModelFacts:
    """Facts about one method of a model, collected before it is captured.

    Args:
        method: The method's name.
        model: The `torch.nn.Module`, `GraphModule` or `ExportedProgram`.
        inputs: The tensors among the example inputs, by the argument's name (`x`, `states[0]`).
        weights: Its parameters and buffers, by qualified name.
        updated_buffers: The buffers that it writes to, with the values that they start from.
        replaced_buffers: Those of them to which it assigns a new tensor (`self.total = ...`) instead of writing in
            place.
    """

    method: str
    model: Any
    inputs: Mapping[str, torch.Tensor]
    weights: Mapping[str, torch.Tensor]
    updated_buffers: Mapping[str, torch.Tensor]
    replaced_buffers: frozenset[str] = frozenset()

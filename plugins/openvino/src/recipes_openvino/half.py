"""Which weights fit into float16."""

from __future__ import annotations

from typing import Any

LARGEST_HALF = 65504.0
"""The largest finite number of float16."""


def overflows_half(value: Any) -> bool:
    """Whether a tensor has finite values that become infinite in float16."""
    if not value.is_floating_point() or value.element_size() <= 2 or not value.numel():
        return False
    finite = value.detach().abs()
    return bool(((finite > LARGEST_HALF) & finite.isfinite()).any())

"""The hooks of the OpenVINO plugin; the entry point names this module."""

from __future__ import annotations

from collections.abc import Sequence

from recipes import Component, RecipeProvider, TargetProfile, hookimpl
from recipes_openvino.provider import OpenVINOProvider
from recipes_openvino.recipe_types import OpenVINORecipeType

_PRECISIONS = {
    "fp32": (OpenVINORecipeType.FP32, "float32 on OpenVINO, the rest on XNNPACK"),
    "fp16": (OpenVINORecipeType.FP16, "float16 weights on OpenVINO, the rest on XNNPACK"),
    "int8": (OpenVINORecipeType.INT8, "int8 on OpenVINO, with calibration; the rest in float32 on XNNPACK"),
}
# The int8 target has a float fallback too: an operator that OpenVINO leaves is either not quantized, or OpenVINO takes
# the dequantize and quantize operators around it.
_CPU_FALLBACK = Component("xnnpack:fp32", role="fallback", required=False)


@hookimpl
def recipes_register_providers() -> Sequence[RecipeProvider]:
    """Return the provider of OpenVINO's recipes."""
    return [OpenVINOProvider()]


@hookimpl
def recipes_register_targets() -> Sequence[TargetProfile]:
    """Return targets in float32, float16 and int8 for x86_64 Linux, where ExecuTorch's wheel has OpenVINO's runtime."""
    return [
        TargetProfile(
            name=f"linux-x86_64-openvino-{precision}",
            components=(Component(recipe.id), _CPU_FALLBACK),
            summary=f"64-bit x86 Linux: {what}",
        )
        for precision, (recipe, what) in _PRECISIONS.items()
    ]

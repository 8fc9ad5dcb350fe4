"""The hooks of the Core ML plugin; the entry point names this module."""

from __future__ import annotations

from collections.abc import Sequence

from recipes import Component, RecipeProvider, TargetProfile, hookimpl
from recipes_coreml.provider import CoreMLProvider
from recipes_coreml.recipe_types import CoreMLRecipeType

_SYSTEMS = {"ios-arm64": "iPhones and iPads", "macos-arm64": "Macs with Apple silicon"}

# Only float models get the CPU as a fallback. In a quantized model, Core ML takes the quantize and dequantize nodes
# around an operator that it leaves, so XNNPACK finds no quantized operator.
_CPU_FALLBACK = Component("xnnpack:fp32", role="fallback", required=False)
_PRECISIONS = {
    "fp32": ((Component(CoreMLRecipeType.FP32.id), _CPU_FALLBACK), "float32 on Core ML, the rest on the CPU"),
    "fp16": ((Component(CoreMLRecipeType.FP16.id), _CPU_FALLBACK), "float16 on Core ML, the rest on the CPU"),
    "int8": ((Component(CoreMLRecipeType.PT2E_INT8_STATIC.id),), "int8 on Core ML, with calibration"),
}


@hookimpl
def recipes_register_providers() -> Sequence[RecipeProvider]:
    """Return the provider of Core ML's recipes."""
    return [CoreMLProvider()]


@hookimpl
def recipes_register_targets() -> Sequence[TargetProfile]:
    """Return a target for each of Apple's systems in float32, float16 (the default) and int8."""
    return [
        TargetProfile(
            name=f"{system}-coreml-{precision}",
            components=components,
            summary=f"{where}: {what}",
            default=precision == "fp16",
        )
        for system, where in _SYSTEMS.items()
        for precision, (components, what) in _PRECISIONS.items()
    ]

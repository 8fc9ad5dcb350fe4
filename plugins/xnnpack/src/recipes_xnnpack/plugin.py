"""The hooks of the XNNPACK plugin; the entry point names this module."""

from __future__ import annotations

from collections.abc import Sequence

from recipes import Component, RecipeProvider, TargetProfile, hookimpl
from recipes_xnnpack.provider import XNNPackProvider
from recipes_xnnpack.recipe_types import XNNPackRecipeType

_SYSTEMS = {
    "android-arm64": "Android phones and tablets",
    "ios-arm64": "iPhones and iPads",
    "linux-arm64": "64-bit ARM Linux",
    "linux-x86_64": "64-bit x86 Linux",
    "macos-arm64": "Macs with Apple silicon",
    "windows-x86_64": "64-bit x86 Windows",
}
_PRECISIONS = {
    "fp32": (XNNPackRecipeType.FP32, "float32 on the CPU"),
    "int8": (XNNPackRecipeType.PT2E_INT8_STATIC_PER_CHANNEL, "int8 on the CPU, with calibration"),
}
# The defaults of iOS and macOS are targets of the Core ML plugin.
_DEFAULTS = {"android-arm64-xnnpack-fp32", "linux-x86_64-xnnpack-fp32", "windows-x86_64-xnnpack-fp32"}


@hookimpl
def recipes_register_providers() -> Sequence[RecipeProvider]:
    """Return the provider of XNNPACK's recipes."""
    return [XNNPackProvider()]


@hookimpl
def recipes_register_targets() -> Sequence[TargetProfile]:
    """Return a target for each system that XNNPACK runs on, in float32 and in int8."""
    return [
        TargetProfile(
            name=name,
            components=(Component(recipe.id),),
            summary=f"{where}: {what}",
            default=name in _DEFAULTS,
        )
        for system, where in _SYSTEMS.items()
        for precision, (recipe, what) in _PRECISIONS.items()
        for name in [f"{system}-xnnpack-{precision}"]
    ]

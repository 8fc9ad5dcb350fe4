"""A table of the system that each Core ML feature needs, from which deployment targets and their errors are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from recipes_coreml.recipe_types import CoreMLRecipeType

DEPLOYMENT_TARGETS = ("iOS13", "iOS14", "iOS15", "iOS16", "iOS17", "iOS18", "iOS26")
"""The members of `coremltools.target`, lowest first."""

_SAME_SYSTEMS = {
    "iOS13": ("macOS10_15", "watchOS6", "tvOS13"),
    "iOS14": ("macOS10_16", "macOS11", "watchOS7", "tvOS14"),
    "iOS15": ("macOS12", "watchOS8", "tvOS15"),
    "iOS16": ("macOS13", "watchOS9", "tvOS16"),
    "iOS17": ("macOS14", "watchOS10", "tvOS17"),
    "iOS18": ("macOS15", "watchOS11", "tvOS18"),
    "iOS26": ("macOS26", "watchOS26", "tvOS26"),
}
DEPLOYMENT_TARGET_ALIASES: Mapping[str, str] = {
    alias: target for target, aliases in _SAME_SYSTEMS.items() for alias in aliases
}
"""The other names that `coremltools.target` has for its members, such as `macOS13` for `iOS16`."""

_APPLE_GUIDE = "https://apple.github.io/coremltools/docs-guides/source/"
_OPTIMIZATIONS = _APPLE_GUIDE + "opt-whats-new.html"


@dataclass(frozen=True)
class Feature:
    """Something of Core ML that not every system has.

    Args:
        what: A plural that can be followed by "need iOS17".
        needs: The lowest of `DEPLOYMENT_TARGETS` that has it.
        source: The page that says so.
    """

    what: str
    needs: str
    source: str


ML_PROGRAM = Feature("ML programs", "iOS15", _APPLE_GUIDE + "target-conversion-formats.html")
INT8_WEIGHTS = Feature("int8 weights with one scale per channel", "iOS16", _OPTIMIZATIONS)
INT8_ACTIVATIONS = Feature("int8 activations", "iOS17", _OPTIMIZATIONS)
PT2E_WEIGHTS = Feature(
    "weights quantized through PT2E",
    "iOS17",
    "https://docs.pytorch.org/executorch/stable/backends/coreml/coreml-quantization.html",
)
INT4_WEIGHTS = Feature("int4 weights", "iOS18", _OPTIMIZATIONS)
GROUPED_WEIGHTS = Feature("weights with one scale per group", "iOS18", _OPTIMIZATIONS)
CODEBOOKS = Feature("lookup tables for groups of weights", "iOS18", _OPTIMIZATIONS)
STATE = Feature("mutable buffers that Core ML takes over as its state", "iOS18", _APPLE_GUIDE + "stateful-models.html")
HALF_INPUTS = Feature(
    "half-precision inputs",
    "iOS16",
    "https://developer.apple.com/documentation/coreml/mlmultiarraydatatype/float16",
)
NO_INPUTS = Feature("models without inputs", "iOS18", "https://github.com/apple/coremltools/issues/2578")

RECIPE_FEATURES: Mapping[CoreMLRecipeType, tuple[Feature, ...]] = {
    CoreMLRecipeType.FP32: (ML_PROGRAM,),
    CoreMLRecipeType.FP16: (ML_PROGRAM,),
    CoreMLRecipeType.PT2E_INT8_STATIC: (ML_PROGRAM, INT8_ACTIVATIONS),
    CoreMLRecipeType.PT2E_INT8_WEIGHT_ONLY: (ML_PROGRAM, PT2E_WEIGHTS),
    CoreMLRecipeType.TORCHAO_INT4_WEIGHT_ONLY_PER_CHANNEL: (ML_PROGRAM, INT4_WEIGHTS),
    CoreMLRecipeType.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP: (ML_PROGRAM, INT4_WEIGHTS, GROUPED_WEIGHTS),
    CoreMLRecipeType.TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL: (ML_PROGRAM, INT8_WEIGHTS),
    CoreMLRecipeType.TORCHAO_INT8_WEIGHT_ONLY_PER_GROUP: (ML_PROGRAM, GROUPED_WEIGHTS),
    CoreMLRecipeType.CODEBOOK_WEIGHT_ONLY: (ML_PROGRAM, CODEBOOKS),
}
"""The features that each recipe type uses for every model."""


def is_below(target: str, other: str) -> bool:
    """Whether one deployment target is older than another."""
    return DEPLOYMENT_TARGETS.index(target) < DEPLOYMENT_TARGETS.index(other)


def most_demanding(features: Iterable[Feature]) -> Feature:
    """Return the feature that needs the newest system; if there are several, the first."""
    return max(features, key=lambda feature: DEPLOYMENT_TARGETS.index(feature.needs))

"""The description of each Core ML recipe type: summary, precisions, options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from recipes import (
    Option,
    RecipeInfo,
    RecipeType,
)
from recipes_coreml.features import (
    DEPLOYMENT_TARGET_ALIASES,
    DEPLOYMENT_TARGETS,
    RECIPE_FEATURES,
    most_demanding,
)
from recipes_coreml.recipe_types import CoreMLRecipeType

if TYPE_CHECKING:
    pass


_COMMON_OPTIONS = (
    Option(
        name="minimum_deployment_target",
        type="str",
        help="The oldest system that must run the result; unset: the oldest that the recipe allows.",
        choices=DEPLOYMENT_TARGETS,
        aliases=DEPLOYMENT_TARGET_ALIASES,
        toolchain_enum="coremltools",
    ),
    Option(
        name="compute_unit",
        type="str",
        help="The processors that Core ML may use on the device.",
        default="ALL",
        choices=("ALL", "CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE"),
        toolchain_enum="coremltools",
    ),
    Option(
        name="skip_ops_for_coreml_delegation",
        type="strs",
        help="Operators to keep off Core ML, as namespace.operator.overload: aten.relu.default, aten.add.Tensor.",
        default=(),
    ),
    Option(
        name="lower_full_graph",
        type="bool",
        help="Fail unless Core ML takes the whole model.",
        default=False,
    ),
    Option(
        name="take_over_constant_data",
        type="bool",
        help="Store weights in the Core ML model; if false, they are its inputs, which convolutions do not support.",
        default=True,
    ),
    Option(
        name="take_over_mutable_buffer",
        type="bool",
        help="Keep buffers that the model updates as Core ML state; unset: if the deployment target supports it.",
    ),
)


def _group_size() -> Option:
    return Option(
        name="group_size",
        type="int",
        help="How many neighbouring weights of a row share one scale.",
        default=32,
        minimum=2,
    )


def _filter_fn(default: str) -> Option:
    return Option(
        name="filter_fn",
        type="callable",
        help=f"Called with each module and its name: whether to quantize it; unset: {default}.",
    )


def _codebook_options() -> tuple[Option, ...]:
    return (
        Option(
            name="bits",
            type="int",
            help="Bits for each weight, an index into a table of 2**bits values: 1, 2, 3, 4, 6 or 8.",
            minimum=1,
            maximum=8,
            required=True,
        ),
        Option(
            name="block_size",
            type="ints",
            help="Rows and columns of weights that share a table; -1 means all. At least one must be all.",
            minimum=-1,
            required=True,
        ),
        _filter_fn("linear layers and embeddings"),
    )


def _info(
    recipe_type: CoreMLRecipeType,
    summary: str,
    weights: str,
    activations: str = "float16",
    *options: Option,
    needs_calibration: bool = False,
) -> RecipeInfo:
    return RecipeInfo(
        summary=summary,
        weights=weights,
        activations=activations,
        needs_calibration=needs_calibration,
        options=(*_COMMON_OPTIONS, *options),
        deployment_target=most_demanding(RECIPE_FEATURES[recipe_type]).needs,
    )


_LINEAR_LAYERS = _filter_fn("linear layers")


RECIPES: Mapping[RecipeType, RecipeInfo] = {
    CoreMLRecipeType.FP32: _info(
        CoreMLRecipeType.FP32,
        "Computes in float32; the Neural Engine, which has float16 only, is not used.",
        "float32",
        "float32",
    ),
    CoreMLRecipeType.FP16: _info(
        CoreMLRecipeType.FP16,
        "Computes in float16, on the CPU, the GPU and the Neural Engine.",
        "float16",
    ),
    CoreMLRecipeType.PT2E_INT8_STATIC: _info(
        CoreMLRecipeType.PT2E_INT8_STATIC,
        "int8 weights, one scale per channel, and int8 activations with calibrated ranges.",
        "int8",
        "int8",
        needs_calibration=True,
    ),
    CoreMLRecipeType.PT2E_INT8_WEIGHT_ONLY: _info(
        CoreMLRecipeType.PT2E_INT8_WEIGHT_ONLY,
        "int8 weights in convolutions and linear layers, one scale per channel; computes in float16.",
        "int8",
    ),
    CoreMLRecipeType.TORCHAO_INT4_WEIGHT_ONLY_PER_CHANNEL: _info(
        CoreMLRecipeType.TORCHAO_INT4_WEIGHT_ONLY_PER_CHANNEL,
        "int4 weights in linear layers, one scale per channel; computes in float16.",
        "int4",
        "float16",
        _LINEAR_LAYERS,
    ),
    CoreMLRecipeType.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP: _info(
        CoreMLRecipeType.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP,
        "int4 weights in linear layers, one scale per group; computes in float16.",
        "int4",
        "float16",
        _group_size(),
        _LINEAR_LAYERS,
    ),
    CoreMLRecipeType.TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL: _info(
        CoreMLRecipeType.TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL,
        "int8 weights in linear layers, one scale per channel; computes in float16.",
        "int8",
        "float16",
        _LINEAR_LAYERS,
    ),
    CoreMLRecipeType.TORCHAO_INT8_WEIGHT_ONLY_PER_GROUP: _info(
        CoreMLRecipeType.TORCHAO_INT8_WEIGHT_ONLY_PER_GROUP,
        "int8 weights in linear layers, one scale per group; computes in float16.",
        "int8",
        "float16",
        _group_size(),
        _LINEAR_LAYERS,
    ),
    CoreMLRecipeType.CODEBOOK_WEIGHT_ONLY: _info(
        CoreMLRecipeType.CODEBOOK_WEIGHT_ONLY,
        "Weights of 1 to 8 bits that index lookup tables, in linear layers and embeddings; computes in float16.",
        "codebook",
        "float16",
        *_codebook_options(),
    ),
}


# coremltools has no data type of 5 or 7 bits.
CODEBOOK_BITS = (1, 2, 3, 4, 6, 8)

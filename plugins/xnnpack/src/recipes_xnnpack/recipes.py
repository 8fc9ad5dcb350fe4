"""The factories of the XNNPACK recipes. Imports torch and ExecuTorch: only `build_recipe` imports this module."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS, ConstantPadConfig
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import get_symmetric_quantization_config
from executorch.backends.xnnpack.utils.configs import (
    get_xnnpack_edge_compile_config,
    get_xnnpack_executorch_backend_config,
)
from executorch.export import AOQuantizationConfig, ExportRecipe, LoweringRecipe, QuantizationRecipe
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerAxis, PerGroup
from torchao.quantization.quant_api import _is_linear  # quantize_'s own default; it has no public name

from recipes import RecipesWarning
from recipes_xnnpack.quantizer import QuickXNNPACKQuantizer
from recipes_xnnpack.recipe_types import GROUP_SIZE_STEP
from recipes_xnnpack.recipe_types import XNNPackRecipeType as Type


def build(recipe_type: Type, options: Mapping[str, Any]) -> ExportRecipe:
    """Make a fresh recipe.

    Args:
        recipe_type: The recipe type.
        options: The effective value of every option that the recipe type declares.
    """
    return ExportRecipe(
        name=recipe_type.value,
        quantization_recipe=_quantization(recipe_type, options),
        lowering_recipe=LoweringRecipe(
            # For every recipe, the partitioner takes nodes of all precisions, so that nodes which a quantizer leaves in
            # float still run on XNNPACK.
            partitioners=[_partitioner(recipe_type)],
            edge_compile_config=get_xnnpack_edge_compile_config(),
        ),
        executorch_backend_config=get_xnnpack_executorch_backend_config(),
    )


def _partitioner(recipe_type: Type) -> XnnpackPartitioner:
    if recipe_type is not Type.PT2E_INT8_DYNAMIC_PER_CHANNEL:
        return XnnpackPartitioner()
    # A convolution with dynamic activations after a padding in the same delegate fails when it is executed (0x1,
    # "Propagating input shapes failed"), so ExecuTorch's kernel runs paddings in this recipe.
    return XnnpackPartitioner(configs=[config for config in ALL_PARTITIONER_CONFIGS if config is not ConstantPadConfig])


def _quantization(recipe_type: Type, options: Mapping[str, Any]) -> QuantizationRecipe | None:
    match recipe_type:
        case Type.FP32:
            return None
        case Type.PT2E_INT8_DYNAMIC_PER_CHANNEL:
            return _pt2e_int8(per_channel=True, dynamic=True)
        case Type.PT2E_INT8_STATIC_PER_CHANNEL:
            return _pt2e_int8(per_channel=True, dynamic=False)
        case Type.PT2E_INT8_STATIC_PER_TENSOR:
            return _pt2e_int8(per_channel=False, dynamic=False)
        case Type.TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_CHANNEL:
            # The kernel treats a channel as one group, so the whole row must be a multiple of the step.
            return _torchao_int4(PerAxis(axis=0), multiple_of=GROUP_SIZE_STEP)
        case Type.TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_TENSOR:
            group_size = options["group_size"]
            return _torchao_int4(PerGroup(group_size=group_size), multiple_of=group_size)


def _pt2e_int8(*, per_channel: bool, dynamic: bool) -> QuantizationRecipe:
    quantizer = QuickXNNPACKQuantizer()
    quantizer.set_global(get_symmetric_quantization_config(is_per_channel=per_channel, is_dynamic=dynamic))
    return QuantizationRecipe(quantizers=[quantizer])


def _torchao_int4(granularity: PerAxis | PerGroup, *, multiple_of: int) -> QuantizationRecipe:
    int4 = torch.int4  # type: ignore[attr-defined]  # torch's stubs lack it
    config = Int8DynamicActivationIntxWeightConfig(weight_dtype=int4, weight_granularity=granularity)
    selects = functools.partial(_is_linear_with_whole_groups, multiple_of)
    return QuantizationRecipe(ao_quantization_configs=[AOQuantizationConfig(config, selects)])


def _is_linear_with_whole_groups(multiple_of: int, module: torch.nn.Module, name: str) -> bool:
    # quantize_'s own check also excludes the projection inside attention modules.
    if not (isinstance(module, torch.nn.Linear) and _is_linear(module)):
        return False
    features = module.in_features
    if features % multiple_of:
        warnings.warn(
            f"Layer {name!r} is left in float: its {features} input features are not a multiple of {multiple_of}, "
            "which XNNPACK needs for 4-bit weights.",
            RecipesWarning,
            stacklevel=2,
        )
        return False
    return True

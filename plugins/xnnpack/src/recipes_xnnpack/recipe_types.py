"""The ways to lower to XNNPACK."""

from __future__ import annotations

from recipes import RecipeType

GROUP_SIZE_STEP = 32
"""XNNPACK's 4-bit kernels require groups of a multiple of 32 input features; its lowering asserts this."""


class XNNPackRecipeType(RecipeType):
    """A way to lower to XNNPACK; names and values are those of ExecuTorch's enum of the same name."""

    FP32 = "xnnpack_fp32"
    PT2E_INT8_DYNAMIC_PER_CHANNEL = "xnnpack_pt2e_int8_dynamic_per_channel"
    PT2E_INT8_STATIC_PER_CHANNEL = "xnnpack_pt2e_int8_static_per_channel"
    PT2E_INT8_STATIC_PER_TENSOR = "xnnpack_pt2e_int8_static_per_tensor"
    TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_CHANNEL = "xnnpack_torchao_int8da_int4w_per_channel"
    # It has one scale for each group of weights, in spite of its name, which comes from ExecuTorch.
    TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_TENSOR = "xnnpack_torchao_int8da_int4w_per_tensor"

    @classmethod
    def get_backend_name(cls) -> str:
        """`xnnpack`."""
        return "xnnpack"

"""The ways to lower to OpenVINO."""

from __future__ import annotations

from recipes import RecipeType


class OpenVINORecipeType(RecipeType):
    """A way to lower to OpenVINO. ExecuTorch has no recipes for it; names and values follow those of Core ML's."""

    FP32 = "openvino_fp32"
    FP16 = "openvino_fp16"
    INT8 = "openvino_int8"

    @classmethod
    def get_backend_name(cls) -> str:
        """`openvino`."""
        return "openvino"

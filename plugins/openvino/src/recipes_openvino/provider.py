"""The OpenVINO provider: describes its recipes and their options without importing torch or openvino."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from recipes import (
    Availability,
    Finding,
    ModelFacts,
    Option,
    OptionError,
    OptionValue,
    RecipeInfo,
    RecipeProvider,
    RecipeType,
)
from recipes_openvino.half import LARGEST_HALF, overflows_half
from recipes_openvino.recipe_types import OpenVINORecipeType

if TYPE_CHECKING:
    import executorch.export

_SKIP = "skip_ops_for_openvino_delegation"
_OPTIONS = (
    Option(
        name="device",
        type="str",
        help="The processor that OpenVINO compiles for; it must be in the host that exports.",
        default="CPU",
        choices=("CPU", "GPU", "GPU.0", "GPU.1", "NPU"),
    ),
    Option(
        name=_SKIP,
        type="strs",
        help="Operators to keep off OpenVINO, as namespace.operator.overload: aten.relu.default, aten.add.Tensor.",
        default=(),
    ),
)
_RECIPES: Mapping[RecipeType, RecipeInfo] = {
    OpenVINORecipeType.FP32: RecipeInfo(
        summary="Float32 weights; computes in the precision that the device prefers for them.",
        weights="float32",
        activations="float32",
        options=_OPTIONS,
    ),
    OpenVINORecipeType.FP16: RecipeInfo(
        summary="Weights rounded to float16, and stored so where OpenVINO keeps them; computes as FP32 does.",
        weights="float16",
        activations="float32",
        options=_OPTIONS,
    ),
    OpenVINORecipeType.INT8: RecipeInfo(
        summary="int8 weights, one scale per channel, and int8 activations with calibrated ranges.",
        weights="int8",
        activations="int8",
        needs_calibration=True,
        options=_OPTIONS,
    ),
}
_OPERATOR = re.compile(r"\w+\.\w+\.\w+")


class OpenVINOProvider(RecipeProvider):
    """Recipes that lower to OpenVINO, for Intel's CPUs, GPUs and NPUs."""

    @property
    def backend_name(self) -> str:
        """`openvino`."""
        return OpenVINORecipeType.get_backend_name()

    def get_supported_recipes(self) -> Sequence[RecipeType]:
        """Return every member of `OpenVINORecipeType`."""
        return list(_RECIPES)

    def describe(self, recipe_type: RecipeType) -> RecipeInfo:
        """Describe what a recipe type does, and its options."""
        return _RECIPES[recipe_type]

    def availability(self) -> Availability:
        """Check the platform: models are made, and run, only where ExecuTorch's wheel has OpenVINO's runtime."""
        return Availability.of_host(
            modules={
                "executorch": "executorch>=1.5,<1.6",
                "torchao": "torchao>=0.18,<0.19",
                "openvino": "openvino>=2025.1,<2026",
            },
            platforms=(("Linux", "x86_64"),),
        )

    def recipe_availability(self, recipe_type: RecipeType) -> Availability:
        """Check for NNCF, which only int8 needs."""
        return Availability.of_host(modules={"nncf": "nncf==3.1.0"} if recipe_type is OpenVINORecipeType.INT8 else {})

    def settle_options(self, recipe_type: RecipeType, options: Mapping[str, OptionValue]) -> Mapping[str, OptionValue]:
        """Check the form of the operators to skip; `build_recipe` checks that they exist."""
        for name in options[_SKIP].value:
            if not _OPERATOR.fullmatch(name):
                raise OptionError(
                    f"Recipe {recipe_type.id}: Option {_SKIP!r} takes operators as namespace.operator.overload, such "
                    f"as aten.linear.default; got {name!r}."
                )
        return options

    def check_model(
        self, recipe_type: RecipeType, options: Mapping[str, OptionValue], facts: ModelFacts
    ) -> tuple[Mapping[str, OptionValue], Sequence[Finding]]:
        """Refuse a model without inputs, which does not run; warn about weights that float16 cannot represent."""
        findings = [] if facts.inputs else [_without_inputs(facts.method)]
        if recipe_type is not OpenVINORecipeType.FP16:
            return {}, findings
        return {}, findings + [
            Finding(
                "warning",
                "beyond-half-range",
                name,
                f"this has values beyond {LARGEST_HALF:g}, the largest of float16, in which this recipe stores "
                "weights: it is kept in float32.",
                "Use the float32 recipe, or rescale it.",
            )
            for name, value in facts.weights.items()
            if overflows_half(value)
        ]

    def build_recipe(
        self, recipe_type: RecipeType, options: Mapping[str, OptionValue]
    ) -> executorch.export.ExportRecipe:
        """Make a fresh recipe; imports torch, ExecuTorch and openvino, and for int8 NNCF."""
        from recipes_openvino import recipes

        assert isinstance(recipe_type, OpenVINORecipeType), "the base class has checked it"
        return recipes.build(recipe_type, {name: option.value for name, option in options.items()})


def _without_inputs(method: str) -> Finding:
    return Finding(
        "error",
        "no-inputs",
        f"method {method!r}",
        "this has no tensor among its inputs, and ExecuTorch's OpenVINO runtime fails to execute such a model.",
        "Use a target of another backend for it.",
    )

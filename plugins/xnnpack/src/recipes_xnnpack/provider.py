"""The XNNPACK provider: describes its recipes and their options without importing torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from recipes import Availability, Option, OptionValue, RecipeInfo, RecipeProvider, RecipeType
from recipes_xnnpack.recipe_types import GROUP_SIZE_STEP, XNNPackRecipeType

if TYPE_CHECKING:
    import executorch.export

_RECIPES: Mapping[RecipeType, RecipeInfo] = {
    XNNPackRecipeType.FP32: RecipeInfo(
        summary="Float32 on the CPU, for models without quantization.",
        weights="float32",
        activations="float32",
    ),
    XNNPackRecipeType.PT2E_INT8_DYNAMIC_PER_CHANNEL: RecipeInfo(
        summary="int8 weights, one scale per channel; activation ranges are measured at run time.",
        weights="int8",
        activations="int8 dynamic",
    ),
    XNNPackRecipeType.PT2E_INT8_STATIC_PER_CHANNEL: RecipeInfo(
        summary="int8 weights, one scale per channel, and int8 activations with calibrated ranges.",
        weights="int8",
        activations="int8",
        needs_calibration=True,
    ),
    XNNPackRecipeType.PT2E_INT8_STATIC_PER_TENSOR: RecipeInfo(
        summary="int8 weights, one scale per tensor, and int8 activations with calibrated ranges.",
        weights="int8",
        activations="int8",
        needs_calibration=True,
    ),
    XNNPackRecipeType.TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_CHANNEL: RecipeInfo(
        summary="Linear layers with int4 weights, one scale per channel, and int8 activations measured at run time.",
        weights="int4",
        activations="int8 dynamic",
    ),
    XNNPackRecipeType.TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_TENSOR: RecipeInfo(
        summary="Linear layers with int4 weights, one scale per group, and int8 activations measured at run time.",
        weights="int4",
        activations="int8 dynamic",
        options=(
            Option(
                name="group_size",
                type="int",
                help="How many neighbouring weights of a row share one scale.",
                default=32,
                minimum=GROUP_SIZE_STEP,
                multiple_of=GROUP_SIZE_STEP,
            ),
        ),
    ),
}


class XNNPackProvider(RecipeProvider):
    """Recipes that lower to XNNPACK, ExecuTorch's CPU backend for phones, desktops and servers."""

    @property
    def backend_name(self) -> str:
        """`xnnpack`."""
        return XNNPackRecipeType.get_backend_name()

    def get_supported_recipes(self) -> Sequence[RecipeType]:
        """Return every member of `XNNPackRecipeType`."""
        return list(_RECIPES)

    def describe(self, recipe_type: RecipeType) -> RecipeInfo:
        """Describe what a recipe type does, and its options."""
        return _RECIPES[recipe_type]

    def availability(self) -> Availability:
        """Check for ExecuTorch, which contains the lowering to XNNPACK."""
        return Availability.of_host(modules={"executorch": "executorch>=1.5,<1.6", "torchao": "torchao>=0.18,<0.19"})

    def build_recipe(
        self, recipe_type: RecipeType, options: Mapping[str, OptionValue]
    ) -> executorch.export.ExportRecipe:
        """Make a fresh recipe; imports torch and ExecuTorch."""
        from recipes_xnnpack import recipes

        assert isinstance(recipe_type, XNNPackRecipeType), "the base class has checked it"
        return recipes.build(recipe_type, {name: option.value for name, option in options.items()})

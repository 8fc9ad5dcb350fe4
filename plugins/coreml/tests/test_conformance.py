"""What holds for every plugin."""

from collections.abc import Mapping, Sequence
from typing import Any

from recipes import Option, RecipeType
from recipes.testing import PluginConformance
from recipes_coreml import CoreMLRecipeType


class TestCoreML(PluginConformance):
    plugin = "coreml"
    toolchain = ("executorch", "torchao", "coremltools")
    delegates = {"coreml": "CoreMLBackend"}  # noqa: RUF012

    def options_for(self, recipe_type: RecipeType) -> Mapping[str, Any]:
        if recipe_type is CoreMLRecipeType.CODEBOOK_WEIGHT_ONLY:
            return {"bits": 4, "block_size": [-1, 16]}
        return {}

    def values_for(self, recipe_type: RecipeType, option: Option) -> Sequence[Any]:
        if option.name == "skip_ops_for_coreml_delegation":
            return [["aten.relu.default"]]
        if option.name == "block_size":
            return [[-1, 8]]
        return super().values_for(recipe_type, option)

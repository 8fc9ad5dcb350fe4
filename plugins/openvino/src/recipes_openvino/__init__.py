"""OpenVINO recipes and targets for ExecuTorch, a plugin of recipes.

The import is fast, because it imports neither torch nor openvino.
"""

from recipes_openvino.recipe_types import OpenVINORecipeType

__all__ = ["OpenVINORecipeType"]

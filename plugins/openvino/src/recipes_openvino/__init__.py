"""OpenVINO recipes and targets for ExecuTorch, a plugin of recipes.

Importing it is light: it imports neither torch nor openvino.
"""

from recipes_openvino.recipe_types import OpenVINORecipeType

__all__ = ["OpenVINORecipeType"]

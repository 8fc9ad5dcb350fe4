"""XNNPACK recipes and targets for ExecuTorch, a plugin of recipes.

Importing it is light: it imports no torch.
"""

from recipes_xnnpack.recipe_types import XNNPackRecipeType

__all__ = ["XNNPackRecipeType"]

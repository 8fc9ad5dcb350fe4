"""XNNPACK recipes and targets for ExecuTorch, a plugin of recipes.

The import is fast, because it does not import torch.
"""

from recipes_xnnpack.recipe_types import XNNPackRecipeType

__all__ = ["XNNPackRecipeType"]

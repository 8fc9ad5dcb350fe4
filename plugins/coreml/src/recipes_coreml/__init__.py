"""Core ML recipes and targets for ExecuTorch, a plugin of recipes.

The import is fast, because it imports neither torch nor coremltools.
"""

from recipes_coreml.recipe_types import CoreMLRecipeType

__all__ = ["CoreMLRecipeType"]

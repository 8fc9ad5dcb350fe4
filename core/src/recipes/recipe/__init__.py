"""`ExportRecipe`: how recipes are merged, field by field, and where each value comes from.

May be imported by `registry` and every room above it. May import `common`, `plugins` and `executorch`.
"""

from recipes.recipe.export_recipe import ExportRecipe
from recipes.recipe.merging import merge
from recipes.recipe.policies import FIELD_POLICIES
from recipes.recipe.provenance import Explanation, Provenance, Source

__all__ = [
    "FIELD_POLICIES",
    "Explanation",
    "ExportRecipe",
    "Provenance",
    "Source",
    "merge",
]

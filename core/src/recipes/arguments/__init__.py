"""The arguments of an export, checked and normalized; this room refuses what would fail later.

May be imported by `artifact` and every room above it. May import `common`, `plugins`, `executorch`, `recipe` and
`registry`.
"""

from recipes.arguments.calibration import calibrates
from recipes.arguments.models import models_by_method
from recipes.arguments.request import Request, check_arguments, check_constant_methods, resolve_recipe
from recipes.arguments.samples import samples_by_method

__all__ = [
    "Request",
    "calibrates",
    "check_arguments",
    "check_constant_methods",
    "models_by_method",
    "resolve_recipe",
    "samples_by_method",
]

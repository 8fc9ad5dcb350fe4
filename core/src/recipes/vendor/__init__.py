"""Tools for those who write or install plugins: the doctor, and the project of a new plugin.

May be imported by `cli`. May import `common`, `plugins` and `registry`; imports neither torch nor ExecuTorch.
"""

from recipes.vendor.doctor import Diagnosis, diagnose
from recipes.vendor.scaffold import new_plugin, next_commands

__all__ = [
    "Diagnosis",
    "diagnose",
    "new_plugin",
    "next_commands",
]

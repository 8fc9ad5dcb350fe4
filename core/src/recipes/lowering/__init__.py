"""The export itself: checks before it, its session, and several exports of one model.

May be imported by `testing` and `cli`. May import every room below: `common`, `plugins`, `executorch`, `recipe`,
`registry`, `arguments` and `artifact`.
"""

from recipes.lowering.exporting import check, export
from recipes.lowering.many import each, export_many
from recipes.lowering.session import ExportSession

__all__ = [
    "ExportSession",
    "check",
    "each",
    "export",
    "export_many",
]

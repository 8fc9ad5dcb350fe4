"""The results of an export: report, manifest, contents of the file, and its comparison with the model.

May be imported by `lowering` and every room above it. May import `common`, `executorch`, `recipe` and `arguments`.
"""

from recipes.artifact.comparison import Verification
from recipes.artifact.inspection import Inspection, inspect_program
from recipes.artifact.manifest import program_digest, writers
from recipes.artifact.report import Artifacts, Report, check_share, make_report, outcome, require
from recipes.artifact.verification import TIMEOUT, verify_program, verify_session

__all__ = [
    "TIMEOUT",
    "Artifacts",
    "Inspection",
    "Report",
    "Verification",
    "check_share",
    "inspect_program",
    "make_report",
    "outcome",
    "program_digest",
    "require",
    "verify_program",
    "verify_session",
    "writers",
]

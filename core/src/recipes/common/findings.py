"""The results of checks: of a model, an input or a recipe before the slow work, or of the installation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from recipes.common.errors import RecipesError

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One result of a check that the user should know.

    Args:
        level: `error`: the export would fail or write a wrong file, or a plugin must be fixed. `warning`: the export
            would write a file that is likely not the intended one, or something is missing. `note`: recipes made a
            decision.
        code: A short name for the kind of finding, in words joined by `-`: `training-mode`.
        where: The module, tensor or argument by its qualified name: `encoder.layer.0.dropout`; or the plugin.
        message: What is wrong, or what was decided, in one sentence.
        way_out: What to do about it; empty for a note.
    """

    level: Level
    code: str
    where: str
    message: str
    way_out: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        way_out = f" {self.way_out}" if self.way_out else ""
        return f"{self.level}: {place}{self.message}{way_out} [{self.code}]"

    def to_dict(self) -> dict[str, Any]:
        """Plain data that can be written as JSON."""
        return {
            "level": self.level,
            "code": self.code,
            "where": self.where,
            "message": self.message,
            "way_out": self.way_out,
        }


class PreflightError(RecipesError, ValueError):
    """The model cannot be exported as asked; `findings` has every reason, not only the first.

    Args:
        findings: All findings; the message lists those of level `error`.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        errors = [str(finding) for finding in self.findings if finding.level == "error"]
        super().__init__("The model cannot be exported as asked:\n" + "\n".join(f"  {text}" for text in errors))

"""Watch the stages of an export: report progress, explain failures and record warnings."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import executorch.export
from executorch.export import StageType
from executorch.export.stages import PipelineArtifact, Stage

from recipes.common import ExportError, Finding, RecipesError, RecipesWarning


@dataclass(frozen=True)
class StageProgress:
    """The argument of a `progress` callback, which is called when a stage starts and when it ends.

    Args:
        stage: The stage's name, as in `executorch.export.StageType`: `quantize`, `torch_export`.
        state: `started`, `finished` or `failed`.
        seconds: How long the stage took; 0 when it starts.
    """

    stage: str
    state: Literal["started", "finished", "failed"]
    seconds: float = 0.0


Progress = Callable[[StageProgress], None]


class WatchedStage(Stage):
    """A stage that reports its progress, whose errors name the stage, and whose warnings are recorded.

    Args:
        stage: The stage.
        recipe: The recipe that error messages refer to.
        progress: Called when the stage starts and when it ends.
        findings: The list to which the warnings are added.
    """

    def __init__(
        self, stage: Stage, recipe: executorch.export.ExportRecipe, progress: Progress, findings: list[Finding]
    ) -> None:
        super().__init__()
        self._stage = stage
        self._recipe = recipe
        self._progress = progress
        self._findings = findings

    @property
    def stage_type(self) -> StageType:
        return self._stage.stage_type

    @property
    def valid_predecessor_stages(self) -> list[StageType]:
        return self._stage.valid_predecessor_stages  # type: ignore[no-any-return]

    @property
    def can_start_pipeline(self) -> bool:
        return self._stage.can_start_pipeline  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def get_artifacts(self) -> PipelineArtifact:
        return self._stage.get_artifacts()

    def run(self, artifact: PipelineArtifact) -> None:
        name = str(getattr(self.stage_type, "value", self.stage_type))
        self._progress(StageProgress(name, "started"))
        start = time.perf_counter()
        try:
            with self._keep_warnings(name):
                self._stage.run(artifact)
        except BaseException as error:
            self._progress(StageProgress(name, "failed", time.perf_counter() - start))
            if isinstance(error, RecipesError) or not isinstance(error, Exception):
                raise
            raise ExportError(_explain(self._recipe, name, error), name) from error
        self._progress(StageProgress(name, "finished", time.perf_counter() - start))

    @contextmanager
    def _keep_warnings(self, name: str) -> Iterator[None]:
        """Record warnings that plugins issue while a stage runs as findings, such as a layer that stays in float."""
        caught: list[warnings.WarningMessage] = []
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.filterwarnings("always", category=RecipesWarning)
                yield
        finally:
            for warning in caught:
                if issubclass(warning.category, RecipesWarning):
                    self._findings.append(Finding("warning", "while-exporting", name, str(warning.message)))
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _explain(recipe: executorch.export.ExportRecipe, stage: str, error: Exception) -> str:
    text = str(error).strip() or "no message"
    lines = [f"The export to {recipe.name!r} failed at the stage {stage}: {type(error).__name__}: {text}"]
    if stage in ("torch_export", "quantize") and recipe.strict:
        lines.append(
            "The model was traced strictly. If its forward runs Python that cannot be traced, "
            "derive the recipe with strict=False: recipe.derive(strict=False)."
        )
    return "\n".join(lines)

"""Export a model: check the arguments, run the stages, and keep the result."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import executorch.export
import torch
from executorch.exir import EdgeProgramManager
from executorch.export import StageType
from executorch.export.stages import PipelineArtifact, Stage
from torch.export import ExportedProgram

from recipes.arguments import check_arguments, check_constant_methods
from recipes.artifact import (
    TIMEOUT,
    Artifacts,
    Report,
    Verification,
    check_share,
    make_report,
    outcome,
    program_digest,
    require,
    verify_session,
    writers,
)
from recipes.common import (
    ArgumentError,
    ExportError,
    Finding,
    RecipesError,
    SaveError,
    check_destination,
    write_atomically,
)
from recipes.executorch import (
    CONTEXT_KEY,
    CaptureStage,
    Fallback,
    MethodDelegation,
    Progress,
    QuantizeStage,
    SharedWork,
    SourceTransformStage,
    StageProgress,
    WatchedStage,
    delegations,
)
from recipes.lowering.pipeline import lowering_stages
from recipes.lowering.preflight import preflight, tell, warn_of_skipped_stages, with_contiguous_weights
from recipes.lowering.processes import Lowered, MadeProgram

# ExecuTorch marks its class as experimental, so deriving from it issues a warning.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)

    class ExportSession(executorch.export.ExportSession):
        """An export of one model: its stages, their artifacts, and the resulting program.

        It has all methods of `executorch.export.ExportSession`. The arguments are those of `export`.

        Args:
            recipe: The recipe in use: the recipe from the arguments, fitted to the model.
            findings: The findings from before the export, and from after it.

        Raises:
            ArgumentError: An argument is missing, invalid, or swapped with another.
            PreflightError: The model cannot be exported as requested.
            RecipesError: The recipe cannot be made.
        """

        def __init__(
            self,
            model: Any,
            recipe: Any = None,
            example_inputs: Any = None,
            *,
            dynamic_shapes: Any = None,
            calibration_inputs: Any = None,
            constant_methods: dict[str, Any] | None = None,
            artifact_dir: str | os.PathLike[str] | None = None,
            generate_etrecord: bool = False,
            name: str | None = None,
            progress: Progress | None = None,
            allow_training_mode: bool = False,
            strict_delegation: bool = False,
            require_delegation: float | None = None,
        ) -> None:
            self._require_delegation = check_share(require_delegation)
            request = check_arguments(model, recipe, example_inputs, dynamic_shapes, calibration_inputs)
            check_constant_methods(constant_methods, request.models)
            fitted, self.findings = preflight(request, allow_training_mode=allow_training_mode)
            tell(self.findings)
            models = {method: with_contiguous_weights(model) for method, model in request.models.items()}
            request = replace(request, recipe=fitted, models=models)
            self.recipe = request.recipe
            self._progress = progress
            self._seconds: dict[str, float] = {}
            self._constant_methods = constant_methods
            self._digest = ""
            self._delegations: tuple[MethodDelegation, ...] | None = None
            self._lowered_elsewhere: Lowered | None = None
            self._remaining: list[StageType] = []
            self._reached: PipelineArtifact | None = None
            self._artifact_dir = _artifact_folder(artifact_dir)
            self._writes_etrecord = generate_etrecord
            warn_of_skipped_stages(request)
            super().__init__(
                model=request.models,
                example_inputs=request.samples,
                export_recipe=request.recipe,
                name=name,
                dynamic_shapes=request.dynamic_shapes,
                constant_methods=constant_methods,
                artifact_dir=None if artifact_dir is None else str(artifact_dir),
                generate_etrecord=generate_etrecord,
            )
            quantization = request.recipe.quantization_recipe
            self._captured_before = request.models if request.kind == "ExportedProgram" else {}
            self._quantizes = quantization is not None and bool(
                quantization.quantizers or quantization.ao_quantization_configs
            )
            ours = {
                StageType.SOURCE_TRANSFORM: SourceTransformStage(
                    quantization, in_place=request.recipe.source_transform_in_place
                ),
                StageType.QUANTIZE: QuantizeStage(
                    quantization, strict=request.recipe.strict, calibration_inputs=request.calibration_inputs
                ),
                StageType.TORCH_EXPORT: CaptureStage(
                    list(request.recipe.aten_transform_passes or ()), strict=request.recipe.strict
                ),
                **lowering_stages(request.recipe, strict=strict_delegation),
            }
            for stage_type, stage in list(self.get_all_registered_stages().items()):
                self.register_stage(stage_type, ours.get(stage_type, stage))

        def share(self, work: SharedWork) -> None:
            """Share work with other exports of the same model.

            Args:
                work: The work that all of them share; see `recipes.export_many`.
            """
            self._run_context[CONTEXT_KEY] = work

        def register_stage(self, stage_type: StageType, stage: Stage) -> None:
            """Replace the stage of a stage type.

            Args:
                stage_type: The stage type.
                stage: The stage to run for it.
            """
            super().register_stage(stage_type, WatchedStage(stage, self.recipe, self._on_progress, self.findings))

        def _on_progress(self, event: StageProgress) -> None:
            if event.state == "finished":
                self._seconds[event.stage] = event.seconds
            if self._progress is not None:
                self._progress(event)

        def export(self) -> None:
            """Run all stages.

            Raises:
                ExportError: A stage failed, or less was delegated than is required; its `stage` names the stage.
                ArgumentError: The recipe's `pipeline_stages` cannot be run with this model.
            """
            try:
                super().export()
            except RecipesError:
                raise
            except ValueError as error:  # stages raise ExportError, so this is from the check of their sequence
                raise ArgumentError(f"The stages of the recipe {self.recipe.name!r} cannot be run: {error}") from error
            self._conclude()

        def capture(self) -> dict[str, ExportedProgram]:
            """Run the stages up to the capture, and return the captured programs; `export` continues from there.

            Returns:
                The captured program of each method.

            Raises:
                ExportError: A stage failed.
            """
            self._begin()
            if StageType.TORCH_EXPORT in self._remaining:
                self._advance(StageType.TORCH_EXPORT)
            assert self._reached is not None
            return dict(self._reached.data)

        def adopt(self, lowered: Lowered) -> None:
            """Complete the export with the programs from `capture`, after another process has lowered them.

            Args:
                lowered: The result of `recipes.lowering.processes.lower`.

            Raises:
                ExportError: Less was delegated than is required.
            """
            assert self._reached is not None
            self._remaining.clear()
            self._lowered_elsewhere = lowered
            self.findings += lowered.findings
            tell(lowered.findings)
            for event in lowered.events:
                self._on_progress(event)
            program = MadeProgram(lowered.buffer, lowered.data)
            self._stage_to_artifacts[StageType.TO_EXECUTORCH] = self._reached.copy_with_new_data(program)
            self._conclude()

        def _run_pipeline(self) -> None:
            if not self._remaining:
                self._begin()
            self._advance()

        def _begin(self) -> None:
            self._validate_pipeline_sequence(stages=self._pipeline_stages)
            self._stage_to_artifacts.clear()
            self._lowered_elsewhere = None
            self._remaining = list(self._pipeline_stages)
            self._reached = PipelineArtifact(data=self._model, context=self._run_context)

        def _advance(self, last: StageType | None = None) -> None:
            """Run the remaining stages, or those up to `last`."""
            remaining, self._remaining = self._remaining, []  # after a failure, all stages run again
            while remaining:
                stage_type = remaining.pop(0)
                stage = self.get_registered_stage(stage_type)
                stage.run(self._reached)
                self._reached = self._stage_to_artifacts[stage_type] = stage.get_artifacts()
                if stage_type == last:
                    break
            self._remaining = remaining

        def _conclude(self) -> None:
            """Examine the result, report findings, and write the requested artifacts."""
            with suppress(RuntimeError):  # the recipe's stages end before lowering
                self._delegations = delegations(self.get_edge_program_manager())
            if self._lowered_elsewhere is not None:
                self._delegations = self._lowered_elsewhere.delegations
            self._tell_fallbacks()
            made = self._made()
            # Now, since the captured programs share the model's weights, which may change before a save.
            self._digest = program_digest(made.captured, self._constant_methods)
            if self._require_delegation is not None:
                require(made, self._require_delegation)
            found = outcome(made)
            self.findings += found
            tell(found)
            if self._artifact_dir is not None:
                self._write_artifacts(self._artifact_dir)

        def get_edge_program_manager(self) -> EdgeProgramManager:
            """The program after lowering.

            Raises:
                RuntimeError: There is none, because the stages ended before it.
                ExportError: There is none, because another process lowered the program.
            """
            if self._lowered_elsewhere is not None:
                raise ExportError(
                    "Another process lowered this program and kept no edge program. To get it, export in this process."
                )
            return super().get_edge_program_manager()

        @property
        def fallbacks(self) -> list[Fallback]:
            """The ops that a backend claimed and could not compile; another backend or a kernel runs them."""
            stage = self.get_registered_stage(StageType.TO_EDGE_TRANSFORM_AND_LOWER)
            return list(getattr(self._lowered_elsewhere or stage, "fallbacks", ()))

        def _tell_fallbacks(self) -> None:
            for backend in dict.fromkeys(fallback.backend for fallback in self.fallbacks):
                ops = [str(fallback) for fallback in self.fallbacks if fallback.backend == backend]
                found = Finding(
                    "warning",
                    "fallback",
                    backend,
                    f"it could not compile operators that it claimed, so they run elsewhere: {'; '.join(ops)}.",
                    "Change the model there, or pass strict_delegation=True to make this an error.",
                )
                self.findings.append(found)
                tell([found])

        def _made(self) -> Artifacts:
            captured = self.get_stage_artifacts().get(StageType.TORCH_EXPORT)
            program = None
            with suppress(RuntimeError):  # there is none yet, or the recipe's stages end before
                program = self.get_executorch_program_manager()
            return Artifacts(
                recipe=self.recipe,
                models=self._model,
                captured=captured.data if captured is not None else self._captured_before,
                lowered=self._delegations,
                program=program,
                quantizes=self._quantizes and StageType.QUANTIZE in self.get_stage_artifacts(),
                fallbacks=self.fallbacks,
                findings=self.findings,
                seconds=self._seconds,
            )

        def report(self) -> Report:
            """Describe the result: what each backend runs, fallbacks and reasons, sizes, memory, times, findings.

            Print the report, or use its `to_dict()`.
            """
            return make_report(self._made())

        def verify(self, inputs: Any = None, *, timeout: float = TIMEOUT) -> Verification:
            """Compare the program with the model in PyTorch, if this host's runtime has its backends.

            A quantized model is compared in PyTorch too, even if its program cannot run here. The program runs in a
            separate process, so a backend that crashes does not end this one. The result names everything that was
            not run, with the reason.

            Args:
                inputs: Samples, as `example_inputs` of `export`; by default the example inputs, some with their
                    values in another order, and both ends of each dynamic range.
                timeout: Seconds after which the program is stopped.

            Raises:
                ArgumentError: The inputs are invalid.
            """
            return verify_session(self._made(), self._example_inputs, inputs, timeout)

        def save_pte_file(self, path: str | os.PathLike[str]) -> Path:
            """Write the program, its manifest, and any tensor data that the recipe stores outside of it.

            The manifest of `model.pte` is `model.pte.json`, and tensor data are `.ptd` files beside it. All files are
            written completely before they are moved into place. If a save fails, or the process is killed before that,
            the files from before remain. If the process is killed while files are moved, the next save,
            `inspect_program` or `verify_program` moves the others.

            Args:
                path: The file to write.

            Returns:
                The path of the program.

            Raises:
                SaveError: The file cannot be written there.
                ExportError: There is no program yet.
            """
            destination = check_destination(path)
            made = self._made()
            if made.program is None:
                raise ExportError(f"There is no program to save to {str(path)!r}: call export() first.")
            write_atomically(writers(destination, made, self._digest))
            return destination

        def save_to_pte(self, output_name: str) -> None:
            """Write the program as ExecuTorch's session does: `.pte` is added if the name lacks it.

            Args:
                output_name: The file to write.

            Raises:
                SaveError: The file cannot be written there; ExecuTorch's session only logs this.
            """
            if not output_name:
                raise SaveError("save_to_pte needs the name of a file.")
            self.save_pte_file(output_name if output_name.endswith(".pte") else f"{output_name}.pte")

        def _write_artifacts(self, folder: Path) -> None:
            """Write the captured programs, and the ETRecord if one was requested."""
            captured = self.get_stage_artifacts().get(StageType.TORCH_EXPORT)
            for method, program in (captured.data if captured is not None else {}).items():
                write_atomically({folder / f"{method}.pt2": partial(torch.export.save, program)})
            if self._writes_etrecord:
                self.get_etrecord().save(str(folder / "etrecord.bin"))


def _artifact_folder(path: str | os.PathLike[str] | None) -> Path | None:
    if path is None:
        return None
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(f"Cannot write artifacts to {str(path)!r}: {error.strerror or error}.") from error
    return folder

"""Export one model for many targets, and do their common work once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from recipes.arguments import calibrates, models_by_method, resolve_recipe
from recipes.common import (
    ArgumentError,
    ExportError,
    ExportManyError,
    RecipesWarning,
    UnknownRecipeError,
    UnknownTargetError,
)
from recipes.executorch import SharedWork, StageProgress
from recipes.lowering.preflight import with_contiguous_weights
from recipes.lowering.processes import CapturedFiles, Lowered, lower, pickled
from recipes.lowering.session import ExportSession
from recipes.recipe import ExportRecipe


@dataclass(frozen=True)
class Outcome:
    """How the export for one target ended.

    Args:
        target: The target's name, or the key of the recipe in `targets`.
        session: The session, which has the program; None if the export failed.
        error: The exception, which may be a `SystemExit`; None if the export succeeded.
    """

    target: str
    session: ExportSession | None = None
    error: BaseException | None = None


def export_many(
    model: Any,
    targets: Sequence[Any] | Mapping[str, Any],
    example_inputs: Any = None,
    *,
    executor: Executor | None = None,
    dynamic_shapes: Any = None,
    calibration_inputs: Iterable[Any] | Callable[[], Iterable[Any]] | dict[str, Any] | None = None,
    constant_methods: dict[str, Any] | None = None,
    artifact_dir: str | os.PathLike[str] | None = None,
    generate_etrecord: bool = False,
    progress: Callable[[str, StageProgress], None] | None = None,
    allow_training_mode: bool = False,
    strict_delegation: bool = False,
    require_delegation: float | None = None,
) -> dict[str, ExportSession]:
    """Lower one model for many targets; the files are the same as those of `export`.

    Work that does not depend on the target is done once: the capture, quantization if recipes quantize in the same
    way, and decompositions if backends need the same operators.

    Args:
        model: As in `export`.
        targets: Targets' names, recipes, recipe types or their ids; or a dict of these by names of your own.
        example_inputs: As in `export`.
        executor: Lowers targets in parallel, such as a `ProcessPoolExecutor` with the start method `spawn`. With None,
            this process lowers one after another. Each process imports torch and holds a copy of the weights, so an
            executor pays off if lowering takes longer than ten seconds and there is enough memory.
        dynamic_shapes: As in `export`.
        calibration_inputs: As in `export`, for the recipes that calibrate; there must be at least one. If several
            calibrate, the samples of an iterator are kept in memory.
        constant_methods: As in `export`.
        artifact_dir: A folder in which each target gets a folder of its own, as in `export`.
        generate_etrecord: As in `export`.
        progress: Called with the target and the event when a stage starts and when it ends. The time of shared work
            is counted for the target that is exported first.
        allow_training_mode: As in `export`.
        strict_delegation: As in `export`.
        require_delegation: As in `export`.

    Returns:
        The sessions by the target's name, the recipe's name, or the key in `targets`, in their order.

    Raises:
        ArgumentError: An argument is wrong for every target.
        UnknownTargetError: No installed plugin declares a target of that name; nothing is exported.
        UnknownRecipeError: No installed plugin provides a recipe type; nothing is exported.
        ExportManyError: The export for some target failed; the error has the sessions of the others.
    """
    outcomes = list(
        each(
            model,
            targets,
            example_inputs,
            executor=executor,
            dynamic_shapes=dynamic_shapes,
            calibration_inputs=calibration_inputs,
            constant_methods=constant_methods,
            artifact_dir=artifact_dir,
            generate_etrecord=generate_etrecord,
            progress=progress,
            allow_training_mode=allow_training_mode,
            strict_delegation=strict_delegation,
            require_delegation=require_delegation,
        )
    )
    sessions = {outcome.target: outcome.session for outcome in outcomes if outcome.session is not None}
    failures = {outcome.target: outcome.error for outcome in outcomes if outcome.error is not None}
    if failures:
        raise ExportManyError(sessions, failures) from next(iter(failures.values()))
    return sessions


def each(
    model: Any,
    targets: Sequence[Any] | Mapping[str, Any],
    example_inputs: Any = None,
    *,
    executor: Executor | None = None,
    calibration_inputs: Any = None,
    constant_methods: dict[str, Any] | None = None,
    generate_etrecord: bool = False,
    strict_delegation: bool = False,
    artifact_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[str, StageProgress], None] | None = None,
    **keywords: Any,
) -> Iterator[Outcome]:
    """Yield the outcome for each target as soon as it is known; the arguments are those of `export_many`.

    All arguments and models are checked before the first capture.

    Raises:
        ArgumentError: An argument is wrong for every target.
    """
    _check_executor(executor, generate_etrecord)
    recipes = dict(_recipes(targets))
    _refuse_unknown(recipes)
    models, _ = models_by_method(model)
    # Copies of weights are made here, once: exports share work only if their models are the same objects.
    models = {method: with_contiguous_weights(each_model) for method, each_model in models.items()}
    calibrating = [recipe for recipe in recipes.values() if isinstance(recipe, ExportRecipe) and calibrates(recipe)]
    if calibration_inputs is not None and not calibrating:
        raise ArgumentError(
            f"calibration_inputs have no use here: of {', '.join(recipes)} none calibrates. Leave them out."
        )
    if len(calibrating) > 1:
        calibration_inputs = _to_read_again(calibration_inputs)
    sessions: dict[str, ExportSession] = {}
    failed: dict[str, BaseException] = {}
    for target, recipe in recipes.items():
        if isinstance(recipe, Exception):
            failed[target] = recipe
            continue
        try:
            sessions[target] = ExportSession(
                models,
                recipe,
                example_inputs,
                calibration_inputs=calibration_inputs if calibrates(recipe) else None,
                artifact_dir=None if artifact_dir is None else Path(artifact_dir) / target,
                progress=None if progress is None else partial(progress, target),
                constant_methods=constant_methods,
                generate_etrecord=generate_etrecord,
                strict_delegation=strict_delegation,
                **keywords,
            )
        except (Exception, SystemExit) as error:
            failed[target] = error
    if not sessions and len({str(error) for error in failed.values()}) == 1:
        raise next(iter(failed.values()))
    work = SharedWork([session.recipe.quantization_recipe for session in sessions.values()])
    for session in sessions.values():
        session.share(work)
    yield from (Outcome(target, error=error) for target, error in failed.items())
    if executor is None:
        while sessions:  # sessions that were yielded are not kept
            target = next(iter(sessions))
            session = sessions.pop(target)
            yield _outcome(target, session, session.export)
    else:
        yield from _side_by_side(sessions, executor, constant_methods, strict_delegation)


def _to_read_again(samples: Any) -> Any:
    """Return samples that can be read more than once: those of an iterator are stored in a list."""
    if isinstance(samples, Mapping):
        return {method: _to_read_again(each_method) for method, each_method in samples.items()}
    return list(samples) if isinstance(samples, Iterator) else samples


def _outcome(target: str, session: ExportSession, work: Callable[[], None]) -> Outcome:
    try:
        work()
    except (Exception, SystemExit) as error:  # a compiler that exits must not end the other exports
        return Outcome(target, error=error)
    return Outcome(target, session)


def _side_by_side(
    sessions: Mapping[str, ExportSession],
    executor: Executor,
    constant_methods: dict[str, Any] | None,
    strict_delegation: bool,
) -> Iterator[Outcome]:
    """Capture in this process, lower in the executor, and complete each export in this process as it is ready."""
    waiting: dict[Future[Lowered], tuple[str, ExportSession]] = {}
    with CapturedFiles() as files:
        for target, session in sessions.items():
            reason = "it has pipeline_stages of its own" if session.recipe.pipeline_stages is not None else ""
            try:
                rest = pickled(session.recipe, constant_methods, strict=strict_delegation)
            except Exception as error:  # pickling an object can raise any exception
                reason = f"{type(error).__name__}: {error}"
            if reason:
                warnings.warn(
                    f"Target {target!r} is lowered in this process, because its recipe cannot be sent to another: "
                    f"{reason}.",
                    RecipesWarning,
                    stacklevel=4,
                )
                yield _outcome(target, session, session.export)
                continue
            try:
                paths = {method: files.file(program) for method, program in session.capture().items()}
            except (Exception, SystemExit) as error:
                yield Outcome(target, error=error)
            else:
                waiting[executor.submit(lower, paths, rest)] = target, session
        for future in as_completed(waiting):
            target, session = waiting[future]
            yield _outcome(target, session, partial(_adopt, session, future))


def _adopt(session: ExportSession, future: Future[Lowered]) -> None:
    try:
        lowered = future.result()
    except BrokenExecutor as error:
        raise ExportError(
            f"The process that lowered {session.recipe.name!r} ended without an error message, probably for lack of "
            f"memory: use fewer processes, or none ({error}).",
            "to_edge_transform_and_lower",
        ) from error
    session.adopt(lowered)


def _check_executor(executor: Executor | None, generate_etrecord: bool) -> None:
    if executor is None:
        return
    if not isinstance(executor, Executor):
        raise ArgumentError(f"executor is a {type(executor).__name__}; it must be a concurrent.futures.Executor.")
    if generate_etrecord:
        raise ArgumentError("generate_etrecord needs the edge programs in this process: leave out executor.")
    context = getattr(executor, "_mp_context", None)  # the start method has no public name
    if context is not None and context.get_start_method() == "fork":
        raise ArgumentError(
            "executor forks this process, and torch hangs in a fork of a process that has used it. Pass "
            "ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn'))."
        )


def _refuse_unknown(recipes: Mapping[str, ExportRecipe | Exception]) -> None:
    """Refuse names that nothing has, all at once: a misspelled name must not wait for the other exports."""
    unknown = [made for made in recipes.values() if isinstance(made, UnknownTargetError | UnknownRecipeError)]
    if unknown:
        raise type(unknown[0])("\n".join(dict.fromkeys(map(str, unknown)))) from unknown[0]


def _recipes(targets: Sequence[Any] | Mapping[str, Any]) -> Iterator[tuple[str, ExportRecipe | Exception]]:
    """The recipe for each target, or the error why there is none."""
    if isinstance(targets, str) or not isinstance(targets, Sequence | Mapping):
        raise ArgumentError(
            f"targets is a {type(targets).__name__}; it must be a list of targets' names or recipes, or a dict of "
            "these whose keys are names of your own."
        )
    if not targets:
        raise ArgumentError("targets is empty; name at least one.")
    named = targets.items() if isinstance(targets, Mapping) else ((None, target) for target in targets)
    seen: set[str] = set()
    for key, target in named:
        made: ExportRecipe | Exception
        try:
            recipe = made = resolve_recipe(target)
            name = key if key is not None else target if isinstance(target, str) else recipe.name
            if recipe.source_transform_in_place:
                made = ArgumentError(
                    f"The recipe {recipe.name!r} has source_transform_in_place=True, so the other targets would get "
                    "the changed model: derive it with False, or export it alone."
                )
        except Exception as error:
            made = error
            name = key if key is not None else str(target)
        if key is not None and not isinstance(key, str):
            raise ArgumentError(f"targets has the name {key!r}, which is a {type(key).__name__}; names are text.")
        if not isinstance(name, str) or not name:
            raise ArgumentError("A recipe has no name. Pass targets as a dict whose keys are names of your own.")
        if name in seen:
            raise ArgumentError(
                f"targets has {name!r} more than once. Pass a dict whose keys are different names of your own."
            )
        seen.add(name)
        yield name, made

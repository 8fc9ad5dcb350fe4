"""What `recipes export` does after it has parsed the command line: plan the files, and export for each target."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipes.cli import quiet
from recipes.common import ArgumentError, check_destination

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from recipes.artifact import Report
    from recipes.cli.load import ModelReference
    from recipes.cli.progress import Display
    from recipes.lowering import ExportSession
    from recipes.recipe import ExportRecipe
    from recipes.registry import Registry

_PLACEHOLDER = "{target}"
_SEPARATORS = tuple(filter(None, (os.sep, os.altsep)))


@dataclass(frozen=True)
class Failure:
    """An export that failed.

    Args:
        target: The target's name.
        error: The exception.
        library_output: The last lines that libraries printed during the export.
    """

    target: str
    error: BaseException
    library_output: str


def plan_files(targets: Sequence[str], out: str) -> dict[str, Path]:
    """The file for each target. Nothing is created yet.

    Args:
        targets: The targets' names.
        out: OUT: one target's file; a folder for several; or a path with `{target}` in it.

    Raises:
        ArgumentError: OUT is one file, and there are several targets.
        SaveError: A file cannot be written there.
    """
    if _PLACEHOLDER in out:
        files = {target: Path(out.replace(_PLACEHOLDER, target)) for target in targets}
    elif len(targets) == 1:
        files = {targets[0]: Path(out)}
    elif Path(out).suffix and not out.endswith(_SEPARATORS) and not Path(out).is_dir():
        path = Path(out)
        raise ArgumentError(
            f"OUT {out!r} is one file, but there are {len(targets)} targets: "
            f"give a folder, or a file for each with '{path.with_name(f'{path.stem}-{_PLACEHOLDER}{path.suffix}')}'."
        )
    else:
        files = {target: Path(out) / f"{target}.pte" for target in targets}

    # A folder that the targets need is created; any other missing folder is likely a typing error.
    may_make = len(targets) > 1 and (_PLACEHOLDER not in out or _PLACEHOLDER in str(Path(out).parent))
    for path in files.values():
        check_destination(path.parent if may_make and not path.parent.exists() else path)
    return files


def export_all(
    registry: Registry,
    reference: ModelReference,
    files: Mapping[str, Path],
    options: Mapping[str, Any],
    *,
    debug: bool,
    report: bool,
    jobs: int = 1,
) -> list[Failure]:
    """Load the model once and export it for each target; print progress and reports to stderr, the files to stdout.

    Args:
        registry: Where targets come from.
        reference: The model.
        files: The file for each target.
        options: As in `Registry.resolve_target_options`.
        debug: Whether to let the libraries print.
        report: Whether to print a report of each export.
        jobs: How many processes lower side by side; with 1 this process does everything.

    Raises:
        ArgumentError: The model cannot be loaded; no export was started.
    """
    screen = sys.stderr
    started = time.monotonic()
    click.echo(f"loading {reference.text}", err=True)
    with quiet.library_chatter(debug):
        arguments = reference.load()
    click.echo(f"loaded in {time.monotonic() - started:.1f} s", err=True)

    from recipes.cli.progress import Display

    for path in files.values():
        path.parent.mkdir(exist_ok=True)
    failures: list[Failure] = []
    written: list[str] = []
    reports: list[Report] = []
    try:
        with (
            Display(list(files), screen, live=not debug) as display,
            quiet.warnings_as_lines(display.print_line, lambda: debug),
            _processes(min(jobs, len(files)), debug) as executor,
        ):
            for target, made in _exports(registry, arguments, files, options, display, debug, executor):
                if isinstance(made, Failure):
                    failures.append(made)
                    continue
                path, session, seconds = files[target], *made
                started = time.monotonic()
                with quiet.library_output(debug) as captured:
                    try:
                        with display.stage(target, "save"):
                            session.save_pte_file(path)
                        reports += [session.report()] if report else []
                    except Exception as error:
                        failures.append(Failure(target, error, quiet.tail(captured)))
                        continue
                written.append(_result(path, seconds + time.monotonic() - started))
    finally:  # also when interrupted: list the files that were written
        for line in written:
            click.echo(line)
        for each in reports:
            click.echo(f"\n{each}", err=True, nl=False)
    return failures


@contextmanager
def _processes(count: int, debug: bool) -> Iterator[Executor | None]:
    """Processes to lower in, or None where this process is enough."""
    if count == 1:
        yield None
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=quiet.silence, initargs=(debug,)) as executor:
        yield executor


def _exports(
    registry: Registry,
    arguments: Mapping[str, Any],
    targets: Iterable[str],
    options: Mapping[str, Any],
    display: Display,
    debug: bool,
    executor: Executor | None,
) -> Iterator[tuple[str, tuple[ExportSession, float] | Failure]]:
    """For each target its session and the seconds that it took, or its failure."""
    recipes: dict[str, ExportRecipe] = {}
    failures: list[Failure] = []
    for target in targets:
        with quiet.library_output(debug) as captured:
            try:
                with display.stage(target, "recipe"):
                    recipes[target] = registry.get_target_recipe(target, **options)
            except (Exception, SystemExit) as error:
                failures.append(Failure(target, error, quiet.tail(captured)))
    yield from ((failure.target, failure) for failure in failures)
    if not recipes:
        return
    with quiet.library_output(debug):
        from recipes.arguments import calibrates
        from recipes.lowering import each

    if not any(map(calibrates, recipes.values())):  # all targets use one factory
        arguments = {name: value for name, value in arguments.items() if name != "calibration_inputs"}
    outcomes = each(
        **arguments,
        targets=recipes,
        executor=executor,
        progress=lambda target, event: display.report(target, event.stage, event.state, event.seconds),
    )
    while True:
        started = time.monotonic()
        with quiet.library_output(debug) as captured:
            try:
                outcome = next(outcomes, None)
            except Exception as error:  # an argument is wrong for every target
                failures = [Failure(target, error, quiet.tail(captured)) for target in recipes]
                break
        if outcome is None:
            return
        if outcome.session is not None:
            yield outcome.target, (outcome.session, time.monotonic() - started)
        else:
            assert outcome.error is not None
            yield outcome.target, Failure(outcome.target, outcome.error, quiet.tail(captured))
    yield from ((failure.target, failure) for failure in failures)


def arguments_for(recipe: ExportRecipe, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a factory returned, without the samples that a recipe cannot use: all targets use one factory."""
    from recipes.arguments import calibrates

    return {name: value for name, value in arguments.items() if name != "calibration_inputs" or calibrates(recipe)}


def _result(path: Path, seconds: float) -> str:
    from rich.filesize import decimal

    return f"{path}  {decimal(path.stat().st_size)}  {seconds:.1f} s"

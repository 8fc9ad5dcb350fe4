"""`recipes export`."""

from __future__ import annotations

from pathlib import Path

import click

from recipes.cli.shared import FAILED, WRONG_USE, debug_option, is_debug, print_error, scanned_registry, values_option
from recipes.common import ArgumentError, TargetUnavailableError


@click.command()
@click.argument("model")
@click.option(
    "-t",
    "--target",
    "names",
    multiple=True,
    required=True,
    metavar="TARGET",
    help="The target to build for. May be repeated.",
)
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    metavar="OUT",
    help="The file to write; with several targets a folder, or a path with {target} in it.",
)
@values_option
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many processes lower several targets in parallel; each needs the memory of an export.",
)
@click.option("--report/--no-report", default=True, help="Whether to print a report of each export, on stderr.")
@debug_option
@click.pass_context
def export(
    context: click.Context,
    model: str,
    names: tuple[str, ...],
    out: str,
    given: tuple[str, ...],
    jobs: int,
    report: bool,
) -> None:
    """Export MODEL for one or more targets.

    \b
    MODEL is one of
      package.module:factory    a function in a module; the current folder is importable
      path/to/file.py:factory   a function in a file
      path/to/program.pt2       a program that was written with torch.export.save
    The factory has no parameters and returns (model, example_inputs), or a dict with the keys model,
    example_inputs, dynamic_shapes, calibration_inputs, constant_methods, of which only model is required.
    Targets that do not calibrate ignore calibration_inputs.

    Work that several targets share, such as the capture, is done once. Each file gets a manifest beside it,
    which `recipes inspect` and `recipes verify` read: model.pte.json. A file that exists is replaced only when its
    export has succeeded. Where one of several targets fails, the files of the others are kept and the exit code is 1.

    \b
    Examples:
      recipes export my_package.models:small --target TARGET -o model.pte
      recipes export models.py:small -t TARGET -t TARGET2 -o build/
      recipes export models.py:small -t TARGET -t TARGET2 -o 'build/small-{target}.pte' -O name=value
      recipes export small.pt2 --target TARGET -o model.pte
    """
    from recipes.cli import exporting, load, options

    registry = scanned_registry(context)
    load.make_importable(Path.cwd())
    values = options.from_texts(given)
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(f"--target {name} is given {names.count(name)} times; once is enough.")
        target = registry.get_target(name)
        if target.state == "unavailable":
            raise TargetUnavailableError(options.unavailable(target))
        options.resolve(registry, target, values)
    files = exporting.plan_files(names, out)
    reference = load.ModelReference.parse(model)

    failures = exporting.export_all(
        registry, reference, files, values, debug=is_debug(context), report=report, jobs=jobs
    )
    for failure in failures:
        prefix = f"{failure.target}: " if len(names) > 1 else ""
        if failure.library_output:
            click.echo(f"{prefix}the last output of the libraries:\n{failure.library_output}", err=True)
        print_error(failure.error, is_debug(context), prefix)
    if failures:
        if len(names) > 1:
            failed = ", ".join(failure.target for failure in failures)
            click.echo(f"{len(failures)} of {len(names)} targets failed: {failed}.", err=True)
        refused = len(failures) == len(names) and all(isinstance(failure.error, ArgumentError) for failure in failures)
        context.exit(WRONG_USE if refused else FAILED)

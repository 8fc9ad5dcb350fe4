"""The commands. What only one of them needs is imported inside it: listing stays fast."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from recipes import __version__
from recipes.common import ArgumentError, ExportError, RecipesError, TargetUnavailableError, did_you_mean

if TYPE_CHECKING:
    from recipes.registry import Registry

FAILED = 1
"""Exit code: an export failed, or recipes itself did, or something needs mending."""
WRONG_USE = 2
"""Exit code: what was asked for cannot be done; nothing was written."""
INTERRUPTED = 130
"""Exit code: Ctrl-C, as shells report it."""

_DEBUG = "recipes.debug"
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _switch_debug_on(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        context.meta[_DEBUG] = True  # shared by the group and its commands


def _is_debug(context: click.Context) -> bool:
    return bool(context.meta.get(_DEBUG))


def _debug_option(command: _Command) -> _Command:
    return click.option(
        "--debug",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        envvar="RECIPES_DEBUG",
        callback=_switch_debug_on,
        help="Show tracebacks, and all that the libraries print. Also: RECIPES_DEBUG=1.",
    )(command)


def _json_option(command: _Command) -> _Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON with the keys listed below.")(command)


def _values_option(command: _Command) -> _Command:
    return click.option(
        "-O",
        "--option",
        "given",
        multiple=True,
        metavar="[BACKEND.]NAME=VALUE",
        help="Set an option, for every component that takes it or for one backend. May be repeated.",
    )(command)


def _print_error(error: BaseException, debug: bool, prefix: str = "") -> None:
    """Print an error as one block on stderr: with `debug` its traceback, else its text and the way out."""
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    # The text of our own errors is written to be read alone. Another's needs its type to mean anything.
    text = str(error) if isinstance(error, RecipesError) else f"{type(error).__name__}: {error}".rstrip(": ")
    if not debug and (isinstance(error, ExportError) or not isinstance(error, RecipesError)):
        text += "\nRun again with --debug for the traceback."
    click.echo(f"Error: {prefix}{text}", err=True)


@contextmanager
def _errors_become_exit_codes(context: click.Context) -> Iterator[None]:
    try:
        yield
    except (click.ClickException, click.Abort, click.exceptions.Exit):
        raise
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except RecipesError as error:
        _print_error(error, _is_debug(context))
        raise click.exceptions.Exit(WRONG_USE) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # the reader of a pipe went away; click ends quietly
        _print_error(error, _is_debug(context))
        raise click.exceptions.Exit(FAILED) from error


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        from recipes.cli import quiet

        screen = sys.stderr  # as it is now: it is captured while libraries work

        def print_line(text: str) -> None:
            click.echo(text, file=screen)

        with _errors_become_exit_codes(ctx), quiet.warnings_as_lines(print_line, lambda: _is_debug(ctx)):
            return super().invoke(ctx)


def _unscanned_registry(context: click.Context) -> Registry:
    from recipes.registry import Registry, default_registry

    return context.obj if isinstance(context.obj, Registry) else default_registry()


def _registry(context: click.Context) -> Registry:
    registry = _unscanned_registry(context)
    with redirect_stdout(sys.stderr):  # what a plugin prints when it is imported is no part of our answer
        registry.list_plugins()
    return registry


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="recipes %(version)s")
@_debug_option
def cli() -> None:
    """From a PyTorch model to a device, through whichever ExecuTorch plugins are installed.

    \b
    See what can be built for, and build it:
      recipes targets
      recipes export my_package.models:small --target TARGET -o model.pte

    Exit codes: 0, all is well; 1, an export failed or something needs mending; 2, wrong use, nothing was
    written; 130, interrupted.
    """


@cli.command()
@click.option("--os", "system", metavar="OS", help="Only targets of this operating system, such as android.")
@click.option("--all", "include_unavailable", is_flag=True, help="Also targets that cannot be built for here, and why.")
@_json_option
@_debug_option
@click.pass_context
def targets(context: click.Context, system: str | None, include_unavailable: bool, as_json: bool) -> None:
    """List what can be built for here.

    A target is ready, degraded (an optional component is missing) or unavailable (a required one is).
    Components are in partitioning order.

    \b
    Examples:
      recipes targets
      recipes targets --os android --all
      recipes targets --json | jq -r '.[].name'

    \b
    JSON: a list of objects with the keys name, os, arch, accelerator, precision, state, summary, default,
    plugin, reason, hint and components: a list of recipe, role, required, plugin, available, reason, hint.
    """
    registry = _registry(context)
    listed = registry.list_targets(system, include_unavailable=True)
    known = {target.os for target in registry.list_targets(include_unavailable=True)} if system else set()
    if system and known and system.lower() not in known:
        raise ArgumentError(
            f"No installed plugin has targets for {system!r}.{did_you_mean(system, known)} "
            f"Systems here: {', '.join(sorted(known))}."
        )
    shown = [target for target in listed if include_unavailable or target.state != "unavailable"]
    if as_json:
        from recipes.cli import records

        click.echo(records.as_text([records.of_target(target) for target in shown]))
        return
    from recipes.cli import render

    render.targets(shown, hidden=len(listed) - len(shown))


@cli.command()
@click.argument("target")
@_values_option
@click.option("--explain", is_flag=True, help="Also build the recipe and print where each part of it comes from.")
@_json_option
@_debug_option
@click.pass_context
def show(context: click.Context, target: str, given: tuple[str, ...], explain: bool, as_json: bool) -> None:
    """Show a target's components and options.

    Components are in partitioning order. Each option has its effective value and where that is from: default,
    given, target, or what a recipe settled.

    \b
    Examples:
      recipes show TARGET
      recipes show TARGET -O name=value -O backend.name=value
      recipes show TARGET --explain

    \b
    JSON: the keys of `recipes targets --json`; each component also has summary, weights, activations,
    needs_calibration, deployment_target and options: a list of name, type, expects, choices, default,
    required, help, value, source. value and source are null where the component is not available.
    """
    from recipes.cli import options, records

    if explain and as_json:
        raise ArgumentError("--explain prints text for people; leave out --explain or --json.")
    registry = _registry(context)
    found = registry.get_target(target)
    values = options.from_texts(given)
    if found.state == "unavailable" and (values or explain):
        raise TargetUnavailableError(options.unavailable(found))
    description = records.of_target_in_full(registry, found, options.resolve(registry, found, values))
    if as_json:
        click.echo(records.as_text(description))
        return
    from recipes.cli import render

    render.target_in_full(description)
    if explain:
        from recipes.cli import quiet

        with quiet.library_output(_is_debug(context)):
            recipe = registry.get_target_recipe(target, **values)
        click.echo(f"\n{recipe.explain()}")


@cli.command()
@_json_option
@_debug_option
@click.pass_context
def plugins(context: click.Context, as_json: bool) -> None:
    """List the installed plugins and their state.

    A plugin that is not ok is listed with what is wrong with it.

    RECIPES_DISABLE=a,b switches plugins off; RECIPES_ONLY=a switches all others off.

    \b
    Examples:
      recipes plugins
      RECIPES_DISABLE=acme recipes plugins

    \b
    JSON: a list of objects with the keys name, distribution, version, state, stage, reason, backends
    (a list of name, available, reason, hint) and targets (a list of names).
    """
    rows = _registry(context).list_plugins()
    if as_json:
        from recipes.cli import records

        click.echo(records.as_text([records.of_plugin(row) for row in rows]))
        return
    from recipes.cli import render

    render.plugins(rows)


@cli.command()
@click.argument("plugin", required=False)
@_json_option
@_debug_option
@click.pass_context
def doctor(context: click.Context, plugin: str | None, as_json: bool) -> None:
    """Look at what is installed: what works of it, and what needs a person.

    With PLUGIN only at that one, and at the targets that it has or joins.

    \b
    The exit code is 1 where a person has to change something:
      a plugin is broken, incompatible or in conflict with another;
      listing a plugin imports torch, a toolchain or the like, or takes longer than a second;
      RECIPES_DISABLE or RECIPES_ONLY names a plugin that is not installed.
    Otherwise it is 0. A toolchain that is missing, a target that cannot be built for on this machine, a plugin
    that is switched off, and an extension that joins nothing are told, and may be as they should.

    \b
    RECIPES_STRICT raises nothing here. ExecuTorch's runtime is asked in a process of its own, which takes seconds.

    \b
    Examples:
      recipes doctor
      recipes doctor PLUGIN
      recipes doctor --json | jq '.findings'

    \b
    JSON: an object with the keys needs_a_person, python, executable, platform, distributions (versions by name;
    null where not installed), plugins (the keys of `recipes plugins --json`, and seconds and heavy_imports),
    runtime (backends: whether each says that it is available; problem), targets that are not ready (a list of
    name, state, reason, hint) and findings (a list of level, code, where, message, way_out).
    """
    from recipes.vendor import diagnose

    with redirect_stdout(sys.stderr):
        found = diagnose(_unscanned_registry(context), plugin, lambda text: click.echo(text, err=True))
    if as_json:
        from recipes.cli import records

        click.echo(records.as_text(records.of_diagnosis(found)))
    else:
        from recipes.cli import render

        render.diagnosis(found)
    if found.needs_a_person:
        context.exit(FAILED)


@cli.command()
@click.argument("model")
@click.option(
    "-t",
    "--target",
    "names",
    multiple=True,
    required=True,
    metavar="TARGET",
    help="What to build for. May be repeated.",
)
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    metavar="OUT",
    help="The file to write; with several targets a folder, or a path with {target} in it.",
)
@_values_option
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many processes lower several targets side by side; each needs the memory of an export.",
)
@click.option("--report/--no-report", default=True, help="Whether to print what each export made, on stderr.")
@_debug_option
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
      path/to/program.pt2       a program that torch.export.save has written
    The factory takes nothing and returns (model, example_inputs), or a dict with the keys model,
    example_inputs, dynamic_shapes, calibration_inputs, constant_methods, of which only model is required.
    Targets that do not calibrate make no use of calibration_inputs.

    What several targets have in common, such as the capture, is done once. Each file gets a manifest beside it,
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

    registry = _registry(context)
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
        registry, reference, files, values, debug=_is_debug(context), report=report, jobs=jobs
    )
    for failure in failures:
        prefix = f"{failure.target}: " if len(names) > 1 else ""
        if failure.library_output:
            click.echo(f"{prefix}the libraries printed, at the end:\n{failure.library_output}", err=True)
        _print_error(failure.error, _is_debug(context), prefix)
    if failures:
        if len(names) > 1:
            failed = ", ".join(failure.target for failure in failures)
            click.echo(f"{len(failures)} of {len(names)} targets failed: {failed}.", err=True)
        refused = len(failures) == len(names) and all(isinstance(failure.error, ArgumentError) for failure in failures)
        context.exit(WRONG_USE if refused else FAILED)


@cli.command()
@click.argument("model")
@click.option("-t", "--target", required=True, metavar="TARGET", help="What the model would be built for.")
@_values_option
@_json_option
@_debug_option
@click.pass_context
def check(context: click.Context, model: str, target: str, given: tuple[str, ...], as_json: bool) -> None:
    """Look at MODEL as an export would before it begins: what is wrong, and what would be decided.

    MODEL is as for `recipes export`. It is run once on its example inputs; nothing is captured or lowered. The
    exit code is 1 where the export would be refused.

    \b
    Examples:
      recipes check my_package.models:small --target TARGET
      recipes check models.py:small --target TARGET -O name=value --json

    \b
    JSON: a list of objects with the keys level (error, warning or note), code, where, message and way_out.
    """
    from recipes.cli import exporting, load, options, quiet, records

    registry = _registry(context)
    load.make_importable(Path.cwd())
    values = options.from_texts(given)
    found = registry.get_target(target)
    if found.state == "unavailable":
        raise TargetUnavailableError(options.unavailable(found))
    options.resolve(registry, found, values)
    reference = load.ModelReference.parse(model)
    with quiet.library_chatter(_is_debug(context)):
        arguments = reference.load()
    with quiet.library_output(_is_debug(context)):
        from recipes.lowering import check as check_model

        recipe = registry.get_target_recipe(target, **values)
        given_to_check = exporting.arguments_for(recipe, arguments)
        given_to_check.pop("constant_methods", None)
        findings = check_model(recipe=recipe, **given_to_check)
    if as_json:
        click.echo(records.as_text([finding.to_dict() for finding in findings]))
    else:
        click.echo("\n".join(map(str, findings)) if findings else f"{model} can be exported for {target}.")
    if any(finding.level == "error" for finding in findings):
        context.exit(FAILED)


@cli.command()
@click.argument("name")
@click.argument("out", required=False)
@_debug_option
@click.pass_context
def new_plugin(context: click.Context, name: str, out: str | None) -> None:
    """Write the project of a new plugin, for a backend called NAME, to the folder OUT.

    OUT is recipes-NAME in the current folder where it is left out. The project works as it stands: it can be
    installed, its target exports with ExecuTorch's portable kernels, its tests pass. Comments in it say where your
    partitioner, compile specs and quantizer go.

    \b
    Examples:
      recipes new-plugin acme
      recipes new-plugin acme plugins/acme
    """
    from recipes.vendor import new_plugin as write_plugin
    from recipes.vendor import next_commands

    folder = out or f"recipes-{name}"
    written = write_plugin(name, folder, _registry(context))
    click.echo(f"Wrote to {folder}:")
    click.echo("".join(f"  {path.as_posix()}\n" for path in written))
    click.echo("Next:")
    click.echo("".join(f"  {command}\n" for command in next_commands(name, folder)), nl=False)


@cli.command()
@click.argument("file")
@_json_option
@_debug_option
@click.pass_context
def inspect(context: click.Context, file: str, as_json: bool) -> None:
    """Show what is inside the program FILE, with or without its manifest.

    Methods with their inputs and outputs, delegates, kernels and planned memory; what an app must link; sizes.
    No backend is needed. With the manifest FILE.json also the recipe, versions and ranges of dynamic sizes.

    \b
    Examples:
      recipes inspect model.pte
      recipes inspect model.pte --json | jq '.backends, .kernels'

    \b
    JSON: an object with the keys file, bytes, sizes, backends, kernels, methods (a list of name, inputs,
    outputs, delegates, kernels, memory), manifest (null without one) and manifest_problem.
    """
    from recipes.cli import quiet, records

    with quiet.library_output(_is_debug(context)):
        from recipes.artifact import inspect_program

        found = inspect_program(file)
    click.echo(records.as_text(found.to_dict()) if as_json else str(found), nl=as_json)


@cli.command()
@click.argument("file")
@click.option(
    "--inputs", "inputs_file", metavar="FILE.pt", help="Inputs that torch.save has written: tuples by method."
)
@click.option("--model", help="The model that FILE was made from, as for `recipes export`: compare with it.")
@_json_option
@_debug_option
@click.pass_context
def verify(context: click.Context, file: str, inputs_file: str | None, model: str | None, as_json: bool) -> None:
    """Check the program FILE, as far as this host can run it.

    Compares FILE with its manifest; runs it, and checks that its outputs are finite and have the declared
    shapes; with --model, compares them with the model's in PyTorch. Inputs are made up where none are given, or
    are the model's. What is not run is named, with the reason. The exit code is 1 where something is wrong.

    \b
    --inputs names a file that torch.save has written, with what `recipes.export` takes as example_inputs:
    a tensor, a tuple of arguments, a list of such tuples, or a dict of these by method.

    \b
    Examples:
      recipes verify model.pte
      recipes verify model.pte --model my_package.models:small
      recipes verify model.pte --inputs samples.pt --json

    \b
    JSON: an object with the keys ok, comparisons (a list of method, what, output, samples, sqnr_db,
    max_abs_error, cosine, worst), ran, not_run, concerns and failures: lists of sentences. sqnr_db is null
    where nothing differs.
    """
    from recipes.cli import load, quiet, records

    reference = None
    if model is not None:
        load.make_importable(Path.cwd())
        reference = load.ModelReference.parse(model)
    with quiet.library_chatter(_is_debug(context)):
        arguments = reference.load() if reference is not None else {}
    with quiet.library_output(_is_debug(context)):
        from recipes.artifact import verify_program

        inputs = arguments.get("example_inputs") if inputs_file is None else load.saved_inputs(inputs_file)
        result = verify_program(file, inputs, arguments.get("model"))
    click.echo(records.as_text(result.to_dict()) if as_json else str(result), nl=as_json)
    if not result.ok:
        context.exit(FAILED)


def main() -> None:
    """Run the command line; never returns."""
    cli(prog_name="recipes")

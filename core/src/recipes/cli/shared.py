"""What commands share: exit codes, options that several take, the registry, and how an error is printed."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, TypeVar

import click

from recipes.common import ExportError, RecipesError

if TYPE_CHECKING:
    from recipes.registry import Registry

FAILED = 1
"""Exit code: an export failed, or recipes itself did, or something must be fixed."""
WRONG_USE = 2
"""Exit code: the request cannot be carried out; nothing was written."""
INTERRUPTED = 130
"""Exit code: Ctrl-C, as shells report it."""

_DEBUG = "recipes.debug"
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _switch_debug_on(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        context.meta[_DEBUG] = True  # shared by the group and its commands


def is_debug(context: click.Context) -> bool:
    """Whether to show tracebacks and what libraries print."""
    return bool(context.meta.get(_DEBUG))


def debug_option(command: _Command) -> _Command:
    """The option `--debug`, for the group and each of its commands."""
    return click.option(
        "--debug",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        envvar="RECIPES_DEBUG",
        callback=_switch_debug_on,
        help="Show tracebacks and all output of the libraries. Also: RECIPES_DEBUG=1.",
    )(command)


def json_option(command: _Command) -> _Command:
    """The option `--json`, as `as_json`; the help of the command lists the keys."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON with the keys listed below.")(command)


def values_option(command: _Command) -> _Command:
    """The option `-O name=value`, as `given`, for `recipes.cli.options` to parse."""
    return click.option(
        "-O",
        "--option",
        "given",
        multiple=True,
        metavar="[BACKEND.]NAME=VALUE",
        help="Set an option, for every component that takes it or for one backend. May be repeated.",
    )(command)


def print_error(error: BaseException, debug: bool, prefix: str = "") -> None:
    """Print an error as one block on stderr; with `debug` also its traceback."""
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    # The text of our own errors can be understood alone. Other errors need their type.
    text = str(error) if isinstance(error, RecipesError) else f"{type(error).__name__}: {error}".rstrip(": ")
    if not debug and (isinstance(error, ExportError) or not isinstance(error, RecipesError)):
        text += "\nRun again with --debug for the traceback."
    click.echo(f"Error: {prefix}{text}", err=True)


def unscanned_registry(context: click.Context) -> Registry:
    """The registry, before its plugins are scanned."""
    from recipes.registry import Registry, default_registry

    return context.obj if isinstance(context.obj, Registry) else default_registry()


def scanned_registry(context: click.Context) -> Registry:
    """The registry, with its plugins imported, so that they print nothing when a command uses it."""
    registry = unscanned_registry(context)
    with redirect_stdout(sys.stderr):  # what a plugin prints when it is imported is not part of our output
        registry.list_plugins()
    return registry

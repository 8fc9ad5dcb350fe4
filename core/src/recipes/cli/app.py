"""The group of commands: which there are, and how their errors become exit codes."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from recipes import __version__
from recipes.cli.commands import check, doctor, export, inspect, new_plugin, plugins, show, targets, verify
from recipes.cli.shared import FAILED, INTERRUPTED, WRONG_USE, debug_option, is_debug, print_error
from recipes.common import RecipesError


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
        print_error(error, is_debug(context))
        raise click.exceptions.Exit(WRONG_USE) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # the reader of a pipe closed it; click ends quietly
        print_error(error, is_debug(context))
        raise click.exceptions.Exit(FAILED) from error


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        from recipes.cli import quiet

        screen = sys.stderr  # the current one: stderr is captured while libraries work

        def print_line(text: str) -> None:
            click.echo(text, file=screen)

        with _errors_become_exit_codes(ctx), quiet.warnings_as_lines(print_line, lambda: is_debug(ctx)):
            return super().invoke(ctx)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="recipes %(version)s")
@debug_option
def cli() -> None:
    """From a PyTorch model to a device, through whichever ExecuTorch plugins are installed.

    \b
    List the targets, and export for one:
      recipes targets
      recipes export my_package.models:small --target TARGET -o model.pte

    Exit codes: 0, success; 1, an export failed or something must be fixed; 2, wrong use, nothing was written;
    130, interrupted.
    """


for command in (
    check.check,
    doctor.doctor,
    export.export,
    inspect.inspect,
    new_plugin.new_plugin,
    plugins.plugins,
    show.show,
    targets.targets,
    verify.verify,
):
    cli.add_command(command)


def main() -> None:
    """Run the command line; never returns."""
    cli(prog_name="recipes")

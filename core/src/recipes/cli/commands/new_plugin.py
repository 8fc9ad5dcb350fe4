"""`recipes new-plugin`."""

from __future__ import annotations

import click

from recipes.cli.shared import debug_option, scanned_registry


@click.command()
@click.argument("name")
@click.argument("out", required=False)
@debug_option
@click.pass_context
def new_plugin(context: click.Context, name: str, out: str | None) -> None:
    """Write the project of a new plugin, for a backend called NAME, to the folder OUT.

    OUT is recipes-NAME in the current folder by default. The project works unchanged: it can be installed, its
    target exports with ExecuTorch's portable kernels, and its tests pass. Comments in it say where your
    partitioner, compile specs and quantizer go.

    \b
    Examples:
      recipes new-plugin acme
      recipes new-plugin acme plugins/acme
    """
    from recipes.vendor import new_plugin as write_plugin
    from recipes.vendor import next_commands

    folder = out or f"recipes-{name}"
    written = write_plugin(name, folder, scanned_registry(context))
    click.echo(f"Wrote to {folder}:")
    click.echo("".join(f"  {path.as_posix()}\n" for path in written))
    click.echo("Next:")
    click.echo("".join(f"  {command}\n" for command in next_commands(name, folder)), nl=False)

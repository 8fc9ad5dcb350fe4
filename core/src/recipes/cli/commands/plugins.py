"""`recipes plugins`."""

from __future__ import annotations

import click

from recipes.cli.shared import debug_option, json_option, scanned_registry


@click.command()
@json_option
@debug_option
@click.pass_context
def plugins(context: click.Context, as_json: bool) -> None:
    """List the installed plugins and their state.

    A plugin that is not ok is listed with the reason.

    RECIPES_DISABLE=a,b switches plugins off; RECIPES_ONLY=a switches all others off.

    \b
    Examples:
      recipes plugins
      RECIPES_DISABLE=acme recipes plugins

    \b
    JSON: a list of objects with the keys name, distribution, version, state, stage, reason, backends
    (a list of name, available, reason, hint) and targets (a list of names).
    """
    rows = scanned_registry(context).list_plugins()
    if as_json:
        from recipes.cli import records

        click.echo(records.as_text([records.of_plugin(row) for row in rows]))
        return
    from recipes.cli import render

    render.plugins(rows)

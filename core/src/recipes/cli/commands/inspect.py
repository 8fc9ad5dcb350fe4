"""`recipes inspect`."""

from __future__ import annotations

import click

from recipes.cli.shared import debug_option, is_debug, json_option


@click.command()
@click.argument("file")
@json_option
@debug_option
@click.pass_context
def inspect(context: click.Context, file: str, as_json: bool) -> None:
    """Show what is inside the program FILE, with or without its manifest.

    Methods with their inputs and outputs, delegates, kernels and planned memory; what an app must link; sizes.
    No backend is needed. With the manifest FILE.json, also show the recipe, versions and ranges of dynamic sizes.

    \b
    Examples:
      recipes inspect model.pte
      recipes inspect model.pte --json | jq '.backends, .kernels'

    \b
    JSON: an object with the keys file, bytes, sizes, backends, kernels, methods (a list of name, inputs,
    outputs, delegates, kernels, memory), manifest (null without one) and manifest_problem.
    """
    from recipes.cli import quiet, records

    with quiet.library_output(is_debug(context)):
        from recipes.artifact import inspect_program

        found = inspect_program(file)
    click.echo(records.as_text(found.to_dict()) if as_json else str(found), nl=as_json)

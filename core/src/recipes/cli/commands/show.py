"""`recipes show`."""

from __future__ import annotations

import click

from recipes.cli.shared import debug_option, is_debug, json_option, scanned_registry, values_option
from recipes.common import ArgumentError, TargetUnavailableError


@click.command()
@click.argument("target")
@values_option
@click.option("--explain", is_flag=True, help="Also build the recipe and print where each part of it comes from.")
@json_option
@debug_option
@click.pass_context
def show(context: click.Context, target: str, given: tuple[str, ...], explain: bool, as_json: bool) -> None:
    """Show a target's components and options.

    Components are in partitioning order. Each option is shown with its effective value and the source of
    that: default, given, target, or a decision of the recipe.

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
    registry = scanned_registry(context)
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

        with quiet.library_output(is_debug(context)):
            recipe = registry.get_target_recipe(target, **values)
        click.echo(f"\n{recipe.explain()}")

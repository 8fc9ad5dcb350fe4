"""`recipes targets`."""

from __future__ import annotations

import click

from recipes.cli.shared import debug_option, json_option, scanned_registry
from recipes.common import ArgumentError, did_you_mean


@click.command()
@click.option("--os", "system", metavar="OS", help="List only targets of this operating system, such as android.")
@click.option("--all", "include_unavailable", is_flag=True, help="List also those that cannot be built for, and why.")
@json_option
@debug_option
@click.pass_context
def targets(context: click.Context, system: str | None, include_unavailable: bool, as_json: bool) -> None:
    """List the targets that can be built for on this host.

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
    registry = scanned_registry(context)
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

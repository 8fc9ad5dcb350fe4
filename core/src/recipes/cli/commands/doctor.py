"""`recipes doctor`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

import click

from recipes.cli.shared import FAILED, debug_option, json_option, unscanned_registry


@click.command()
@click.argument("plugin", required=False)
@json_option
@debug_option
@click.pass_context
def doctor(context: click.Context, plugin: str | None, as_json: bool) -> None:
    """Check what is installed: report which parts work, and what must be fixed.

    With PLUGIN, check only that plugin, and the targets that it owns or extends.

    \b
    The exit code is 1 if something must be fixed:
      a plugin is broken, incompatible or in conflict with another;
      listing a plugin imports torch, a toolchain or another heavy package, or takes longer than a second;
      RECIPES_DISABLE or RECIPES_ONLY names a plugin that is not installed.
    Otherwise it is 0. A missing toolchain, a target that cannot be built for on this machine, a plugin that is
    switched off, and an extension that matches no target are reported, but may be intended.

    \b
    RECIPES_STRICT has no effect here. ExecuTorch's runtime is queried in a separate process, which takes seconds.

    \b
    Examples:
      recipes doctor
      recipes doctor PLUGIN
      recipes doctor --json | jq '.findings'

    \b
    JSON: an object with the keys needs_a_person, python, executable, platform, distributions (versions by name;
    null where not installed), plugins (the keys of `recipes plugins --json`, and seconds and heavy_imports),
    runtime (backends: whether each reports that it is available; problem), targets that are not ready (a list of
    name, state, reason, hint) and findings (a list of level, code, where, message, way_out).
    """
    from recipes.vendor import diagnose

    with redirect_stdout(sys.stderr):
        found = diagnose(unscanned_registry(context), plugin, lambda text: click.echo(text, err=True))
    if as_json:
        from recipes.cli import records

        click.echo(records.as_text(records.of_diagnosis(found)))
    else:
        from recipes.cli import render

        render.diagnosis(found)
    if found.needs_a_person:
        context.exit(FAILED)

"""`recipes check`."""

from __future__ import annotations

from pathlib import Path

import click

from recipes.cli.shared import FAILED, debug_option, is_debug, json_option, scanned_registry, values_option
from recipes.common import TargetUnavailableError


@click.command()
@click.argument("model")
@click.option("-t", "--target", required=True, metavar="TARGET", help="The target to check the model for.")
@values_option
@json_option
@debug_option
@click.pass_context
def check(context: click.Context, model: str, target: str, given: tuple[str, ...], as_json: bool) -> None:
    """Check MODEL as an export would before it begins: report what is wrong, and what would be decided.

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

    registry = scanned_registry(context)
    load.make_importable(Path.cwd())
    values = options.from_texts(given)
    found = registry.get_target(target)
    if found.state == "unavailable":
        raise TargetUnavailableError(options.unavailable(found))
    options.resolve(registry, found, values)
    reference = load.ModelReference.parse(model)
    with quiet.library_chatter(is_debug(context)):
        arguments = reference.load()
    with quiet.library_output(is_debug(context)):
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

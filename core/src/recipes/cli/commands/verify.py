"""`recipes verify`."""

from __future__ import annotations

from pathlib import Path

import click

from recipes.cli.shared import FAILED, debug_option, is_debug, json_option


@click.command()
@click.argument("file")
@click.option(
    "--inputs", "inputs_file", metavar="FILE.pt", help="Inputs that were written with torch.save: tuples by method."
)
@click.option("--model", help="Compare with this model, from which FILE was exported; as for `recipes export`.")
@json_option
@debug_option
@click.pass_context
def verify(context: click.Context, file: str, inputs_file: str | None, model: str | None, as_json: bool) -> None:
    """Check the program FILE, as far as this host can run it.

    Compares FILE with its manifest; runs it, and checks that its outputs are finite and have the declared
    shapes; with --model, compares them with the model's in PyTorch. The inputs are those of
    --inputs, else the model's, else generated. Checks that are not run are listed with the reason. The exit code is 1
    if something is wrong.

    \b
    --inputs names a file that was written with torch.save, with what `recipes.export` takes as example_inputs:
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
    with quiet.library_chatter(is_debug(context)):
        arguments = reference.load() if reference is not None else {}
    with quiet.library_output(is_debug(context)):
        from recipes.artifact import verify_program

        inputs = arguments.get("example_inputs") if inputs_file is None else load.saved_inputs(inputs_file)
        result = verify_program(file, inputs, arguments.get("model"))
    click.echo(records.as_text(result.to_dict()) if as_json else str(result), nl=as_json)
    if not result.ok:
        context.exit(FAILED)

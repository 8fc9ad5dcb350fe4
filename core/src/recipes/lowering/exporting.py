"""`export` and `check`, the functions that most users call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from recipes.arguments import check_arguments
from recipes.common import (
    Finding,
)
from recipes.executorch import (
    Progress,
)
from recipes.lowering.preflight import preflight
from recipes.lowering.session import ExportSession


def export(
    model: Any,
    recipe: Any = None,
    example_inputs: Any = None,
    *,
    dynamic_shapes: Any = None,
    calibration_inputs: Iterable[Any] | Callable[[], Iterable[Any]] | dict[str, Any] | None = None,
    constant_methods: dict[str, Any] | None = None,
    artifact_dir: str | os.PathLike[str] | None = None,
    generate_etrecord: bool = False,
    name: str | None = None,
    progress: Progress | None = None,
    allow_training_mode: bool = False,
    strict_delegation: bool = False,
    require_delegation: float | None = None,
) -> ExportSession:
    """Lower a model with a recipe.

    Args:
        model: A `torch.nn.Module`, a `GraphModule`, an `ExportedProgram`, the path of a `.pt2` file, or a
            dict of these by method name.
        recipe: A target's name, an `ExportRecipe` (of recipes or of ExecuTorch), a `RecipeType` or its id, or a
            list of these, which are combined.
        example_inputs: A tensor, a tuple of forward's arguments, a list of such tuples, or a dict of these
            by method. The first sample is used for capture, and its shapes are those of the program unless
            `dynamic_shapes` says otherwise. Not needed for an `ExportedProgram`.
        dynamic_shapes: As in `torch.export.export`: a dict by argument name (arguments may be left out) or
            a tuple with an entry for each argument; or a dict of these by method.
        calibration_inputs: Samples that a quantizing recipe measures ranges with: an iterable of tuples,
            a function that returns one, or a dict of these by method. The example inputs by default.
        constant_methods: Values, or functions that return them, to add to the program as methods.
        artifact_dir: A folder for the artifacts of the stages: `<method>.pt2`, and `etrecord.bin`.
        generate_etrecord: Whether to make an ETRecord, for `get_etrecord()` and `artifact_dir`.
        name: A name for the session.
        progress: Called when a stage starts and when it ends.
        allow_training_mode: Whether layers such as dropout may stay in training mode, for training on the device.
        strict_delegation: Whether an op that a backend claims and cannot compile is an error; by default it goes to
            the next backend or to the portable kernels.
        require_delegation: The share of each method's work that must be delegated, 0 to 1; less is an error. Without
            it, less than half is a warning.

    Returns:
        The session, which has the program.

    Raises:
        ArgumentError: An argument is missing, invalid, or swapped with another.
        PreflightError: The model cannot be exported as requested; the message names every reason.
        ExportError: A stage failed, or less is delegated than is required.
        RecipesError: The recipe cannot be made.
    """
    session = ExportSession(
        model,
        recipe,
        example_inputs,
        dynamic_shapes=dynamic_shapes,
        calibration_inputs=calibration_inputs,
        constant_methods=constant_methods,
        artifact_dir=artifact_dir,
        generate_etrecord=generate_etrecord,
        name=name,
        progress=progress,
        allow_training_mode=allow_training_mode,
        strict_delegation=strict_delegation,
        require_delegation=require_delegation,
    )
    session.export()
    return session


def check(
    model: Any,
    recipe: Any,
    example_inputs: Any = None,
    *,
    dynamic_shapes: Any = None,
    calibration_inputs: Any = None,
    allow_training_mode: bool = False,
) -> list[Finding]:
    """Run the checks that come before an export; nothing is captured or lowered.

    The arguments are those of `export`.

    Args:
        model: The model to check.
        recipe: The recipe to lower with.
        example_inputs: The inputs on which the model runs once.
        dynamic_shapes: Checked against the signature of forward.
        calibration_inputs: Checked for whether ranges can be measured on them.
        allow_training_mode: Whether layers may stay in training mode.

    Returns:
        Findings of every level; an export would stop at one of level `error`.

    Raises:
        ArgumentError: An argument is missing, invalid, or swapped with another.
        RecipesError: The recipe cannot be made.
    """
    request = check_arguments(model, recipe, example_inputs, dynamic_shapes, calibration_inputs)
    return preflight(request, allow_training_mode=allow_training_mode)[1]

"""The stages that lower captured programs."""

from __future__ import annotations

from executorch.export import LoweringRecipe, StageType
from executorch.export.stages import Stage

from recipes.executorch import LowerStage, ToExecutorchStage
from recipes.recipe import ExportRecipe


def lowering_stages(recipe: ExportRecipe, *, strict: bool) -> dict[StageType, Stage]:
    """Return the stages that turn captured programs into an ExecuTorch program.

    Args:
        recipe: The recipe to lower with.
        strict: As `strict_delegation` of `recipes.export`.
    """
    lowering = recipe.lowering_recipe or LoweringRecipe()
    return {
        StageType.TO_EDGE_TRANSFORM_AND_LOWER: LowerStage(
            lowering.partitioners, lowering.edge_transform_passes, lowering.edge_compile_config, strict=strict
        ),
        StageType.TO_EXECUTORCH: ToExecutorchStage(recipe.executorch_backend_config),
    }

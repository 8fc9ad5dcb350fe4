"""What is left out on the way, such as a second decomposition, changes no byte of the file that ExecuTorch makes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import executorch.export
import pytest
from executorch.backends.apple.coreml.recipes import CoreMLRecipeType
from executorch.backends.xnnpack.recipes import XNNPackRecipeType
from executorch.exir._serialize._program import deserialize_pte_binary

from equal_programs import assert_equal_programs
from recipes import export

RECIPES = {
    "coreml:fp16": CoreMLRecipeType.FP16,
    "xnnpack:fp32": XNNPackRecipeType.FP32,
    "xnnpack:pt2e_int8_static_per_channel": XNNPackRecipeType.PT2E_INT8_STATIC_PER_CHANNEL,
}
CASES = [
    # How equal files are does not depend on the size of a model; the architectures take minutes.
    pytest.param(name, recipe, marks=[] if name == "convolution" else [pytest.mark.slow])
    for name in ("convolution", "resnet", "mobilenet_v2", "vit", "bert")
    for recipe in RECIPES
    # ExecuTorch's quantizer measures the integers of transformers, and then calibration fails.
    if not (name in ("vit", "bert") and "int8" in recipe)
]


@pytest.mark.parametrize(("name", "recipe"), CASES)
def test_a_trained_models_file_is_executorchs(
    name: str, recipe: str, workload: Callable[[str], Any], tmp_path: Path
) -> None:
    ours, theirs = workload(name), workload(name)
    session = export(ours.model, recipe, ours.calibration)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = executorch.export.export(
            theirs.model, theirs.calibration, executorch.export.ExportRecipe.get_recipe(RECIPES[recipe])
        )
    one, two = bytes(session.get_pte_buffer()), bytes(expected.get_pte_buffer())
    if recipe.startswith("xnnpack"):
        assert one == two
    assert_equal_programs(deserialize_pte_binary(one).program, deserialize_pte_binary(two).program, tmp_path / "both")

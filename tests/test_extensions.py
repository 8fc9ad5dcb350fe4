"""A vendor's plugin that joins the targets of the real plugins: what is built is in the order that is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
from recipes import Availability, Component, RecipeInfo, RecipeProvider, RecipeType, TargetExtension, hookimpl

class AcmeRecipeType(RecipeType):
    FP32 = "acme_fp32"

    @classmethod
    def get_backend_name(cls):
        return "acme"

class AcmeProvider(RecipeProvider):
    backend_name = "acme"

    def get_supported_recipes(self):
        return list(AcmeRecipeType)

    def describe(self, recipe_type):
        return RecipeInfo("Float32 on Acme's CPU kernels.", "float32", "float32")

    def availability(self):
        return Availability.of_host(modules={"executorch": "executorch>=1.5,<1.6", MODULE: "acme-sdk"})

    def build_recipe(self, recipe_type, options):
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import EdgeCompileConfig
        from executorch.export import ExportRecipe, LoweringRecipe

        class AcmePartitioner(XnnpackPartitioner):
            pass

        lowering = LoweringRecipe([AcmePartitioner()], edge_compile_config=EdgeCompileConfig(_check_ir_validity=False))
        return ExportRecipe(name="acme_fp32", lowering_recipe=lowering)

MODULE = "executorch"

@hookimpl
def recipes_register_providers():
    return [AcmeProvider()]

@hookimpl
def recipes_register_targets():
    component = Component("acme:fp32", role="fallback", required=False)
    return [TargetExtension("ios-arm64-coreml-fp*", component, before="BEFORE")]
"""

CODE = """
import warnings
import torch
import recipes

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", recipes.RecipesWarning)
    name = "ios-arm64-coreml-fp32"
    recipe = recipes.get_target_recipe(name)
print([slot.component.recipe for slot in recipes.default_registry().get_target(name).components])
print([type(partitioner).__name__ for partitioner in recipe.lowering_recipe.partitioners])
print([str(w.message) for w in caught if w.category is recipes.RecipesWarning])
print(recipes.export(torch.nn.Linear(4, 4).eval(), recipe, (torch.rand(1, 4),)).get_pte_buffer()[4:8])
"""


def run(site: Path, plugin: str) -> list[str]:
    (site / "recipes_acme.py").write_text(plugin)
    info = site / "recipes_acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: recipes-acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[recipes]\nacme = recipes_acme\n")
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-4:]


CORE_ML, XNNPACK, ACME = "CoreMLPartitioner", "XnnpackPartitioner", "AcmePartitioner"


@pytest.mark.parametrize(
    ("before", "recipes", "partitioners"),
    [
        ("", ["coreml:fp32", "xnnpack:fp32", "acme:fp32"], [CORE_ML, XNNPACK, ACME]),
        ("xnnpack", ["coreml:fp32", "acme:fp32", "xnnpack:fp32"], [CORE_ML, ACME, XNNPACK]),
    ],
)
def test_partitioners_are_in_the_order_of_the_target_and_the_target_exports(
    before: str, recipes: list[str], partitioners: list[str], tmp_path: Path
) -> None:
    printed = run(tmp_path, PLUGIN.replace("BEFORE", before))
    assert printed == [str(recipes), str(partitioners), "[]", "b'ET12'"]


def test_without_the_vendor_s_toolchain_the_target_is_built_as_before_with_a_warning(tmp_path: Path) -> None:
    plugin = PLUGIN.replace("BEFORE", "").replace('MODULE = "executorch"', 'MODULE = "acme_sdk"')
    recipes, partitioners, warned, _ = run(tmp_path, plugin)
    assert recipes == "['coreml:fp32', 'xnnpack:fp32', 'acme:fp32']"
    assert partitioners == "['CoreMLPartitioner', 'XnnpackPartitioner']"
    assert "degraded: acme:fp32: acme_sdk is not installed. pip install acme-sdk" in warned

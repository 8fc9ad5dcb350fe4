"""What holds for every plugin."""

from collections.abc import Sequence
from typing import Any

import pytest

from recipes import Option, RecipeType
from recipes.testing import PluginConformance


class TestOpenVINO(PluginConformance):
    plugin = "openvino"
    toolchain = ("executorch", "openvino")
    delegates = {"openvino": "OpenvinoBackend"}  # noqa: RUF012

    def values_for(self, recipe_type: RecipeType, option: Option) -> Sequence[Any]:
        if option.name == "skip_ops_for_openvino_delegation":
            return [["aten.relu.default"]]
        return super().values_for(recipe_type, option)

    @pytest.fixture(autouse=True)
    def _every_device_is_here(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """A recipe for another device is refused on a host without it; whether the option counts can be told anyway."""
        if request.node.originalname == "test_every_option_reaches_the_recipe":
            recipes = pytest.importorskip("recipes_openvino.recipes", reason="OpenVINO is not installed")
            monkeypatch.setattr(recipes, "_check_device", lambda recipe_type, device: None)

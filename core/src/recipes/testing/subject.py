"""The plugin under test: what its tests can configure, and how tests are generated for it."""

from __future__ import annotations

import contextlib
import copy
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from recipes.common import OptionError
from recipes.plugins import Option, Plugin, RecipeProvider, RecipeType, TargetProfile
from recipes.testing.declarations import faults, refusal, values
from recipes.testing.installed import HEAVY, PROBE, ask, load


class Subject:
    """A plugin, and what the tests of every kind ask about it; `PluginConformance` documents the attributes."""

    plugin: str = ""
    toolchain: tuple[str, ...] = ()
    delegates: Mapping[str, str | None] = {}
    expected_failures: Mapping[str, str] = {}

    # What the tests of a plugin may override.

    def model_for(self, recipe_type: RecipeType) -> tuple[Any, Sequence[tuple[Any, ...]]]:
        """A small model that the recipe can lower, and samples to export and calibrate it with.

        Args:
            recipe_type: What it is lowered with.

        Returns:
            A module in evaluation mode, and tuples of its inputs. By default a linear layer of 64 features with a ReLU.
        """
        import torch

        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).eval()
        return model, [(torch.randn(1, 64, generator=generator),) for _ in range(8)]

    def options_for(self, recipe_type: RecipeType) -> Mapping[str, Any]:
        """Values for the options that the recipe requires.

        Args:
            recipe_type: The recipe.
        """
        return {}

    def values_for(self, recipe_type: RecipeType, option: Option) -> Sequence[Any]:
        """Values to try for an option: at least one must be allowed and change the recipe.

        Args:
            recipe_type: The recipe.
            option: One of its options.

        Returns:
            By default every choice, both booleans, numbers around the bounds and the default, or a function.
        """
        return values(option)

    # How the tests are generated.

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test for each recipe, target or module."""
        for parameter in ("recipe", "target", "module"):
            if parameter in metafunc.fixturenames:
                ids = self._ids(parameter)
                why = f"the plugin {self.plugin!r} has no {parameter} to test"
                absent = [pytest.param("", marks=pytest.mark.skip(reason=why), id="none")]
                metafunc.parametrize(parameter, ids or absent)

    @pytest.fixture(autouse=True)
    def _strictly_expected(self, request: pytest.FixtureRequest) -> None:
        node = request.node
        for key in (node.originalname, node.name):
            if key in self.expected_failures:
                node.add_marker(pytest.mark.xfail(reason=self.expected_failures[key], strict=True))

    def _ids(self, parameter: str) -> list[str]:
        if parameter == "module":
            return list(self.toolchain)
        row = load(self.plugin)
        if row is None:
            return []
        if parameter == "target":
            return [target.name for target in row.targets]
        return [r.id for provider in row.providers for r in provider.get_supported_recipes()]

    def _row(self) -> Plugin:
        row = load(self.plugin)
        if row is None:
            pytest.skip(f"no plugin {self.plugin!r} is installed; see test_plugin_is_usable")
        return row

    def _made_by(self, recipe: str) -> tuple[RecipeProvider, RecipeType]:
        return next(
            (provider, recipe_type)
            for provider in self._row().providers
            for recipe_type in provider.get_supported_recipes()
            if recipe_type.id == recipe
        )

    def _skip_for_faults(self, provider: RecipeProvider, recipe_type: RecipeType) -> None:
        if any(fault for option in provider.describe(recipe_type).options for fault in faults(option)):
            pytest.skip("an option is declared wrongly; see test_options_are_declared_well")

    def _resolves(self, recipe: str) -> tuple[RecipeProvider, RecipeType]:
        provider, recipe_type = self._made_by(recipe)
        self._skip_for_faults(provider, recipe_type)
        if refusal(provider, recipe_type, self._options(recipe_type)):
            pytest.skip("the options do not resolve; see test_options_resolve")
        return provider, recipe_type

    def _can_build(self, recipe: str) -> tuple[RecipeProvider, RecipeType]:
        provider, recipe_type = self._resolves(recipe)
        found = provider.availability()
        if not found.available:
            pytest.skip(f"backend {provider.backend_name!r} cannot lower here: {found.reason}")
        return provider, recipe_type

    def _options(self, recipe_type: RecipeType) -> dict[str, Any]:
        return copy.deepcopy(dict(self.options_for(recipe_type)))

    def _profile(self, target: str) -> TargetProfile:
        return next(profile for profile in self._row().targets if profile.name == target)

    def _probe(self, *, absent: tuple[str, ...] = ()) -> dict[str, Any]:
        """What a fresh interpreter reports about the plugin: with every toolchain present, or some modules absent."""
        options = {}
        for provider in self._row().providers:
            for recipe_type in provider.get_supported_recipes():
                given = self._options(recipe_type)
                with contextlib.suppress(TypeError, OptionError):  # a callable cannot be sent to another process
                    json.dumps(given)
                    provider.resolve_options(recipe_type, given)
                    options[recipe_type.id] = given
        traps = [module for module in (*HEAVY, *self.toolchain) if module not in absent]
        path = [entry for entry in sys.path if entry != str(PROBE.parent)]
        request = {"plugin": self.plugin, "path": path, "traps": traps, "absent": absent, "options": options}
        answer: dict[str, Any] = json.loads(ask(json.dumps(request)))
        return answer

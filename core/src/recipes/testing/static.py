"""Static: what can be checked without making a recipe."""

from __future__ import annotations

import inspect
import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from recipes.plugins import PROJECT, split_target_name
from recipes.testing.declarations import faults, refusal, text
from recipes.testing.failing import fail_for
from recipes.testing.installed import entry_points, load, only_dangling, recipes_by_backend
from recipes.testing.subject import Subject

_UPPER_BOUNDS = {"~=", "<", "<=", "==", "==="}


class Static(Subject):
    """Tests of what can be checked without making a recipe."""

    def test_expected_failures_name_tests(self) -> None:
        known = set()
        for name in dir(type(self)):
            if name.startswith("test_"):
                known.add(name)
                arguments = inspect.signature(getattr(self, name)).parameters
                for parameter in {"recipe", "target", "module"} & set(arguments):
                    known |= {f"{name}[{each}]" for each in self._ids(parameter)}
        unknown = [key for key in self.expected_failures if key not in known]
        fail_for(
            [f"expected_failures names {key!r}, but there is no such test" for key in unknown],
            "Write test_name or test_name[recipe-id].",
        )

    def test_plugin_is_usable(self) -> None:
        if not self.plugin:
            pytest.fail(f"{type(self).__name__}: set plugin to the name of your entry point.", pytrace=False)
        row = load(self.plugin)
        if row is None:
            pytest.fail(
                f"No installed distribution has an entry point {self.plugin!r} in the group {PROJECT!r}. Declare it in "
                f'pyproject.toml, [project.entry-points.{PROJECT}] {self.plugin} = "module", and install the package.',
                pytrace=False,
            )
        if row.state != "ok" and not only_dangling(row):
            pytest.fail(f"The {row.origin} is {row.state} at {row.stage}: {row.reason}.", pytrace=False)
        if not (row.providers or row.targets or row.extensions):
            pytest.fail(f"The {row.origin} registers neither a provider nor a target.", pytrace=False)

    def test_metadata_bounds_what_it_needs(self) -> None:
        self._row()
        (entry_point,) = entry_points(self.plugin)
        assert entry_point.dist is not None, "_row() has found its distribution"
        always = [r for r in map(Requirement, entry_point.dist.requires or ()) if "extra" not in str(r.marker)]
        problems = []
        for name in ("recipes-core", "executorch"):
            needs = [requirement for requirement in always if canonicalize_name(requirement.name) == name]
            if not needs:
                problems.append(f"{entry_point.dist.name} does not require {name}")
            elif not {one.operator for requirement in needs for one in requirement.specifier} & _UPPER_BOUNDS:
                problems.append(f"{entry_point.dist.name} requires {needs[0]}, which has no upper bound")
        fail_for(
            problems,
            'Write dependencies = ["recipes-core~=0.1", "executorch>=1.5,<1.6"] with the versions that you have tried: '
            "with another version the plugin is then listed as incompatible, without a traceback.",
        )

    def test_recipe_is_described(self, recipe: str) -> None:
        provider, recipe_type = self._made_by(recipe)
        info = provider.describe(recipe_type)
        problems = [
            f"{recipe}: {name} is empty" for name in ("summary", "weights", "activations") if not text(info, name)
        ]
        if not re.fullmatch(rf"{provider.backend_name}:[a-z0-9_]+", recipe):
            problems.append(f"the id {recipe!r} must have the form {provider.backend_name}:name in lower case")
        fail_for(problems, "Fix the RecipeInfo that describe() returns, or the member of the enum.")

    def test_options_are_declared_well(self, recipe: str) -> None:
        provider, recipe_type = self._made_by(recipe)
        options = provider.describe(recipe_type).options
        names = [option.name for option in options]
        problems = [f"{recipe}: two options are called {name!r}" for name in {n for n in names if names.count(n) > 1}]
        for option in options:
            problems += [f"{recipe}: option {option.name!r} {fault}" for fault in faults(option)]
        fail_for(problems, "Fix the Option in what describe() returns.")

    def test_options_resolve(self, recipe: str) -> None:
        provider, recipe_type = self._made_by(recipe)
        self._skip_for_faults(provider, recipe_type)
        given = self._options(recipe_type)
        why = refusal(provider, recipe_type, given)
        fail_for(
            [f"{recipe} cannot be made with the options {given}: {why}"] if why else [],
            "Return a value for every required option from options_for, and fix defaults that contradict each other.",
        )

    def test_target_is_described(self, target: str) -> None:
        profile = self._profile(target)
        problems = []
        if not profile.summary.strip():
            problems.append(f"the target {target} has no summary")
        if split_target_name(target) is None:
            problems.append(f"the target {target} is not named <os>-<arch>-<accelerator>-<precision>")
        fail_for(problems, "Fix the TargetProfile.")

    def test_target_names_recipes_that_exist(self, target: str) -> None:
        known = recipes_by_backend(self._row())
        missing = [
            f"the target {target} names the recipe {component.recipe!r}, but backend {component.backend!r} has "
            + ", ".join(sorted(known[component.backend]))
            for component in self._profile(target).components
            if component.recipe not in known.get(component.backend, {component.recipe})
        ]
        fail_for(missing, "Fix the Component, or have the provider list the recipe type.")

"""Semantic: what recipes produce; these tests need torch and the toolchain."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from recipes.common import RecipesError, RecipesWarning
from recipes.plugins import RecipeProvider, RecipeType
from recipes.registry import Registry
from recipes.testing.failing import fail_for
from recipes.testing.installed import entry_points
from recipes.testing.subject import Subject


class Semantic(Subject):
    """Tests of what recipes produce."""

    def test_recipe_exports(self, recipe: str) -> None:
        provider, recipe_type = self._can_export(recipe)
        made = _delegates(*self.model_for(recipe_type), self._registered(recipe_type))
        backend = provider.backend_name
        promised = self.delegates.get(backend, "")
        found = f"the program of {recipe} has " + (
            f"delegates of {', '.join(sorted(set(made)))}" if made else "no delegate"
        )
        if promised is None and made:
            pytest.fail(f"{found}, but delegates[{backend!r}] is None, which promises none.", pytrace=False)
        if promised == "" and not made:
            pytest.fail(
                f"{found}. Return a model that it takes from model_for, or set delegates = {{{backend!r}: None}} "
                "if it only provides kernels.",
                pytrace=False,
            )
        if promised and promised not in made:
            pytest.fail(
                f"{found}, but delegates[{backend!r}] promises {promised}. Return a model that it takes from "
                "model_for, or fix the partitioner.",
                pytrace=False,
            )

    def test_works_after_a_backend_that_took_all(self, recipe: str) -> None:
        self._runs_second(recipe, everything=True)

    def test_works_after_a_backend_that_took_a_part(self, recipe: str) -> None:
        self._runs_second(recipe, everything=False)

    def _runs_second(self, recipe: str, *, everything: bool) -> None:
        provider, recipe_type = self._can_export(recipe)
        from recipes.testing.first import ConformanceBackend, in_front_of

        combined = in_front_of(self._registered(recipe_type), everything=everything)
        taken = "every operation" if everything else "the last operation"
        what = f"{recipe} after another backend that took {taken}"
        advice = "The partitioner must leave calls of delegates alone, and the get_attr nodes that hold the delegates."
        try:
            made = _delegates(*self.model_for(recipe_type), combined)
        except Exception as error:
            fail_for([f"{what}: the export fails: {type(error).__name__}: {error}"], advice)
        has = f"the program has delegates of {', '.join(made) or 'no backend'}"
        other = ConformanceBackend.__name__
        if made.count(other) != 1:
            fail_for([f"{what}: the delegate of the other backend, {other}, is missing; {has}"], advice)
        elif not everything and self.delegates.get(provider.backend_name, "") is not None and set(made) == {other}:
            fail_for([f"{what}: it takes none of the operations that are left; {has}"], advice)

    def test_target_combines(self, target: str) -> None:
        _needs_torch()
        registry, profile = Registry(), self._profile(target)
        found = registry.get_target(target)
        if found.state == "unavailable":
            pytest.skip(f"the target is unavailable: {found.reason}")
        own = {r.id: r for p in self._row().providers for r in p.get_supported_recipes()}
        options: dict[str, dict[str, Any]] = {}
        for component in profile.components:
            if component.recipe in own and component in found.active:
                required = self._options(own[component.recipe])
                options[component.backend] = {k: v for k, v in required.items() if k not in component.options}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RecipesWarning)
                registry.get_target_recipe(target, **options)
        except RecipesError as error:
            pytest.fail(f"The recipes of the target {target} cannot be merged: {error}", pytrace=False)

    def _can_export(self, recipe: str) -> tuple[RecipeProvider, RecipeType]:
        _needs_torch()
        return self._can_build(recipe)

    def _registered(self, recipe_type: RecipeType) -> Any:
        registry = Registry(entry_points(self.plugin), environ={})
        return registry.get_recipe(recipe_type, **self._options(recipe_type))


def _needs_torch() -> None:
    missing = [module for module in ("torch", "executorch") if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")


def _delegates(model: Any, samples: Sequence[tuple[Any, ...]], recipe: Any) -> list[str]:
    """Export, and return the ids of the delegates in the program."""
    from recipes.lowering import export

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a small model with few samples causes many warnings
        session = export(model, recipe, list(samples))
    plans = session.get_executorch_program().execution_plan
    return [delegate.id for plan in plans for delegate in plan.delegates]

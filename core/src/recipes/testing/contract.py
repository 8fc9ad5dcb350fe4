"""Contract: what a provider must do."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import pytest

from recipes.common import OptionError, same
from recipes.plugins import OptionValue, RecipeProvider, RecipeType
from recipes.testing.distinct import in_common
from recipes.testing.failing import fail_for, must_refuse
from recipes.testing.subject import Subject

_UNKNOWN_OPTION = "no_such_option"


class Contract(Subject):
    """Tests of what a provider must do."""

    def test_unknown_option_is_refused(self, recipe: str) -> None:
        provider, recipe_type = self._resolves(recipe)
        given = self._options(recipe_type) | {_UNKNOWN_OPTION: 1}
        calls: dict[str, Callable[[], Any]] = {
            "resolve_options": lambda: provider.resolve_options(recipe_type, given),
            "create_recipe": lambda: provider.create_recipe(recipe_type, **given),
        }
        for name, call in calls.items():
            what = f"{recipe}: {name}() with the option {_UNKNOWN_OPTION!r}, which is not declared,"
            with _building(provider, None):
                must_refuse(call, _UNKNOWN_OPTION, what, "Leave the check of names to the base class.")

    def test_wrong_type_is_refused_before_building(self, recipe: str) -> None:
        provider, recipe_type = self._resolves(recipe)
        for option in provider.describe(recipe_type).options:
            given = self._options(recipe_type) | {option.name: object()}
            built: list[RecipeType] = []
            with _building(provider, built):
                must_refuse(
                    functools.partial(provider.create_recipe, recipe_type, **given),
                    option.name,
                    f"{recipe}: create_recipe() with a plain object for the option {option.name!r}",
                    "Leave resolve_options and create_recipe as they are in the base class; override settle_options.",
                )
            if built:
                pytest.fail(f"{recipe}: build_recipe was called with an invalid {option.name!r}.", pytrace=False)

    def test_options_given_are_left_alone(self, recipe: str) -> None:
        provider, recipe_type = self._resolves(recipe)
        advice = "Return a new mapping from settle_options: dict(options)."
        given = {name: list(v) if isinstance(v, tuple) else v for name, v in self._options(recipe_type).items()}
        before = copy.deepcopy(given)
        effective = provider.resolve_options(recipe_type, given)
        if not same(given, before):
            fail_for([f"{recipe}: resolve_options changed what it was given: {before} became {given}"], advice)
        parsed = {
            option.name: effective[option.name] if option.name in given else OptionValue(option.default, "default")
            for option in provider.describe(recipe_type).options
        }
        kept = copy.deepcopy(parsed)
        provider.settle_options(recipe_type, parsed)
        if not same(parsed, kept):
            changed = [name for name in {**kept, **parsed} if not same(kept.get(name), parsed.get(name))]
            fail_for([f"{recipe}: settle_options changed what it was given: {', '.join(changed)}"], advice)

    def test_two_recipes_are_equal(self, recipe: str) -> None:
        provider, recipe_type = self._can_build(recipe)
        one, two = (provider.create_recipe(recipe_type, **self._options(recipe_type)) for _ in range(2))
        differ = [name for name in vars(one) if not same(getattr(one, name), getattr(two, name, None))]
        if differ or not same(one, two):
            fail_for(
                [f"{recipe}: two calls of create_recipe with the same options differ in {', '.join(differ) or 'type'}"],
                "build_recipe must depend on the options alone: no counters, times or random numbers.",
            )

    def test_two_recipes_share_nothing(self, recipe: str) -> None:
        provider, recipe_type = self._can_build(recipe)
        one, two = (provider.create_recipe(recipe_type, **self._options(recipe_type)) for _ in range(2))
        fail_for(
            [f"{recipe}: two calls of create_recipe share the object at {place}" for place in in_common(one, two)],
            "Create every object anew in build_recipe: a change of one recipe must not change the next.",
        )

    def test_every_option_reaches_the_recipe(self, recipe: str) -> None:
        provider, recipe_type = self._can_build(recipe)
        problems = []
        for option in provider.describe(recipe_type).options:
            base = self._options(recipe_type)
            normal, effective = provider.create_recipe(recipe_type, **base), provider.resolve_options(recipe_type, base)
            tried = []
            for value in self.values_for(recipe_type, option):
                given = base | {option.name: value}
                try:
                    resolved = provider.resolve_options(recipe_type, given)
                except OptionError:
                    continue  # settle_options may refuse what the option alone allows
                if same(resolved[option.name].value, effective[option.name].value):
                    continue
                tried.append(value)
                if not same(normal, provider.create_recipe(recipe_type, **given)):
                    break
            else:
                problems.append(
                    f"{recipe}: option {option.name!r} has no effect: the recipe is the same with "
                    + " and ".join(map(repr, tried))
                    if tried
                    else f"{recipe}: no value other than the one in use was found for option {option.name!r}"
                )
        fail_for(
            problems,
            "Use the option in build_recipe, return values that make a difference from values_for, or say in "
            "expected_failures why it has none.",
        )


def _building(provider: RecipeProvider, built: list[RecipeType] | None) -> Any:
    """Replace build_recipe: it only records its calls in `built`, if there is one."""

    def instead(self: RecipeProvider, recipe_type: RecipeType, options: Mapping[str, OptionValue]) -> None:
        if built is not None:
            built.append(recipe_type)

    return mock.patch.object(type(provider), "build_recipe", instead)

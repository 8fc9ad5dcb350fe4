"""Options are checked when a recipe is made, and none is ignored."""

from typing import Any

import pytest

from recipes import OptionError
from recipes_xnnpack import XNNPackRecipeType as Type
from recipes_xnnpack.provider import XNNPackProvider

GROUPED = Type.TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_TENSOR
WITHOUT_OPTIONS = [recipe_type for recipe_type in Type if recipe_type is not GROUPED]


def test_group_size_is_32_unless_given() -> None:
    settled = XNNPackProvider().resolve_options(GROUPED, {})["group_size"]
    assert (settled.value, settled.source) == (32, "default")


@pytest.mark.parametrize("given", [64, "64"])
def test_group_size_is_taken_as_number_and_as_text(given: Any) -> None:
    settled = XNNPackProvider().resolve_options(GROUPED, {"group_size": given})["group_size"]
    assert (settled.value, settled.source) == (64, "given")


@pytest.mark.parametrize("given", [-32, -5, 0, 16, 48, "33", 32.0, True, "many", [32]])
def test_a_group_size_that_xnnpack_cannot_take_is_refused(given: Any) -> None:
    with pytest.raises(OptionError, match=r"'group_size' must be a whole number, at least 32, a multiple of 32"):
        XNNPackProvider().create_recipe(GROUPED, group_size=given)


def test_a_misspelt_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(OptionError, match=r"takes no option 'groupsize'\. Did you mean 'group_size'\?"):
        XNNPackProvider().create_recipe(GROUPED, groupsize=32)


@pytest.mark.parametrize("recipe_type", WITHOUT_OPTIONS)
def test_a_recipe_without_options_refuses_one(recipe_type: Type) -> None:
    assert XNNPackProvider().describe(recipe_type).options == ()
    with pytest.raises(OptionError, match=r"takes no option 'group_size'\. It takes no options\."):
        XNNPackProvider().create_recipe(recipe_type, group_size=32)

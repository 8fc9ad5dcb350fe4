"""Options are checked when a recipe is made, none is ignored, and what they become is told."""

from typing import Any

import coremltools as ct
import pytest

from recipes import OptionError, OptionValue
from recipes_coreml import CoreMLRecipeType as Type
from recipes_coreml.features import DEPLOYMENT_TARGET_ALIASES, DEPLOYMENT_TARGETS, RECIPE_FEATURES
from recipes_coreml.provider import CoreMLProvider

COMMON = {
    "minimum_deployment_target",
    "compute_unit",
    "skip_ops_for_coreml_delegation",
    "lower_full_graph",
    "take_over_constant_data",
    "take_over_mutable_buffer",
}
PER_GROUP = [Type.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP, Type.TORCHAO_INT8_WEIGHT_ONLY_PER_GROUP]
PER_CHANNEL = [Type.TORCHAO_INT4_WEIGHT_ONLY_PER_CHANNEL, Type.TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL]
TAKES = {
    **dict.fromkeys(Type, COMMON),
    **{recipe_type: COMMON | {"filter_fn"} for recipe_type in PER_CHANNEL},
    **{recipe_type: COMMON | {"filter_fn", "group_size"} for recipe_type in PER_GROUP},
    Type.CODEBOOK_WEIGHT_ONLY: COMMON | {"filter_fn", "bits", "block_size"},
}
REQUIRED = {Type.CODEBOOK_WEIGHT_ONLY: {"bits": 4, "block_size": [-1, 16]}}

# What is given, and the one form that it becomes.
GOOD: dict[str, list[tuple[Any, Any]]] = {
    "minimum_deployment_target": [
        ("iOS18", "iOS18"),
        ("macOS15", "iOS18"),
        ("watchOS11", "iOS18"),
        ("tvOS26", "iOS26"),
        (ct.target.iOS18, "iOS18"),
        (ct.target.macOS15, "iOS18"),
    ],
    "compute_unit": [("CPU_AND_NE", "CPU_AND_NE"), (ct.ComputeUnit.CPU_ONLY, "CPU_ONLY")],
    "skip_ops_for_coreml_delegation": [
        ("aten.linear.default, aten.addmm.default", ("aten.linear.default", "aten.addmm.default")),
        (["aten.add.Tensor"], ("aten.add.tensor",)),
        ([], ()),
    ],
    "lower_full_graph": [("true", True), (True, True), (False, False)],
    "take_over_constant_data": [("no", False), (True, True)],
    "take_over_mutable_buffer": [("no", False), (True, True)],
    "group_size": [("16", 16), (64, 64)],
    "filter_fn": [(callable, callable), ("builtins:callable", callable)],
    "bits": [("3", 3), (8, 8)],
    "block_size": [("-1, 8", (-1, 8)), ([4, -1], (4, -1)), ((-1, -1), (-1, -1))],
}
BAD = {
    "minimum_deployment_target": ["iOS99", "ios18", 18, ct.ComputeUnit.ALL, ct.precision.FLOAT16],
    "compute_unit": ["GPU", "cpu_only", 3, ct.target.iOS18],
    "skip_ops_for_coreml_delegation": ["aten.linear", "aten::linear", ["linear"], [1], 5],
    "lower_full_graph": ["maybe", 1, "2"],
    "take_over_constant_data": ["maybe", 0],
    "take_over_mutable_buffer": ["maybe", 0],
    "group_size": [-5, 0, 1, 32.0, True, "many"],
    "filter_fn": [5, "no.such.module:f", "builtins:no_such_function"],
    "bits": [0, 5, 7, 9, 4.0, "four", None],
    "block_size": [[], [16], [0, -1], [-2, -1], [1, 1, -1], [1.5, -1], 16, "rows", None],
}


def given(recipe_type: Type, **options: Any) -> dict[str, Any]:
    return {**REQUIRED.get(recipe_type, {}), **options}


def resolve(recipe_type: Type, **options: Any) -> dict[str, OptionValue]:
    return CoreMLProvider().resolve_options(recipe_type, given(recipe_type, **options))


@pytest.mark.parametrize("recipe_type", Type)
def test_each_recipe_type_declares_its_options(recipe_type: Type) -> None:
    assert {option.name for option in CoreMLProvider().describe(recipe_type).options} == TAKES[recipe_type]


@pytest.mark.parametrize("recipe_type", Type)
def test_defaults_are_executorchs(recipe_type: Type) -> None:
    settled = resolve(recipe_type)
    assert settled["compute_unit"].value == "ALL"
    assert settled["skip_ops_for_coreml_delegation"].value == ()
    assert settled["lower_full_graph"].value is False
    assert settled["take_over_constant_data"].value is True
    if "group_size" in settled:
        assert settled["group_size"].value == 32
    if "filter_fn" in settled:
        assert settled["filter_fn"].value is None


@pytest.mark.parametrize(
    ("recipe_type", "name", "value", "expected"),
    [(t, name, *pair) for t in Type for name in sorted(TAKES[t]) for pair in GOOD[name]],
)
def test_a_good_value_is_taken_in_every_form(recipe_type: Type, name: str, value: Any, expected: Any) -> None:
    settled = resolve(recipe_type, **{name: value})
    assert settled[name] == OptionValue(expected, "given")


@pytest.mark.parametrize(
    ("recipe_type", "name", "value"), [(t, name, bad) for t in Type for name in sorted(TAKES[t]) for bad in BAD[name]]
)
def test_a_wrong_value_is_refused_by_name_when_the_recipe_is_made(recipe_type: Type, name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"Recipe {recipe_type.id}: Option '{name}'"):
        CoreMLProvider().create_recipe(recipe_type, **given(recipe_type, **{name: value}))


@pytest.mark.parametrize(("recipe_type", "name"), [(t, name) for t in Type for name in sorted(TAKES[t])])
def test_a_misspelt_name_is_refused_with_the_nearest(recipe_type: Type, name: str) -> None:
    with pytest.raises(OptionError, match=rf"takes no option '{name}s'\. Did you mean '{name}'"):
        CoreMLProvider().create_recipe(recipe_type, **given(recipe_type, **{name + "s": 1}))


@pytest.mark.parametrize(
    ("recipe_type", "name"),
    [(t, name) for t in Type for name in ("group_size", "filter_fn", "bits") if name not in TAKES[t]],
)
def test_an_option_of_another_recipe_type_is_refused(recipe_type: Type, name: str) -> None:
    with pytest.raises(OptionError, match=f"takes no option '{name}'"):
        CoreMLProvider().create_recipe(recipe_type, **given(recipe_type, **{name: 4}))


@pytest.mark.parametrize("missing", ["bits", "block_size"])
def test_a_codebook_without_its_size_is_refused(missing: str) -> None:
    options = given(Type.CODEBOOK_WEIGHT_ONLY)
    del options[missing]
    with pytest.raises(OptionError, match=rf"'{missing}' must be .*; got nothing"):
        CoreMLProvider().create_recipe(Type.CODEBOOK_WEIGHT_ONLY, **options)


def test_a_misspelt_choice_is_refused_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="Did you mean 'iOS18'"):
        CoreMLProvider().create_recipe(Type.FP16, minimum_deployment_target="ios18")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("aten.liner.default", "Similar operators: .*aten.linear.default"),
        ("aten.add.Tensors", "Similar operators: .*aten.add.tensor"),
        ("aten.linear.tensor", "Similar operators: .*aten.linear.default"),
    ],
)
def test_an_operator_that_does_not_exist_is_refused_with_the_nearest(name: str, advice: str) -> None:
    with pytest.raises(OptionError, match=rf"there is no operator '{name.lower()}'\. {advice}"):
        CoreMLProvider().create_recipe(Type.FP16, skip_ops_for_coreml_delegation=[name])


def test_an_operator_of_a_namespace_that_is_not_loaded_yet_is_taken_on_trust() -> None:
    recipe = CoreMLProvider().create_recipe(Type.FP16, skip_ops_for_coreml_delegation=["acme.op.default"])
    (partitioner,) = recipe.lowering_recipe.partitioners
    assert partitioner.skip_ops_for_coreml_delegation == ["acme.op.default"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"skip_ops_for_coreml_delegation": ["aten.linear.default"]}, "skip_ops_for_coreml_delegation"),
        ({"take_over_constant_data": False}, "take_over_constant_data=False"),
        ({"take_over_mutable_buffer": False}, "take_over_mutable_buffer=False"),
        (
            {"take_over_constant_data": False, "take_over_mutable_buffer": False},
            "take_over_constant_data=False and take_over_mutable_buffer=False",
        ),
    ],
)
@pytest.mark.parametrize("recipe_type", Type)
def test_what_contradicts_lowering_the_full_graph_is_refused(
    recipe_type: Type, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(OptionError, match=f"lower_full_graph=True .* not possible with {named}"):
        CoreMLProvider().create_recipe(recipe_type, **given(recipe_type, lower_full_graph=True, **options))


# -- the deployment target ------------------------------------------------------------------------

NEEDED = {
    Type.FP32: "iOS15",
    Type.FP16: "iOS15",
    Type.PT2E_INT8_STATIC: "iOS17",
    Type.PT2E_INT8_WEIGHT_ONLY: "iOS17",
    Type.TORCHAO_INT4_WEIGHT_ONLY_PER_CHANNEL: "iOS18",
    Type.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP: "iOS18",
    Type.TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL: "iOS16",
    Type.TORCHAO_INT8_WEIGHT_ONLY_PER_GROUP: "iOS18",
    Type.CODEBOOK_WEIGHT_ONLY: "iOS18",
}
FLOAT = (Type.FP32, Type.FP16)
QUANTIZED = [recipe_type for recipe_type in Type if recipe_type not in FLOAT]


def order(target: str) -> int:
    return int(ct.target[target].value)


def test_deployment_targets_and_their_aliases_are_those_of_coremltools() -> None:
    canonical = {name: member.name for name, member in ct.target.__members__.items()}
    assert canonical == {**{name: name for name in DEPLOYMENT_TARGETS}, **DEPLOYMENT_TARGET_ALIASES}
    assert [order(name) for name in DEPLOYMENT_TARGETS] == sorted(member.value for member in ct.target)


@pytest.mark.parametrize("recipe_type", Type)
def test_described_target_is_what_the_recipe_needs(recipe_type: Type) -> None:
    assert CoreMLProvider().describe(recipe_type).deployment_target == NEEDED[recipe_type]


@pytest.mark.parametrize("recipe_type", Type)
def test_every_feature_has_a_source(recipe_type: Type) -> None:
    for feature in RECIPE_FEATURES[recipe_type]:
        assert feature.needs in DEPLOYMENT_TARGETS
        assert feature.source.startswith("https://")


@pytest.mark.parametrize("recipe_type", FLOAT)
def test_unset_stays_unset_where_any_system_that_core_ml_has_will_do(recipe_type: Type) -> None:
    assert resolve(recipe_type)["minimum_deployment_target"] == OptionValue(None, "default")


@pytest.mark.parametrize("recipe_type", QUANTIZED)
def test_unset_becomes_what_the_recipe_needs_and_says_why(recipe_type: Type) -> None:
    settled = resolve(recipe_type)["minimum_deployment_target"]
    assert settled.value == NEEDED[recipe_type]
    reasons = [f.what for f in RECIPE_FEATURES[recipe_type] if f.needs == NEEDED[recipe_type]]
    assert settled.source == f"raised to {NEEDED[recipe_type]}: {reasons[0]} need it"


def test_the_reason_reads_well() -> None:
    assert resolve(Type.PT2E_INT8_STATIC)["minimum_deployment_target"].source == (
        "raised to iOS17: int8 activations need it"
    )


@pytest.mark.parametrize(
    ("recipe_type", "asked"),
    [(t, target) for t in Type for target in DEPLOYMENT_TARGETS if order(target) >= order(NEEDED[t])],
)
def test_asked_as_needed_or_higher_is_kept(recipe_type: Type, asked: str) -> None:
    settled = resolve(recipe_type, minimum_deployment_target=asked)
    assert settled["minimum_deployment_target"] == OptionValue(asked, "given")


@pytest.mark.parametrize(
    ("recipe_type", "asked"),
    [(t, target) for t in Type for target in DEPLOYMENT_TARGETS if order(target) < order(NEEDED[t])],
)
def test_asked_lower_than_needed_is_refused_and_names_both_and_the_feature(recipe_type: Type, asked: str) -> None:
    what = next(f.what for f in RECIPE_FEATURES[recipe_type] if f.needs == NEEDED[recipe_type])
    expected = rf"minimum_deployment_target is {asked} \(given\), but {what} need {NEEDED[recipe_type]}"
    with pytest.raises(OptionError, match=expected):
        CoreMLProvider().create_recipe(recipe_type, **given(recipe_type, minimum_deployment_target=ct.target[asked]))


# -- mutable buffers, which Core ML holds as state from iOS18 on ----------------------------------


@pytest.mark.parametrize(
    ("recipe_type", "options", "taken_over"),
    [
        (Type.FP16, {}, True),  # the target is not fixed yet
        (Type.FP16, {"minimum_deployment_target": "iOS17"}, False),
        (Type.FP16, {"minimum_deployment_target": "iOS18"}, True),
        (Type.PT2E_INT8_STATIC, {}, False),
        (Type.PT2E_INT8_STATIC, {"minimum_deployment_target": "iOS26"}, True),
        (Type.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP, {}, True),
        (Type.PT2E_INT8_STATIC, {"lower_full_graph": True}, True),
    ],
)
def test_unset_mutable_buffers_follow_the_deployment_target(
    recipe_type: Type, options: dict[str, Any], taken_over: bool
) -> None:
    assert resolve(recipe_type, **options)["take_over_mutable_buffer"].value is taken_over


@pytest.mark.parametrize("asking", [{"take_over_mutable_buffer": True}, {"lower_full_graph": True}])
def test_asking_for_state_raises_a_target_that_the_recipe_sets(asking: dict[str, Any]) -> None:
    settled = resolve(Type.PT2E_INT8_STATIC, **asking)["minimum_deployment_target"]
    assert settled.value == "iOS18"
    assert "take over" in settled.source or "takes over" in settled.source


@pytest.mark.parametrize("asking", [{"take_over_mutable_buffer": True}, {"lower_full_graph": True}])
@pytest.mark.parametrize("recipe_type", [Type.FP16, Type.PT2E_INT8_STATIC])
def test_asking_for_state_below_ios18_is_refused(recipe_type: Type, asking: dict[str, Any]) -> None:
    with pytest.raises(
        OptionError, match=r"minimum_deployment_target is iOS17 .* need iOS18 \(take_over_mutable_buffer"
    ):
        CoreMLProvider().create_recipe(recipe_type, minimum_deployment_target="iOS17", **asking)


@pytest.mark.parametrize("recipe_type", Type)
@pytest.mark.parametrize("options", [{}, {"lower_full_graph": True}, {"minimum_deployment_target": "macOS26"}])
def test_settled_options_settle_to_themselves(recipe_type: Type, options: dict[str, Any]) -> None:
    settled = resolve(recipe_type, **options)
    assert CoreMLProvider().resolve_options(recipe_type, settled) == settled


def test_a_settled_choice_follows_when_the_target_is_changed_afterwards() -> None:
    settled = resolve(Type.FP16)
    assert settled["take_over_mutable_buffer"].value is True
    changed = CoreMLProvider().resolve_options(Type.FP16, {**settled, "minimum_deployment_target": "iOS16"})
    assert changed["take_over_mutable_buffer"].value is False

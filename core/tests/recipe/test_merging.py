"""Each field's policy, the conflicts, and the faults of ExecuTorch's own combine that are mended here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("executorch", reason="merging builds ExecuTorch's own recipes")

import executorch.export
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
from executorch.exir.dynamic_shape import DynamicMemoryPlanningMode
from executorch.exir.pass_base import ExportPass
from executorch.exir.pass_manager import PassManager
from executorch.exir.passes import MemoryPlanningPass, ToOutVarPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass
from executorch.export import AOQuantizationConfig, LoweringRecipe, QuantizationRecipe, StageType
from executorch.export.recipe import Mode
from torchao.quantization.quant_api import IntxWeightOnlyConfig

from recipes.common.errors import ArgumentError, RecipeConflictError, UnknownFieldError
from recipes.common.values import same
from recipes.executorch.quantizers import check_disjoint
from recipes.recipe.export_recipe import ExportRecipe
from recipes.recipe.merging import merge
from recipes.recipe.policies import FIELD_POLICIES, NESTED, Policy

CLASSES: dict[str, type] = {
    "ExportRecipe": ExportRecipe,
    "QuantizationRecipe": QuantizationRecipe,
    "LoweringRecipe": LoweringRecipe,
    "EdgeCompileConfig": EdgeCompileConfig,
    "ExecutorchBackendConfig": ExecutorchBackendConfig,
}
ADD, MUL = torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor


def first(*_: Any) -> Any:
    """One of the user's callables."""
    return []


def second(*_: Any) -> Any:
    """Another one."""
    return []


def is_a(module: torch.nn.Module, name: str) -> bool:
    return name == "a"


def is_b(module: torch.nn.Module, name: str) -> bool:
    return name == "b"


# Two values other than the default for every field; the right-hand recipe gets the second.
SAMPLES: dict[str, tuple[Any, Any]] = {
    "aten_transform_passes": ([first], [second]),
    "source_transform_in_place": (True, False),
    "pipeline_stages": ([StageType.TORCH_EXPORT], [StageType.TORCH_EXPORT, StageType.TO_EDGE]),
    "mode": (Mode.DEBUG, Mode.RELEASE),
    "strict": (False, True),
    "quantizers": ([XNNPACKQuantizer()], [XNNPACKQuantizer()]),
    "ao_quantization_configs": (
        [AOQuantizationConfig(IntxWeightOnlyConfig(), is_a)],
        [AOQuantizationConfig(IntxWeightOnlyConfig(), is_b)],
    ),
    "is_qat": (True, False),
    "dynamic_batch_size": (True, False),
    "calibration_inputs_fn": (first, second),
    "train_fn": (first, second),
    "pre_prepare_passes": ([first], [second]),
    "post_prepare_passes": ([first], [second]),
    "pre_convert_passes": ([first], [second]),
    "post_convert_passes": ([first], [second]),
    "partitioners": ([XnnpackPartitioner()], [XnnpackPartitioner()]),
    "edge_transform_passes": ([first], [second]),
    "edge_manager_transform_passes": ([first], [second]),
    "_check_ir_validity": (False, True),
    "_skip_dim_order": (True, False),
    "_core_aten_ops_exception_list": ([ADD], [MUL]),
    "preserve_ops": ([ADD], [MUL]),
    "passes": ([first], [second]),
    "memory_planning_pass": (MemoryPlanningPass(alignment=32), {"forward": MemoryPlanningPass()}),
    "propagate_device_config": (
        PropagateDeviceConfig(skip_h2d_for_method_inputs=True),
        PropagateDeviceConfig(skip_d2h_for_method_outputs=True),
    ),
    "to_out_var_pass": (ToOutVarPass(ignore_to_out_var_failure=True), first),
    "dynamic_memory_planning_mode": (list(DynamicMemoryPlanningMode)[1], None),
    "emit_stacktrace": (True, None),
    "extract_delegate_segments": (False, None),
    "segment_alignment": (256, 512),
    "constant_tensor_alignment": (16, 32),
    "delegate_alignment": (16, 32),
    "sym_shape_eval_pass": (first, {"forward": ConstraintBasedSymShapeEvalPass()}),
    "remove_view_copy": (False, None),
    "external_constants": (True, first),
    "external_mutable_weights": (True, None),
    "emit_mutable_buffer_names": (True, None),
    "do_quant_fusion_and_const_prop": (True, None),
    "run_reinplace_pass": (True, None),
    "enable_non_cpu_memory_planning": (False, None),
    "reinplace_extra_ops": (frozenset([ADD]), frozenset([MUL])),
}


def recipe(name: str | None = "a", **fields: Any) -> ExportRecipe:
    """A recipe that sets the given fields, wherever they live."""
    return ExportRecipe(name=name).derive(**fields)


def get(made: Any, name: str) -> Any:
    """A field's value, wherever it lives; None where the dataclass around it is missing."""
    if hasattr(made, name):
        return getattr(made, name)
    inner = (getattr(made, nested, None) for nested in NESTED)
    return next((value for value in (get(x, name) for x in inner if x is not None) if value is not None), None)


def fields_with(*policies: Policy) -> list[str]:
    return [key.partition(".")[2] for key, policy in FIELD_POLICIES.items() if policy in policies]


def test_the_table_covers_exactly_the_fields_that_are_installed() -> None:
    installed = {f"{name}.{f.name}" for name, owner in CLASSES.items() for f in dataclasses.fields(owner)}

    assert set(FIELD_POLICIES) == installed


def test_field_names_are_unique_across_the_dataclasses() -> None:
    names = [key.partition(".")[2] for key in FIELD_POLICIES]

    assert sorted(names) == sorted(set(names))


def test_every_field_that_can_be_merged_has_a_sample() -> None:
    assert set(SAMPLES) == set(fields_with(*Policy)) - set(fields_with(Policy.MERGE, Policy.NAME, Policy.PROVENANCE))


@pytest.mark.parametrize("name", SAMPLES)
def test_recipes_that_differ_in_one_field_are_resolved_by_its_policy_or_refused_by_its_name(name: str) -> None:
    policy = next(policy for key, policy in FIELD_POLICIES.items() if key.endswith("." + name))
    one, two = SAMPLES[name]
    left, right = recipe("a", **{name: one}), recipe("b", **{name: two})
    if policy is Policy.AGREE or (policy is Policy.OPINION and two is not None) or policy is Policy.AT_MOST_ONE:
        # is_qat is heard only from a recipe that quantizes.
        if name == "is_qat":
            right = recipe("b", is_qat=False, dynamic_batch_size=True)
        with pytest.raises(RecipeConflictError) as refused:
            ExportRecipe.combine([left, right])
        named = {other for other in SAMPLES if f".{other}." in str(refused.value) or f" {other}." in str(refused.value)}
        assert named == {name}
        assert "  a: " in str(refused.value)
        assert "  b: " in str(refused.value)
        assert "derive(" in str(refused.value)
        return
    if two is None:
        right = recipe("b")
    merged = get(ExportRecipe.combine([left, right]), name)
    if policy in (Policy.CONCATENATE, Policy.UNION):
        assert len(merged) == 2
        assert all(got == given or same(got, given) for got, given in zip(merged, [*one, *two], strict=True))
    elif policy is Policy.CHAIN:
        assert merged.functions == (first, second)
    else:
        assert same(merged, one)


@pytest.mark.parametrize("name", fields_with(Policy.OPINION))
@pytest.mark.parametrize("order", [1, -1])
def test_one_opinion_holds_whatever_the_order_and_explain_says_whose_it_was(name: str, order: int) -> None:
    opinion, silent = recipe("a", **{name: SAMPLES[name][0]}), recipe("b", executorch_backend_config=None)

    merged = ExportRecipe.combine([opinion, silent][::order])

    assert same(get(merged, name), SAMPLES[name][0])
    assert [o.sources[0].recipe for o in merged.explain().provenance.origins if o.field.endswith(name)] == ["a"]


@pytest.mark.parametrize("name", fields_with(Policy.OPINION))
def test_a_fresh_equal_object_is_no_conflict(name: str) -> None:
    opinions = [recipe(label, **{name: SAMPLES[name][0]}) for label in "ab"]

    assert same(get(ExportRecipe.combine(opinions), name), SAMPLES[name][0])


def test_an_export_that_ran_with_the_default_config_does_not_turn_the_default_into_an_opinion() -> None:
    # ExecuTorch's to_executorch writes into the default memory planning pass, one object for the process.
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    from executorch.exir import to_edge

    to_edge(program).to_executorch()

    merged = ExportRecipe.combine(
        [
            recipe("a", memory_planning_pass=MemoryPlanningPass()),
            recipe("b", memory_planning_pass=MemoryPlanningPass(alignment=32)),
        ]
    )

    assert get(merged, "memory_planning_pass").alignment == 32


def test_a_value_that_one_source_gave_through_two_recipes_names_it_once() -> None:
    made = recipe("a", segment_alignment=256)

    combined = ExportRecipe.combine([ExportRecipe.combine([made, recipe("b")]), made])

    assert [len(origin.sources) for origin in combined.explain().provenance.origins] == [1]


def test_op_lists_have_no_order() -> None:
    merged = ExportRecipe.combine([recipe("a", preserve_ops=[ADD, MUL]), recipe("b", preserve_ops=[MUL, ADD])])

    assert get(merged, "preserve_ops") == [ADD, MUL]


def test_a_conflict_names_every_field_at_issue_and_none_that_agrees() -> None:
    left = recipe("a", segment_alignment=256, strict=False, delegate_alignment=16)
    right = recipe("b", segment_alignment=512, strict=True, delegate_alignment=16)

    with pytest.raises(RecipeConflictError) as refused:
        ExportRecipe.combine([left, right])

    assert str(refused.value) == (
        "Cannot combine recipes: they differ in executorch_backend_config.segment_alignment.\n"
        "  a: 256\n"
        "  b: 512\n"
        "Give all of them one value, with recipe.derive(segment_alignment=...), or leave the default, 128, in all "
        "but one.\n"
        "Cannot combine recipes: they must agree on strict.\n"
        "  a: False\n"
        "  b: True\n"
        "Give all of them one value: recipe.derive(strict=...)."
    )


def test_recipes_of_one_name_and_without_one_are_told_apart_in_a_conflict() -> None:
    with pytest.raises(RecipeConflictError, match=r"(?s)a \(recipes\[0\]\): .*a \(recipes\[1\]\): .*recipes\[2\]: "):
        ExportRecipe.combine([recipe(name, segment_alignment=n) for name, n in (("a", 16), ("a", 32), (None, 64))])


def test_in_a_target_the_accelerators_opinion_wins_and_the_decision_is_shown() -> None:
    recipes = [recipe("fast", segment_alignment=256), recipe("slow", segment_alignment=512)]

    merged = merge(recipes, "target", roles=["accelerator", "fallback"])

    assert get(merged, "segment_alignment") == 256
    assert get(merge(recipes[::-1], "t", roles=["fallback", "accelerator"]), "segment_alignment") == 256
    (decision,) = merged.explain().provenance.decisions
    assert (decision.winner, decision.value, decision.losers) == ("fast", "256", (("slow", "512"),))
    assert "512 (slow)" in str(merged.explain())
    merged.executorch_backend_config.segment_alignment = 64
    assert not merged.explain().provenance.decisions


def test_a_decision_survives_further_combining() -> None:
    recipes = [recipe("fast", segment_alignment=256), recipe("slow", segment_alignment=512)]

    again = ExportRecipe.combine([merge(recipes, "target", roles=["accelerator", "fallback"]), recipe("more")])

    assert [decision.winner for decision in again.explain().provenance.decisions] == ["fast"]


@pytest.mark.parametrize(
    ("fields", "roles"),
    [
        ("segment_alignment", ["accelerator", "accelerator"]),
        ("segment_alignment", ["fallback", "fallback"]),
        ("_skip_dim_order", ["accelerator", "fallback"]),
        ("strict", ["accelerator", "fallback"]),
    ],
)
def test_roles_settle_opinions_between_accelerator_and_fallback_only(fields: str, roles: list[Any]) -> None:
    recipes = [recipe(label, **{fields: value}) for label, value in zip("ab", SAMPLES[fields], strict=True)]

    with pytest.raises(RecipeConflictError, match=fields):
        merge(recipes, "target", roles=roles)


def test_a_default_edge_config_that_combine_filled_in_has_no_say_in_the_next_combine() -> None:
    silent = recipe("a", partitioners=[XnnpackPartitioner()])
    firm = recipe("b", _skip_dim_order=True)

    merged = ExportRecipe.combine([silent, recipe("c")])

    assert merged.lowering_recipe.edge_compile_config == EdgeCompileConfig()
    assert get(ExportRecipe.combine([merged, firm]), "_skip_dim_order") is True
    with pytest.raises(RecipeConflictError, match="_skip_dim_order"):
        ExportRecipe.combine([merged.derive(_skip_dim_order=False), firm])


@pytest.mark.parametrize("owner", CLASSES)
def test_a_field_without_a_policy_is_refused_where_it_is_set(owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = next(k for k in FIELD_POLICIES if k.startswith(owner + ".") and k.partition(".")[2] in SAMPLES)
    name = key.partition(".")[2]
    left, right = recipe("a", **{name: SAMPLES[name][0]}), recipe("b")
    # As good as absent, and the table keeps its order for other tests.
    monkeypatch.setitem(FIELD_POLICIES, key, None)

    ExportRecipe.combine([recipe("c"), right])
    with pytest.raises(UnknownFieldError, match=rf"Recipe a sets [\w.]*{name}"):
        ExportRecipe.combine([right, left])


# The faults of ExecuTorch's combine that are mended.


def test_backend_configs_are_merged_where_executorch_takes_the_first() -> None:
    left = recipe("a", executorch_backend_config=ExecutorchBackendConfig(emit_stacktrace=True))
    right = recipe("b", executorch_backend_config=ExecutorchBackendConfig(extract_delegate_segments=False))

    merged = ExportRecipe.combine([left, right]).executorch_backend_config

    assert (merged.emit_stacktrace, merged.extract_delegate_segments) == (True, False)
    theirs = executorch.export.ExportRecipe._combine_recipes([left, right]).executorch_backend_config
    assert theirs.extract_delegate_segments is True


@pytest.mark.parametrize(
    "fields", [{"calibration_inputs_fn": first}, {"dynamic_batch_size": True}, {"is_qat": True, "train_fn": first}]
)
def test_settings_of_a_quantization_recipe_without_quantizers_are_not_dropped(fields: dict[str, Any]) -> None:
    merged = ExportRecipe.combine([recipe("a", **fields), recipe("b")])

    assert {name: get(merged, name) for name in fields} == fields


def test_list_and_per_method_partitioners_are_refused() -> None:
    left = recipe("a", partitioners=[XnnpackPartitioner()])
    right = recipe("b", partitioners={"forward": [XnnpackPartitioner()]})

    with pytest.raises(RecipeConflictError, match=r"lowering_recipe\.partitioners"):
        ExportRecipe.combine([left, right])


class Nothing(ExportPass):  # type: ignore[misc]
    """Changes nothing; equal to any other of its class."""


@pytest.mark.parametrize("name", ["passes", "edge_transform_passes", "edge_manager_transform_passes"])
def test_a_pass_manager_in_a_list_next_to_other_passes_is_refused(name: str) -> None:
    with pytest.raises(RecipeConflictError, match=name):
        ExportRecipe.combine([recipe("a", **{name: [PassManager([])]}), recipe("b", **{name: [first]})])


def test_a_pass_manager_instead_of_the_list_is_refused() -> None:
    left = recipe("a", executorch_backend_config=ExecutorchBackendConfig())
    left.executorch_backend_config.passes = PassManager([])

    with pytest.raises(ArgumentError, match=r"Recipe a: executorch_backend_config\.passes must be a list"):
        ExportRecipe.combine([left, recipe("b")])


def test_a_transform_that_returns_a_pass_manager_is_refused_when_it_is_resolved() -> None:
    def manager(method: str, program: Any) -> PassManager:
        return PassManager([])

    merged = ExportRecipe.combine(
        [recipe("a", edge_transform_passes=[manager]), recipe("b", edge_transform_passes=[first])]
    )
    alone = ExportRecipe.combine([recipe("a", edge_transform_passes=[manager]), recipe("b")])

    assert merged.lowering_recipe.edge_transform_passes == [manager, first]
    assert merged.lowering_recipe.edge_transform_passes[1]("forward", None) == []
    with pytest.raises(RecipeConflictError, match=r"(?s)'forward'.* of a returns a PassManager"):
        merged.lowering_recipe.edge_transform_passes[0]("forward", None)
    assert alone.lowering_recipe.edge_transform_passes == [manager]
    assert isinstance(alone.lowering_recipe.edge_transform_passes[0]("forward", None), PassManager)


def test_equal_passes_of_two_backend_configs_run_once_and_name_both_givers() -> None:
    merged = ExportRecipe.combine([recipe("a", passes=[Nothing(), first]), recipe("b", passes=[second, Nothing()])])

    assert [type(p) for p in merged.executorch_backend_config.passes[:1]] == [Nothing]
    assert merged.executorch_backend_config.passes[1:] == [first, second]
    (origin,) = [o for o in merged.explain().provenance.origins if o.text.startswith("Nothing")]
    assert [source.recipe for source in origin.sources] == ["a", "b"]


class LegacyQuantizer:
    """Stands for quantizers that do not derive from torchao's."""


@pytest.mark.parametrize("other", [LegacyQuantizer, XNNPACKQuantizer])
def test_a_quantizer_of_another_family_works_only_alone(other: Callable[[], Any]) -> None:
    with pytest.raises(RecipeConflictError, match=r"(?s)quantization_recipe\.quantizers.*a: LegacyQuantizer.*b: "):
        ExportRecipe.combine([recipe("a", quantizers=[LegacyQuantizer()]), recipe("b", quantizers=[other()])])
    assert get(ExportRecipe.combine([recipe("a", quantizers=[LegacyQuantizer()]), recipe("b")]), "quantizers")


def ao(name: str, filter_fn: Any) -> ExportRecipe:
    return recipe(name, ao_quantization_configs=[AOQuantizationConfig(IntxWeightOnlyConfig(), filter_fn)])


@pytest.mark.parametrize("filters", [(None, None), (None, is_b), (is_a, None)])
def test_two_torchao_configs_without_filters_are_refused_at_once(filters: tuple[Any, Any]) -> None:
    with pytest.raises(RecipeConflictError, match=r"(?s)ao_quantization_configs.*  a: .*  b: .*filter_fn"):
        ExportRecipe.combine([ao("a", filters[0]), ao("b", filters[1])])


def test_a_torchao_config_goes_with_pt2e_quantizers_only_with_a_filter() -> None:
    quantizer = recipe("q", quantizers=[XNNPACKQuantizer()])

    with pytest.raises(RecipeConflictError, match="without a filter_fn"):
        ExportRecipe.combine([ao("a", None), quantizer])
    merged = ExportRecipe.combine([ao("a", is_a), quantizer]).quantization_recipe
    assert (len(merged.quantizers), len(merged.ao_quantization_configs)) == (1, 1)


def test_configs_that_take_the_same_layer_are_refused_by_the_layers_name() -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    configs = [AOQuantizationConfig(IntxWeightOnlyConfig(), f) for f in (is_a, is_b, is_a)]

    check_disjoint(configs[:2], model)
    check_disjoint([AOQuantizationConfig(IntxWeightOnlyConfig())], model)
    with pytest.raises(RecipeConflictError, match=r"(?s)these layers:\n  a: .*filter_fn") as refused:
        check_disjoint(configs, model)
    assert "  b:" not in str(refused.value)
    with pytest.raises(RecipeConflictError, match="each of several torchao configs needs a filter_fn"):
        check_disjoint([configs[0], AOQuantizationConfig(IntxWeightOnlyConfig())], model)


def test_the_users_callables_are_shared_and_calibration_runs_in_order() -> None:
    class Data:
        def __deepcopy__(self, memo: object) -> Any:
            raise AssertionError("a data set was copied")

        def inputs(self) -> list[tuple[int]]:
            return [(1,)]

    data, more = Data(), Data()
    left = recipe("a", calibration_inputs_fn=data.inputs, pre_prepare_passes=[data.inputs])

    merged = ExportRecipe.combine([left, recipe("b", calibration_inputs_fn=more.inputs)])

    assert [f.__self__ for f in get(merged, "calibration_inputs_fn").functions] == [data, more]
    assert list(get(merged, "calibration_inputs_fn")()) == [(1,), (1,)]
    assert merged.quantization_recipe.pre_prepare_passes[0].__self__ is data


def test_what_cannot_be_copied_is_shared_and_says_so() -> None:
    class Locked(XNNPACKQuantizer):  # type: ignore[misc]
        def __deepcopy__(self, memo: object) -> Any:
            raise TypeError("holds a lock")

    quantizer = Locked()
    left = ExportRecipe(name="a", quantization_recipe=QuantizationRecipe(quantizers=[quantizer]))

    merged = ExportRecipe.combine([left, recipe("b")])

    assert get(merged, "quantizers") == [quantizer]
    (origin,) = merged.explain().provenance.origins
    assert origin.shared == "TypeError: holds a lock"
    assert "holds a lock" in str(merged.explain())
    assert ExportRecipe.combine([merged, recipe("c")]).explain().provenance.origins[0].shared == origin.shared


class UnfoldedQuantizer(XNNPACKQuantizer):  # type: ignore[misc]
    """Stands for quantizers of compilers that fold weights by their own rules."""

    fold_quantize = False


def test_quantizers_that_fold_weights_and_those_that_do_not_are_not_combined() -> None:
    unfolded, folded = recipe("a", quantizers=[UnfoldedQuantizer()]), recipe("b", quantizers=[XNNPACKQuantizer()])
    with pytest.raises(RecipeConflictError, match=r"(?s)some have fold_quantize=False.*a: Unfolded.*b: XNNPACK"):
        ExportRecipe.combine([unfolded, folded])
    both = ExportRecipe.combine([unfolded, recipe("c", quantizers=[UnfoldedQuantizer()])])
    assert len(get(both, "quantizers")) == 2
    assert len(get(ExportRecipe.combine([unfolded, recipe("d")]), "quantizers")) == 1

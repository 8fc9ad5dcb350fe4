"""`ExportRecipe`: made without a warning, copied whole, explained truthfully, and changed by `derive`."""

from __future__ import annotations

import copy
import dataclasses
import json
import warnings
from typing import Any

import pytest

pytest.importorskip("executorch", reason="ExportRecipe subclasses ExecuTorch's")

import executorch.export
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
from executorch.exir.pass_base import ExportPass
from executorch.exir.pass_manager import PassManager
from executorch.export import LoweringRecipe, QuantizationRecipe

from recipes import Plugin, RecipeType
from recipes.common.errors import ArgumentError, UnknownFieldError
from recipes.plugins.options import OptionValue
from recipes.recipe.export_recipe import ExportRecipe
from recipes.recipe.provenance import BY_HAND, DERIVED, Source

ACME = Source("acme", "recipes-acme", "1.2", "acme:fp16", {"unit": OptionValue("CPU", "given")})


def theirs(name: str | None = "theirs", **fields: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return executorch.export.ExportRecipe(name=name, **fields)


def whole() -> Any:
    """A recipe of ExecuTorch's with something in every nested dataclass."""
    return theirs(
        quantization_recipe=QuantizationRecipe(quantizers=[XNNPACKQuantizer()]),
        lowering_recipe=LoweringRecipe(
            partitioners=[XnnpackPartitioner()], edge_compile_config=EdgeCompileConfig(_check_ir_validity=False)
        ),
        executorch_backend_config=ExecutorchBackendConfig(extract_delegate_segments=False),
        strict=False,
    )


def told(recipe: ExportRecipe) -> dict[str, str]:
    """For each field with something in it: how its last element or value came in."""
    return {o.field: o.sources[0].manner or o.sources[0].recipe for o in recipe.explain().provenance.origins}


def test_making_copying_and_deriving_emit_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recipe = ExportRecipe(name="a")
        dataclasses.replace(recipe, name="b")  # type: ignore[call-arg]  # a field of ExecuTorch's
        copy.deepcopy(recipe)
        recipe.derive(strict=False)


def test_it_is_executorchs_recipe_with_one_more_field_that_takes_no_part_in_comparisons() -> None:
    recipe = ExportRecipe.from_executorch(whole(), ACME)

    ours = {f.name for f in dataclasses.fields(recipe)}
    assert ours - {f.name for f in dataclasses.fields(whole())} == {"provenance"}
    assert isinstance(recipe, executorch.export.ExportRecipe)
    assert dataclasses.replace(recipe, provenance=None) == recipe
    assert dataclasses.replace(recipe, strict=True).provenance is recipe.provenance


def test_a_wrapped_recipe_keeps_every_field_and_shares_nothing() -> None:
    original = whole()

    recipe = ExportRecipe.from_executorch(original, ACME)

    for f in dataclasses.fields(original):
        assert (getattr(recipe, f.name) is None) == (getattr(original, f.name) is None)
    recipe.lowering_recipe.partitioners[0].per_op_mode = True
    recipe.lowering_recipe.edge_compile_config.preserve_ops.append(torch.ops.aten.add.Tensor)
    recipe.executorch_backend_config.memory_planning_pass.alignment = 64
    assert original.lowering_recipe.partitioners[0].per_op_mode is False
    assert original.lowering_recipe.edge_compile_config.preserve_ops == []
    assert ExecutorchBackendConfig().memory_planning_pass.alignment != 64


def test_a_recipe_class_with_a_field_that_is_not_ours_is_refused_where_it_sets_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        @dataclasses.dataclass
        class Extended(executorch.export.ExportRecipe):  # type: ignore[misc]
            power: int = 1

    ExportRecipe.from_executorch(Extended(), ACME)
    with pytest.raises(UnknownFieldError, match=r"acme:fp16 sets power = 2"):
        ExportRecipe.from_executorch(Extended(power=2), ACME)


def test_explain_names_plugin_recipe_and_options() -> None:
    text = str(ExportRecipe.from_executorch(whole(), ACME).explain())

    assert "lowering_recipe.partitioners" in text
    assert "recipes-acme 1.2" in text
    assert ["acme:fp16", "unit", "CPU", "given"] in [line.split() for line in text.splitlines()]


def test_provenance_is_plain_data() -> None:
    explanation = ExportRecipe.from_executorch(whole(), ACME).explain()

    read = json.loads(json.dumps(explanation.to_dict()))

    assert read["name"] == "theirs"
    strict = next(origin for origin in read["origins"] if origin["field"] == "strict")
    assert strict["value"] == "False"
    assert strict["sources"][0]["options"] == {"unit": {"value": "CPU", "source": "given"}}


def test_what_is_changed_by_hand_is_told_as_such_and_the_rest_stays() -> None:
    recipe = ExportRecipe.from_executorch(whole(), ACME)
    recipe.strict = True
    recipe.executorch_backend_config.extract_delegate_segments = True
    recipe.executorch_backend_config.segment_alignment = 512
    recipe.lowering_recipe.partitioners[0] = XnnpackPartitioner()
    recipe.lowering_recipe.edge_compile_config.preserve_ops.append(torch.ops.aten.add.Tensor)

    assert told(recipe) == {
        "quantization_recipe.quantizers": "acme:fp16",
        "lowering_recipe.partitioners": BY_HAND,
        "lowering_recipe.edge_compile_config._check_ir_validity": "acme:fp16",
        "lowering_recipe.edge_compile_config.preserve_ops": BY_HAND,
        "executorch_backend_config.extract_delegate_segments": BY_HAND,
        "executorch_backend_config.segment_alignment": BY_HAND,
        "strict": BY_HAND,
    }
    combined = ExportRecipe.combine([recipe, ExportRecipe(name="b")])
    assert {key: value for key, value in told(combined).items() if value == "acme:fp16"} == {
        "quantization_recipe.quantizers": "acme:fp16",
        "lowering_recipe.edge_compile_config._check_ir_validity": "acme:fp16",
    }


def test_a_value_changed_in_place_is_not_taken_for_what_was_recorded() -> None:
    recipe = ExportRecipe(name="a").derive(preserve_ops=[torch.ops.aten.add.Tensor])
    combined = ExportRecipe.combine([recipe, ExportRecipe(name="b")])

    combined.lowering_recipe.edge_compile_config.preserve_ops.append(torch.ops.aten.mul.Tensor)

    assert told(combined)["lowering_recipe.edge_compile_config.preserve_ops"] == BY_HAND


def test_a_deep_copy_is_explained_like_the_original() -> None:
    recipe = ExportRecipe.from_executorch(theirs(aten_transform_passes=[print], strict=False), ACME)

    assert told(copy.deepcopy(recipe)) == {"aten_transform_passes": "acme:fp16", "strict": "acme:fp16"}


def test_combine_takes_ours_and_executorchs_mixed_and_returns_ours() -> None:
    combined = ExportRecipe.combine([theirs("a"), ExportRecipe(name="b")])

    assert type(combined) is ExportRecipe
    assert combined.name == "a_b"
    assert type(ExportRecipe.combine([theirs("a")])) is ExportRecipe


def test_one_recipe_comes_back_as_it_is_or_as_a_copy_under_the_new_name() -> None:
    recipe = ExportRecipe.from_executorch(whole(), ACME)

    renamed = ExportRecipe.combine([recipe], recipe_name="new")

    assert ExportRecipe.combine([recipe]) is recipe
    assert ExportRecipe.combine([recipe], "theirs") is recipe
    assert (recipe.name, renamed.name) == ("theirs", "new")
    assert renamed.lowering_recipe.partitioners[0] is not recipe.lowering_recipe.partitioners[0]
    assert told(renamed) == told(recipe)


@pytest.mark.parametrize(
    ("recipes", "message"),
    [
        ([], "empty"),
        (ExportRecipe(), r"got one recipe\. Write combine\(\[recipe\]\)"),
        (None, "not NoneType"),
        ([ExportRecipe(), "acme:fp16"], r"recipes\[1\] is of type str"),
        ([ExportRecipe(name="a", lowering_recipe="x"), ExportRecipe()], "a: lowering_recipe must be of class Lowering"),
        ([ExportRecipe(name="a", aten_transform_passes=print), ExportRecipe()], "a: aten_transform_passes must be a"),
    ],
)
def test_what_is_not_a_list_of_recipes_is_refused(recipes: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ExportRecipe.combine(recipes)


def test_derive_changes_a_copy_and_says_what_it_changed() -> None:
    recipe = ExportRecipe.from_executorch(whole(), ACME)
    before = told(recipe)

    derived = recipe.derive("new", segment_alignment=512, strict=True, quantizers=[XNNPACKQuantizer()])

    assert (recipe.name, recipe.strict, recipe.executorch_backend_config.segment_alignment) == ("theirs", False, 128)
    assert (derived.name, derived.strict, derived.executorch_backend_config.segment_alignment) == ("new", True, 512)
    assert told(recipe) == before
    changed = {"executorch_backend_config.segment_alignment", "strict", "quantization_recipe.quantizers"}
    assert told(derived) == before | dict.fromkeys(changed, DERIVED)
    derived.lowering_recipe.partitioners[0].per_op_mode = True
    assert recipe.lowering_recipe.partitioners[0].per_op_mode is False


def test_derive_makes_missing_dataclasses_and_takes_a_whole_config_with_one_of_its_fields() -> None:
    config = ExecutorchBackendConfig(emit_stacktrace=True)

    derived = ExportRecipe().derive(_skip_dim_order=True, segment_alignment=512, executorch_backend_config=config)

    assert derived.lowering_recipe.edge_compile_config == EdgeCompileConfig(_skip_dim_order=True)
    made = derived.executorch_backend_config
    assert (made.emit_stacktrace, made.segment_alignment) == (True, 512)
    assert config.segment_alignment == 128
    assert ExportRecipe().derive(segment_alignment=1).executorch_backend_config.memory_planning_pass is not (
        ExecutorchBackendConfig().memory_planning_pass
    )


class CountNodes(ExportPass):  # type: ignore[misc]
    """Counts the nodes that it sees."""

    seen = 0

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        CountNodes.seen += 1
        return super().call_operator(op, args, kwargs, meta)


def test_extra_passes_run_on_the_edge_graph_before_partitioning() -> None:
    recipe = ExportRecipe(lowering_recipe=LoweringRecipe(partitioners=[XnnpackPartitioner()]))

    derived = recipe.derive(extra_passes=[CountNodes()])
    executorch.export.export(torch.nn.Linear(2, 2).eval(), [(torch.ones(1, 2),)], derived)

    assert CountNodes.seen == 1
    assert recipe.lowering_recipe.edge_transform_passes is None
    assert told(derived)["lowering_recipe.edge_transform_passes"] == DERIVED


def test_extra_passes_join_those_of_the_recipe() -> None:
    def transform(method: str, program: Any) -> list[Any]:
        return []

    original = theirs(lowering_recipe=LoweringRecipe(edge_transform_passes=[transform]))
    recipe = ExportRecipe.from_executorch(original, ACME)

    derived = recipe.derive(extra_passes=[CountNodes()]).derive(extra_passes=[print])

    before, first, second = derived.lowering_recipe.edge_transform_passes
    assert before == transform
    assert [type(item) for item in first("forward", None)] == [CountNodes]
    assert second("forward", None) == [print]
    sources = [origin.sources[0] for origin in derived.explain().provenance.origins]
    assert [source.manner or source.recipe for source in sources] == ["acme:fp16", DERIVED, DERIVED]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"segment_aligment": 1}, "no field 'segment_aligment'. Did you mean 'segment_alignment'"),
        ({"provenance": None}, "no field 'provenance'"),
        ({"partitioners": XnnpackPartitioner()}, "lowering_recipe.partitioners must be a list"),
        ({"lowering_recipe": 3}, "derive: lowering_recipe"),
        ({"extra_passes": [3]}, r"extra_passes\[0\] must be a pass, not int"),
        ({"extra_passes": [PassManager([])]}, r"extra_passes\[0\] must be a pass, not PassManager"),
    ],
)
def test_derive_refuses_what_cannot_stand_in_a_recipe(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ExportRecipe().derive(**arguments)


def test_get_recipe_asks_the_catalog_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import recipes.recipe.export_recipe
    from recipes.plugins import MadeRecipe

    class Stub:
        def _make(self, recipe: Any, options: Any) -> MadeRecipe:
            plugin = Plugin("acme", "recipes-acme", "1.0")
            return MadeRecipe(executorch.export.ExportRecipe(name=recipe), plugin, Acme.FP16, options)

    class Acme(RecipeType):
        FP16 = "fp16"

        @classmethod
        def get_backend_name(cls) -> str:
            return "acme"

    monkeypatch.setattr(recipes.recipe.export_recipe, "default_catalog", Stub)

    made = ExportRecipe.get_recipe("acme:fp16", unit=OptionValue("CPU", "given"))

    assert made.name == "acme:fp16"

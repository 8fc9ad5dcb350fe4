"""What holds for combining any recipes: associative, ordered, nothing shared, and equal to ExecuTorch's combine.

A few hundred cases by default; `--hypothesis-profile=thorough`, or RECIPES_HYPOTHESIS_PROFILE=thorough,
runs ten thousand of each property.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
from typing import Any

import pytest

pytest.importorskip("executorch", reason="merging builds ExecuTorch's own recipes")

import executorch.export
import torch
from executorch.backends.apple.coreml.partition.coreml_partitioner import CoreMLPartitioner
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
from executorch.exir.passes import MemoryPlanningPass, ToOutVarPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.export import AOQuantizationConfig, LoweringRecipe, QuantizationRecipe, StageType
from executorch.export.recipe import Mode
from hypothesis import given
from hypothesis import strategies as st
from torchao.quantization.granularity import PerGroup
from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig, IntxWeightOnlyConfig

from recipes.common.errors import RecipeConflictError
from recipes.recipe.export_recipe import ExportRecipe

Theirs = executorch.export.ExportRecipe

pytestmark = pytest.mark.filterwarnings("ignore:This API and all of its related functionality")


def transform_one(*_: Any) -> Any: ...
def transform_two(*_: Any) -> Any: ...
def train_one(*_: Any) -> Any: ...
def calibrate_one() -> list[tuple[int]]:
    return [(1,)]


def calibrate_two() -> list[tuple[int]]:
    return [(2,), (3,)]


def takes_a(module: torch.nn.Module, name: str) -> bool:
    return name == "a"


class Tagged:
    """A pass over a graph, known by its tag."""

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self.notes: list[int] = []

    def __call__(self, graph_module: Any) -> None: ...


def tagged(make: Any) -> Any:
    """Objects that `make` makes, each with a number to know its copies by."""

    def build(tag: int) -> Any:
        made = make()
        made.tag = tag
        return made

    return st.integers(0, 9).map(build)


def few(elements: Any) -> Any:
    return st.one_of(st.none(), st.lists(elements, max_size=2))


def mostly(usual: Any, *others: Any) -> Any:
    """The usual value nine times of ten: else nearly all recipes would conflict somewhere."""
    return st.integers(0, 9).flatmap(lambda n: st.sampled_from(others) if n == 0 else st.just(usual))


PARTITIONERS = st.one_of(
    tagged(lambda: XnnpackPartitioner(configs=None)), tagged(lambda: CoreMLPartitioner(compile_specs=[]))
)
CALLABLES = few(st.sampled_from([transform_one, transform_two]))
OPS = st.lists(st.sampled_from([torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor]), max_size=2)
CONFIGS = st.builds(
    AOQuantizationConfig,
    st.sampled_from(
        [
            IntxWeightOnlyConfig(weight_dtype=torch.int8),
            Int8DynamicActivationIntxWeightConfig(
                weight_dtype=torch.int4,  # type: ignore[attr-defined]  # torch's stubs lack it
                weight_granularity=PerGroup(32),
            ),
        ]
    ),
    st.sampled_from([takes_a, takes_a, None]),
)
QUANTIZATION = st.builds(
    QuantizationRecipe,
    quantizers=few(tagged(XNNPACKQuantizer)),
    ao_quantization_configs=st.one_of(st.none(), st.none(), few(CONFIGS)),
    is_qat=mostly(False, True),
    dynamic_batch_size=st.booleans(),
    calibration_inputs_fn=st.sampled_from([None, calibrate_one, calibrate_two]),
    train_fn=mostly(None, train_one),
    pre_prepare_passes=CALLABLES,
    post_convert_passes=CALLABLES,
)
EDGE = st.builds(
    EdgeCompileConfig,
    _check_ir_validity=st.booleans(),
    _skip_dim_order=mostly(False, True),
    _core_aten_ops_exception_list=OPS,
    preserve_ops=mostly((), [torch.ops.aten.add.Tensor], [torch.ops.aten.mul.Tensor]).map(list),
)
LOWERING = st.builds(
    LoweringRecipe,
    partitioners=mostly(False, True).flatmap(
        lambda by_method: (
            st.dictionaries(st.sampled_from(["forward", "decode"]), st.lists(PARTITIONERS, max_size=2), max_size=2)
            if by_method
            else few(PARTITIONERS)
        )
    ),
    edge_transform_passes=CALLABLES,
    edge_manager_transform_passes=CALLABLES,
    edge_compile_config=st.one_of(st.none(), EDGE),
)
BACKEND = st.builds(
    ExecutorchBackendConfig,
    passes=st.lists(st.integers(0, 2).map(Tagged), max_size=2),
    memory_planning_pass=mostly(
        lambda: MemoryPlanningPass(),
        lambda: MemoryPlanningPass(alignment=32),
        lambda: {"forward": MemoryPlanningPass()},
    ).map(lambda make: make()),
    propagate_device_config=mostly(False, True).map(lambda v: PropagateDeviceConfig(skip_h2d_for_method_inputs=v)),
    to_out_var_pass=mostly(False, True).map(ToOutVarPass),
    segment_alignment=mostly(128, 256, 512),
    extract_delegate_segments=st.booleans(),
    constant_tensor_alignment=mostly(None, 16),
    external_constants=mostly(False, True, transform_one),
    reinplace_extra_ops=mostly(None, frozenset([torch.ops.aten.add.Tensor])),
)


@st.composite
def recipes(draw: Any, count: int) -> list[Any]:
    """Recipes of ExecuTorch's; of each field the values are few, so that two often agree."""
    made = [
        Theirs(
            name=draw(st.sampled_from([None, "x", "y"])),
            quantization_recipe=draw(st.one_of(st.none(), QUANTIZATION)),
            aten_transform_passes=draw(CALLABLES),
            lowering_recipe=draw(st.one_of(st.none(), LOWERING)),
            executorch_backend_config=draw(st.one_of(st.none(), BACKEND)),
            pipeline_stages=None,
        )
        for _ in range(count)
    ]
    # These must agree, so they are drawn once and changed in one recipe at times.
    for name, values in {
        "strict": (True, False),
        "mode": tuple(Mode),
        "source_transform_in_place": (False, True),
        "pipeline_stages": (None, [StageType.TORCH_EXPORT, StageType.TO_EDGE]),
    }.items():
        shared = draw(st.sampled_from(values))
        for recipe in made:
            setattr(recipe, name, copy.copy(shared))
        if draw(st.integers(0, 39)) == 0:
            setattr(made[0], name, copy.copy(draw(st.sampled_from(values))))
    return made


def plain(value: Any) -> Any:
    """A recipe, or anything in one, as data that `==` compares by what it means."""
    if hasattr(value, "tag"):
        return type(value).__name__, value.tag
    if dataclasses.is_dataclass(value) and isinstance(value, (Theirs, *NESTED)):
        names = [f.name for f in dataclasses.fields(value) if f.name != "provenance"]
        calibration = getattr(value, "calibration_inputs_fn", None)
        return {name: plain(getattr(value, name)) for name in names} | {
            "calibration": list(calibration()) if calibration else None,
            "calibration_inputs_fn": None,
        }
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, MemoryPlanningPass):
        return "MemoryPlanningPass", value.alignment, value.alloc_graph_input
    if isinstance(value, ToOutVarPass):
        return "ToOutVarPass", value.ignore_to_out_var_failure
    if isinstance(value, AOQuantizationConfig):
        return repr(value.ao_base_config), value.filter_fn
    if type(value).__repr__ is object.__repr__ and not callable(value):  # type: ignore[comparison-overlap]
        raise AssertionError(f"no plain form for {value!r}")
    return type(value).__name__ if type(value).__module__.startswith("executorch.exir.passes.sym") else value


NESTED = (QuantizationRecipe, LoweringRecipe, EdgeCompileConfig, ExecutorchBackendConfig)


def outcome(combine: Any) -> Any:
    """What a combination gives, with provenance; or that it is refused."""
    try:
        made = combine()
    except RecipeConflictError:
        return "refused"
    return plain(made), made.provenance


@given(recipes(3))
def test_combining_is_associative_in_value_name_and_provenance(made: list[Any]) -> None:
    a, b, c = made
    combine = ExportRecipe.combine

    at_once = outcome(lambda: combine([a, b, c]))

    assert outcome(lambda: combine([combine([a, b]), c])) == at_once
    assert outcome(lambda: combine([a, combine([b, c])])) == at_once


def reachable(value: Any, found: dict[int, Any]) -> dict[int, Any]:
    """Every object that can be changed, as far as attributes and containers lead."""
    unchanging = (str, int, float, bytes, enum.Enum, type, types.ModuleType, types.FunctionType, torch.dtype)
    if value is None or isinstance(value, (*unchanging, torch._ops.OpOverload)) or id(value) in found:
        return found
    if not isinstance(value, tuple | frozenset | types.MappingProxyType) and not (
        dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen  # type: ignore[union-attr]
    ):
        found[id(value)] = value
    if isinstance(value, dict | types.MappingProxyType):
        inside = [*value.keys(), *value.values()]
    else:
        inside = [*value] if isinstance(value, list | tuple | set | frozenset) else []
    for item in [*inside, *getattr(value, "__dict__", {}).values()]:
        reachable(item, found)
    return found


def shared_between(recipe: Any, others: list[Any]) -> list[Any]:
    theirs: dict[int, Any] = {}
    for other in others:
        reachable(other, theirs)
    # A module's loggers and the like are nobody's; deepcopy knows them as well.
    both = reachable(recipe, {}).keys() & theirs.keys()
    return [theirs[i] for i in both if copy.deepcopy(theirs[i]) is not theirs[i]]


@given(recipes(2))
def test_combining_neither_changes_nor_shares_what_it_was_given(made: list[Any]) -> None:
    before = plain(made)
    try:
        combined = ExportRecipe.combine(made)
    except RecipeConflictError:
        assert plain(made) == before
        return

    assert plain(made) == before
    assert shared_between(combined, made) == []
    assert combined.provenance is not None
    assert not any(origin.shared for origin in combined.provenance.origins)


@given(recipes(3))
def test_elements_keep_component_order_and_explain_names_the_giver_of_each(made: list[Any]) -> None:
    for i, recipe in enumerate(made):
        recipe.name = f"r{i}"
    try:
        combined = ExportRecipe.combine(made)
    except RecipeConflictError:
        return

    def given_by(read: Any) -> list[tuple[str, Any]]:
        return [(recipe.name, plain(item)) for recipe in made for item in read(recipe) or ()]

    def told(field: str) -> list[tuple[str, Any]]:
        origins = combined.explain().provenance.origins
        return [(o.sources[0].recipe, plain(o.value)) for o in origins if o.field == field]

    assert told("quantization_recipe.quantizers") == given_by(
        lambda r: r.quantization_recipe and r.quantization_recipe.quantizers
    )
    for method in (None, "forward", "decode"):

        def partitioners(recipe: Any, method: str | None = method) -> Any:
            held: Any = (recipe.lowering_recipe and recipe.lowering_recipe.partitioners) or []
            by_method = isinstance(held, dict)
            return (held.get(method) if by_method else None) if method else (None if by_method else held)

        suffix = f"[{method}]" if method else ""
        assert told(f"lowering_recipe.partitioners{suffix}") == given_by(partitioners)


def without(form: Any, *names: str) -> Any:
    return {name: value for name, value in form.items() if name not in names}


def backend_configs_differ(made: list[Any]) -> bool:
    forms = [plain(r.executorch_backend_config) for r in made if r.executorch_backend_config is not None]
    return any(form != forms[0] for form in forms)


def only_settings_of_quantization(made: list[Any]) -> bool:
    """Whether ExecuTorch would drop quantization settings, for want of a quantizer, config or pass."""
    parts = [r.quantization_recipe for r in made if r.quantization_recipe]
    lists = ("quantizers", "ao_quantization_configs", "pre_prepare_passes", "post_convert_passes")
    return bool(parts) and not any(getattr(part, name) for part in parts for name in lists)


def quantizes_twice(made: list[Any]) -> bool:
    """Whether ExecuTorch would accept torchao configs that it refuses, or gets wrong, minutes later."""
    parts = [r.quantization_recipe for r in made if r.quantization_recipe]
    configs = [config for part in parts for config in part.ao_quantization_configs or ()]
    return any(c.filter_fn is None for c in configs) and (len(configs) > 1 or any(p.quantizers for p in parts))


@given(recipes(2))
def test_what_executorch_accepts_is_accepted_with_an_equal_result(made: list[Any]) -> None:
    try:
        expected = plain(Theirs.combine(copy.copy(made)))
    except ValueError:
        return
    dropped = ["executorch_backend_config"] if backend_configs_differ(made) else []
    dropped += ["quantization_recipe"] if only_settings_of_quantization(made) else []
    try:
        combined = plain(ExportRecipe.combine(made))
    except RecipeConflictError as refused:
        refused_for = {"executorch_backend_config."} if backend_configs_differ(made) else set()
        refused_for |= {"ao_quantization_configs"} if quantizes_twice(made) else set()
        if not any(reason in str(refused) for reason in refused_for):
            raise
        return

    assert without(combined, *dropped) == without(expected, *dropped)


@given(recipes(2))
def test_what_executorch_refuses_is_refused_unless_a_policy_resolves_it(made: list[Any]) -> None:
    try:
        Theirs.combine(made)
    except ValueError as error:
        theirs = str(error)
    else:
        return
    try:
        ExportRecipe.combine(made)
    except RecipeConflictError:
        return
    # Off wins, union, one opinion; and a quantization recipe that sets nothing has no say in is_qat.
    resolved = ("_check_ir_validity", "_core_aten_ops_exception_list", "preserve_ops", "'is_qat'")
    assert any(name in theirs for name in resolved), theirs
    if "_skip_dim_order" in theirs:
        raise AssertionError(theirs)

"""The recipes make the payloads that ExecuTorch's own make, and the payloads are what was asked for."""

from pathlib import Path
from typing import Any

import coremltools as ct
import pytest
import torch
from executorch.backends.apple.coreml import executorchcoreml
from executorch.backends.apple.coreml.compiler import CoreMLBackend
from executorch.backends.apple.coreml.recipes import CoreMLRecipeType as ExecuTorchRecipeType
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.export import ExportRecipe, export

from equal_programs import assert_equal_programs
from recipes import RecipesWarning
from recipes_coreml import CoreMLRecipeType as Type
from recipes_coreml.provider import CoreMLProvider

CODEBOOK = {"bits": 4, "block_size": [-1, 16]}
CASES: list[tuple[Type, dict[str, Any]]] = [
    (Type.FP32, {}),
    (Type.FP16, {}),
    (Type.FP16, {"minimum_deployment_target": ct.target.iOS17, "compute_unit": ct.ComputeUnit.CPU_AND_NE}),
    (Type.FP32, {"skip_ops_for_coreml_delegation": ["aten.relu.default"]}),
    (Type.FP16, {"lower_full_graph": True}),
    (Type.TORCHAO_INT4_WEIGHT_ONLY_PER_CHANNEL, {}),
    (Type.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP, {}),
    (Type.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP, {"group_size": 16}),
    (Type.TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL, {}),
    (Type.TORCHAO_INT8_WEIGHT_ONLY_PER_GROUP, {}),
    (Type.CODEBOOK_WEIGHT_ONLY, CODEBOOK),
    (Type.CODEBOOK_WEIGHT_ONLY, {"bits": 3, "block_size": [8, -1]}),
]
PT2E = [Type.PT2E_INT8_STATIC, Type.PT2E_INT8_WEIGHT_ONLY]
SPECIFICATION_VERSIONS = {"iOS15": 6, "iOS16": 7, "iOS17": 8, "iOS18": 9, "iOS26": 10}


def required(recipe_type: Type) -> dict[str, Any]:
    return dict(CODEBOOK) if recipe_type is Type.CODEBOOK_WEIGHT_ONLY else {}


class SmallNet(torch.nn.Module):
    """A convolution and two linear layers, large enough for Core ML to store their weights in its weight file."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.hidden = torch.nn.Linear(8 * 4 * 4, 64)
        self.out = torch.nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv(x)).flatten(1)
        return self.out(torch.relu(self.hidden(x)))


class Adder(torch.nn.Module):
    """An addition, whose overload has a capital letter, between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) + x)


def make_samples(count: int = 4) -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(1, 3, 4, 4, generator=generator),) for _ in range(count)]


def lower(recipe: Any, model: torch.nn.Module | None = None, samples: Any = None) -> Any:
    """The program of the exported file, each delegate's bytes within it."""
    session = export((model or SmallNet()).eval(), samples or make_samples(), recipe)
    return deserialize_pte_binary(bytes(session.get_pte_buffer())).program


def payloads(program: Any) -> list[bytes]:
    return [bytes(program.backend_delegate_data[d.processed.index].data) for d in program.execution_plan[0].delegates]


def models(program: Any, folder: Path) -> list[Any]:
    """The Core ML specification of each delegate."""
    specs = []
    for number, payload in enumerate(payloads(program)):
        path = folder / str(number)
        path.mkdir(parents=True)
        assert executorchcoreml.unflatten_directory_contents(payload, str(path))
        (package,) = path.rglob("model.mlpackage")
        specs.append(ct.models.MLModel(str(package), skip_model_load=True).get_spec())
    return specs


def operations(spec: Any) -> list[str]:
    (function,) = spec.mlProgram.functions.values()
    (block,) = function.block_specializations.values()
    return [operation.type for operation in block.operations]


def compute_types(spec: Any) -> set[str]:
    """The data types that the matrix products and convolutions of a model give."""
    (function,) = spec.mlProgram.functions.values()
    (block,) = function.block_specializations.values()
    types = type(spec.mlProgram).DESCRIPTOR.file.pool.FindEnumTypeByName("CoreML.Specification.MILSpec.DataType")
    return {
        types.values_by_number[output.type.tensorType.dataType].name
        for operation in block.operations
        if operation.type in ("linear", "conv")
        for output in operation.outputs
    }


# -- the same as ExecuTorch's ---------------------------------------------------------------------


@pytest.mark.parametrize(("recipe_type", "options"), CASES, ids=lambda value: getattr(value, "name", str(value)))
def test_the_payload_is_executorchs(recipe_type: Type, options: dict[str, Any], tmp_path: Path) -> None:
    ours = lower(CoreMLProvider().create_recipe(recipe_type, **options))
    theirs = lower(ExportRecipe.get_recipe(ExecuTorchRecipeType[recipe_type.name], **options))
    assert_equal_programs(ours, theirs, tmp_path)


def test_weights_that_stay_outside_make_executorchs_payload(tmp_path: Path) -> None:
    # A convolution would not convert: Core ML takes its bias as a constant only.
    samples = [(torch.ones(2, 8),)]
    options = {"take_over_constant_data": False}
    ours = lower(CoreMLProvider().create_recipe(Type.FP16, **options), Adder(), samples)
    theirs = lower(ExportRecipe.get_recipe(ExecuTorchRecipeType.FP16, **options), Adder(), samples)
    assert len(ours.execution_plan[0].delegates) == 1
    assert_equal_programs(ours, theirs, tmp_path)


def test_a_filter_chooses_the_same_layers_as_executorchs(tmp_path: Path) -> None:
    def filter_fn(module: torch.nn.Module, name: str) -> bool:
        return name == "out"

    ours = CoreMLProvider().create_recipe(Type.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP, filter_fn=filter_fn)
    theirs = ExportRecipe.get_recipe(ExecuTorchRecipeType.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP, filter_fn=filter_fn)
    assert_equal_programs(lower(ours), lower(theirs), tmp_path)


@pytest.mark.slow  # ExecuTorch's quantizer takes a minute or two for any model
@pytest.mark.parametrize("recipe_type", PT2E)
def test_the_int8_payload_is_executorchs(recipe_type: Type, tmp_path: Path) -> None:
    ours = lower(CoreMLProvider().create_recipe(recipe_type))
    theirs = lower(ExportRecipe.get_recipe(ExecuTorchRecipeType[recipe_type.name]))
    assert_equal_programs(ours, theirs, tmp_path)


@pytest.mark.parametrize("recipe_type", Type)
def test_a_recipe_is_executorchs_and_carries_its_types_value_as_name(recipe_type: Type) -> None:
    recipe = CoreMLProvider().create_recipe(recipe_type, **required(recipe_type))
    assert isinstance(recipe, ExportRecipe)
    assert recipe.name == recipe_type.value


# -- where ExecuTorch's recipe loses what was asked for -------------------------------------------


def asked_target(recipe: Any) -> ct.target | None:
    (partitioner,) = recipe.lowering_recipe.partitioners
    return CoreMLBackend.min_deployment_target_from_compile_specs(partitioner.delegation_spec.compile_specs)


@pytest.mark.parametrize("recipe_type", [t for t in Type if t not in (Type.FP32, Type.FP16)])
def test_a_higher_deployment_target_is_kept_where_executorch_replaces_it(recipe_type: Type) -> None:
    options = {**required(recipe_type), "minimum_deployment_target": ct.target.iOS26}
    ours = CoreMLProvider().create_recipe(recipe_type, **options)
    theirs = ExportRecipe.get_recipe(ExecuTorchRecipeType[recipe_type.name], **options)
    assert asked_target(ours) == ct.target.iOS26
    assert asked_target(theirs) < ct.target.iOS26, "ExecuTorch keeps it now: compare payloads instead"
    assert ours.lowering_recipe.partitioners[0].take_over_mutable_buffer


def delegated_count(recipe: Any) -> int:
    return len(lower(recipe, Adder(), [(torch.ones(2, 8),)]).execution_plan[0].delegates)


def test_an_operator_to_skip_is_skipped_as_it_is_spelt_where_executorch_overlooks_it() -> None:
    options = {"skip_ops_for_coreml_delegation": ["aten.add.Tensor"]}
    assert delegated_count(CoreMLProvider().create_recipe(Type.FP32, **options)) == 2
    assert delegated_count(ExportRecipe.get_recipe(ExecuTorchRecipeType.FP32, **options)) == 1


MISFITS = [
    (Type.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP, {}, "its 20 input features do not divide into groups of 32"),
    (Type.TORCHAO_INT8_WEIGHT_ONLY_PER_GROUP, {}, "its 20 input features do not divide into groups of 32"),
    (
        Type.CODEBOOK_WEIGHT_ONLY,
        {"bits": 4, "block_size": [-1, 16]},
        "its weight of 32 by 20 does not divide into blocks of 32 by 16",
    ),
    (
        Type.CODEBOOK_WEIGHT_ONLY,
        {"bits": 4, "block_size": [4, 64]},
        "its weight of 32 by 20 does not divide into blocks of 4 by 64",
    ),
]


@pytest.mark.parametrize(("recipe_type", "options", "reason"), MISFITS)
def test_a_layer_that_does_not_fit_is_left_in_float_and_named(
    recipe_type: Type, options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    # ExecuTorch's recipe fails here, with an assertion that names no layer.
    model = torch.nn.Sequential(torch.nn.Linear(64, 20), torch.nn.ReLU(), torch.nn.Linear(20, 32))
    with pytest.warns(RecipesWarning, match=f"Layer '2' is left in float: {reason}"):
        program = lower(CoreMLProvider().create_recipe(recipe_type, **options), model, [(torch.ones(1, 64),)])
    (spec,) = models(program, tmp_path)
    assert sum(name.startswith("constexpr") for name in operations(spec)) == 1


def selects(recipe: Any, module: torch.nn.Module) -> bool:
    (config,) = recipe.quantization_recipe.ao_quantization_configs
    return bool(config.filter_fn(module, "layer"))


def everything(module: torch.nn.Module, name: str) -> bool:
    return True


@pytest.mark.parametrize(
    "recipe_type",
    [Type.TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL, Type.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP, Type.CODEBOOK_WEIGHT_ONLY],
)
def test_a_filter_that_chooses_a_convolution_is_told_that_core_ml_cannot(recipe_type: Type) -> None:
    recipe = CoreMLProvider().create_recipe(recipe_type, filter_fn=everything, **required(recipe_type))
    with pytest.warns(RecipesWarning, match="Layer 'layer' is left in float: its weight has 4 dimensions"):
        assert not selects(recipe, torch.nn.Conv2d(32, 32, 3))


def test_blocks_that_span_neither_rows_nor_columns_leave_a_layer_in_float() -> None:
    recipe = CoreMLProvider().create_recipe(Type.CODEBOOK_WEIGHT_ONLY, bits=4, block_size=[8, 8])
    with pytest.warns(RecipesWarning, match="blocks of 8 by 8 span neither all rows nor all columns"):
        assert not selects(recipe, torch.nn.Linear(32, 32))
    assert selects(recipe, torch.nn.Linear(32, 8))


def test_linear_layers_are_quantized_by_default_and_embeddings_by_codebooks_too() -> None:
    weights = CoreMLProvider().create_recipe(Type.TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL)
    codebook = CoreMLProvider().create_recipe(Type.CODEBOOK_WEIGHT_ONLY, **CODEBOOK)
    assert [selects(weights, m) for m in (torch.nn.Linear(32, 32), torch.nn.Embedding(8, 32))] == [True, False]
    assert [selects(codebook, m) for m in (torch.nn.Linear(32, 32), torch.nn.Embedding(8, 32))] == [True, True]
    assert not selects(codebook, torch.nn.ReLU())


# -- what is in the payload -----------------------------------------------------------------------


@pytest.mark.parametrize("target", SPECIFICATION_VERSIONS)
def test_the_model_is_made_for_the_deployment_target(target: str, tmp_path: Path) -> None:
    (spec,) = models(lower(CoreMLProvider().create_recipe(Type.FP16, minimum_deployment_target=target)), tmp_path)
    assert spec.specificationVersion == SPECIFICATION_VERSIONS[target]


def test_without_a_deployment_target_the_oldest_ml_program_is_made(tmp_path: Path) -> None:
    (spec,) = models(lower(CoreMLProvider().create_recipe(Type.FP16)), tmp_path)
    assert spec.specificationVersion == SPECIFICATION_VERSIONS["iOS15"]
    assert CoreMLProvider().describe(Type.FP16).deployment_target == "iOS15"


@pytest.mark.parametrize(("recipe_type", "computes_in"), [(Type.FP32, {"FLOAT32"}), (Type.FP16, {"FLOAT16"})])
def test_the_compute_precision_is_the_recipes(recipe_type: Type, computes_in: set[str], tmp_path: Path) -> None:
    (spec,) = models(lower(CoreMLProvider().create_recipe(recipe_type)), tmp_path)
    assert compute_types(spec) == computes_in
    assert [name for name in operations(spec) if name in ("conv", "linear")] == ["conv", "linear", "linear"]


@pytest.mark.parametrize("unit", ["ALL", "CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE"])
def test_the_compute_unit_is_passed_to_the_device(unit: str) -> None:
    (partitioner,) = CoreMLProvider().create_recipe(Type.FP16, compute_unit=unit).lowering_recipe.partitioners
    specs = partitioner.delegation_spec.compile_specs
    assert CoreMLBackend.compute_unit_from_compile_specs(specs) == ct.ComputeUnit[unit]


@pytest.mark.parametrize(
    ("recipe_type", "version", "constants"),
    [
        (Type.TORCHAO_INT4_WEIGHT_ONLY_PER_CHANNEL, "iOS18", "constexpr_blockwise_shift_scale"),
        (Type.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP, "iOS18", "constexpr_blockwise_shift_scale"),
        (Type.TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL, "iOS16", "constexpr_affine_dequantize"),
        (Type.TORCHAO_INT8_WEIGHT_ONLY_PER_GROUP, "iOS18", "constexpr_blockwise_shift_scale"),
        (Type.CODEBOOK_WEIGHT_ONLY, "iOS18", "constexpr_lut_to_dense"),
    ],
)
def test_weights_are_stored_quantized(recipe_type: Type, version: str, constants: str, tmp_path: Path) -> None:
    program = lower(CoreMLProvider().create_recipe(recipe_type, **required(recipe_type)))
    (spec,) = models(program, tmp_path)
    assert spec.specificationVersion == SPECIFICATION_VERSIONS[version]
    assert operations(spec).count(constants) == 2, "one for each linear layer"
    assert compute_types(spec) == {"FLOAT16"}


def test_int8_quantizes_weights_and_activations(tmp_path: Path) -> None:
    (spec,) = models(lower(CoreMLProvider().create_recipe(Type.PT2E_INT8_STATIC)), tmp_path)
    found = operations(spec)
    assert spec.specificationVersion == SPECIFICATION_VERSIONS["iOS17"]
    assert found.count("constexpr_affine_dequantize") == 3
    # The input, and what each of the three layers gives.
    assert found.count("quantize") == found.count("dequantize") == 4


def test_int8_weight_only_leaves_activations_in_float(tmp_path: Path) -> None:
    (spec,) = models(lower(CoreMLProvider().create_recipe(Type.PT2E_INT8_WEIGHT_ONLY)), tmp_path)
    found = operations(spec)
    assert found.count("constexpr_affine_dequantize") == 3
    assert "quantize" not in found


class Counter(torch.nn.Module):
    """A model that updates a buffer of its own."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


@pytest.mark.parametrize(("target", "states"), [("iOS17", 0), ("iOS18", 1)])
def test_a_buffer_that_the_model_updates_is_state_where_the_system_has_it(
    target: str, states: int, tmp_path: Path
) -> None:
    recipe = CoreMLProvider().create_recipe(Type.FP32, minimum_deployment_target=target)
    specs = models(lower(recipe, Counter(), [(torch.ones(4),)]), tmp_path)
    assert sum(len(spec.description.state) for spec in specs) == states


def test_a_buffer_stays_outside_when_core_ml_is_told_not_to_take_it(tmp_path: Path) -> None:
    recipe = CoreMLProvider().create_recipe(
        Type.FP32, minimum_deployment_target="iOS18", take_over_mutable_buffer=False
    )
    specs = models(lower(recipe, Counter(), [(torch.ones(4),)]), tmp_path)
    assert specs
    assert not any(spec.description.state for spec in specs)

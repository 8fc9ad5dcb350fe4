"""An export from end to end on the portable kernels, which need no plugin: what it keeps, tells and refuses."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("executorch", reason="export works on torch models")

import executorch.export
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.backends.xnnpack.utils.configs import get_xnnpack_edge_compile_config
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
from executorch.export import AOQuantizationConfig, LoweringRecipe, QuantizationRecipe, StageType
from executorch.runtime import Runtime

from recipes import (
    ArgumentError,
    ExportError,
    ExportRecipe,
    ExportSession,
    RecipeConflictError,
    RecipesWarning,
    SaveError,
    StageProgress,
    export,
)

# Most of these exports quantize for other reasons than accuracy.
pytestmark = pytest.mark.filterwarnings("ignore:.*calibration-one-sample:recipes.RecipesWarning")

PORTABLE = ExportRecipe(name="portable")


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def run(program: bytes, *inputs: torch.Tensor, method: str = "forward") -> Any:
    return Runtime.get().load_program(program).load_method(method).execute(list(inputs))


def int8(**fields: Any) -> ExportRecipe:
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    quantization = QuantizationRecipe(quantizers=[quantizer], **fields.pop("quantization", {}))
    lowering = LoweringRecipe([XnnpackPartitioner()], edge_compile_config=get_xnnpack_edge_compile_config())
    return ExportRecipe(name="int8", quantization_recipe=quantization, lowering_recipe=lowering, **fields)


def test_a_model_becomes_a_file_that_computes_the_same(tmp_path: Path) -> None:
    model, x = Small().eval(), torch.rand(2, 4)
    session = export(model, PORTABLE, (x,))
    path = session.save_pte_file(tmp_path / "model.pte")
    torch.testing.assert_close(run(path.read_bytes(), x)[0], model(x))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.pte", "model.pte.json"]


def test_the_file_is_the_one_that_executorch_makes_and_its_own_export_takes_our_recipe() -> None:
    model, x = Small().eval(), torch.rand(2, 4)
    theirs = executorch.export.export(model, [(x,)], executorch.export.ExportRecipe(name="portable"))
    ours_there = executorch.export.export(model, [(x,)], PORTABLE)
    assert export(model, PORTABLE, x).get_pte_buffer() == theirs.get_pte_buffer() == ours_there.get_pte_buffer()


def test_every_method_of_executorchs_session_is_there() -> None:
    session = export(Small().eval(), PORTABLE, torch.rand(2, 4))
    assert isinstance(session, executorch.export.ExportSession)
    assert session.get_exported_program() is not None
    assert session.get_edge_program_manager() is not None
    assert session.get_executorch_program() is not None
    assert session.run_method()[0].shape == (2, 3)
    assert session.get_registered_stage(StageType.TORCH_EXPORT).can_start_pipeline


def test_several_methods_are_exported_each_with_its_own_inputs() -> None:
    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    x, y = torch.rand(2, 4), torch.rand(3)
    session = export({"encode": Small().eval(), "double": Double()}, PORTABLE, {"encode": x, "double": [(y,)]})
    torch.testing.assert_close(run(session.get_pte_buffer(), y, method="double")[0], y * 2)
    assert run(session.get_pte_buffer(), x, method="encode")[0].shape == (2, 3)


def test_an_exported_program_and_a_pt2_file_are_exported_as_they_are(tmp_path: Path) -> None:
    model, x = Small().eval(), torch.rand(2, 4)
    program = torch.export.export(model, (x,))
    torch.export.save(program, tmp_path / "small.pt2")
    for given in (program, tmp_path / "small.pt2", str(tmp_path / "small.pt2")):
        torch.testing.assert_close(run(export(given, PORTABLE).get_pte_buffer(), x)[0], model(x))


def test_constant_methods_are_in_the_program() -> None:
    session = export(Small().eval(), PORTABLE, torch.rand(2, 4), constant_methods={"version": 7})
    assert run(session.get_pte_buffer(), method="version") == [7]


@pytest.mark.parametrize("recipe", [PORTABLE, int8()], ids=["float", "int8"])
@pytest.mark.parametrize("strict", [True, False])
def test_dynamic_shapes_hold_in_every_stage(recipe: ExportRecipe, strict: bool) -> None:
    class Flatten(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 2, 3)
            self.linear = torch.nn.Linear(2 * 16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.conv(x).reshape(x.shape[0], -1))

    model = Flatten().eval()
    samples = [(torch.rand(n, 1, 6, 6),) for n in (3, 1, 5)]
    shapes = {"x": {0: torch.export.Dim("batch", min=1, max=16)}}
    session = export(model, recipe.derive(strict=strict), samples, dynamic_shapes=shapes)
    for size in (1, 2, 16):
        x = torch.rand(size, 1, 6, 6)
        tolerance = 1e-5 if recipe is PORTABLE else 0.15
        torch.testing.assert_close(run(session.get_pte_buffer(), x)[0], model(x), atol=tolerance, rtol=tolerance)


def test_a_dynamic_size_that_torch_finds_endless_is_refused_before_lowering() -> None:
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    with pytest.raises(ArgumentError, match="dimension 0 of 'x' in method 'forward' has no upper bound"):
        export(Small().eval(), PORTABLE, torch.rand(2, 4), dynamic_shapes=shapes)
    bounded = ({0: torch.export.Dim.DYNAMIC(max=16)},)
    assert export(Small().eval(), PORTABLE, torch.rand(2, 4), dynamic_shapes=bounded).get_pte_buffer()


def test_constant_methods_do_not_take_the_place_of_a_method() -> None:
    with pytest.raises(ArgumentError, match="constant_methods names 'forward'"):
        export(Small().eval(), PORTABLE, torch.rand(2, 4), constant_methods={"forward": 3})
    with pytest.raises(ArgumentError, match="constant_methods is a list"):
        export(Small().eval(), PORTABLE, torch.rand(2, 4), constant_methods=[3])  # type: ignore[arg-type]


def test_strict_false_holds_in_every_stage() -> None:
    class Reads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * json.loads("[2]")[0]

    with pytest.raises(ExportError, match=r"strict=False") as caught:
        export(Reads().eval(), int8(), torch.rand(2, 4))
    assert caught.value.stage == "quantize"
    session = export(Reads().eval(), int8().derive(strict=False), torch.rand(2, 4))
    assert "dequantize" in str(session.get_exported_program().graph)


@pytest.mark.parametrize("form", ["list", "function", "generator", "dict"])
def test_calibration_inputs_set_the_ranges(form: str) -> None:
    model = Small().eval()
    x = torch.rand(2, 4)
    wide = [(torch.full((2, 4), 50.0),), (torch.full((2, 4), -50.0),)]
    given: Any = {
        "list": wide, "function": lambda: wide, "generator": (s for s in wide), "dict": {"forward": wide}
    }[form]  # fmt: skip
    narrow_scale, wide_scale = (
        _input_scale(export(model, int8(), x, calibration_inputs=calibration)) for calibration in (None, given)
    )
    assert narrow_scale < 0.01
    assert wide_scale > 0.1


def _input_scale(session: ExportSession) -> float:
    graph = session.get_exported_program().graph
    return float(next(n.args[1] for n in graph.nodes if ".quantize_per_tensor" in str(n.target)))


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        ([(torch.rand(2, 4), torch.rand(2, 4))], r"calibration_inputs\[0\] does not fit"),
        ([], "calibration_inputs for method 'forward' is empty"),
        ((s for s in list[Any]()), "no calibration sample for method 'forward'"),
        ([(torch.rand(2, 5),)], "Calibration sample 0 of method 'forward' does not run"),
        (torch.rand(2, 4), "calibration_inputs for method 'forward' is a Tensor"),
        ([3.0], r"calibration_inputs\[0\] is a float"),
        ({"backward": [(torch.rand(2, 4),)]}, "methods are forward"),
    ],
)
def test_calibration_inputs_that_cannot_be_are_refused(calibration: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        export(Small().eval(), int8(), torch.rand(2, 4), calibration_inputs=calibration)


def test_calibration_inputs_beside_the_recipes_own_are_refused() -> None:
    recipe = int8(quantization={"calibration_inputs_fn": lambda: [(torch.rand(2, 4),)]})
    with pytest.raises(ArgumentError, match="has its own calibration_inputs_fn"):
        export(Small().eval(), recipe, torch.rand(2, 4), calibration_inputs=[(torch.rand(2, 4),)])


def test_quantizing_leaves_the_callers_model_and_its_modes_alone() -> None:
    model = Small().eval()
    model.linear.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trained: list[Any] = []
    export(model, int8(quantization={"is_qat": True, "train_fn": trained.append}), torch.rand(2, 4))
    assert len(trained) == 1
    assert (model.training, model.linear.training) == (False, True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_calibration_moves_neither_the_callers_buffers_nor_those_that_the_file_starts_from() -> None:
    class Counter(torch.nn.Module):
        total: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 4)
            self.register_buffer("total", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(1)
            return self.linear(x) + self.total

    model, samples = Counter().eval(), [(torch.rand(2, 8),) for _ in range(5)]
    expected = [model.linear(samples[0][0]) + 1 + times for times in (1, 2)]
    session = export(model, int8(), samples)
    assert torch.equal(model.total, torch.ones(4))
    program = Runtime.get().load_program(session.get_pte_buffer())
    method = program.load_method("forward")
    for value in expected:
        torch.testing.assert_close(method.execute(list(samples[0]))[0].clone(), value, atol=0.1, rtol=0)


def test_exporting_leaves_the_recipe_as_it_was() -> None:
    recipe = ExportRecipe(name="mine", lowering_recipe=LoweringRecipe(edge_compile_config=EdgeCompileConfig()))
    recipe.lowering_recipe.partitioners = [XnnpackPartitioner()]
    before = copy.deepcopy(recipe.lowering_recipe.edge_compile_config)
    export(Small().eval(), recipe, torch.rand(2, 4))
    assert recipe.lowering_recipe.edge_compile_config == before


def test_progress_is_told_at_the_start_and_the_end_of_each_stage() -> None:
    told: list[StageProgress] = []
    export(Small().eval(), PORTABLE, torch.rand(2, 4), progress=told.append)
    stages = ["source_transform", "quantize", "torch_export", "to_edge_transform_and_lower", "to_executorch"]
    assert [(event.stage, event.state) for event in told] == [(s, e) for s in stages for e in ("started", "finished")]
    assert all(event.seconds > 0 for event in told if event.state == "finished")


def test_a_failing_stage_is_named_and_its_cause_kept() -> None:
    class Breaks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum() > 0 else x

    told: list[StageProgress] = []
    with pytest.raises(ExportError, match="failed at the stage torch_export") as caught:
        export(Breaks(), PORTABLE, torch.rand(2, 4), progress=told.append)
    assert caught.value.stage == "torch_export"
    assert caught.value.__cause__ is not None
    assert told[-1].state == "failed"


def test_stages_that_cannot_follow_each_other_are_refused() -> None:
    recipe = ExportRecipe(name="odd", pipeline_stages=[StageType.TO_EXECUTORCH])
    with pytest.raises(ArgumentError, match="stages of the recipe 'odd' cannot be run"):
        export(Small().eval(), recipe, torch.rand(2, 4))


def test_a_stage_of_ones_own_is_run() -> None:
    session = ExportSession(Small().eval(), PORTABLE, torch.rand(2, 4))
    seen: list[Any] = []

    class Mine(type(session.get_registered_stage(StageType.QUANTIZE)._stage)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(None, strict=True, calibration_inputs=None)

        def run(self, artifact: Any) -> None:
            seen.append(artifact)
            super().run(artifact)

    session.register_stage(StageType.QUANTIZE, Mine())
    session.export()
    assert len(seen) == 1


def test_a_captured_model_that_a_recipe_would_have_quantized_is_told() -> None:
    program = torch.export.export(Small().eval(), (torch.rand(2, 4),))
    with pytest.warns(RecipesWarning, match="method 'forward' is not quantized.*Pass the nn.Module"):
        export(program, int8())
    quantized = export(Small().eval(), int8(), torch.rand(2, 4)).get_exported_program()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecipesWarning)
        export(quantized, int8())


def test_two_torchao_configs_act_on_the_layers_that_their_filters_choose() -> None:
    from torchao.quantization.granularity import PerAxis
    from torchao.quantization.quant_api import IntxWeightOnlyConfig

    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(32, 32)
            self.second = torch.nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    def config(dtype: torch.dtype, name: str) -> ExportRecipe:
        def chosen(module: torch.nn.Module, path: str) -> bool:
            return path.startswith(name)

        ao = AOQuantizationConfig(IntxWeightOnlyConfig(weight_dtype=dtype, granularity=PerAxis(0)), chosen)
        captured = [StageType.SOURCE_TRANSFORM, StageType.QUANTIZE, StageType.TORCH_EXPORT]
        quantization = QuantizationRecipe(ao_quantization_configs=[ao])
        return ExportRecipe(name=name, quantization_recipe=quantization, pipeline_stages=captured)

    x = torch.rand(2, 32)
    int4: torch.dtype = torch.int4  # type: ignore[attr-defined]  # torch's stubs lack it
    both = ExportRecipe.combine([config(torch.int8, "first"), config(int4, "second")])
    graph = export(Pair().eval(), both, x).get_exported_program().graph
    assert sum("dequantize_affine" in str(node.target) for node in graph.nodes) == 2
    clash = ExportRecipe.combine([config(torch.int8, "first"), config(int4, "fir")])
    with pytest.raises(ValueError, match="first"):
        export(Pair().eval(), clash, x)


def test_saving_without_a_program_says_what_to_call(tmp_path: Path) -> None:
    session = ExportSession(Small().eval(), PORTABLE, torch.rand(2, 4))
    with pytest.raises(ExportError, match=r"call export\(\) first"):
        session.save_pte_file(tmp_path / "model.pte")


def test_saving_where_no_file_can_be_is_refused(tmp_path: Path) -> None:
    session = export(Small().eval(), PORTABLE, torch.rand(2, 4))
    with pytest.raises(SaveError, match="does not exist"):
        session.save_pte_file(tmp_path / "missing" / "model.pte")
    with pytest.raises(SaveError, match="it is a folder"):
        session.save_pte_file(tmp_path)
    with pytest.raises(SaveError, match="does not exist"):
        session.save_to_pte(str(tmp_path / "missing" / "model"))
    session.save_to_pte(str(tmp_path / "model"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.pte", "model.pte.json"]


def test_weights_that_a_recipe_keeps_outside_of_the_program_are_saved_beside_it(tmp_path: Path) -> None:
    recipe = ExportRecipe(name="external", executorch_backend_config=ExecutorchBackendConfig(external_constants=True))
    model, x = Small().eval(), torch.rand(2, 4)
    session = export(model, recipe, x)
    session.save_pte_file(tmp_path / "model.pte")
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names[1:] == ["model.pte", "model.pte.json"]
    assert names[0].endswith(".ptd")
    assert (tmp_path / names[0]).stat().st_size > 4 * 3 * 4


def test_artifacts_are_kept_where_a_folder_is_given(tmp_path: Path) -> None:
    export(Small().eval(), PORTABLE, torch.rand(2, 4), artifact_dir=tmp_path / "kept", generate_etrecord=True)
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == ["etrecord.bin", "forward.pt2"]
    assert torch.export.load(tmp_path / "kept" / "forward.pt2").module()(torch.rand(2, 4)).shape == (2, 3)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SaveError, match="Cannot write artifacts"):
        export(Small().eval(), PORTABLE, torch.rand(2, 4), artifact_dir=tmp_path / "file")


class SizesFromData(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows: Any = n.item()
        torch._check(rows >= 0)
        torch._check(rows <= x.shape[0])
        return torch.narrow(x, 0, 0, rows) * 2, torch.nonzero(x.flatten() > 0)


def test_sizes_that_depend_on_data_are_exported_reported_and_run() -> None:
    shapes = ({0: torch.export.Dim("batch", min=2, max=16)}, None)
    example = (torch.randn(8, 4), torch.tensor(3))
    session = export(SizesFromData(), ExportRecipe(name="plain"), example, dynamic_shapes=shapes)
    assert "aten.nonzero" in str(session.report())
    inputs = (torch.randn(16, 4), torch.tensor(5))
    program = Runtime.get().load_program(bytes(session.get_pte_buffer()))
    method = program.load_method("forward")
    assert method is not None
    for got, expected in zip(method.execute(list(inputs)), SizesFromData()(*inputs), strict=True):
        torch.testing.assert_close(got, expected)


class UnfoldedQuantizer(XNNPACKQuantizer):  # type: ignore[misc]
    fold_quantize = False


@pytest.mark.parametrize(("kind", "folds"), [(XNNPACKQuantizer, True), (UnfoldedQuantizer, False)])
def test_weights_become_integers_unless_the_quantizer_says_that_they_are_not_folded(
    kind: type[XNNPACKQuantizer], folds: bool
) -> None:
    quantizer = kind().set_global(get_symmetric_quantization_config())
    recipe = ExportRecipe(name="int8", quantization_recipe=QuantizationRecipe(quantizers=[quantizer]))
    session = export(Small().eval(), recipe, torch.rand(2, 4))
    program = session.get_exported_program()
    kept = {**program.state_dict, **program.constants}
    assert (torch.int8 in {value.dtype for value in kept.values() if value.shape == (3, 4)}) == folds
    assert any("quantize_per_tensor" in str(node.target) for node in program.graph.nodes)


def test_quantizers_of_both_kinds_in_one_recipe_are_refused() -> None:
    config = get_symmetric_quantization_config()
    quantizers = [XNNPACKQuantizer().set_global(config), UnfoldedQuantizer().set_global(config)]
    recipe = ExportRecipe(name="both", quantization_recipe=QuantizationRecipe(quantizers=quantizers))
    with pytest.raises(RecipeConflictError, match=r"fold_quantize=False next to others: .*UnfoldedQuantizer"):
        export(Small().eval(), recipe, torch.rand(2, 4))

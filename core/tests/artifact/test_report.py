"""The report of an export: shares of work, partitions, what was not delegated or quantized and why, sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("executorch", reason="export works on torch models")

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.backends.xnnpack.utils.configs import get_xnnpack_edge_compile_config
from executorch.exir import ExecutorchBackendConfig
from executorch.export import LoweringRecipe, QuantizationRecipe, StageType

from recipes import ArgumentError, ExportError, ExportRecipe, ExportSession, RecipesWarning, export
from recipes.executorch.delegation import delegation
from recipes.executorch.probe import Fallback

pytestmark = pytest.mark.filterwarnings("ignore:.*calibration-one-sample:recipes.RecipesWarning")

PORTABLE = ExportRecipe(name="portable")
BACKEND = "XnnpackBackend"


def delegating(**fields: Any) -> ExportRecipe:
    lowering = LoweringRecipe([XnnpackPartitioner()], edge_compile_config=get_xnnpack_edge_compile_config())
    return ExportRecipe(name="delegating", lowering_recipe=lowering, **fields)


def int8() -> ExportRecipe:
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    return delegating(quantization_recipe=QuantizationRecipe(quantizers=[quantizer]))


class Sums(torch.nn.Module):
    """Linear layers, each followed by a cumulative sum, which no backend here takes."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cumsum(layer(x), -1)
        return x


class Mixed(torch.nn.Module):
    """A float32 layer, and one in float64 with three times the work."""

    def __init__(self) -> None:
        super().__init__()
        self.small = torch.nn.Linear(8, 8)
        self.big = torch.nn.Linear(8, 24).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.big(self.small(x).double())


def test_partitions_are_counted_and_what_splits_them_is_named() -> None:
    report = export(Sums(12).eval(), delegating(), torch.rand(2, 8)).report()
    (method,) = report.methods
    assert method.partitions == {BACKEND: 12}
    assert method.split_by == {"aten.cumsum": 11}  # the last one stands after all parts
    assert method.backends() == {BACKEND: (12, 1.0), "": (12, 0.0)}
    text = str(report)
    assert "Split by: aten.cumsum (11)" in text
    assert "In kernels: aten.cumsum (12)" in text


def test_what_stands_beside_the_parts_does_not_split_them() -> None:
    class Beside(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.cumsum(self.linear(torch.cumsum(x, 0)), 0), torch.cumsum(y, 0)

    report = export(Beside().eval(), delegating(), (torch.rand(2, 8), torch.rand(3))).report()
    assert report.methods[0].split_by == {}


@pytest.mark.parametrize("recipe", [PORTABLE, delegating()], ids=["kernels", "delegated"])
@pytest.mark.parametrize(
    ("model", "shape", "multiply_adds"),
    [
        (torch.nn.Linear(4, 3), (2, 4), 2 * 4 * 3),
        (torch.nn.Conv2d(3, 4, 3), (2, 3, 6, 6), 2 * 4 * 16 * 3 * 9),
        (torch.nn.Conv2d(4, 4, 3, groups=4), (1, 4, 6, 6), 4 * 16 * 9),
    ],
    ids=["linear", "convolution", "depthwise"],
)
def test_work_is_counted_in_multiply_adds(
    recipe: ExportRecipe, model: torch.nn.Module, shape: tuple[int, ...], multiply_adds: int
) -> None:
    (method,) = export(model.eval(), recipe, torch.rand(shape)).report().methods
    assert (method.unit, method.work) == ("multiply-adds", multiply_adds)


class Composites(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        y = torch.einsum("bij,bkj->bik", y, y) @ y
        return torch.nn.functional.linear(self.lstm(y)[0], y[0])


def test_an_operator_that_is_kept_whole_counts_as_what_it_is_made_of() -> None:
    program = torch.export.export(Composites().eval(), (torch.rand(2, 4, 8),))
    whole = delegation("forward", program.graph_module)
    decomposed = delegation("forward", program.run_decompositions().graph_module)
    assert "aten.scaled_dot_product_attention" in {share.name for share in whole.operators}
    assert "aten.scaled_dot_product_attention" not in {share.name for share in decomposed.operators}
    assert whole.work == decomposed.work > 0


def test_a_method_without_products_is_counted_in_elements() -> None:
    (method,) = export(torch.nn.ReLU(), delegating(), torch.rand(2, 3)).report().methods
    assert (method.unit, method.work, method.delegated) == ("elements", 6, 1.0)


def test_branches_are_looked_into() -> None:
    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda y: self.linear(y), lambda y: y + 1, (x,))

    (method,) = export(Branches().eval(), PORTABLE, torch.rand(2, 4)).report().methods
    assert method.work == 2 * 4 * 4


def test_methods_are_reported_each_by_itself() -> None:
    models = {"encode": Sums(1).eval(), "square": torch.nn.Linear(4, 4).eval()}
    report = export(models, delegating(), {"encode": torch.rand(2, 8), "square": torch.rand(1, 4)}).report()
    assert {method.method: method.work for method in report.methods} == {"encode": 128, "square": 16}


def test_nothing_delegated_is_a_warning_that_names_the_operators_and_their_data_type() -> None:
    with pytest.warns(RecipesWarning, match=r"nothing of its work.*aten.addmm \(2 calls, 100.0%, float64\).*float64"):
        session = export(Sums(2).eval().double(), delegating(), torch.rand(2, 8).double())
    assert [finding.code for finding in session.findings] == ["no-delegation"]
    assert "no-delegation" in str(session.report())


def test_little_delegated_is_a_warning_with_the_share() -> None:
    with pytest.warns(RecipesWarning, match=r"only 25.0% of its work \(multiply-adds\)"):
        session = export(Mixed().eval(), delegating(), torch.rand(2, 8))
    assert [finding.code for finding in session.findings] == ["low-delegation"]


def test_a_recipe_that_delegates_nothing_on_purpose_is_no_warning() -> None:
    assert export(Sums(1).eval(), PORTABLE, torch.rand(2, 8)).findings == []


def test_less_delegation_than_is_required_is_an_error_with_the_share_and_the_biggest_operators() -> None:
    with pytest.raises(
        ExportError, match=r"method 'forward': 25.0% of its work.*aten.addmm \(1 calls, 75.0%"
    ) as caught:
        export(Mixed().eval(), delegating(), torch.rand(2, 8), require_delegation=0.9)
    assert caught.value.stage == "to_edge_transform_and_lower"
    export(Sums(2).eval(), delegating(), torch.rand(2, 8), require_delegation=1)


@pytest.mark.filterwarnings("ignore:.*low-delegation:recipes.RecipesWarning")
def test_the_required_share_is_a_bound() -> None:
    export(Mixed().eval(), delegating(), torch.rand(2, 8), require_delegation=0.25)
    with pytest.raises(ExportError):
        export(Mixed().eval(), delegating(), torch.rand(2, 8), require_delegation=0.2501)


def test_a_required_share_that_cannot_be_checked_is_an_error() -> None:
    stages = [StageType.SOURCE_TRANSFORM, StageType.QUANTIZE, StageType.TORCH_EXPORT]
    with pytest.raises(ExportError, match="end before anything is delegated"):
        export(Sums(1).eval(), PORTABLE.derive(pipeline_stages=stages), torch.rand(2, 8), require_delegation=0.5)


@pytest.mark.parametrize("share", [90, 1.01, -0.1, True, "0.9", float("nan")])
def test_a_required_share_that_is_none_is_refused_before_any_work(share: Any) -> None:
    with pytest.raises(ArgumentError, match="require_delegation is"):
        export(None, None, None, require_delegation=share)


def test_a_recipe_that_quantizes_no_layer_says_what_it_looked_for_and_what_there_is() -> None:
    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0]

    with pytest.warns(
        RecipesWarning, match=r"quantized no layer. It looked for XNNPACKQuantizer: .*linear.*LSTM \(1\)"
    ):
        session = export(Recurrent().eval(), int8(), torch.rand(2, 3, 8))
    assert session.report().quantized == {"forward": 0}


def test_torchao_configs_that_choose_no_layer_are_told_likewise() -> None:
    from executorch.export import AOQuantizationConfig
    from torchao.quantization.granularity import PerAxis
    from torchao.quantization.quant_api import IntxWeightOnlyConfig

    def nothing(module: torch.nn.Module, path: str) -> bool:
        return False

    config = AOQuantizationConfig(IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0)), nothing)
    recipe = delegating(quantization_recipe=QuantizationRecipe(ao_quantization_configs=[config]))
    with pytest.warns(
        RecipesWarning, match=r"IntxWeightOnlyConfig on the layers that .*nothing chooses; the model has Linear \(1\)"
    ):
        export(torch.nn.Sequential(torch.nn.Linear(8, 8)).eval(), recipe, torch.rand(2, 8))


def test_quantized_operators_are_counted() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)).eval()
    report = export(model, int8(), torch.rand(2, 8)).report()
    assert report.quantized["forward"] >= 2
    assert "Operators on quantized tensors" in str(report)


def test_what_became_of_operators_that_were_to_be_kept_whole_is_told() -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.hardswish(self.linear(x))

    recipe = delegating().derive(preserve_ops=[torch.ops.aten.silu.default, torch.ops.aten.hardswish.default])
    rows = {row["operator"]: row for row in export(Attention().eval(), recipe, torch.rand(2, 8)).report().kept_whole}
    assert rows["aten.linear"]["asked_by"] == ["XnnpackPartitioner"]
    assert (rows["aten.linear"]["captured"], rows["aten.linear"]["delegated"]) == (1, 1)
    assert rows["aten.silu"] == {
        "method": "forward",
        "operator": "aten.silu",
        "asked_by": ["preserve_ops"],
        "captured": 0,
        "delegated": 0,
        "kernels": 0,
    }
    assert rows["aten.hardswish"]["captured"] == 1


def test_what_fell_back_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    session = export(Sums(1).eval(), delegating(), torch.rand(2, 8))
    fallback = Fallback("forward", "aten_linear", "aten.linear.default", "model.py:3 in forward", "Acme", "no time")
    monkeypatch.setattr(type(session), "fallbacks", property(lambda self: [fallback]))
    report = session.report()
    assert report.to_dict()["fallbacks"][0]["reason"] == "no time"
    assert "model.py:3 in forward" in str(report)


def test_sizes_add_up_to_the_file_and_memory_is_what_was_planned(tmp_path: Path) -> None:
    session = export(Sums(2).eval(), PORTABLE, torch.rand(2, 8))
    record = session.report().to_dict()
    path = session.save_pte_file(tmp_path / "model.pte")
    assert sum(record["sizes"].values()) == record["bytes"] == path.stat().st_size
    assert record["sizes"]["constants"] >= 2 * 4 * (64 + 8)
    planned = session.get_executorch_program().execution_plan[0].non_const_buffer_sizes[1:]
    assert record["memory"] == {"forward": planned}


def test_data_files_are_sized_by_themselves(tmp_path: Path) -> None:
    recipe = PORTABLE.derive(external_constants=True)
    assert recipe.executorch_backend_config.external_constants
    session = export(Sums(1).eval(), recipe, torch.rand(2, 8))
    session.save_pte_file(tmp_path / "model.pte")
    written = {path.name: path.stat().st_size for path in tmp_path.glob("*.ptd")}
    assert session.report().data_files == written
    assert written


def test_options_and_decisions_come_from_the_recipes_provenance() -> None:
    config = ExecutorchBackendConfig(extract_delegate_segments=False)
    report = export(Sums(1).eval(), PORTABLE.derive(executorch_backend_config=config), torch.rand(2, 8)).report()
    assert "executorch_backend_config" in str([o.field for o in report.explanation.provenance.origins])
    assert report.to_dict()["decisions"] == []


def test_a_report_is_plain_data_and_the_same_text_each_time() -> None:
    session = export(Sums(1).eval(), delegating(), torch.rand(2, 8))
    report = session.report()
    record = json.loads(json.dumps(report.to_dict()))
    assert set(record["seconds"]) == {
        "source_transform", "quantize", "torch_export", "to_edge_transform_and_lower", "to_executorch"
    }  # fmt: skip
    assert str(report) == str(session.report())
    assert max(map(len, str(report).splitlines())) <= 120


def test_before_the_export_there_is_nothing_to_report() -> None:
    report = ExportSession(Sums(1).eval(), PORTABLE, torch.rand(2, 8)).report()
    assert (report.methods, report.contents, report.seconds) == ((), None, {})
    assert "portable" in str(report)

"""Reports, manifests and verification of what the real plugins make."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from recipes import ExportError, RecipesWarning, export, get_target_recipe, inspect_program, verify_program
from recipes.cli.app import cli

FP32 = "linux-x86_64-xnnpack-fp32"
INT8 = "linux-x86_64-xnnpack-int8"
COREML = "ios-arm64-coreml-fp16"

pytestmark = pytest.mark.filterwarnings("ignore:.*calibration-one-sample:recipes.RecipesWarning")


def sums(layers: int) -> Any:
    import torch

    class Sums(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(layers))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.cumsum(layer(x), -1)
            return x

    return Sums().eval()


def test_partitions_and_the_operator_that_splits_them_are_in_the_report() -> None:
    import torch

    report = export(sums(12), FP32, torch.rand(2, 8)).report()
    assert report.methods[0].partitions == {"XnnpackBackend": 12}
    assert list(report.methods[0].split_by) == ["aten.cumsum"]
    assert "Split by: aten.cumsum" in str(report)


def test_a_model_in_float64_is_told_to_run_on_kernels_alone_and_refused_where_delegation_is_required() -> None:
    import torch

    model, x = sums(1).double(), torch.rand(2, 8).double()
    with pytest.warns(RecipesWarning, match=r"nothing of its work.*float64.*model\.float\(\)"):
        export(model, FP32, x)
    with pytest.raises(ExportError, match=r"0\.0% of its work.*float64"):
        export(model, FP32, x, require_delegation=0.5)


def test_an_lstm_that_an_int8_target_leaves_in_float_is_told() -> None:
    import torch

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0]

    with pytest.warns(RecipesWarning, match=r"quantized no layer. It looked for .*linear.*the model has LSTM \(1\)"):
        session = export(Recurrent().eval(), INT8, torch.rand(2, 3, 8))
    assert "not-quantized" in str(session.report())


@pytest.mark.parametrize("target", [FP32, INT8, COREML])
@pytest.mark.parametrize("name", ["convolution", "bert"])
def test_a_usual_model_is_delegated_without_a_word(workload: Callable[[str], Any], name: str, target: str) -> None:
    load = workload(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecipesWarning)
        session = export(load.model, target, load.calibration, require_delegation=0.9)
    assert session.findings == []


def test_options_with_their_sources_are_in_the_report() -> None:
    import torch

    recipe = get_target_recipe(COREML, compute_unit="CPU_AND_NE")
    rows = {row["option"]: row for row in export(sums(1), recipe, torch.rand(2, 8)).report().options()}
    assert rows["compute_unit"]["source"] == "given"
    assert "CPU_AND_NE" in str(rows["compute_unit"]["value"])
    assert rows["minimum_deployment_target"]["source"] != "given"


def test_two_exports_whose_bytes_differ_have_one_fingerprint(tmp_path: Path) -> None:
    import torch

    paths = [export(sums(1), COREML, torch.ones(2, 8)).save_pte_file(tmp_path / f"{number}.pte") for number in range(2)]
    assert paths[0].read_bytes() != paths[1].read_bytes()
    manifests = [inspect_program(path).state.manifest for path in paths]
    assert manifests[0] is not None
    assert manifests[1] is not None
    assert manifests[0]["fingerprint"] == manifests[1]["fingerprint"]
    assert "coremltools" in manifests[0]["versions"]
    assert "recipes-coreml" in manifests[0]["versions"]


def test_options_are_in_the_fingerprint(tmp_path: Path) -> None:
    import torch

    prints = set()
    for unit in ("ALL", "CPU_ONLY"):
        session = export(sums(1), get_target_recipe(COREML, compute_unit=unit), torch.ones(2, 8))
        manifest = inspect_program(session.save_pte_file(tmp_path / "model.pte")).state.manifest
        assert manifest is not None
        prints.add(manifest["fingerprint"])
    assert len(prints) == 2


def test_a_program_for_a_device_that_is_not_here_is_inspected_and_verified_as_far_as_can_be(tmp_path: Path) -> None:
    import torch

    session = export(sums(1), COREML, torch.rand(2, 8))
    assert any("CoreMLBackend is not in this host's runtime; registered: " in line for line in session.verify().not_run)
    path = session.save_pte_file(tmp_path / "model.pte")
    result = CliRunner().invoke(cli, ["verify", str(path)])
    assert result.exit_code == 0
    assert "CoreMLBackend is not in this host's runtime" in result.stdout
    assert "0x20" not in result.stdout
    shown = json.loads(CliRunner().invoke(cli, ["inspect", str(path), "--json"]).stdout)
    assert shown["backends"] == ["CoreMLBackend"]
    assert shown["sizes"]["delegate CoreMLBackend"] > 1000


@pytest.mark.parametrize("target", ["ios-arm64-coreml-int8", INT8])
def test_a_quantized_model_is_compared_wherever_its_program_runs(workload: Callable[[str], Any], target: str) -> None:
    load = workload("convolution")
    session = export(load.model, target, load.example, calibration_inputs=load.calibration)
    compared = {comparison.what: comparison for comparison in session.verify(load.held_out).comparisons}
    assert compared["quantized model in PyTorch"].sqnr_db > 10
    assert ("program on this host" in compared) == (target == INT8)


@pytest.mark.parametrize("target", [FP32, INT8])
def test_a_program_that_runs_here_is_verified(workload: Callable[[str], Any], target: str, tmp_path: Path) -> None:
    load = workload("mobilenet_v2")
    session = export(load.model, target, load.example, calibration_inputs=load.calibration if target == INT8 else None)
    path = session.save_pte_file(tmp_path / "model.pte")
    result = verify_program(path, load.held_out[:4], load.model)
    assert result.ok
    assert result.not_run == []
    (comparison,) = result.comparisons
    assert comparison.sqnr_db is None or comparison.sqnr_db > (10 if target == INT8 else 60)

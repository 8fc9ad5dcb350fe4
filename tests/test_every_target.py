"""One small model through each of the targets, with all distributions installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from recipes import export, list_targets

TARGETS = {target.name: target for target in list_targets()}
XNNPACK = [name for name, target in TARGETS.items() if target.accelerator == "xnnpack"]
OPENVINO = [name for name, target in TARGETS.items() if target.accelerator == "openvino"]
COREML = [name for name, target in TARGETS.items() if target.accelerator == "coreml"]
FLOATS = {"FLOAT16", "FLOAT32"}
MODELS = ["mobilenet_v2", "resnet", "vit", "bert"]


def test_listing_all_targets_with_everything_installed_imports_no_torch() -> None:
    code = (
        "import recipes, sys\n"
        "print(recipes.list_targets())\n"
        "heavy = {'torch', 'executorch', 'torchao', 'coremltools', 'openvino', 'nncf', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "targets = recipes.list_targets(include_unavailable=True)\n"
        "print(len(targets), {t.state for t in targets})\n"
        "import torch, executorch, torchao, coremltools, openvino, nncf, numpy\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    listed, count = result.stdout.splitlines()
    assert listed.startswith("[<Target android-arm64-xnnpack-fp32 ready>, ")
    assert count == "21 {'ready'}"


def exported(target: str, work: Any) -> bytes:
    calibration = {"calibration_inputs": work.calibration} if TARGETS[target].precision == "int8" else {}
    pte: bytes = export(work.model, target, work.example, **calibration).get_pte_buffer()
    return pte


def check_xnnpack(target: str, work: Any, run_eager: Any, run_file: Any, read_delegates: Any, ratio: Any) -> bytes:
    expected = run_eager(work, work.held_out)
    pte = exported(target, work)
    assert set(read_delegates(pte)) == {"XnnpackBackend"}
    assert ratio(expected, run_file(pte, work.held_out)) > (100 if TARGETS[target].precision == "fp32" else 12)
    return pte


def check_coreml(target: str, work: Any, read_delegates: Any, read_coreml: Any) -> None:
    pte = exported(target, work)
    assert set(read_delegates(pte)) == {"CoreMLBackend"}
    precision = TARGETS[target].precision
    models = read_coreml(pte)
    assert {model.specification_version for model in models} == {8 if precision == "int8" else 6}
    computing = {kind: set().union(*(m.computes_in.get(kind, set()) for m in models)) for kind in FLOATS | {"INT8"}}
    promised = "FLOAT32" if precision == "fp32" else "FLOAT16"
    assert computing[promised]
    (other,) = FLOATS - {promised}
    # coremltools gathers booleans as float16, whatever the precision: they are 0 and 1.
    assert computing[other] <= {"gather_nd"}
    assert bool(computing["INT8"]) == (precision == "int8")


def check_openvino(
    target: str, work: Any, run_eager: Any, run_file: Any, read_delegates: Any, read_openvino: Any, ratio: Any
) -> None:
    expected = run_eager(work, work.held_out)
    pte = exported(target, work)
    assert read_delegates(pte) == {"OpenvinoBackend": 1}
    promised = {"fp32": {"f32"}, "fp16": {"f32", "f16"}, "int8": {"f32", "i8"}}[TARGETS[target].precision]
    (model,) = read_openvino(pte)
    assert set(model.constants) & {"f32", "f16", "i8"} == promised
    # A processor with bfloat16 computes in it, which leaves 30 to 60 dB of a float model.
    assert ratio(expected, run_file(pte, work.held_out)) > (12 if TARGETS[target].precision == "int8" else 30)


@pytest.mark.parametrize("target", XNNPACK)
def test_a_file_for_an_xnnpack_target_runs_here_whatever_its_system(
    target: str,
    workload: Callable[[str], Any],
    run_eager: Any,
    run_file: Any,
    read_delegates: Any,
    signal_to_noise: Any,
) -> None:
    check_xnnpack(target, workload("convolution"), run_eager, run_file, read_delegates, signal_to_noise)


@pytest.mark.parametrize("target", OPENVINO)
def test_a_file_for_an_openvino_target_runs_here_and_holds_what_its_name_promises(
    target: str,
    workload: Callable[[str], Any],
    run_eager: Any,
    run_file: Any,
    read_delegates: Any,
    read_openvino: Any,
    signal_to_noise: Any,
) -> None:
    check_openvino(target, workload("convolution"), run_eager, run_file, read_delegates, read_openvino, signal_to_noise)


@pytest.mark.parametrize("target", COREML)
def test_a_file_for_a_core_ml_target_holds_what_its_name_promises(
    target: str, workload: Callable[[str], Any], read_delegates: Any, read_coreml: Any
) -> None:
    check_coreml(target, workload("convolution"), read_delegates, read_coreml)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", XNNPACK)
def test_a_real_model_for_an_xnnpack_target_runs_here(
    target: str,
    name: str,
    workload: Callable[[str], Any],
    run_eager: Any,
    run_file: Any,
    read_delegates: Any,
    signal_to_noise: Any,
) -> None:
    check_xnnpack(target, workload(name), run_eager, run_file, read_delegates, signal_to_noise)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", COREML)
def test_a_real_model_for_a_core_ml_target_holds_what_its_name_promises(
    target: str, name: str, workload: Callable[[str], Any], read_delegates: Any, read_coreml: Any
) -> None:
    check_coreml(target, workload(name), read_delegates, read_coreml)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", OPENVINO)
def test_a_real_model_for_an_openvino_target_runs_here_and_holds_what_its_name_promises(
    target: str,
    name: str,
    workload: Callable[[str], Any],
    run_eager: Any,
    run_file: Any,
    read_delegates: Any,
    read_openvino: Any,
    signal_to_noise: Any,
) -> None:
    check_openvino(target, workload(name), run_eager, run_file, read_delegates, read_openvino, signal_to_noise)

"""Real models in int8 on XNNPACK: quantized, run here, and close to PyTorch on inputs that calibration did not see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from recipes import export

# In dB, some 5 to 9 below what was measured. A quantization with wrong ranges scores under 6: see the last test.
LEAST = {"mobilenet_v2": 12.0, "resnet": 22.0, "vit": 22.0, "bert": 20.0}


def agreement(expected: Any, got: Any) -> float:
    """The share of inputs for which both name the same class."""
    return float((expected.argmax(dim=1) == got.argmax(dim=1)).float().mean())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "mobilenet_v2" else ()) for name in LEAST]
)
def test_an_int8_model_runs_on_xnnpack_and_stays_close_to_pytorch(
    name: str,
    workload: Callable[[str], Any],
    run_eager: Callable[..., Any],
    run_file: Callable[..., Any],
    read_delegates: Callable[[bytes], Counter[str]],
    signal_to_noise: Callable[[Any, Any], float],
) -> None:
    work = workload(name)
    expected = run_eager(work, work.held_out)
    weights = sum(parameter.numel() for parameter in work.model.parameters())
    session = export(work.model, "linux-x86_64-xnnpack-int8", work.example, calibration_inputs=work.calibration)
    pte = session.get_pte_buffer()
    assert set(read_delegates(pte)) == {"XnnpackBackend"}
    assert len(pte) < 3 * weights, "float weights take 4 bytes each"
    got = run_file(pte, work.held_out)
    assert signal_to_noise(expected, got) > LEAST[name]
    assert agreement(expected, got) >= 0.9


def test_the_thresholds_are_missed_by_a_quantization_with_wrong_ranges(
    workload: Callable[[str], Any],
    run_eager: Callable[..., Any],
    run_file: Callable[..., Any],
    signal_to_noise: Callable[[Any, Any], float],
) -> None:
    work = workload("convolution")
    expected = run_eager(work, work.held_out)
    wrong = [tuple(tensor * 0.05 for tensor in sample) for sample in work.calibration]
    session = export(work.model, "linux-x86_64-xnnpack-int8", work.example, calibration_inputs=wrong)
    assert signal_to_noise(expected, run_file(session.get_pte_buffer(), work.held_out)) < min(LEAST.values()) / 2

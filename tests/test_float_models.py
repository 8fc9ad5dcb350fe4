"""Real models in float32 on XNNPACK: exported, run here, and equal to PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from recipes import export

# MobileNetV2 and ResNet go to XNNPACK whole; in the others some operators, such as the lookup of embeddings, do not.
PARTITIONS = {"mobilenet_v2": 1, "resnet": 1, "vit": 10, "bert": 10}


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_float_model_runs_on_xnnpack_and_agrees_with_pytorch(
    name: str,
    workload: Callable[[str], Any],
    run_eager: Callable[..., Any],
    run_file: Callable[..., Any],
    read_delegates: Callable[[bytes], Counter[str]],
    signal_to_noise: Callable[[Any, Any], float],
) -> None:
    work = workload(name)
    expected = run_eager(work, work.held_out)
    pte = export(work.model, "linux-x86_64-xnnpack-fp32", work.example).get_pte_buffer()
    delegates = read_delegates(pte)
    assert set(delegates) == {"XnnpackBackend"}
    assert 1 <= delegates["XnnpackBackend"] <= PARTITIONS[name]
    got = run_file(pte, work.held_out)
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()
    # Measured: 118 to 137 dB; what float32's 24 bits allow after some fifty layers.
    assert signal_to_noise(expected, got) > 100

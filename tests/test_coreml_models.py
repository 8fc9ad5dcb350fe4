"""Real models on Core ML: exported here, opened and inspected. Core ML itself exists on Apple devices only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recipes import export, get_ios_recipe

# Operations that the model cannot do without.
SIGNATURES = {
    "mobilenet_v2": {"conv", "linear"},
    "resnet": {"conv", "relu", "linear"},
    "vit": {"conv", "linear", "gelu", "softmax"},
    "bert": {"gather", "linear", "gelu", "softmax"},
}


def operations(models: list[Any]) -> set[str]:
    return set().union(*(set(model.operations) for model in models))


@pytest.mark.parametrize("name", ["resnet", "vit", "bert", pytest.param("mobilenet_v2", marks=pytest.mark.slow)])
def test_a_model_on_the_default_ios_target_computes_in_float16(
    name: str,
    workload: Callable[[str], Any],
    read_coreml: Callable[[bytes], list[Any]],
    read_delegates: Callable[[bytes], Any],
) -> None:
    work = workload(name)
    weights = sum(parameter.numel() for parameter in work.model.parameters())
    pte = export(work.model, get_ios_recipe(), work.example).get_pte_buffer()
    models = read_coreml(pte)
    assert len(models) == read_delegates(pte)["CoreMLBackend"] == 1
    assert models[0].specification_version == 6, "iOS15"
    assert SIGNATURES[name] <= operations(models)
    assert "FLOAT16" in models[0].computes_in
    assert "FLOAT32" not in models[0].computes_in
    assert len(models[0].weights) == pytest.approx(2 * weights, rel=0.1)


def test_the_fp32_target_computes_in_float32(
    workload: Callable[[str], Any], read_coreml: Callable[[bytes], list[Any]]
) -> None:
    work = workload("resnet")
    weights = sum(parameter.numel() for parameter in work.model.parameters())
    (model,) = read_coreml(export(work.model, get_ios_recipe("ios-arm64-coreml-fp32"), work.example).get_pte_buffer())
    assert "FLOAT32" in model.computes_in
    assert "FLOAT16" not in model.computes_in
    assert len(model.weights) == pytest.approx(4 * weights, rel=0.1)


@pytest.mark.parametrize(
    "name",
    [
        "resnet",
        pytest.param("vit", marks=pytest.mark.slow),
        pytest.param("bert", marks=pytest.mark.slow),
        pytest.param("mobilenet_v2", marks=pytest.mark.slow),
    ],
)
def test_the_int8_target_has_int8_weights_and_activations_and_needs_ios17(
    name: str, workload: Callable[[str], Any], read_coreml: Callable[[bytes], list[Any]]
) -> None:
    work = workload(name)
    weights = sum(parameter.numel() for parameter in work.model.parameters())
    recipe = get_ios_recipe("ios-arm64-coreml-int8")
    models = read_coreml(export(work.model, recipe, work.example, calibration_inputs=work.calibration).get_pte_buffer())
    assert {model.specification_version for model in models} == {8}, "iOS17"
    assert {"quantize", "dequantize", "constexpr_affine_dequantize"} <= operations(models)
    assert any("quantize" in model.computes_in.get("INT8", ()) for model in models)
    assert sum(len(model.weights) for model in models) < 1.7 * weights


def test_a_higher_deployment_target_is_kept(
    workload: Callable[[str], Any], read_coreml: Callable[[bytes], list[Any]]
) -> None:
    work = workload("convolution")
    recipe = get_ios_recipe("ios-arm64-coreml-int8", minimum_deployment_target="iOS18")
    session = export(work.model, recipe, work.example, calibration_inputs=work.calibration)
    (model,) = read_coreml(session.get_pte_buffer())
    assert model.specification_version == 9, "iOS18"


def test_what_core_ml_is_told_to_leave_goes_to_xnnpack_after_it(
    workload: Callable[[str], Any],
    read_coreml: Callable[[bytes], list[Any]],
    read_delegates: Callable[[bytes], Any],
) -> None:
    work = workload("convolution")
    recipe = get_ios_recipe(skip_ops_for_coreml_delegation=["aten.linear.default", "aten.addmm.default"])
    pte = export(work.model, recipe, work.example).get_pte_buffer()
    assert read_delegates(pte) == {"CoreMLBackend": 1, "XnnpackBackend": 1}
    assert "linear" not in operations(read_coreml(pte))

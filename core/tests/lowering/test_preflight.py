"""What is found before the slow work: each fault by name, with the way out, and the model left as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("executorch", reason="export works on torch models")

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.export import QuantizationRecipe, StageType
from executorch.runtime import Runtime

from recipes import ExportRecipe, Finding, ModelFacts, PreflightError, RecipesWarning, export
from recipes.arguments.request import check_arguments as check
from recipes.lowering.preflight import preflight, with_contiguous_weights

PORTABLE = ExportRecipe(name="portable")
N = torch.nn
X = torch.rand(2, 4)


def findings(model: Any, inputs: Any, recipe: ExportRecipe = PORTABLE, **keywords: Any) -> list[Finding]:
    allow = keywords.pop("allow_training_mode", False)
    return preflight(check(model, recipe, inputs, **keywords), allow_training_mode=allow)[1]


def codes(*args: Any, **keywords: Any) -> list[tuple[str, str, str]]:
    return [(f.level, f.code, f.where) for f in findings(*args, **keywords)]


@pytest.mark.parametrize(
    ("model", "inputs", "where"),
    [
        (N.Sequential(N.Linear(4, 4), N.Dropout(0.1)), X, ["1"]),
        (N.Sequential(N.Conv2d(1, 2, 1), N.Sequential(N.BatchNorm2d(2))), torch.rand(2, 1, 4, 4), ["1.0"]),
        (N.Sequential(N.AlphaDropout(0.2), N.RReLU()), X, ["0", "1"]),
        (N.LSTM(4, 4, num_layers=2, dropout=0.5), X, ["LSTM"]),
    ],
)
def test_layers_that_compute_something_else_in_training_mode_are_named(model: Any, inputs: Any, where: Any) -> None:
    assert codes(model, inputs) == [("error", "training-mode", name) for name in where]
    assert codes(model, inputs, allow_training_mode=True) == []
    with pytest.raises(PreflightError, match=r"Call model\.eval\(\) first") as caught:
        export(model, PORTABLE, inputs)
    assert [finding.where for finding in caught.value.findings] == where
    assert codes(model.eval(), inputs) == []


@pytest.mark.parametrize("model", [N.Linear(4, 4), N.Sequential(N.ReLU(), N.Dropout(0.0)), N.LSTM(4, 4)])
def test_layers_for_which_training_mode_makes_no_difference_are_let_through(model: Any) -> None:
    assert model.training
    assert codes(model, X) == []


def test_training_is_what_quantization_aware_training_is_for() -> None:
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_qat=True))
    qat = QuantizationRecipe(quantizers=[quantizer], is_qat=True, train_fn=lambda model: None)
    assert codes(N.Sequential(N.Linear(4, 4), N.Dropout()), X, ExportRecipe(quantization_recipe=qat)) == []


def test_a_model_that_does_not_run_is_told_with_its_own_words() -> None:
    (finding,) = findings(N.Linear(5, 2), X)
    assert (finding.level, finding.code) == ("error", "does-not-run")
    assert "shapes cannot be multiplied" in finding.message


class Counting(N.Module):
    seen: torch.Tensor
    swapped: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.full((4,), 3.0))
        self.register_buffer("swapped", torch.ones(4))
        self.register_buffer("still", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x.sum(0))
        self.swapped = self.swapped + 1
        x.mul_(2)
        return x + self.seen + torch.rand(4)


def test_looking_at_a_model_changes_neither_it_nor_its_inputs_nor_the_random_state() -> None:
    model, x = Counting(), torch.ones(2, 4)
    swapped = model.swapped
    state = torch.get_rng_state()
    preflight(check(model, PORTABLE, x), allow_training_mode=False)
    assert torch.equal(model.seen, torch.full((4,), 3.0))
    assert model.swapped is swapped
    assert torch.equal(x, torch.ones(2, 4))
    assert torch.equal(torch.get_rng_state(), state)


def test_what_is_told_to_plugins_names_inputs_weights_and_updated_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    from recipes.lowering import preflight as module

    seen: list[Any] = []

    def fit(recipe: ExportRecipe, facts: Sequence[ModelFacts]) -> tuple[ExportRecipe, list[Finding]]:
        seen.extend(facts)
        return recipe, []

    monkeypatch.setattr(module, "_fit", fit)
    preflight(check(Counting(), PORTABLE, torch.ones(2, 4)), allow_training_mode=False)
    (facts,) = seen
    assert list(facts.inputs) == ["x"]
    assert set(facts.weights) == {"seen", "swapped", "still"}
    assert set(facts.updated_buffers) == {"seen", "swapped"}
    assert torch.equal(facts.updated_buffers["seen"], torch.full((4,), 3.0))


@pytest.mark.parametrize("start", [0.0, 1.0, -2.5])
def test_buffers_start_on_the_device_from_what_they_are_in_the_model(start: float) -> None:
    class Total(N.Module):
        total: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.full((4,), start))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            return self.total * 1

    x = torch.rand(4)
    program = Runtime.get().load_program(export(Total(), PORTABLE, x).get_pte_buffer())
    method = program.load_method("forward")
    for times in (1, 2, 3):
        torch.testing.assert_close(method.execute([x])[0], start + times * x)


def test_a_model_without_values_is_refused() -> None:
    assert codes(N.Linear(4, 4, device="meta"), X) == [("error", "not-on-cpu", "weight")]


def test_a_weight_that_is_not_finite_is_named() -> None:
    model = N.Sequential(N.Linear(4, 4), N.Linear(4, 4))
    with torch.no_grad():
        model[1].weight[0, 0] = float("nan")
    assert codes(model, X) == [("warning", "not-finite", "1.weight")]


def int8(**fields: Any) -> ExportRecipe:
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    captured = [StageType.SOURCE_TRANSFORM, StageType.QUANTIZE, StageType.TORCH_EXPORT]
    quantization = QuantizationRecipe(quantizers=[quantizer], **fields)
    return ExportRecipe(name="int8", quantization_recipe=quantization, pipeline_stages=captured)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_data_type_that_cannot_be_quantized_is_refused(dtype: torch.dtype) -> None:
    model, samples = N.Linear(4, 4).to(dtype), [(X.to(dtype),), (X.to(dtype) + 1,)]
    assert codes(model, samples, int8()) == [("error", "quantization-dtype", "input, weight, bias")]
    assert codes(model, samples) == []


def test_a_buffer_that_is_replaced_cannot_be_quantized_around() -> None:
    found = codes(Counting(), [(torch.rand(2, 4),), (torch.rand(2, 4),)], int8())
    assert found == [("error", "buffer-replaced", "swapped")]


@pytest.mark.parametrize(
    ("samples", "calibration", "expected"),
    [
        (torch.zeros(2, 4), None, ["calibration-one-sample", "calibration-constant"]),
        (X, None, ["calibration-one-sample"]),
        ([(X,), (X + 1,)], None, []),
        ([(torch.ones(2, 4),), (torch.ones(2, 4),)], None, ["calibration-constant"]),
        (torch.zeros(2, 4), [(X,), (X - 1,)], []),
        (torch.zeros(2, 4), lambda: [(X,), (X - 1,)], []),
        (X, [torch.zeros(2, 4), torch.zeros(2, 4)], ["calibration-constant"]),
    ],
)
def test_calibration_data_that_says_nothing_is_told(samples: Any, calibration: Any, expected: list[str]) -> None:
    found = findings(N.Linear(4, 4), samples, int8(), calibration_inputs=calibration)
    assert [finding.code for finding in found] == expected
    assert all(finding.level == "warning" for finding in found)


def test_an_iterator_of_calibration_data_is_left_to_the_calibration() -> None:
    data = iter([(X,), (X + 1,)])
    assert findings(N.Linear(4, 4), X, int8(), calibration_inputs=data) == []
    assert len(list(data)) == 2


def test_warnings_are_warned_of_once_and_kept_in_the_session() -> None:
    with pytest.warns(RecipesWarning, match="activation ranges are measured on a single sample") as caught:
        session = export(N.Linear(4, 4), int8(), X)
    assert len([w for w in caught if issubclass(w.category, RecipesWarning)]) == 1
    assert [finding.code for finding in session.findings] == ["calibration-one-sample"]


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (N.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), torch.rand(1, 3, 8, 8)),
        (N.ConvTranspose2d(3, 4, 3).to(memory_format=torch.channels_last), torch.rand(1, 3, 5, 5)),
    ],
)
def test_weights_in_another_memory_format_are_exported_and_the_model_keeps_its_own(model: Any, inputs: Any) -> None:
    program = export(model, PORTABLE, inputs).get_pte_buffer()
    found = Runtime.get().load_program(program).load_method("forward").execute([inputs])[0]
    torch.testing.assert_close(found, model(inputs), atol=1e-5, rtol=1e-4)
    assert not model.weight.is_contiguous()


def test_only_weights_in_another_memory_format_are_copied() -> None:
    model = N.Sequential(N.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), N.Conv2d(4, 4, 3))
    laid_out = with_contiguous_weights(model)
    assert laid_out[0].weight.is_contiguous()
    assert laid_out[1].weight is model[1].weight
    plain = N.Linear(3, 3)
    assert with_contiguous_weights(plain) is plain

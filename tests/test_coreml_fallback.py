"""Models with an op that Core ML's partitioner claims and its compiler refuses: they export, and it is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from recipes import (
    ExportError,
    ExportSession,
    PreflightError,
    RecipesWarning,
    export,
    get_ios_recipe,
    get_target_recipe,
)

TARGET = "ios-arm64-coreml-fp16"


class Uint8Image(nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image.to(torch.float32) / 255


class IntegerRelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(torch.relu((y * 10).to(torch.int32)).float() + y)


class RankSix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).reshape(1, 2, 2, 2, 2, 1).permute(0, 2, 1, 3, 4, 5) * 2
        return self.second(y.reshape(1, 16))


def between(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.Conv2d(4, 4, 1))


class PoolWithoutStride(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.max_pool2d(self.conv(x), 2)


IMAGE = torch.rand(1, 3, 16, 16)
slow = pytest.mark.slow
CASES = [
    pytest.param(Uint8Image(), torch.randint(0, 255, (1, 3, 4, 4), dtype=torch.uint8), "aten._to_copy", id="uint8"),
    pytest.param(IntegerRelu(), torch.rand(2, 4), "aten.relu", id="integer relu"),
    pytest.param(RankSix(), torch.rand(1, 16), "aten.view_copy", id="rank 6", marks=slow),
    pytest.param(between(nn.MaxPool2d(2, dilation=2)), IMAGE, "aten.max_pool2d", id="dilated pool", marks=slow),
    pytest.param(between(nn.AvgPool2d(2, divisor_override=3)), IMAGE, "aten.avg_pool2d", id="divisor", marks=slow),
    pytest.param(
        nn.Sequential(nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), nn.ReLU()),
        IMAGE,
        "aten.convolution",
        id="output padding",
        marks=slow,
    ),
    pytest.param(PoolWithoutStride(), IMAGE, "aten.max_pool2d", id="pool without stride", marks=slow),
    pytest.param(nn.Linear(4, 4).bfloat16(), torch.rand(1, 4).bfloat16(), "aten.addmm", id="bfloat16", marks=slow),
]


def delegates(session: ExportSession) -> list[str]:
    return [delegate.id for delegate in session.get_executorch_program().execution_plan[0].delegates]


@pytest.mark.parametrize(("model", "x", "op"), CASES)
def test_an_op_that_core_ml_cannot_compile_runs_elsewhere_and_is_named(
    model: nn.Module, x: torch.Tensor, op: str
) -> None:
    with pytest.warns(RecipesWarning, match="CoreMLBackend"):
        session = export(model.eval(), TARGET, x)
    assert any(fallback.op.startswith(op) for fallback in session.fallbacks)
    assert all(fallback.reason for fallback in session.fallbacks)
    assert session.get_pte_buffer()
    if x.dtype != torch.bfloat16:
        assert "CoreMLBackend" in delegates(session)


def test_an_op_that_is_taken_apart_stays_on_core_ml() -> None:
    prelu = nn.PReLU(8)
    prelu.weight.data = torch.rand(8)
    session = export(nn.Sequential(nn.Linear(16, 8), prelu).eval(), TARGET, torch.rand(2, 16))
    assert delegates(session) == ["CoreMLBackend"]


def test_lower_full_graph_names_everything_that_core_ml_cannot_take() -> None:
    recipe = get_target_recipe(TARGET, lower_full_graph=True)
    with pytest.raises(ExportError, match=r"aten\.relu\.default"):
        export(IntegerRelu().eval(), recipe, torch.rand(2, 4))


class Running(nn.Module):
    def __init__(self, start: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.full((4,), start))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.linear(x) + self.total


def target_of(session: ExportSession) -> Any:
    (source,) = [
        source
        for origin in session.recipe.explain().provenance.origins
        for source in origin.sources
        if source.recipe == "coreml:fp16" and origin.field == "lowering_recipe.partitioners"
    ]
    return source.options["minimum_deployment_target"]


def test_an_updated_buffer_raises_an_unset_deployment_target_and_the_session_says_so() -> None:
    with pytest.warns(RecipesWarning, match=r"total: .*the file needs iOS18 or later"):
        session = export(Running(0.0).eval(), TARGET, torch.rand(4))
    assert target_of(session).value == "iOS18"
    assert "total" in target_of(session).source
    assert "deployment-target-raised" in {finding.code for finding in session.findings}


def test_a_deployment_target_that_the_user_fixed_too_low_is_an_error_that_names_the_buffer() -> None:
    fixed = get_ios_recipe(minimum_deployment_target="iOS16")
    with pytest.raises(PreflightError, match=r"total: .*need iOS18, and minimum_deployment_target is iOS16"):
        export(Running(0.0).eval(), fixed, torch.rand(4))
    outside = get_ios_recipe(minimum_deployment_target="iOS16", take_over_mutable_buffer=False)
    assert export(Running(0.0).eval(), outside, torch.rand(4)).get_pte_buffer()


def test_a_buffer_that_does_not_start_from_zeros_stays_outside_of_core_ml() -> None:
    session = export(Running(1.0).eval(), TARGET, torch.rand(4))
    assert [finding.code for finding in session.findings] == ["buffer-outside"]
    assert target_of(session).value is None
    with pytest.raises(PreflightError, match="state always starts from zeros"):
        export(Running(1.0).eval(), get_ios_recipe(take_over_mutable_buffer=True), torch.rand(4))


@pytest.mark.parametrize(
    ("model", "inputs", "needed"),
    [
        (nn.Linear(4, 4).half(), (torch.rand(1, 4).half(),), "iOS16"),
        (type("Constant", (nn.Module,), {"forward": lambda self: torch.arange(4) * 2})(), (), "iOS18"),
    ],
    ids=["half inputs", "no inputs"],
)
def test_half_inputs_and_missing_inputs_raise_the_deployment_target(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], needed: str
) -> None:
    with pytest.warns(RecipesWarning, match=f"the file needs {needed} or later"):
        session = export(model.eval(), TARGET, inputs)
    assert target_of(session).value == needed
    with pytest.raises(PreflightError, match=f"need {needed}, and minimum_deployment_target is iOS15"):
        export(model.eval(), get_ios_recipe(minimum_deployment_target="iOS15"), inputs)


def test_a_weight_beyond_the_range_of_float16_is_named_on_a_float16_target() -> None:
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight[0, 0] = 1e6
    with pytest.warns(RecipesWarning, match="weight: this has values beyond 65504"):
        export(model, TARGET, torch.rand(1, 4))
    export(model, "ios-arm64-coreml-fp32", torch.rand(1, 4))

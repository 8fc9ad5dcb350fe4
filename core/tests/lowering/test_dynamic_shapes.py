"""Every form of dynamic shapes that `torch.export` documents, run at both ends and in the middle of its range."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("executorch", reason="export works on torch models")

import torch
from executorch.runtime import Runtime
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from recipes import ArgumentError, ExportError, export

pytestmark = pytest.mark.filterwarnings("ignore:.*:recipes.RecipesWarning")

XNNPACK = ("linux-x86_64-xnnpack-fp32", "linux-x86_64-xnnpack-int8")
COREML = "ios-arm64-coreml-fp16"


class WithLinear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)


class Linear(WithLinear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Several(WithLinear):
    def forward(self, *a: torch.Tensor) -> torch.Tensor:
        return self.linear(a[0]) + a[-1]


class FirstThenSeveral(WithLinear):
    def forward(self, x: torch.Tensor, *a: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + a[0]


class Sum(WithLinear):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + y


class Options(WithLinear):
    def forward(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
        return self.linear(x)


class Nested(WithLinear):
    def forward(self, state: dict[str, list[torch.Tensor]]) -> torch.Tensor:
        first, second = state["both"]
        return self.linear(first) + second


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


torch.export.register_dataclass(Pair, serialized_type_name="recipes.tests.Pair")


class OfPair(WithLinear):
    def forward(self, pair: Pair) -> torch.Tensor:
        return self.linear(pair.left) + pair.right


def rows(count: int) -> torch.Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(count))


def one(count: int) -> tuple[Any, ...]:
    return (rows(count),)


def two(count: int) -> tuple[Any, ...]:
    return (rows(count), rows(count) / 2)


@dataclass(frozen=True)
class Form:
    """One way to say that sizes vary.

    Args:
        model: The model.
        inputs: Makes inputs with a number of rows.
        shapes: Makes the dynamic shapes for the example inputs.
        sizes: Numbers of rows to run with: the smallest, an odd one in the middle, the largest.
        example: The number of rows of the example.
    """

    model: type[torch.nn.Module]
    inputs: Callable[[int], tuple[Any, ...]]
    shapes: Callable[[tuple[Any, ...]], Any]
    sizes: tuple[int, ...] = (1, 5, 16)
    example: int = 3


def collection(inputs: tuple[Any, ...]) -> Any:
    shapes = torch.export.ShapesCollection()
    shapes[inputs[0]] = {0: Dim("b", min=1, max=16)}
    return shapes


BATCH = Dim("b", min=1, max=16)
FORMS = {
    "by name": Form(Linear, one, lambda _: {"x": {0: BATCH}}),
    "in order": Form(Linear, one, lambda _: ({0: BATCH},)),
    "a list": Form(Linear, one, lambda _: [{0: BATCH}]),
    "for each dimension": Form(Linear, one, lambda _: {"x": (BATCH, None)}),
    "static": Form(Linear, one, lambda _: {"x": {0: BATCH, 1: Dim.STATIC}}),
    "auto with bounds": Form(Linear, one, lambda _: {"x": {0: Dim.AUTO(min=2, max=16)}}, (2, 5, 16)),
    "dynamic with bounds": Form(Linear, one, lambda _: {"x": {0: Dim.DYNAMIC(min=2, max=16)}}, (2, 5, 16)),
    "auto with the bounds of another": Form(Sum, two, lambda _: {"x": {0: BATCH}, "y": {0: Dim.AUTO}}, (2, 5, 16)),
    "shared": Form(Sum, two, lambda _: {"x": {0: BATCH}, "y": {0: BATCH}}),
    "times ten": Form(Linear, one, lambda _: {"x": {0: 10 * Dim("m", min=1, max=8)}}, (10, 30, 80), 20),
    "eight times and one": Form(Linear, one, lambda _: {"x": {0: 8 * Dim("s", min=1, max=4) + 1}}, (9, 25, 33), 17),
    "*args": Form(Several, one, lambda _: ({0: BATCH},)),
    "*args together": Form(Several, one, lambda _: (({0: BATCH},),)),
    "*args by name": Form(Several, two, lambda _: {"a": ({0: BATCH}, {0: BATCH})}),
    "several *args": Form(Several, two, lambda _: ({0: BATCH}, {0: BATCH})),
    "*args after another": Form(FirstThenSeveral, two, lambda _: ({0: BATCH}, {0: BATCH})),
    "**kwargs": Form(Options, one, lambda _: {"x": {0: BATCH}}),
    "nested": Form(
        Nested, lambda n: ({"both": [rows(n), rows(n)]},), lambda _: {"state": {"both": [{0: BATCH}, {0: BATCH}]}}
    ),
    "dataclass": Form(OfPair, lambda n: (Pair(rows(n), rows(n)),), lambda _: {"pair": [{0: BATCH}, {0: BATCH}]}),
    "collection": Form(Linear, one, collection),
}


IN_EVERY_RUN = ("by name", "times ten", "several *args")
"""Forms that every run tries with every target. It tries the others with one target; the slow tests, with the rest."""


def cells() -> Iterator[Any]:
    for name, form in FORMS.items():
        for target in (*XNNPACK, COREML):
            slow = () if target == XNNPACK[0] or name in IN_EVERY_RUN else (pytest.mark.slow,)
            yield pytest.param(form, target, id=f"{name}-{target}", marks=slow)


@pytest.mark.parametrize(("form", "target"), cells())
def test_a_form_of_dynamic_shapes_is_honoured_over_its_whole_range(form: Form, target: str) -> None:
    model = form.model().eval()
    example = form.inputs(form.example)

    samples = [form.inputs(size) for size in form.sizes]
    calibration = samples if target == XNNPACK[1] else None
    session = export(
        copy.deepcopy(model),
        target,
        example,
        dynamic_shapes=form.shapes(example),
        calibration_inputs=calibration,
    )

    declared = session.get_executorch_program().execution_plan[0]
    largest = declared.values[declared.inputs[0]].val.sizes
    assert largest[0] == form.sizes[-1]
    if target == COREML:
        return  # Core ML runs on Apple devices only
    program = Runtime.get().load_program(session.get_pte_buffer())
    method = program.load_method("forward")
    assert method is not None
    for size, inputs in zip(form.sizes, samples, strict=True):
        with torch.no_grad():
            expected = model(*inputs)
        got = method.execute(tree_leaves(inputs))[0]
        assert torch.allclose(got, expected, atol=1e-5 if target == XNNPACK[0] else 0.1), size


def test_a_size_that_torch_decides_and_that_has_no_end_is_refused_with_what_to_write() -> None:
    with pytest.raises((ArgumentError, ExportError), match=r"Dim\.AUTO\(min=1, max=64\)"):
        export(Linear().eval(), XNNPACK[0], (rows(3),), dynamic_shapes={"x": {0: Dim.AUTO}})


def test_additional_inputs_say_which_sizes_vary_and_not_how_far() -> None:
    varied = torch.export.AdditionalInputs()
    varied.add((rows(5),))

    with pytest.raises((ArgumentError, ExportError), match="no upper bound"):
        export(Linear().eval(), XNNPACK[0], (rows(3),), dynamic_shapes=varied)


def test_a_derived_size_is_verified_at_both_ends() -> None:
    form = FORMS["eight times and one"]
    example = form.inputs(form.example)
    session = export(form.model().eval(), XNNPACK[0], example, dynamic_shapes=form.shapes(example))

    result = session.verify()

    assert result.ok, result.failures
    assert "=4" in result.ran[0]

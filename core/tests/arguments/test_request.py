"""The arguments of export: taken in every sensible form, refused with one clear line in the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("executorch", reason="export works on torch models")

import executorch.export
import torch

from recipes import ArgumentError, ExportRecipe, UnknownTargetError
from recipes.arguments.request import check_arguments as check

X, Y = torch.rand(2, 3), torch.rand(2, 3)
RECIPE = ExportRecipe(name="portable")
IDS = {"input_ids": X, "attention_mask": Y}


class Two(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class One(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


PROGRAM = torch.export.export(One(), (X,))


@pytest.mark.parametrize(
    ("given", "samples"),
    [
        (X, [(X,)]),
        ((X,), [(X,)]),
        ([(X,)], [(X,)]),
        ([(X,), (Y,)], [(X,), (Y,)]),
        ({"forward": X}, [(X,)]),
        ({"forward": [(X,), (Y,)]}, [(X,), (Y,)]),
    ],
)
def test_example_inputs_are_a_tensor_a_tuple_a_list_or_a_dict_by_method(given: Any, samples: list[Any]) -> None:
    found = check(One(), RECIPE, given).samples["forward"]
    assert [[id(value) for value in sample] for sample in found] == [[id(v) for v in sample] for sample in samples]


def test_a_model_without_inputs_takes_an_empty_tuple() -> None:
    class Constant(torch.nn.Module):
        def forward(self) -> torch.Tensor:
            return torch.ones(2)

    assert check(Constant(), RECIPE, ()).samples == {"forward": [()]}


def test_an_exported_program_brings_its_own_inputs() -> None:
    request = check(PROGRAM, RECIPE, None)
    assert request.kind == "ExportedProgram"
    assert request.samples["forward"][0][0] is not None


def test_a_path_of_a_pt2_file_is_a_model(tmp_path: Path) -> None:
    torch.export.save(PROGRAM, tmp_path / "one.pt2")
    assert check(str(tmp_path / "one.pt2"), RECIPE, None).kind == "ExportedProgram"
    assert check(tmp_path / "one.pt2", RECIPE, None).kind == "ExportedProgram"


def test_recipes_of_executorch_and_lists_of_recipes_are_taken() -> None:
    theirs = executorch.export.ExportRecipe(name="theirs", strict=False)
    made = check(One(), theirs, X).recipe
    assert isinstance(made, ExportRecipe)
    assert (made.name, made.strict) == ("theirs", False)
    assert check(One(), [RECIPE, ExportRecipe(name="other")], X).recipe.name == "portable_other"


WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "recipe and inputs swapped": ((One(), (X,), RECIPE), {}, "recipe and example_inputs are swapped"),
    "recipe and inputs swapped, in a list": ((One(), [(X,)], RECIPE), {}, "recipe and example_inputs are swapped"),
    "a target's name and a tensor swapped": ((One(), X, "linux-x86_64-acme-fp16"), {}, "are swapped"),
    "inputs as a dict, swapped": ((One(), {"forward": X}, RECIPE), {}, "are swapped"),
    "model and recipe swapped": ((RECIPE, One(), X), {}, "model and recipe are swapped"),
    "model and inputs swapped": ((X, One(), RECIPE), {}, "model and example inputs are swapped"),
    "inputs in the recipe's place": ((One(), X, None), {}, "second argument must be the recipe, but"),
    "no recipe": ((One(), None, X), {}, "export needs a recipe"),
    "an empty list of recipes": ((One(), [], X), {}, "list of recipes is empty"),
    "a recipe of another type": ((One(), 3, X), {}, "recipe is a int; it must be"),
    "no inputs": ((One(), RECIPE, None), {}, "example_inputs are needed to capture a nn.Module"),
    "an empty list of inputs": ((One(), RECIPE, []), {}, "example_inputs is an empty list"),
    "a list of tensors": ((One(), RECIPE, [X, Y]), {}, r"example_inputs\[0\] is a Tensor"),
    "inputs of another type": ((One(), RECIPE, 3.0), {}, "example_inputs is a float"),
    "too few inputs": ((Two(), RECIPE, (X,)), {}, "has 1 argument .*missing a required argument: 'y'"),
    "too many inputs": ((One(), RECIPE, (X, Y)), {}, "has 2 arguments"),
    "a second sample that does not fit": ((One(), RECIPE, [(X,), (X, Y)]), {}, r"example_inputs\[1\] does not fit"),
    "inputs by argument name": (
        (Two(), RECIPE, {"x": X, "y": Y}),
        {},
        "must have methods as keys, not 'x', 'y'; methods: forward",
    ),
    "a class for a model": ((One, RECIPE, X), {}, "Give an instance, not the class"),
    "a function for a model": ((lambda x: x, RECIPE, X), {}, "model is a function; it must be"),
    "no methods": (({}, RECIPE, X), {}, "model is an empty dict"),
    "methods of several kinds": (({"a": One(), "b": PROGRAM}, RECIPE, {"a": X}), {}, "a is a nn.Module, b is a Exp"),
    "a method's name": (({"not a name": One()}, RECIPE, {"not a name": X}), {}, "not an identifier"),
    "a method without inputs": (({"a": One(), "b": One()}, RECIPE, {"a": X}), {}, "nothing for the method 'b'"),
    "several methods, inputs for one": (({"a": One(), "b": One()}, RECIPE, X), {}, "needs example_inputs as a dict"),
    "a missing file": (("missing.pt2", RECIPE, None), {}, "missing.pt2.*there is no such file"),
    "shapes for an unknown argument": (
        (Two(), RECIPE, (X, Y)), {"dynamic_shapes": {"xx": {0: "b"}}}, "'xx'.*Did you mean 'x'"),
    "too few shapes": ((Two(), RECIPE, (X, Y)), {"dynamic_shapes": ({0: "b"},)}, "1 entries.*fill 2 arguments: x"),
    "shapes of another type": ((One(), RECIPE, X), {"dynamic_shapes": 3}, "dynamic_shapes is a int"),
    "shapes for a program": ((PROGRAM, RECIPE, None), {"dynamic_shapes": ({0: "b"},)}, "keeps the shapes"),
    "shapes for a dimension that is not there": (
        (One(), RECIPE, X), {"dynamic_shapes": {"x": {7: torch.export.Dim("b", max=8)}}}, "dimension 7 of 'x'"),
    "shapes without an end": (
        (One(), RECIPE, X), {"dynamic_shapes": {"x": {0: torch.export.Dim("b")}}}, "dimension 0 of 'x'.* upper bound"),
    "calibration without quantizers": ((One(), RECIPE, X), {"calibration_inputs": [(X,)]}, "does not calibrate"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_refused_with_one_clear_line(case: str) -> None:
    args, keywords, message = WRONG[case]
    with pytest.raises(ArgumentError, match=message):
        check(*args, **keywords)


def test_a_file_that_is_no_exported_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(b"not a program")
    with pytest.raises(ArgumentError, match=r"model\.pt2' cannot be read as an exported program"):
        check(tmp_path / "model.pt2", RECIPE, None)
    with pytest.raises(ArgumentError, match=r"Did you mean 'model\.pt2'"):
        check(tmp_path / "modle.pt2", RECIPE, None)


def test_an_unknown_target_is_told_before_the_model_is_touched() -> None:
    with pytest.raises(UnknownTargetError, match="linux-x86_64-nobody-fp16"):
        check(One(), "linux-x86_64-nobody-fp16", X)


BATCH = torch.export.Dim("batch", min=1, max=8)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {}),
        ({"x": {0: BATCH}}, {"forward": ({0: BATCH}, None)}),
        ({"y": {0: BATCH}, "x": None}, {"forward": (None, {0: BATCH})}),
        (({0: BATCH}, {0: BATCH}), {"forward": ({0: BATCH}, {0: BATCH})}),
        ({"forward": ({0: BATCH}, None)}, {"forward": ({0: BATCH}, None)}),
        ({"forward": {"x": {0: BATCH}}}, {"forward": ({0: BATCH}, None)}),
    ],
)
def test_dynamic_shapes_are_taken_by_name_in_order_or_by_method(given: Any, expected: Any) -> None:
    assert check(Two(), RECIPE, (X, Y), dynamic_shapes=given).dynamic_shapes == expected


def test_an_argument_that_is_called_forward_is_not_taken_for_the_method() -> None:
    class Odd(torch.nn.Module):
        def forward(self, forward: torch.Tensor) -> torch.Tensor:
            return forward

    assert check(Odd(), RECIPE, X, dynamic_shapes={"forward": {0: BATCH}}).dynamic_shapes == {"forward": ({0: BATCH},)}

"""Several targets of one model at once: every file is the one that an export of its own makes."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from executorch.exir._serialize._program import deserialize_pte_binary

from equal_programs import assert_equal_programs
from recipes import (
    ArgumentError,
    ExportManyError,
    ExportRecipe,
    LoweringRecipe,
    QuantizationRecipe,
    RecipesWarning,
    StageProgress,
    UnknownRecipeError,
    UnknownTargetError,
    export,
    export_many,
    get_recipe,
    get_target_recipe,
)

IOS = ("ios-arm64-coreml-fp16", "ios-arm64-coreml-fp32", "ios-arm64-coreml-int8")
XNNPACK = ("android-arm64-xnnpack-fp32", "android-arm64-xnnpack-int8")


def assert_equal_files(ours: Any, theirs: Any, folder: Path) -> None:
    """Sessions' programs: byte for byte, but for what differs every time in a Core ML package."""
    one, two = (bytes(session.get_pte_buffer()) for session in (ours, theirs))
    programs = [deserialize_pte_binary(content).program for content in (one, two)]
    if all(d.id != "CoreMLBackend" for plan in programs[0].execution_plan for d in plan.delegates):
        assert one == two
    assert_equal_programs(programs[0], programs[1], folder)


# What is shared does not depend on the size of a model; the architectures take minutes.
@pytest.mark.parametrize(
    "name",
    ["convolution", *(pytest.param(n, marks=pytest.mark.slow) for n in ("bert", "mobilenet_v2", "resnet", "vit"))],
)
def test_every_file_is_that_of_an_export_of_its_own(name: str, workload: Callable[[str], Any], tmp_path: Path) -> None:
    together = workload(name)
    targets = [*IOS, *XNNPACK]
    sessions = export_many(together.model, targets, together.example, calibration_inputs=together.calibration)
    assert list(sessions) == targets
    for target in targets:
        alone = workload(name)
        calibration = alone.calibration if target.endswith("int8") else None
        expected = export(alone.model, target, alone.example, calibration_inputs=calibration)
        assert_equal_files(sessions[target], expected, tmp_path / target)


def _sizes(session: Any) -> list[list[int]]:
    (plan,) = deserialize_pte_binary(bytes(session.get_pte_buffer())).program.execution_plan
    return [value.val.sizes for value in plan.values if hasattr(value.val, "sizes")]


class Branches(torch.nn.Module):
    """A condition, so that graphs hold graphs; and an argument that is called like a Python builtin."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("unused", torch.ones(3))

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name is the point
        chosen: torch.Tensor = torch.cond(input.sum() > 0, torch.sin, torch.cos, (self.linear(input),))
        return chosen


class Normalized(torch.nn.Module):
    """Ops that are decomposed by one backend and kept by another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(torch.nn.functional.gelu(x), (8,)) + torch.linalg.vector_norm(x)


def test_dynamic_shapes_are_the_same_for_every_target(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    example = (torch.randn(4, 3, 8, 8),)
    shapes = ({0: torch.export.Dim("batch", min=1, max=32)},)
    targets = [*XNNPACK, "linux-x86_64-xnnpack-fp32", "ios-arm64-coreml-fp16", "ios-arm64-coreml-fp32"]
    samples = [example, (torch.randn(4, 3, 8, 8),)]
    sessions = export_many(model, targets, example, dynamic_shapes=shapes, calibration_inputs=samples)
    for target in targets:
        calibration = samples if target.endswith("int8") else None
        expected = export(model, target, example, dynamic_shapes=shapes, calibration_inputs=calibration)
        assert_equal_files(sessions[target], expected, tmp_path / target)
        (batch, *_), *_ = _sizes(sessions[target])
        assert batch == 32, "memory is planned for the largest batch that was asked for"


@pytest.mark.parametrize("make", [Branches, Normalized])
def test_odd_graphs_come_out_as_they_do_alone(make: Callable[[], torch.nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, example = make().eval(), (torch.randn(2, 8),)
    targets = [XNNPACK[0], "linux-x86_64-xnnpack-fp32", "ios-arm64-coreml-fp16", "ios-arm64-coreml-fp32"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecipesWarning)  # of little delegation
        sessions = export_many(model, targets, example)
        for target in targets:
            expected = export(model, target, example)
            ours, theirs = (bytes(s.get_pte_buffer()) for s in (sessions[target], expected))
            if "coreml" not in target:
                assert ours == theirs
            else:
                assert len(ours) == pytest.approx(len(theirs), abs=64)


def small() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval(), (torch.randn(1, 8),)


def test_shared_work_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    captures: list[Any] = []
    capture = torch.export.export

    def counted(model: Any, *arguments: Any, **keywords: Any) -> Any:
        captures.append(model)
        return capture(model, *arguments, **keywords)

    monkeypatch.setattr(torch.export, "export", counted)
    model, example = small()
    linux, windows = "linux-x86_64-xnnpack-int8", "windows-x86_64-xnnpack-int8"
    sessions = export_many(model, [*XNNPACK, linux, windows], example, calibration_inputs=[example, example])
    ours = [captured for captured in captures if captured is model]
    assert len(ours) == 1, "four targets, one capture of the model"
    files = [bytes(sessions[target].get_pte_buffer()) for target in (XNNPACK[1], linux, windows)]
    assert files[0] == files[1] == files[2]
    converted = [
        m for m in captures if any("dequantize" in str(n.target) for n in getattr(m, "graph", torch.fx.Graph()).nodes)
    ]
    assert len(converted) == 1, "three equal quantizations, one capture of the result"


def test_the_captured_program_stays_whole_while_it_is_lowered() -> None:
    model, example = small()
    session = export(model, XNNPACK[0], example)
    (got,) = [session.get_exported_program().module()(*example)]
    torch.testing.assert_close(got, model(*example))


def test_one_failure_leaves_the_others_whole(tmp_path: Path) -> None:
    model, example = small()

    def fail(method: str, program: Any) -> Any:
        raise RuntimeError("this pass always fails")

    broken = get_target_recipe(XNNPACK[0]).derive(name="broken", aten_transform_passes=[fail])
    with pytest.raises(ExportManyError, match=r"1 of 3 exports failed.*\n.*broken.*this pass always fails") as caught:
        export_many(model, [XNNPACK[0], broken, "linux-x86_64-xnnpack-fp32"], example)
    assert list(caught.value.sessions) == [XNNPACK[0], "linux-x86_64-xnnpack-fp32"]
    assert list(caught.value.failures) == ["broken"]
    for session in caught.value.sessions.values():
        session.save_pte_file(tmp_path / "saved.pte")


def test_a_pass_of_one_target_does_not_reach_another() -> None:
    model, example = small()

    def negate(method: str, program: Any) -> Any:
        for node in program.graph.nodes:
            if "relu" in str(node.target):
                node.target = torch.ops.aten.neg.default
        program.graph_module.recompile()
        return program

    odd = get_target_recipe(XNNPACK[0]).derive(name="odd", aten_transform_passes=[negate])
    sessions = export_many(model, {"odd": odd, "plain": XNNPACK[0]}, example)
    alone = export(model, XNNPACK[0], example)
    assert bytes(sessions["plain"].get_pte_buffer()) == bytes(alone.get_pte_buffer())
    assert bytes(sessions["odd"].get_pte_buffer()) != bytes(alone.get_pte_buffer())


def test_quantizations_that_differ_are_not_shared() -> None:
    model, example = small()
    names = ["xnnpack:pt2e_int8_static_per_channel", "xnnpack:pt2e_int8_static_per_tensor"]
    samples = (example for _ in range(2))  # can be read once
    sessions = export_many(model, names, example, calibration_inputs=samples)
    for name in names:
        alone = export(model, name, example, calibration_inputs=[example, example])
        assert bytes(sessions[name].get_pte_buffer()) == bytes(alone.get_pte_buffer())


def test_what_is_wrong_for_every_target_is_said_once() -> None:
    model, example = small()
    for arguments, text in [
        ((model, [], example), "targets is empty"),
        ((model, XNNPACK[0], example), "targets is a str"),
        ((model, [XNNPACK[0], XNNPACK[0]], example), "more than once"),
        ((model, [ExportRecipe()], example), "A recipe has no name"),
        ((model, {1: XNNPACK[0]}, example), "names are text"),
        ((model, [*XNNPACK]), "example_inputs are needed"),
        (("none.pt2", [*XNNPACK], example), "no such file"),
    ]:
        with pytest.raises(ArgumentError, match=text):
            export_many(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="none calibrates"):
        export_many(model, [XNNPACK[0]], example, calibration_inputs=[example])


def test_a_target_that_cannot_be_made_is_a_failure_beside_the_others() -> None:
    model, example = small()
    inplace = ExportRecipe(name="in-place", quantization_recipe=QuantizationRecipe(), source_transform_in_place=True)
    with pytest.raises(ExportManyError) as caught:
        export_many(model, [XNNPACK[0], inplace], example)
    assert list(caught.value.sessions) == [XNNPACK[0]]
    assert "source_transform_in_place" in str(caught.value.failures["in-place"])


def test_misspelled_targets_are_refused_before_the_work_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, example = small()
    monkeypatch.setattr(torch.export, "export", mock.Mock(side_effect=AssertionError("the work has begun")))
    with pytest.raises(UnknownTargetError) as caught:
        export_many(model, [XNNPACK[0], "linux-x86_64-xnnpack-fp23", "linux-x86_64-xnnpack-itn8"], example)
    assert "Did you mean 'linux-x86_64-xnnpack-fp32'" in str(caught.value)
    assert "Did you mean 'linux-x86_64-xnnpack-int8'" in str(caught.value)
    with pytest.raises(UnknownRecipeError, match="xnnpack:fp32"):
        export_many(model, {"one": XNNPACK[0], "two": "xnnpack:fp23"}, example)


def test_progress_names_the_target_and_warnings_are_each_targets_own(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.Linear(64, 8)).eval()
    events: list[tuple[str, StageProgress]] = []
    group = {"group_size": 32}
    names = {"one": get_recipe("xnnpack:torchao_int8_dynamic_act_int4_weight_per_tensor", **group)}
    names["two"] = get_recipe("xnnpack:torchao_int8_dynamic_act_int4_weight_per_tensor", **group)
    with pytest.warns(RecipesWarning, match="left in float"):
        sessions = export_many(
            model, names, (torch.randn(1, 40),), progress=lambda t, e: events.append((t, e)), artifact_dir=tmp_path
        )
    for session in sessions.values():
        assert any("left in float" in str(finding) for finding in session.findings)
    assert Counter(target for target, event in events if event.state == "started") == {"one": 5, "two": 5}
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.pt2")) == [
        "one/forward.pt2",
        "two/forward.pt2",
    ]


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


def test_another_process_makes_the_same_files(
    processes: Executor, workload: Callable[[str], Any], tmp_path: Path
) -> None:
    work = workload("convolution")
    targets = [*IOS, *XNNPACK]
    events: list[tuple[str, str]] = []
    arguments = {"calibration_inputs": work.calibration, "constant_methods": {"version": 3}}
    sessions = export_many(
        work.model,
        targets,
        work.example,
        executor=processes,
        progress=lambda target, event: events.append((target, event.stage)),
        **arguments,
    )
    here = export_many(work.model, targets, work.example, **arguments)
    assert sorted(sessions) == sorted(targets)
    for target in targets:
        assert_equal_files(sessions[target], here[target], tmp_path / target)
        assert (target, "to_executorch") in events
        path = sessions[target].save_pte_file(tmp_path / f"{target}.pte")
        manifest = json.loads(path.with_name(f"{path.name}.json").read_text())
        assert manifest["report"]["methods"] == here[target].report().to_dict()["methods"]
        assert manifest["backends"]
    assert sessions[XNNPACK[0]].verify().ok
    with pytest.raises(RuntimeError, match="Another process lowered this"):
        sessions[XNNPACK[0]].get_edge_program_manager()


def test_a_failure_in_another_process_is_that_targets(processes: Executor) -> None:
    model, example = small()
    targets = {"good": XNNPACK[0], "bad": get_target_recipe(XNNPACK[0]).derive(name="bad", lowering_recipe=failing())}
    with pytest.raises(ExportManyError, match=r"bad: .*failed at the stage to_edge_transform_and_lower") as caught:
        export_many(model, targets, example, executor=processes)
    assert list(caught.value.sessions) == ["good"]
    assert getattr(caught.value.failures["bad"], "stage", None) == "to_edge_transform_and_lower"


def failing() -> LoweringRecipe:
    return LoweringRecipe(partitioners=[], edge_transform_passes=[operator.neg])


def test_a_recipe_that_cannot_be_pickled_is_lowered_here_and_told(processes: Executor) -> None:
    model, example = small()
    passes: list[Any] = []
    recipe = get_target_recipe(XNNPACK[0])
    lowering = dataclasses.replace(recipe.lowering_recipe, edge_transform_passes=[lambda method, program: passes])
    with pytest.warns(RecipesWarning, match="lowered in this process"):
        sessions = export_many(model, {"local": recipe.derive(lowering_recipe=lowering)}, example, executor=processes)
    assert sessions["local"].get_edge_program_manager() is not None


def test_executors_that_cannot_work_are_refused() -> None:
    model, example = small()
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as forking,
        pytest.raises(ArgumentError, match="spawn"),
    ):
        export_many(model, [XNNPACK[0]], example, executor=forking)
    with pytest.raises(ArgumentError, match="Executor"):
        export_many(model, [XNNPACK[0]], example, executor=2)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as threads, pytest.raises(ArgumentError, match="generate_etrecord"):
        export_many(model, [XNNPACK[0]], example, executor=threads, generate_etrecord=True)

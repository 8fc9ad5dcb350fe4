"""`recipes export` from end to end, with the real plugins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from recipes.cli.app import cli

FP32 = "linux-x86_64-xnnpack-fp32"
INT8 = "linux-x86_64-xnnpack-int8"
COREML = "ios-arm64-coreml-fp16"

MODELS = """
import torch

def make():
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 5)
    return torch.nn.Sequential(*layers).eval()

def small():
    return make(), (torch.randn(1, 3, 8, 8),)

def chatty():
    print("the model's own words")
    return small()

def full():
    return {
        "model": make(),
        "example_inputs": (torch.randn(2, 3, 8, 8),),
        "dynamic_shapes": ({0: torch.export.Dim("batch", min=1, max=4)},),
    }

def calibrated():
    model, inputs = small()
    return {"model": model, "example_inputs": inputs, "calibration_inputs": (inputs for _ in range(2))}

def without_inputs():
    return {"model": make()}

def badly_calibrated():
    model, inputs = small()
    return {"model": model, "example_inputs": inputs, "calibration_inputs": [(torch.randn(1, 7),)]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with models in it."""
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "models", raising=False)
    return tmp_path


@pytest.fixture
def export(folder: Path) -> Callable[..., Result]:
    """Run `recipes export` in `folder`."""
    return lambda *words: CliRunner().invoke(cli, ["export", *words])


def is_program(path: Path) -> bool:
    """Whether the file is an ExecuTorch program: its flatbuffer identifier is ET and two digits."""
    return re.fullmatch(rb"ET\d\d", path.read_bytes()[4:8]) is not None


@pytest.mark.parametrize("model", ["models:small", "models.py:small", "models.py:full"])
def test_one_target_is_written_to_the_file_and_reported(
    export: Callable[..., Result], folder: Path, model: str
) -> None:
    result = export(model, "--target", FP32, "-o", "model.pte")
    assert result.exit_code == 0, result.output
    assert is_program(folder / "model.pte")
    assert re.fullmatch(r"model\.pte  [\d.]+ (bytes|kB)  \d+\.\d s\n", result.stdout)
    stages = [line.split(": ")[1] for line in result.stderr.splitlines() if line.startswith(FP32)]
    assert stages[0].startswith("recipe ")
    assert any(stage.startswith("torch export ") for stage in stages)
    assert stages[-1].startswith("save ")


def test_what_each_export_made_is_reported_on_stderr_unless_it_is_not_wanted(
    export: Callable[..., Result], folder: Path
) -> None:
    result = export("models.py:small", "-t", FP32, "-o", "model.pte")
    assert f"Export with the recipe {FP32}" in result.stderr
    assert "100.0% of" in result.stderr
    quiet = export("models.py:small", "-t", FP32, "-o", "model.pte", "--no-report")
    assert "Export with the recipe" not in quiet.stderr


def test_dynamic_shapes_of_the_factory_are_honoured(export: Callable[..., Result], folder: Path) -> None:
    import torch
    from executorch.runtime import Runtime

    assert export("models.py:full", "--target", FP32, "-o", "model.pte").exit_code == 0
    method = Runtime.get().load_program(folder / "model.pte").load_method("forward")
    assert method is not None
    for batch in (1, 3, 4):
        assert method.execute([torch.randn(batch, 3, 8, 8)])[0].shape == (batch, 5)


def test_a_saved_program_is_exported(export: Callable[..., Result], folder: Path) -> None:
    import torch

    model = torch.nn.Linear(4, 2).eval()
    torch.export.save(torch.export.export(model, (torch.randn(1, 4),)), folder / "saved.pt2")
    result = export("saved.pt2", "--target", FP32, "-o", "model.pte")
    assert result.exit_code == 0, result.output
    assert is_program(folder / "model.pte")


def test_several_targets_are_written_into_a_folder_that_is_made(export: Callable[..., Result], folder: Path) -> None:
    result = export("models.py:small", "-t", FP32, "-t", INT8, "-o", "out")
    assert result.exit_code == 0, result.output
    files = [Path("out", f"{target}.pte") for target in (FP32, INT8)]
    assert all(is_program(folder / file) for file in files)
    assert [line.split()[0] for line in result.stdout.splitlines()] == [str(file) for file in files]


def test_several_processes_write_the_same_files_and_stay_off_the_screen(folder: Path) -> None:
    for jobs, name in (("1", "alone"), ("2", "together")):
        done = run_fresh("export", "models.py:small", "-t", FP32, "-t", COREML, "-o", f"{name}/", "--jobs", jobs)
        assert done.returncode == 0, done.stderr
        assert "MIL" not in done.stdout + done.stderr
    one, two = (folder / name / f"{FP32}.pte" for name in ("alone", "together"))
    assert one.read_bytes() == two.read_bytes()
    assert (folder / "together" / f"{COREML}.pte.json").exists()


def test_one_targets_failure_leaves_the_others_files_and_its_own_old_one(
    export: Callable[..., Result], folder: Path
) -> None:
    (folder / f"model-{INT8}.pte").write_bytes(b"old")
    result = export("models.py:badly_calibrated", "-t", INT8, "-t", FP32, "-o", "model-{target}.pte")
    assert result.exit_code == 1
    assert f"Error: {INT8}: " in result.stderr
    assert f"1 of 2 targets failed: {INT8}." in result.stderr
    assert "Traceback" not in result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == [f"model-{FP32}.pte"]
    assert is_program(folder / f"model-{FP32}.pte")
    assert (folder / f"model-{INT8}.pte").read_bytes() == b"old"


def test_calibration_inputs_serve_the_targets_that_calibrate(export: Callable[..., Result], folder: Path) -> None:
    targets = (INT8, "android-arm64-xnnpack-int8", FP32)
    words = [word for target in targets for word in ("-t", target)]
    result = export("models.py:calibrated", *words, "-o", "{target}.pte")
    assert result.exit_code == 0, result.output
    assert all(is_program(folder / f"{target}.pte") for target in targets)


def test_a_model_that_export_refuses_is_wrong_use(export: Callable[..., Result], folder: Path) -> None:
    with zipfile.ZipFile(folder / "other.pt2", "w") as archive:
        archive.writestr("readme.txt", "not a program")
    for model, words in (("models.py:without_inputs", "example_inputs are needed"), ("other.pt2", "cannot be read")):
        result = export(model, "-t", FP32, "-o", "model.pte")
        assert result.exit_code == 2
        assert words in result.stderr
        assert not (folder / "model.pte").exists()


def run_fresh(*words: str) -> subprocess.CompletedProcess[str]:
    program = "from recipes.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=300,
        env={name: value for name, value in os.environ.items() if name != "RECIPES_DEBUG"},
    )


def test_libraries_are_kept_off_the_screen_and_the_models_own_words_are_not(folder: Path) -> None:
    result = run_fresh("export", "models.py:chatty", "-t", COREML, "-t", INT8, "-o", ".", "--no-report")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0] == "the model's own words"
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == [f"{COREML}.pte", f"{INT8}.pte"]
    ours = re.compile(rf"loading models.py:chatty|loaded in [\d.]+ s|({COREML}|{INT8}): [a-z_ ]+ [\d.]+ s|warning: .*")
    assert [line for line in result.stderr.splitlines() if not ours.fullmatch(line)] == []


def test_debug_lets_libraries_speak(folder: Path) -> None:
    result = run_fresh("export", "models.py:small", "-t", COREML, "-o", "model.pte", "--debug")
    assert result.returncode == 0, result.stderr
    assert "coremltools" in result.stderr
    assert f"{COREML}: save " in result.stderr


def test_options_reach_the_recipe(export: Callable[..., Result], folder: Path) -> None:
    words = ("models.py:small", "--target", COREML, "-o")
    assert export(*words, "whole.pte").exit_code == 0
    result = export(*words, "split.pte", "-O", "skip_ops_for_coreml_delegation=aten.convolution.default")
    assert result.exit_code == 0, result.output
    assert b"XnnpackBackend" not in (folder / "whole.pte").read_bytes()
    assert b"XnnpackBackend" in (folder / "split.pte").read_bytes()


def test_show_explains_where_each_part_of_a_recipe_is_from(folder: Path) -> None:
    result = run_fresh("show", COREML, "--explain")
    assert result.returncode == 0, result.stderr
    assert "partitioners" in result.stdout
    assert "recipes-coreml" in result.stdout
    assert result.stderr == ""


CHECKED = """
import torch

def training():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout()), (torch.rand(1, 4),)

def half():
    return torch.nn.Linear(4, 4).half().eval(), (torch.rand(1, 4).half(),)

def plain():
    model = torch.nn.Linear(4, 4).eval()
    return {"model": model, "example_inputs": (torch.rand(1, 4),), "calibration_inputs": [(torch.rand(1, 4),)]}
"""


@pytest.mark.parametrize(
    ("factory", "code", "parts"),
    [
        ("training", 1, ["error: 1: this Dropout is in training mode", "Call model.eval() first"]),
        ("half", 0, ["warning: input: the model needs half-precision inputs", "iOS16"]),
        ("plain", 0, ["models.py:plain can be exported for ios-arm64-coreml-fp16."]),
    ],
)
def test_check_tells_what_an_export_would_find_and_writes_nothing(
    factory: str, code: int, parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from recipes.cli.app import cli

    (tmp_path / "models.py").write_text(CHECKED)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["check", f"models.py:{factory}", "-t", "ios-arm64-coreml-fp16"])
    assert result.exit_code == code, result.output
    for part in parts:
        assert part in result.stdout
    assert [path.name for path in tmp_path.iterdir() if path.suffix in (".pte", ".json")] == []

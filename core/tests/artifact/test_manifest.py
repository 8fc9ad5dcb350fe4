"""Manifests, and what is read from saved programs: they belong together, tell the truth, and outlive a kill."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

pytest.importorskip("executorch", reason="programs are ExecuTorch's")

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.export import LoweringRecipe

from recipes import ArgumentError, ExportRecipe, ExportSession, SaveError, export, inspect_program
from recipes.executorch.contents import contents_of, contents_of_file

PORTABLE = ExportRecipe(name="portable")


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, times: int = 2) -> dict[str, torch.Tensor]:
        return {"y": self.linear(x).cumsum(-1) * times}


def small(**arguments: Any) -> ExportSession:
    return export(Small().eval(), **{"recipe": PORTABLE, "example_inputs": torch.ones(2, 4), **arguments})


def delegated() -> ExportRecipe:
    return ExportRecipe(name="delegated", lowering_recipe=LoweringRecipe([XnnpackPartitioner()]))


def manifest_of(path: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(path.with_name(f"{path.name}.json").read_text())
    return manifest


def fingerprint(session: ExportSession, folder: Path) -> str:
    return str(manifest_of(session.save_pte_file(folder / "model.pte"))["fingerprint"])


def test_a_manifest_tells_what_an_app_needs(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=1, max=8)
    session = small(recipe=delegated(), example_inputs=(torch.ones(2, 4), 3), dynamic_shapes={"x": {0: batch}})
    path = session.save_pte_file(tmp_path / "model.pte")
    manifest = manifest_of(path)
    assert (manifest["format"], manifest["version"], manifest["file"]) == ("recipes-manifest", 1, "model.pte")
    assert manifest["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert manifest["bytes"] == path.stat().st_size == sum(manifest["sizes"].values())
    assert manifest["backends"] == ["XnnpackBackend"]
    assert "aten::cumsum.out" in manifest["kernels"]
    (method,) = manifest["methods"]
    x, times = method["inputs"]
    assert (x["name"], x["dtype"], x["shape"]) == ("x", "float32", [2, 4])
    assert [(d["dim"], d["min"], d["max"]) for d in x["dynamic"]] == [(0, 1, 8)]
    assert (times["name"], times["kind"], times["value"]) == ("times", "int", 3)
    assert [(d["dim"], d["min"], d["max"]) for d in method["outputs"][0]["dynamic"]] == [(0, 1, 8)]
    assert {"recipes-core", "executorch", "torch", "torchao"} <= set(manifest["versions"])
    assert manifest["recipe"]["name"] == "delegated"
    assert manifest["report"] == json.loads(json.dumps(session.report().to_dict()))


def test_data_files_are_in_the_manifest(tmp_path: Path) -> None:
    path = small(recipe=PORTABLE.derive(external_constants=True)).save_pte_file(tmp_path / "model.pte")
    (data,) = manifest_of(path)["data_files"]
    assert data["sha256"] == hashlib.sha256((tmp_path / data["file"]).read_bytes()).hexdigest()
    assert inspect_program(path).state.problem == ""


def test_equal_exports_have_one_fingerprint(tmp_path: Path) -> None:
    assert fingerprint(small(), tmp_path) == fingerprint(small(), tmp_path)


def _another_bias() -> ExportSession:
    model = Small().eval()
    with torch.no_grad():
        model.linear.bias[0] += 1
    return export(model, PORTABLE, torch.ones(2, 4))


@pytest.mark.parametrize(
    "other",
    [
        _another_bias,
        lambda: small(recipe=PORTABLE.derive(segment_alignment=256)),
        lambda: small(recipe=PORTABLE.derive("another name")),
        lambda: small(recipe=delegated()),
        lambda: small(example_inputs=torch.ones(3, 4)),
        lambda: small(example_inputs=(torch.ones(2, 4), 3)),
        lambda: small(dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1, max=8)}}),
        lambda: small(constant_methods={"version": 7}),
        lambda: export({"encode": Small().eval()}, PORTABLE, torch.ones(2, 4)),
    ],
    ids=["weights", "option", "name", "backend", "shape", "argument", "range", "constant method", "method"],
)
def test_another_export_has_another_fingerprint(other: Callable[[], ExportSession], tmp_path: Path) -> None:
    assert fingerprint(small(), tmp_path) != fingerprint(other(), tmp_path)


def test_the_fingerprint_is_of_the_weights_that_were_exported(tmp_path: Path) -> None:
    model = Small().eval()
    session = export(model, PORTABLE, torch.ones(2, 4))
    with torch.no_grad():
        model.linear.weight.zero_()
    assert fingerprint(session, tmp_path) == fingerprint(small(), tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.int64])
def test_weights_of_every_type_are_in_the_fingerprint(dtype: torch.dtype, tmp_path: Path) -> None:
    class Holds(torch.nn.Module):
        def __init__(self, value: int) -> None:
            super().__init__()
            self.register_buffer("held", torch.full((2, 3), value).to(dtype))
            self.register_buffer("scalar", torch.tensor(value).to(dtype))
            self.register_buffer("empty", torch.empty(0, dtype=dtype))

        def forward(self, x: torch.Tensor) -> Any:
            return x + self.held + self.scalar, self.empty + 1

    prints = [fingerprint(export(Holds(value), PORTABLE, torch.ones(2, 3)), tmp_path) for value in (0, 1, 1)]
    assert prints[0] != prints[1] == prints[2]


# What is read


def test_a_program_is_inspected_with_its_manifest_and_without(tmp_path: Path) -> None:
    path = small(recipe=delegated()).save_pte_file(tmp_path / "model.pte")
    whole = inspect_program(path)
    text = str(whole)
    for words in ("XnnpackBackend", "aten::cumsum.out", "x: float32[2, 4]", "fingerprint", "recipe       delegated"):
        assert words in text
    path.with_name("model.pte.json").unlink()
    alone = inspect_program(path)
    assert alone.contents == whole.contents
    assert (alone.state.manifest, alone.state.problem) == (None, "")
    assert "XnnpackBackend" in str(alone)
    assert "fingerprint" not in str(alone)
    assert json.loads(json.dumps(alone.to_dict()))["backends"] == ["XnnpackBackend"]


def test_a_program_that_recipes_did_not_make_is_inspected(tmp_path: Path) -> None:
    from executorch.exir import to_edge_transform_and_lower

    captured = torch.export.export(Small().eval(), (torch.ones(2, 4),))
    (tmp_path / "other.pte").write_bytes(to_edge_transform_and_lower(captured).to_executorch().buffer)
    (method,) = inspect_program(tmp_path / "other.pte").contents.methods
    assert [str(value) for value in method.outputs] == ["float32[2, 3]"]


@pytest.mark.parametrize("extract", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, 50, 10**6])
def test_a_program_is_read_alike_from_a_file_and_while_it_is_written(extract: bool, chunk: int, tmp_path: Path) -> None:
    recipe = delegated().derive(extract_delegate_segments=extract)
    path = small(recipe=recipe).save_pte_file(tmp_path / "model.pte")
    content = path.read_bytes()

    def write(file: IO[bytes]) -> None:
        for start in range(0, len(content), chunk):
            file.write(content[start : start + chunk])

    contents = contents_of_file(path)
    assert contents_of(write) == contents
    assert sum(contents.sizes.values()) == contents.size == len(content)
    assert min(contents.sizes.values()) > 0


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "does not begin like one"),
        (b"hello", "does not begin like one"),
        (b"PK\x03\x04" + b"\0" * 200, "does not begin like one"),
        (b"\0\0\0\0ET12", "damaged"),
        (b"\0\0\0\0ET12" + b"\xff" * 200, "damaged"),
        (b"\0\0\0\0ET12eh00\x20\0\0\0" + b"\xff" * 24, "cut short"),
    ],
)
def test_what_is_no_program_is_told_in_one_line(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "x.pte").write_bytes(content)
    with pytest.raises(ArgumentError, match=problem) as caught:
        inspect_program(tmp_path / "x.pte")
    assert "\n" not in str(caught.value)
    assert "x.pte" in str(caught.value)


@pytest.mark.parametrize("path", ["", ".", "missing.pte", "missing/model.pte", "model.pte/inside"])
def test_a_path_without_a_program_is_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.pte").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"does not exist|is a folder"):
        inspect_program(path)


def test_damage_of_any_kind_ends_in_contents_or_in_the_error_for_damage(tmp_path: Path) -> None:
    path = small(recipe=delegated()).save_pte_file(tmp_path / "model.pte")
    content = path.read_bytes()
    draw = random.Random(0)
    refused = 0
    for _ in range(500):
        damaged = bytearray(content)
        for _ in range(draw.choice([1, 3, 20])):
            damaged[draw.randrange(len(damaged))] = draw.choice([0, 127, 255, draw.randrange(256)])
        path.write_bytes(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])])
        try:
            contents_of_file(path)
        except ArgumentError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "model.pte is not the file that"),
        (lambda path: _edit(path, version=2), "has version 2; this version of recipes reads version 1"),
        (lambda path: _edit(path, format="acme"), "is not a manifest"),
        (lambda path: _edit(path, sha256=None), "lacks sha256"),
        (lambda path: _edit(path, data_files=[{"file": "gone.ptd", "sha256": ""}]), "gone.ptd.*is missing"),
        (lambda path: _edit(path, data_files=[{"file": "../x", "sha256": ""}]), "is damaged"),
        (lambda path: _edit(path, data_files=[7]), "is damaged"),
        (lambda path: path.with_name("model.pte.json").write_text("{"), "cannot be read"),
        (lambda path: path.with_name("model.pte.json").write_bytes(b"\xff"), "cannot be read"),
        (lambda path: path.with_name("model.pte.json").write_text("[]"), "is not a manifest"),
    ],
    ids=["program", "newer", "foreign", "lacking", "missing data", "path", "type", "not json", "not text", "list"],
)
def test_a_manifest_that_says_nothing_of_the_program_is_told_and_not_believed(
    spoil: Callable[[Path], Any], problem: str, tmp_path: Path
) -> None:
    path = small().save_pte_file(tmp_path / "model.pte")
    spoil(path)
    inspection = inspect_program(path)
    assert re.search(problem, inspection.state.problem)
    assert inspection.contents.kernels
    assert "fingerprint" not in str(inspection)


def _edit(path: Path, **changes: Any) -> None:
    manifest = {**manifest_of(path), **changes}
    kept = {key: value for key, value in manifest.items() if value is not None}
    path.with_name(f"{path.name}.json").write_text(json.dumps(kept))


# Saving

# Exports two programs, then forks saver after saver, and kills each at a random moment of its endless saving.
SAVE_AND_KILL = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from recipes import ExportRecipe, export, inspect_program

path = Path(sys.argv[1])
torch.manual_seed(0)
recipe = ExportRecipe(name="portable").derive(external_constants=sys.argv[2] == "external")
sessions = [export(torch.nn.Linear(64, width), recipe, torch.ones(1, 64)) for width in (8, 200)]
draw = random.Random(0)
sessions[0].save_pte_file(path)
seen = []
for turn in range(60):
    saver = os.fork()
    if saver == 0:
        while True:
            for session in sessions[:: 1 if turn % 2 else -1]:
                session.save_pte_file(path)
    time.sleep(draw.uniform(0.005, 0.1))
    os.kill(saver, signal.SIGKILL)
    os.waitpid(saver, 0)
    interrupted = path.with_name(f".{path.name}.saving").exists()
    inspection = inspect_program(path)
    width = inspection.contents.methods[0].outputs[0].shape[1]
    seen.append([width, inspection.state.problem, inspection.state.manifest["methods"][0]["outputs"][0]["shape"][1],
                 interrupted])
print(json.dumps(seen))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="savers are forked")
@pytest.mark.parametrize("weights", ["inside", "external"])
def test_a_save_that_is_killed_at_any_moment_leaves_the_old_pair_or_the_new_one(weights: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SAVE_AND_KILL, str(tmp_path / "model.pte"), weights],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout.splitlines()[-1])
    assert len(seen) == 60
    assert {problem for _, problem, _, _ in seen} == {""}
    assert all(program == manifest for program, _, manifest, _ in seen)
    assert {program for program, _, _, _ in seen} == {8, 200}


def test_a_save_that_fails_leaves_the_old_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small().save_pte_file(tmp_path / "model.pte")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    session = _another_bias()

    def full(file: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(session.get_executorch_program_manager(), "write_to_file", full)
    with pytest.raises(SaveError, match="No space left"):
        session.save_pte_file(path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before

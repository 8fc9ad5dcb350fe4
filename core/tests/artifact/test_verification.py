"""Verification: what is compared, what is run on this host, what is not and why, and that faults are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("executorch", reason="programs are ExecuTorch's")

import torch
from click.testing import CliRunner
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.backends.xnnpack.utils.configs import get_xnnpack_edge_compile_config
from executorch.export import LoweringRecipe, QuantizationRecipe

from recipes import ArgumentError, ExportRecipe, ExportSession, export, verify_program
from recipes.cli.app import cli

pytestmark = pytest.mark.filterwarnings("ignore:.*calibration-one-sample:recipes.RecipesWarning")

PORTABLE = ExportRecipe(name="portable")


def delegating(**fields: Any) -> ExportRecipe:
    lowering = LoweringRecipe([XnnpackPartitioner()], edge_compile_config=get_xnnpack_edge_compile_config())
    return ExportRecipe(name="delegating", lowering_recipe=lowering, **fields)


def int8() -> ExportRecipe:
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    return delegating(quantization_recipe=QuantizationRecipe(quantizers=[quantizer]))


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def inputs(rows: int = 2) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(1))


BATCH = {"x": {0: torch.export.Dim("batch", min=1, max=8)}}


def saved(session: ExportSession, folder: Path) -> Path:
    return session.save_pte_file(folder / "model.pte")


@pytest.mark.parametrize("recipe", [PORTABLE, delegating()], ids=["kernels", "delegated"])
def test_a_program_is_compared_with_its_model_on_several_samples_and_at_both_ends_of_its_ranges(
    recipe: ExportRecipe,
) -> None:
    result = export(Small().eval(), recipe, inputs(), dynamic_shapes=BATCH).verify()
    (comparison,) = result.comparisons
    assert (comparison.method, comparison.output, comparison.samples) == ("forward", 0, 5)
    assert comparison.sqnr_db is None or comparison.sqnr_db > 100
    assert comparison.max_abs_error < 1e-5
    assert comparison.cosine > 0.99999
    assert result.ok
    assert (result.not_run, result.concerns) == ([], [])
    (ran,) = result.ran
    assert "example 1, shuffled 1, shuffled 2, s" in ran
    assert "=1, s" in ran
    assert "=8" in ran


def test_a_quantized_model_is_compared_in_pytorch_and_on_this_host() -> None:
    samples = [(torch.randn(2, 4, generator=torch.Generator().manual_seed(seed)),) for seed in range(4)]
    result = export(Small().eval(), int8(), samples).verify()
    assert [comparison.what for comparison in result.comparisons] == [
        "quantized model in PyTorch",
        "program on this host",
    ]
    for comparison in result.comparisons:
        assert comparison.sqnr_db is not None
        assert 10 < comparison.sqnr_db < 70
        assert comparison.samples == 4


def test_state_is_followed_from_sample_to_sample_and_the_models_own_is_left_alone() -> None:
    class Counts(torch.nn.Module):
        total: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            return self.total * 2

    model = Counts()
    session = export(model, PORTABLE, [(torch.full((3,), value),) for value in (1.0, 2.0, 3.0)])
    random_state = torch.get_rng_state()
    first, second = session.verify(), session.verify()
    assert first.ok
    assert first.comparisons == second.comparisons
    assert first.comparisons[0].sqnr_db is None
    assert torch.equal(model.total, torch.ones(3))
    assert torch.equal(torch.get_rng_state(), random_state)


def test_a_program_that_computes_something_else_is_found() -> None:
    model = Small().eval()
    session = export(model, PORTABLE, inputs())
    with torch.no_grad():
        model.linear.weight.neg_()
    result = session.verify()
    assert result.comparisons[0].sqnr_db is not None
    assert result.comparisons[0].sqnr_db < 10
    assert "little of the signal is left" in result.concerns[0]


def test_several_methods_and_outputs_are_compared_each_by_itself() -> None:
    class Pair(torch.nn.Module):
        def forward(self, x: torch.Tensor, scale: int) -> dict[str, Any]:
            return {"least": x.argmin(-1), "scaled": [x * scale], "scale": scale}

    session = export({"a": Small().eval(), "b": Pair()}, PORTABLE, {"a": inputs(), "b": (inputs(), 3)})
    result = session.verify()
    assert result.ok, result.failures
    assert [(c.method, c.output) for c in result.comparisons] == [("a", 0), ("b", 0), ("b", 1)]


def test_given_inputs_are_the_ones_that_are_used() -> None:
    session = export(Small().eval(), PORTABLE, inputs())
    result = session.verify([(inputs(),), (inputs() * 2,)])
    assert result.comparisons[0].samples == 2
    assert "with input 1, input 2" in result.ran[0]
    with pytest.raises(ArgumentError, match="example_inputs"):
        session.verify("x")


def test_inputs_that_do_not_run_are_a_failure_not_a_crash() -> None:
    result = export(Small().eval(), PORTABLE, inputs()).verify(torch.randn(2, 5))
    assert not result.ok
    assert "the model does not run at input 1" in result.failures[0]
    assert "call 1 failed" in result.failures[1]


def test_values_that_are_not_finite_are_failures_unless_the_models_are_not_either() -> None:
    class Root(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sqrt()

    session = export(Root(), PORTABLE, torch.ones(2, 4))
    assert session.verify(-torch.ones(2, 4)).ok


def test_made_up_inputs_whose_outputs_are_not_finite_are_a_concern_and_given_ones_a_failure(tmp_path: Path) -> None:
    class Root(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sqrt()

    path = saved(export(Root(), PORTABLE, torch.ones(2, 4)), tmp_path)
    made_up = verify_program(path)
    assert made_up.ok
    assert "not finite; pass real inputs" in made_up.concerns[0]
    given = verify_program(path, -torch.ones(2, 4))
    assert [failure for failure in given.failures if "not finite" in failure]


def test_weights_outside_of_the_program_are_found(tmp_path: Path) -> None:
    session = export(Small().eval(), PORTABLE.derive(external_constants=True), inputs())
    assert session.verify().comparisons[0].samples == 3
    assert verify_program(saved(session, tmp_path)).ok


def without_backend(path: Path) -> None:
    """Give the program's backend a name that no runtime has."""
    content = path.read_bytes()
    assert b"XnnpackBackend" in content
    path.write_bytes(content.replace(b"XnnpackBackend", b"AbsentBackend_"))


def test_a_backend_that_is_not_here_is_named_with_those_that_are(tmp_path: Path) -> None:
    path = saved(export(Small().eval(), delegating(), inputs()), tmp_path)
    path.with_name("model.pte.json").unlink()
    without_backend(path)
    result = verify_program(path, inputs(), Small().eval())
    assert result.ok
    assert result.comparisons == []
    assert any(
        "AbsentBackend_ is not in this host's runtime; registered: " in line and "XnnpackBackend" in line
        for line in result.not_run
    )
    assert "0x" not in str(result)


def test_a_kernel_that_is_not_here_is_named(tmp_path: Path) -> None:
    path = saved(export(Small().eval(), PORTABLE, inputs()), tmp_path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"aten::relu", b"aten::rilu"))
    path.with_name("model.pte.json").unlink()
    assert any("no kernels for aten::rilu.out" in line for line in verify_program(path).not_run)


def test_a_crash_of_the_runtime_is_told_and_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Python imports this when a process starts.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'recipes.runner.methods' in sys.orig_argv: os.abort()\n"
    )
    session = export(Small().eval(), PORTABLE, inputs())
    monkeypatch.syspath_prepend(tmp_path)
    result = session.verify()
    assert result.failures == ["Method 'forward' returned no result: the runtime crashed with SIGABRT."]


def test_a_program_that_hangs_is_stopped(tmp_path: Path) -> None:
    session = export(Small().eval(), PORTABLE, inputs())
    result = session.verify(timeout=0.01)
    assert result.failures == ["Method 'forward' returned no result: it was stopped after 0.01 s."]


# Saved programs


def test_a_saved_program_is_run_on_made_up_inputs_at_both_ends_of_its_ranges(tmp_path: Path) -> None:
    result = verify_program(saved(export(Small().eval(), PORTABLE, inputs(), dynamic_shapes=BATCH), tmp_path))
    assert result.ok
    assert result.ran[0] == "The file is the one that its manifest was written for."
    assert "at the min of its ranges, generated input at the max of its ranges" in result.ran[1]


def test_a_saved_program_is_run_without_its_manifest_and_that_is_said(tmp_path: Path) -> None:
    path = saved(export(Small().eval(), PORTABLE, inputs()), tmp_path)
    path.with_name("model.pte.json").unlink()
    result = verify_program(path)
    assert result.ok
    assert "no" in result.not_run[0]
    assert "generated input 1" in result.ran[0]


def test_a_file_that_was_changed_after_it_was_saved_is_found(tmp_path: Path) -> None:
    path = saved(export(Small().eval(), PORTABLE, inputs()), tmp_path)
    path.write_bytes(path.read_bytes() + b"\0")
    result = verify_program(path)
    assert not result.ok
    assert "model.pte is not the file that model.pte.json was written for" in result.failures[0]


def test_a_saved_program_is_compared_with_a_model_that_is_given(tmp_path: Path) -> None:
    path = saved(export(Small().eval(), PORTABLE, inputs()), tmp_path)
    result = verify_program(path, inputs(), Small().eval())
    assert result.comparisons[0].max_abs_error < 1e-6
    with pytest.raises(ArgumentError, match="The model has the methods other"):
        verify_program(path, inputs(), {"other": Small().eval()})


def test_inputs_of_every_type_are_made_up(tmp_path: Path) -> None:
    class Integers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(5, 3)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, times: int, nothing: None = None) -> torch.Tensor:
            return self.embedding(ids) * mask.unsqueeze(-1) * times

    ids, mask = torch.tensor([[4, 1]]), torch.ones(1, 2, dtype=torch.bool)
    assert verify_program(saved(export(Integers(), PORTABLE, (ids, mask, 2, None)), tmp_path)).ok


# Command line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a program, its manifest, and the module of its model in it."""
    saved(export(Small().eval(), PORTABLE, inputs()), tmp_path)
    (tmp_path / "models.py").write_text(
        "import torch\n\n\nclass Small(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        torch.manual_seed(0)\n        self.linear = torch.nn.Linear(4, 3)\n\n"
        "    def forward(self, x):\n        return self.linear(x).relu()\n\n\n"
        "def make():\n    return Small().eval(), torch.ones(2, 4)\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_verifies_and_says_so_in_text_and_json(folder: Path) -> None:
    text = CliRunner().invoke(cli, ["verify", "model.pte"])
    assert text.exit_code == 0, text.output
    assert "ran on this host with generated input 1" in text.stdout
    result = CliRunner().invoke(cli, ["verify", "model.pte", "--model", "models.py:make", "--json"])
    record = json.loads(result.stdout)
    assert set(record) == {"ok", "comparisons", "ran", "not_run", "concerns", "failures"}
    assert record["ok"]
    assert record["comparisons"][0]["method"] == "forward"


def test_the_command_takes_inputs_from_a_file(folder: Path) -> None:
    torch.save([(inputs(),), (inputs(),)], folder / "samples.pt")
    result = CliRunner().invoke(cli, ["verify", "model.pte", "--inputs", "samples.pt"])
    assert "with input 1, input 2" in result.stdout


def test_the_command_fails_where_something_is_wrong(folder: Path) -> None:
    (folder / "model.pte").write_bytes((folder / "model.pte").read_bytes() + b"\0")
    result = CliRunner().invoke(cli, ["verify", "model.pte"])
    assert result.exit_code == 1
    assert "Failures" in result.stdout


@pytest.mark.parametrize("command", ["inspect", "verify"])
@pytest.mark.parametrize(("content", "words"), [(b"hello", "does not begin like one"), (None, "does not exist")])
def test_a_file_that_is_no_program_is_wrong_use_in_one_line(
    command: str, content: bytes | None, words: str, folder: Path
) -> None:
    if content is not None:
        (folder / "x.pte").write_bytes(content)
    result = CliRunner().invoke(cli, [command, "x.pte"])
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert words in line


def test_a_program_that_is_cut_short_is_wrong_use_in_one_line(folder: Path) -> None:
    (folder / "model.pte").write_bytes((folder / "model.pte").read_bytes()[:700])
    result = CliRunner().invoke(cli, ["inspect", "model.pte"])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "cut short" in line


def test_the_command_inspects_in_text_and_json_with_the_documented_keys(folder: Path) -> None:
    text = CliRunner().invoke(cli, ["inspect", "model.pte"])
    assert "Method forward" in text.stdout
    record = json.loads(CliRunner().invoke(cli, ["inspect", "model.pte", "--json"]).stdout)
    words = CliRunner().invoke(cli, ["inspect", "--help"]).stdout.partition("JSON:")[2]
    for key in (*record, *record["methods"][0]):
        assert key in words


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--inputs", "gone.pt"), "does not exist"),
        (("--inputs", "models.py"), "cannot be read"),
        (("--model", "gone.py:make"), "does not exist"),
    ],
)
def test_inputs_and_models_that_are_not_there_are_wrong_use(words: tuple[str, str], problem: str, folder: Path) -> None:
    result = CliRunner().invoke(cli, ["verify", "model.pte", *words])
    assert result.exit_code == 2
    assert problem in result.stderr

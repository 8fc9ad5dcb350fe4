"""From `recipes new-plugin` to a file that runs, and away again: the way of a vendor, with really installed wheels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from executorch.runtime import Runtime

import recipes
from recipes.vendor import scaffold

ROOT = Path(__file__).parents[1]
TARGET = "linux-x86_64-acme-fp32"
OWN_TESTS = ["tests/test_recipes.py", "tests/test_conformance.py"]

MODEL = """
import torch


def small():
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 5)
    return torch.nn.Sequential(*layers).eval(), (torch.rand(1, 3, 6, 6),)
"""

Run = Callable[..., str]


def succeed(*command: str | Path, cwd: Path, environ: dict[str, str] | None = None) -> str:
    """Run a command that must end well; gives what it printed on stdout."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `python -m` in a virtual environment that has all that this one has, in an empty folder."""
    home = tmp_path / "venv"
    succeed(sys.executable, "-m", "venv", "--without-pip", home, cwd=tmp_path)
    site = next(home.glob("[Ll]ib/**/site-packages"))
    (site / "all.pth").write_text("".join(f"{path}\n" for path in sys.path if Path(path).is_dir()))
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON", "RECIPES_"))}
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def run(*words: str | Path, cwd: Path = tmp_path) -> str:
        return succeed(python, "-m", *words, cwd=cwd, environ=environ)

    return run


def test_a_new_plugin_is_built_installed_listed_exported_with_and_removed(run: Run, tmp_path: Path) -> None:
    assert TARGET not in run("recipes", "targets")
    before = run("recipes", "targets", "--json")

    assert "pyproject.toml" in run("recipes", "new-plugin", "acme")
    project = tmp_path / "recipes-acme"
    run("pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", tmp_path, project)
    (wheel,) = tmp_path.glob("*.whl")
    run("pip", "install", "--no-deps", "--no-index", wheel)
    assert f"{TARGET} ready acme:fp32" in " ".join(run("recipes", "targets").split())

    (tmp_path / "model.py").write_text(MODEL)
    run("recipes", "export", "model.py:small", "--target", TARGET, "-O", "alignment=64", "-o", "model.pte")
    namespace: dict[str, Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor]]]] = {}
    exec(MODEL, namespace)
    model, inputs = namespace["small"]()
    program = Runtime.get().load_program(tmp_path / "model.pte")
    method = program.load_method("forward")
    assert method is not None
    (output,) = method.execute(list(inputs))
    torch.testing.assert_close(output, model(*inputs), atol=1e-5, rtol=1e-4)
    assert recipes.inspect_program(tmp_path / "model.pte").to_dict()["backends"] == []

    run("pytest", "-q", *OWN_TESTS, cwd=project)

    run("pip", "uninstall", "--yes", "recipes-acme")
    assert run("recipes", "targets", "--json") == before


@pytest.mark.parametrize("name", ["acme", "my_chip_2"])
def test_what_is_written_is_typed_and_tidy(name: str, tmp_path: Path) -> None:
    scaffold.new_plugin(name, tmp_path, recipes.Registry(entry_points=()))
    overrides = ('src=["src"]', 'lint.per-file-ignores={"tests/**"=["RUF012"]}')
    ours = [word for setting in (str(ROOT / "pyproject.toml"), *overrides) for word in ("--config", setting)]
    for settings in ([], ours):
        succeed(sys.executable, "-m", "ruff", "check", "--no-cache", *settings, ".", cwd=tmp_path)
    succeed(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", ".", cwd=tmp_path)
    cache = ("--cache-dir", str(tmp_path / "cache"))
    succeed(sys.executable, "-m", "mypy", "--strict", *cache, "src", *OWN_TESTS, cwd=tmp_path)

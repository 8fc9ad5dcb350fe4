"""Built wheels, and small environments with nothing but them and core's light dependencies. No torch is needed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import TypeAlias

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "recipes-core": "core",
    "recipes-coreml": "plugins/coreml",
    "recipes-openvino": "plugins/openvino",
    "recipes-xnnpack": "plugins/xnnpack",
}
HEAVY = {"executorch", "torch"}

Run: TypeAlias = Callable[..., str]
"""Runs Python code in an environment, or (`command=`) a command that is installed there, and gives what it printed.

It must end with the exit code 0, or `exit_code=`.
"""


# Runs pip for each list of arguments, in one process of an interpreter that has none: to start pip is what takes long.
PIP = """
import json, sys
folder, commands = sys.argv[1], json.loads(sys.argv[2])
sys.path.insert(0, folder)
from pip._internal.cli.main import main
sys.path.remove(folder)
for command in commands:
    if main(["--quiet", "--disable-pip-version-check", *command]):
        sys.exit(1)
"""


def _pip(*commands: Sequence[str], python: Path | str = sys.executable) -> None:
    pip = importlib.util.find_spec("pip")
    assert pip is not None
    assert pip.origin is not None
    words = [str(python), "-c", PIP, str(Path(pip.origin).parents[1]), json.dumps(commands)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The built wheel of each distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    sources = [str(ROOT / source) for source in FOLDERS.values()]
    _pip(["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), *sources])
    return {name: next(folder.glob(f"{name.replace('-', '_')}-*.whl")) for name in FOLDERS}


@pytest.fixture(scope="session")
def metadata(wheels: dict[str, Path]) -> dict[str, Message]:
    """The core metadata inside each wheel."""
    found = {}
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
            found[name] = Parser().parsestr(archive.read(member).decode())
    return found


@pytest.fixture(scope="session")
def light_dependencies(metadata: dict[str, Message], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that recipes-core depends on, but torch and ExecuTorch."""
    requirements = [Requirement(text) for text in metadata["recipes-core"].get_all("Requires-Dist", [])]
    light = [str(r) for r in requirements if r.name not in HEAVY and "extra" not in str(r.marker)]
    folder = tmp_path_factory.mktemp("light_dependencies")
    _pip(["install", "--no-compile", "--target", str(folder), *light])
    return folder


@pytest.fixture(scope="session")
def toolchains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every heavy module is present and raises when it is imported: to list must not need it."""
    folder = tmp_path_factory.mktemp("toolchains")
    for module in ("torch", "executorch", "torchao", "coremltools", "openvino", "nncf", "numpy"):
        (folder / f"{module}.py").write_text(f"raise AssertionError('{module} was imported')\n")
    return folder


@pytest.fixture(scope="session")
def environment(
    wheels: dict[str, Path], light_dependencies: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Run]:
    """Makes a virtual environment with the wheels of some distributions, installed with pip; made once for each set.

    Args:
        distributions: Their names, in the order of installation.
        extra: Folders that are importable there as well.
    """
    made: dict[tuple[object, ...], Run] = {}

    def make(*distributions: str, extra: tuple[Path, ...] = ()) -> Run:
        key = (distributions, extra)
        if key not in made:
            folder = tmp_path_factory.mktemp("environment")
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
            python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
            install = ("install", "--no-compile", "--no-deps", "--no-index")
            _pip(*((*install, str(wheels[distribution])) for distribution in distributions), python=python)
            site = next(folder.glob("[Ll]ib/**/site-packages"))
            (site / "added.pth").write_text("".join(f"{path}\n" for path in (light_dependencies, *extra)))
            made[key] = _runner(python)
        return made[key]

    return make


def _runner(python: Path) -> Run:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("RECIPES_", "PYTHON"))}

    def run(code: str = "", *, command: tuple[str, ...] = (), exit_code: int = 0) -> str:
        words = [str(python.parent / command[0]), *command[1:]] if command else [str(python), "-c", code]
        result = subprocess.run(
            words, capture_output=True, text=True, env=environ, timeout=120, cwd=python.parent, check=False
        )
        assert result.returncode == exit_code, result.stdout + result.stderr
        return result.stdout

    return run

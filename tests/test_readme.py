"""What the READMEs show works as it stands there."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recipes import list_targets

ROOT = Path(__file__).parents[1]


def blocks(readme: str, language: str) -> list[str]:
    """The code blocks of a language in a README, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / readme).read_text(), re.DOTALL | re.MULTILINE)


def test_the_python_in_the_readme_runs_and_makes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    found = blocks("README.md", "python")
    assert len(found) >= 3
    for block in found:
        exec(compile(block, "README.md", "exec"), namespace)
    assert (tmp_path / "model.pte").stat().st_size > 1000
    assert namespace["output"].shape == (1, 10)


def test_the_python_in_the_page_on_options_runs(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    for block in blocks("docs/options.md", "python"):
        exec(compile(block, "docs/options.md", "exec"), namespace)
    said = capsys.readouterr().out
    assert "iOS17" in said
    assert "must be a whole number, at least 32, a multiple of 32; got -5" in said


def test_the_python_in_the_page_on_checks_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for block in blocks("docs/checks.md", "python"):
        exec(compile(block, "docs/checks.md", "exec"), namespace)
    assert "error: 1: this Dropout is in training mode" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pte", "model.pte.json"]


def test_every_code_of_a_finding_is_on_the_page_on_checks() -> None:
    page = (ROOT / "docs" / "checks.md").read_text()
    sources = [*(ROOT / "core/src").rglob("*.py"), *(ROOT / "plugins").glob("*/src/*/*.py")]
    found = set()
    for path in sources:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Finding":
                found |= {n.value for n in ast.walk(call.args[1]) if isinstance(n, ast.Constant)}
    assert len(found) > 10
    assert {code for code in found if f"| `{code}` |" not in page} == set()


def test_the_command_in_the_page_on_options_runs() -> None:
    (command,) = blocks("docs/options.md", "console")
    ran = subprocess.run([sys.executable, "-m", *command.split()], capture_output=True, text=True, check=True)
    assert "CPU_AND_NE" in ran.stdout


def test_the_listing_in_the_readme_of_core_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(blocks("core/README.md", "python")[0], "core/README.md", "exec"), {})
    assert "ios-arm64-coreml-fp16 ready" in capsys.readouterr().out


def test_the_table_of_targets_is_what_the_plugins_declare() -> None:
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("|")]
    named = re.findall(r"`(\w+-\w+-\w+-\w+)`( \(default\))?", "\n".join(rows))
    assert sorted(name for name, _ in named) == [target.name for target in list_targets()]
    assert {name for name, mark in named if mark} == {target.name for target in list_targets() if target.default}


def test_the_commands_for_a_fresh_machine_are_two_and_name_sessions_that_exist() -> None:
    commands = re.findall(r"^    (python -m pip install nox && .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands == [
        "python -m pip install nox && python -m nox -s demo",
        "python -m pip install nox && python -m nox",
    ]
    listed = subprocess.run(
        [sys.executable, "-m", "nox", "-l"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert re.search(r"^- demo ", listed, re.MULTILINE)
    assert re.search(r"^\* tests ", listed, re.MULTILINE)
    assert re.search(r"^\* core_light-3.11 ", listed, re.MULTILINE)


def test_links_in_the_readmes_lead_somewhere() -> None:
    for readme in (ROOT / "README.md", ROOT / "core" / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!https?://)([^)#]+)", readme.read_text()):
            assert (readme.parent / link).exists(), f"{readme.name}: {link}"


def test_the_plugin_in_the_readme_of_core_is_found_and_exports(tmp_path: Path) -> None:
    package = tmp_path / "recipes_acme"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "plugin.py").write_text(blocks("core/README.md", "python")[1])
    (package / "partitioner.py").write_text(
        "from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner as AcmePartitioner\n"
    )
    (toml,) = blocks("core/README.md", "toml")
    info = tmp_path / "recipes_acme-1.0.dist-info"
    info.mkdir()
    requirements = re.findall(r'"([^"]+)"', toml.split("dependencies", 1)[1].split("\n", 1)[0])
    requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in requirements)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: recipes-acme\nVersion: 1.0\n{requires}")
    entry_point = toml.split("[project.entry-points.recipes]\n")[1].replace('"', "")
    (info / "entry_points.txt").write_text(f"[recipes]\n{entry_point}")

    code = (
        "import torch, recipes\n"
        "target, = [t for t in recipes.list_targets('android') if t.accelerator == 'acme']\n"
        "print(target.name, target.state, [c.recipe for c in target.active])\n"
        "model = torch.nn.Linear(4, 4).eval()\n"
        "session = recipes.export(model, 'android-arm64-acme-fp32', (torch.rand(1, 4),))\n"
        "print([d.id for d in session.get_executorch_program().execution_plan[0].delegates])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "android-arm64-acme-fp32 ready ['acme:fp32', 'xnnpack:fp32']",
        "['XnnpackBackend']",
    ]


def test_the_demo_is_quick_to_import_and_has_a_target_for_every_host_that_it_names() -> None:
    specification = importlib.util.spec_from_file_location("demo", ROOT / "docs" / "demo.py")
    assert specification is not None
    assert specification.loader is not None
    demo = importlib.util.module_from_spec(specification)
    sys.modules["demo"] = demo
    specification.loader.exec_module(demo)
    names = {target.name for target in list_targets()}
    assert {demo.IOS_TARGET, *demo.HOST_TARGETS.values()} <= names

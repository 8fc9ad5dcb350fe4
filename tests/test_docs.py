"""What the pages and the READMEs show works as it stands there.

A comment on the line above a code block says what else is to be done with it:

    <!-- file: PATH -->       it is written to that file, beside what the page's other blocks make
    <!-- warns: TEXT -->      it gives a RecipesWarning with this text
    <!-- exit: CODE -->       its last command ends with this exit code
    <!-- not run: REASON -->  it is not run

A block of `text` is what the block before it prints; `...` stands for anything.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

import recipes
from recipes import RecipesWarning, list_targets
from recipes.cli.app import cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
READMES = [ROOT / "README.md", ROOT / "core" / "README.md", *sorted(ROOT.glob("plugins/*/README.md"))]
PAGES = [*READMES, *sorted(DOCS.rglob("*.md"))]
MOST_NOT_RUN = 6
"""How many blocks of all pages together may be marked as not run."""

_BLOCK = re.compile(r"^((?:<!-- [^\n]* -->\n)*)```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NOTE = re.compile(r"<!-- (file|warns|exit|not run): (.*) -->")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A code block of a page.

    Args:
        language: What stands behind the backticks.
        text: What is between them.
        place: The page and the line.
        line: The number of the line of the backticks.
        notes: What comments above it say.
    """

    language: str
    text: str
    place: str
    line: int
    notes: dict[str, str]


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        place = f"{name_of(page)}, line {line}"
        found.append(Block(match[2], match[3], place, line, dict(_NOTE.findall(match[1]))))
    return found


def looks_like(shown: str, printed: str) -> bool:
    """Whether a page shows what is printed, where `...` stands for anything and white space for white space."""
    pattern = ".*".join(r"\s+".join(map(re.escape, part.split())) for part in shown.split("..."))
    return re.fullmatch(rf"\s*{pattern}\s*", printed, re.DOTALL) is not None


class PageRunner:
    """Runs the blocks of one page, in order: Python in one namespace, commands in the current folder.

    Args:
        folder: The current folder of everything that is run.
        namespace: The names that the page's Python starts with.
    """

    def __init__(self, folder: Path, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.printed = ""
        site = folder / "installed"
        # What a page installs goes into a folder of its own, and is built with what is here.
        self.environment = os.environ | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "PYTHONPATH": str(site),
            "PIP_TARGET": str(site),
            "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this as --no-build-isolation
            "PIP_NO_DEPS": "1",
            "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def run(self, block: Block) -> None:
        """Do with a block what its language and its notes say."""
        if "not run" in block.notes:
            self.printed = ""
        elif "file" in block.notes:
            path = Path(block.notes["file"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            self._python(block)
        elif block.language == "console":
            self._commands(block)
        elif block.language == "text":
            assert looks_like(block.text, self.printed), (
                f"{block.place} has\n{block.text}\nand what is printed is\n{self.printed}"
            )
        else:
            pytest.fail(
                f"{block.place}: a block of {block.language or 'no language'} needs a note on what to do with it"
            )

    def _python(self, block: Block) -> None:
        code = compile("\n" * block.line + block.text, block.place, "exec")
        expected = block.notes.get("warns")
        with contextlib.redirect_stdout(io.StringIO()) as printed, _warning(expected):
            exec(code, self.namespace)
        self.printed = printed.getvalue()

    def _commands(self, block: Block) -> None:
        commands = block.text.replace("\\\n", " ").strip().splitlines()
        expected = int(block.notes.get("exit", 0))
        printed = []
        for number, command in enumerate(commands, 1):
            code, output = self._command(command)
            printed.append(output)
            assert code == (expected if number == len(commands) else 0), f"{block.place}: {command}\n{output}"
        self.printed = "".join(printed)

    def _command(self, command: str) -> tuple[int, str]:
        if command.startswith("recipes ") and not re.search(r"[|&;<>$`]", command):
            recipes.refresh()  # as a process of its own would find what was installed meanwhile
            with warnings.catch_warnings():
                warnings.simplefilter("default", RecipesWarning)
                ran = CliRunner().invoke(cli, shlex.split(command)[1:], prog_name="recipes")
            return ran.exit_code, ran.output
        bash = shutil.which("bash")
        assert bash is not None, f"no shell to run {command!r}"
        done = subprocess.run(
            [bash, "-euo", "pipefail", "-c", command],
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
        )
        return done.returncode, done.stdout


def _warning(expected: str | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if expected is None else pytest.warns(RecipesWarning, match=re.escape(expected))


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageRunner]:
    """Runs blocks in an empty folder; what it changes in this process is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path, str(tmp_path / "installed")])
    page = ModuleType("page")  # torch looks up in its module what a class of the page uses
    monkeypatch.setitem(sys.modules, page.__name__, page)
    before, environment = set(sys.modules), dict(os.environ)
    yield PageRunner(tmp_path, vars(page))
    for name, module in list(sys.modules.items()):
        if name not in before and str(tmp_path) in str(getattr(module, "__file__", None) or ""):
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)
    monkeypatch.undo()
    recipes.refresh()


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name_of)
def test_every_code_block_of_a_page_works_as_it_stands_there(page: Path, runner: PageRunner) -> None:
    if page.parent.parent.name == "plugins":  # these show the lines that differ from the first README's
        import torch

        runner.namespace.update(model=torch.nn.Linear(64, 32).eval(), example_inputs=(torch.rand(1, 64),))
    for block in blocks(page):
        runner.run(block)


def test_the_commands_listed_in_the_readme_work(runner: PageRunner) -> None:
    Path("my_models.py").write_text(
        "import torch\n\n\ndef small():\n    return torch.nn.Linear(64, 32).eval(), (torch.rand(1, 64),)\n"
    )
    listed = re.findall(r"^    (recipes \S+.*?)(?:  .*)?$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {command.split()[1] for command in listed} >= {"targets", "show", "check", "export", "inspect", "verify"}
    for command in listed:
        runner.run(Block("console", command, "README.md", 0, {}))


def test_every_fence_is_one_that_the_blocks_are_found_by() -> None:
    for page in PAGES:
        fences = re.findall(r"^[ >]*(?:```|~~~)", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert fences == ["```"] * 2 * len(blocks(page)), name_of(page)


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    reasons = [block.notes["not run"] for page in PAGES for block in blocks(page) if "not run" in block.notes]
    assert len(reasons) <= MOST_NOT_RUN
    assert all(len(reason.split()) > 3 for reason in reasons)


@pytest.mark.parametrize(
    ("shown", "printed", "agrees"),
    [
        ("a b\n", "a   b\n\n", True),
        ("a ...\n... c\n", "a b b b c", True),
        ("a ... c\n", "a c", True),
        ("...\n", "", True),
        ("a b\n", "a", False),
        ("a ... c\n", "a b c d", False),
        ("b ...\n", "a b c", False),
    ],
)
def test_what_a_page_shows_is_compared_with_what_is_printed(shown: str, printed: str, agrees: bool) -> None:
    assert looks_like(shown, printed) is agrees


def test_a_block_whose_output_differs_is_told(runner: PageRunner) -> None:
    runner.run(Block("python", "print('right')\n", "page", 1, {}))
    runner.run(Block("text", "ri...\n", "page", 4, {}))
    with pytest.raises(AssertionError, match=r"what is printed is\s+right"):
        runner.run(Block("text", "wrong\n", "page", 7, {}))


def test_a_command_that_fails_is_told(runner: PageRunner) -> None:
    with pytest.raises(AssertionError, match="no-such-target"):
        runner.run(Block("console", "recipes show no-such-target\n", "page", 1, {}))
    runner.run(Block("console", "recipes targets\nrecipes show no-such-target\n", "page", 1, {"exit": "2"}))


def test_a_block_that_nobody_runs_is_told(runner: PageRunner) -> None:
    with pytest.raises(pytest.fail.Exception, match="a block of toml needs a note"):
        runner.run(Block("toml", "x = 1\n", "page", 1, {}))


@pytest.fixture
def generator() -> ModuleType:
    specification = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_generated_parts_are_what_the_code_says(generator: ModuleType) -> None:
    assert generator.main(["--check"]) == 0


def test_check_tells_a_page_that_is_out_of_date_and_leaves_it_alone(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "merge.md"
    stale = "<!-- begin policies -->\nold\n<!-- end policies -->\n"
    page.write_text(stale, encoding="utf-8")
    monkeypatch.setattr(generator, "DOCS", tmp_path)
    monkeypatch.setattr(generator, "GENERATED", {"merge.md": generator.GENERATED["merge.md"]})

    assert generator.main(["--check"]) == 1
    assert page.read_text(encoding="utf-8") == stale
    assert "merge.md" in capsys.readouterr().out
    assert generator.main([]) == 0
    assert "| `LoweringRecipe` | `partitioners` | concatenate |" in page.read_text(encoding="utf-8")


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


def test_the_plugin_in_the_readme_of_core_is_found_and_exports(tmp_path: Path) -> None:
    package = tmp_path / "recipes_acme"
    package.mkdir()
    (package / "__init__.py").touch()
    shown = {block.notes["file"]: block.text for block in blocks(ROOT / "core" / "README.md") if "file" in block.notes}
    (package / "plugin.py").write_text(shown["recipes_acme/plugin.py"])
    (package / "partitioner.py").write_text(
        "from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner as AcmePartitioner\n"
    )
    toml = shown["pyproject.toml"]
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

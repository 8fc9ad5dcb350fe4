"""The shape of core's source: which room may import which, and that no backend is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "src" / "recipes"
MODULES = sorted(path.relative_to(CORE) for path in CORE.rglob("*.py"))
SOURCES = [ROOT / "core" / "src", *sorted((ROOT / "plugins").glob("*/src"))]
MOST_LINES = 400
LONGEST_FUNCTION = 60

# A function may be longer only for the reason beside it.
LONG_FOR_A_REASON: dict[str, str] = {}

BACKENDS = re.compile(r"coreml|xnnpack|openvino|vulkan|(?<![a-z])(?:qnn|mps)(?![a-z])", re.IGNORECASE)
EXAMPLE = re.compile(r"ios-arm64-coreml-(?:fp16|fp32|int8|\*)")


def docstrings(tree: ast.AST) -> set[int]:
    """The ids of the nodes that are docstrings, those of constants included."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def import_linter(monkeypatch: pytest.MonkeyPatch, config: Path, *sources: Path) -> int:
    """The exit code of `lint-imports`: 0 where every contract is kept."""
    for source in sources:
        monkeypatch.syspath_prepend(str(source))
    return lint_imports(config_filename=str(config), no_cache=True)


def contracts() -> dict[str, Any]:
    """What pyproject.toml says about imports."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[import-not-found, no-redef]
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return settings


def test_imports_go_one_way_and_through_the_doors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert import_linter(monkeypatch, ROOT / "pyproject.toml", *SOURCES) == 0


def test_the_contracts_have_no_exception() -> None:
    for contract in contracts()["contracts"]:
        assert not contract.get("ignore_imports"), contract["id"]
        assert not contract.get("exhaustive_ignores"), contract["id"]


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("common", "import rooms.cli"),
        ("common", "def late():\n    from rooms.cli import main"),
        ("recipe", "import rooms.executorch.stages"),
    ],
    ids=["upwards", "upwards, in a function", "past a door"],
)
def test_a_wrong_arrow_breaks_a_contract(room: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contracts are tried on a small package of the same shape, for a real one cannot be broken here."""
    package = f"rooms_{abs(hash((room, line)))}"
    for name in ("common", "executorch", "recipe", "cli"):
        (tmp_path / package / name).mkdir(parents=True)
        (tmp_path / package / name / "__init__.py").write_text("")
    (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / package / "executorch" / "stages.py").write_text("")
    config = tmp_path / "config.toml"
    text = f"[tool.importlinter]\nroot_package = '{package}'\n"
    text += f"[[tool.importlinter.contracts]]\nname = 'rooms'\ntype = 'layers'\ncontainers = ['{package}']\n"
    text += "layers = ['cli', 'recipe', 'executorch', 'common']\n"
    text += "[[tool.importlinter.contracts]]\nname = 'door'\ntype = 'protected'\n"
    text += f"protected_modules = ['{package}.executorch.*']\nallowed_importers = ['{package}.executorch']\n"
    config.write_text(text)
    assert import_linter(monkeypatch, config, tmp_path) == 0

    (tmp_path / package / room / "__init__.py").write_text(line.replace("rooms.", f"{package}."))

    assert import_linter(monkeypatch, config, tmp_path) == 1


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_core_names_no_backend(module: Path) -> None:
    text = EXAMPLE.sub("", (CORE / module).read_text())
    assert BACKENDS.findall(text) == []


def test_outside_docstrings_the_only_target_named_is_the_default_of_get_ios_recipe() -> None:
    named = []
    for module in MODULES:
        tree = ast.parse((CORE / module).read_text())
        skip = docstrings(tree)
        named += [
            (str(module), node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in skip
            and EXAMPLE.search(node.value)
        ]
    assert named == [("registry.py", "ios-arm64-coreml-fp16")]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_no_module_and_no_function_is_too_long(source: Path) -> None:
    long = []
    for path in sorted(source.rglob("*.py")):
        text = path.read_text()
        name = str(path.relative_to(source))
        if len(text.splitlines()) > MOST_LINES:
            long.append(f"{name}: {len(text.splitlines())} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                # What a docstring and a signature take is no complexity.
                first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0]
                lines = (node.end_lineno or 0) - first.lineno + 1
                if lines > LONGEST_FUNCTION and f"{name}:{node.name}" not in LONG_FOR_A_REASON:
                    long.append(f"{name}:{node.name}: {lines} lines")
    assert long == []

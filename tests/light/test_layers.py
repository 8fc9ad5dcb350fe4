"""The shape of core's source: which module may import which, and that no backend is named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "src" / "recipes"
PLUGINS = ("coreml", "openvino", "xnnpack")
MODULES = sorted(path.relative_to(CORE) for path in CORE.rglob("*.py"))

# From the bottom up: a module imports only from lines above its own.
LAYERS = (
    {"errors"},
    {"findings"},
    {"ranges"},
    {"contents", "delegation", "facts", "provider", "files", "quantization", "rendering", "runtime", "values"},
    {"policies"},
    {"provenance"},
    {"merge"},
    {"targets", "export_recipe"},
    {"hookspecs"},
    {"plugins"},
    {"registry"},
    {"arguments", "scaffold"},
    {"sharing"},
    {"fallback"},
    {"kernels"},
    {"stages", "preflight", "watching"},
    {"elsewhere", "report"},
    {"manifest", "running"},
    {"doctor", "inspection", "verification"},
    {"session"},
    {"many"},
    {"cli", "testing"},
    {"__main__"},
)
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}

# ExecuTorch has `ExportRecipe.get_recipe` on the class; ours asks the registry, which it imports when it is called.
LET_THROUGH = {("export_recipe", "registry")}

BACKENDS = re.compile(r"coreml|xnnpack|openvino|vulkan|(?<![a-z])(?:qnn|mps)(?![a-z])", re.IGNORECASE)
EXAMPLE = re.compile(r"ios-arm64-coreml-(?:fp16|fp32|int8|\*)")


def room(module: Path) -> str:
    """The top-level module or package that a file belongs to."""
    return module.parts[0].removesuffix(".py")


def nodes_that_run(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`, which only name types."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from nodes_that_run(node)


def imported_rooms(source: str) -> set[str]:
    """The modules of `recipes` that source code imports, at whatever depth; `""` for the package itself."""
    found = set()
    for node in nodes_that_run(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that they can be read off"
            base = node.module or ""
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "recipes" else [base]
        for name in names:
            if name == "recipes" or name.startswith("recipes."):
                part = name.split(".")[1] if "." in name else ""
                found.add(part if part in RANK else "")
    return found


def docstrings(tree: ast.AST) -> set[int]:
    """The ids of the nodes that are docstrings, those of constants included."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def test_every_module_has_a_place() -> None:
    rooms = {room(module) for module in MODULES} - {"__init__"}
    assert rooms - set(RANK) == set(), "give new modules a line in LAYERS"


@pytest.mark.parametrize("module", [m for m in MODULES if m != Path("__init__.py")], ids=str)
def test_imports_go_one_way(module: Path) -> None:
    own = room(module)
    imported = imported_rooms((CORE / module).read_text()) - {own, ""}
    upwards = {(own, name) for name in imported if RANK[name] >= RANK[own]}
    assert upwards - LET_THROUGH == set()


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


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_imports_the_public_names_of_recipes_only(plugin: str) -> None:
    files = sorted((ROOT / "plugins" / plugin / "src").rglob("*.py"))
    assert files
    others = tuple(f"recipes_{name}" for name in PLUGINS if name != plugin)
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("recipes."), f"{path}:{node.lineno}"
                assert not (node.module or "").startswith(others), f"{path}:{node.lineno}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    assert not alias.name.startswith(("recipes.", *others)), f"{path}:{node.lineno}"

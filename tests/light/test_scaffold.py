"""`recipes new-plugin`: what it refuses, what it writes, and that what it writes is light. No torch is needed."""

from __future__ import annotations

import configparser
import keyword
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from packaging.requirements import Requirement

from recipes import ArgumentError, Registry, SaveError
from recipes.cli.app import cli
from recipes.vendor import scaffold

ROOT = Path(__file__).parents[2]
WRITTEN = [
    ".gitignore",
    "README.md",
    "pyproject.toml",
    "src/recipes_acme/__init__.py",
    "src/recipes_acme/plugin.py",
    "src/recipes_acme/provider.py",
    "src/recipes_acme/py.typed",
    "src/recipes_acme/recipe_types.py",
    "src/recipes_acme/recipes.py",
    "tests/test_conformance.py",
    "tests/test_recipes.py",
]

Environment = Callable[..., Callable[..., str]]


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["new-plugin", *words], prog_name="recipes")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what is written for acme."""
    folder = tmp_path_factory.mktemp("acme")
    scaffold.new_plugin("acme", folder / "source", Registry(entry_points=()))
    command = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    subprocess.run([sys.executable, "-m", "pip", *command, str(folder / "source")], check=True, timeout=300)
    return next(folder.glob("*.whl"))


def test_it_writes_a_project_and_says_what_and_what_to_do_next() -> None:
    ran = run("acme")
    assert ran.exit_code == 0
    assert files_in(Path("recipes-acme")) == WRITTEN
    told, _, following = ran.output.partition("\nNext:\n")
    assert told.split() == ["Wrote", "to", "recipes-acme:", *WRITTEN]
    assert [line.strip() for line in following.splitlines()] == [
        "cd recipes-acme",
        "pip install --editable '.[test]'",
        "recipes show linux-x86_64-acme-fp32",
        "pytest",
    ]


def test_it_writes_where_it_is_told_to_and_the_commands_say_so() -> None:
    Path("my plugins/acme").mkdir(parents=True)  # an empty folder is as good as none
    ran = run("acme", "my plugins/acme")
    assert ran.exit_code == 0
    assert files_in(Path("my plugins/acme")) == WRITTEN
    assert "cd 'my plugins/acme'\n" in ran.output


def test_no_placeholder_and_no_other_name_is_left() -> None:
    scaffold.new_plugin("my_chip_2", "out", Registry(entry_points=()))
    for path in files_in(Path("out")):
        text = (Path("out") / path).read_text()
        assert "$" not in text, path
        assert "acme" not in text.lower() + path
        if path.endswith(".py"):
            compile(text, path, "exec")
    assert "class MyChip2RecipeType(RecipeType):" in Path("out/src/recipes_my_chip_2/recipe_types.py").read_text()


@pytest.mark.parametrize("template", sorted(Path(scaffold.__file__).parent.rglob("*.template")), ids=lambda p: p.name)
def test_the_templates_name_no_backend(template: Path) -> None:
    text = template.read_text().lower()
    assert [name for name in ("coreml", "xnnpack", "openvino", "vulkan", "qnn") if name in text] == []


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("Acme", "'acme' is a valid name"),
        ("my-chip", "'my_chip' is a valid name"),
        ("recipes-acme", "'acme' is a valid name"),
        ("2fast", "begin with a letter"),
        ("acme_", "'acme' is a valid name"),
        ("a__b", "'a_b' is a valid name"),
        ("größe", "lower-case letters"),
        ("../acme", "'acme' is a valid name"),
        ("class", "'class_npu'"),
        ("import", "'import_npu'"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused_with_one_that_can(name: str, way_out: str) -> None:
    ran = run(name)
    assert ran.exit_code == 2
    assert f"A plugin cannot be called {name!r}" in ran.output
    assert way_out in ran.output
    assert list(Path().iterdir()) == []


def test_every_keyword_of_python_is_refused() -> None:
    for name in [word for word in keyword.kwlist if word.islower()]:
        with pytest.raises(ArgumentError, match="Python keyword"):
            scaffold.new_plugin(name, "out", Registry(entry_points=()))


@pytest.mark.parametrize("name", ["coreml", "xnnpack"])
def test_the_name_of_an_installed_plugin_is_refused_with_its_owner(name: str) -> None:
    ran = run(name)
    assert ran.exit_code == 2
    assert f"The name {name!r} is taken by the plugin {name!r} (recipes-{name} " in ran.output
    assert list(Path().iterdir()) == []


def test_a_backend_of_an_installed_plugin_is_refused_though_the_plugin_has_another_name(tmp_path: Path) -> None:
    site = tmp_path / "site"
    names = "Availability, Component, RecipeInfo, RecipeProvider, RecipeType, TargetProfile, hookimpl"
    code = f"from recipes import {names}\n" + "\n".join(
        [
            "class Type(RecipeType):",
            "    FP32 = 'acme_fp32'",
            "    @classmethod",
            "    def get_backend_name(cls): return 'acme'",
            "class Provider(RecipeProvider):",
            "    backend_name = 'acme'",
            "    def get_supported_recipes(self): return list(Type)",
            "    def describe(self, recipe_type): return RecipeInfo('', 'float32', 'float32')",
            "    def availability(self): return Availability(True)",
            "    def build_recipe(self, recipe_type, options): raise NotImplementedError",
            "@hookimpl",
            "def recipes_register_providers(): return [Provider()]",
            "@hookimpl",
            "def recipes_register_targets():",
            "    return [TargetProfile('linux-arm64-turbo-fp32', (Component('acme:fp32'),))]",
        ]
    )
    info = site / "big_vendor-3.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: big-vendor\nVersion: 3.0\n")
    (info / "entry_points.txt").write_text("[recipes]\nvendor = big_vendor\n")
    (site / "big_vendor.py").write_text(code)
    ask = "from recipes.cli import main; import sys; sys.argv[1:] = ['new-plugin', '{}']; main()"
    for name in ("vendor", "acme", "turbo"):
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(site)!r}); {ask.format(name)}"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2, done.stdout
        assert f"The name {name!r} is taken by the plugin 'vendor' (big-vendor 3.0)" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_the_name_of_a_distribution_of_recipes_is_refused_though_it_is_no_plugin_here() -> None:
    with pytest.raises(ArgumentError, match=r"taken by the distribution recipes-core \d"):
        scaffold.new_plugin("core", "out", Registry(entry_points=()))
    with pytest.raises(ArgumentError, match="taken by the plugin recipes-xnnpack, which is not installed here"):
        scaffold.new_plugin("xnnpack", "out", Registry(entry_points=()))
    assert not Path("out").exists()


def test_a_folder_with_something_in_it_is_refused_and_left_alone() -> None:
    folder = Path("recipes-acme")
    folder.mkdir()
    (folder / ".hidden").write_text("mine")
    ran = run("acme")
    assert ran.exit_code == 2
    assert "The folder 'recipes-acme' is not empty: it contains .hidden. Name one that" in ran.output
    assert files_in(folder) == [".hidden"]


def test_a_file_in_the_place_of_the_folder_is_refused_and_left_alone() -> None:
    Path("recipes-acme").write_text("mine")
    ran = run("acme")
    assert ran.exit_code == 2
    assert "'recipes-acme' is not a folder" in ran.output
    assert Path("recipes-acme").read_text() == "mine"


def test_what_cannot_be_written_is_told() -> None:
    Path("file").write_text("mine")
    with pytest.raises(SaveError, match="Cannot write the plugin to 'file/acme'"):
        scaffold.new_plugin("acme", "file/acme", Registry(entry_points=()))


def test_it_needs_what_this_recipes_core_is_and_needs(wheel: Path, wheels: dict[str, Path]) -> None:
    def requirements(path: Path) -> tuple[dict[str, Requirement], list[str]]:
        with zipfile.ZipFile(path) as archive:
            (member,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
            metadata = Parser().parsestr(archive.read(member).decode())
        found = list(map(Requirement, metadata.get_all("Requires-Dist", [])))
        extras = [str(one) for one in found if "extra" in str(one.marker)]
        return {one.name: one for one in found if one.marker is None}, extras

    (found, extras), (core, _) = requirements(wheel), requirements(wheels["recipes-core"])
    assert sorted(found) == ["executorch", "recipes-core"]
    assert found["executorch"].specifier == core["executorch"].specifier
    assert str(found["recipes-core"].specifier).startswith("~=")
    assert found["recipes-core"].specifier.contains(wheels["recipes-core"].name.split("-")[1])
    assert extras == ['recipes-core[testing]; extra == "test"']


def test_its_wheel_holds_the_package_with_its_types_and_the_entry_point(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (member,) = [n for n in archive.namelist() if n.endswith(".dist-info/entry_points.txt")]
        parser = configparser.ConfigParser()
        parser.read_string(archive.read(member).decode())
    assert names == {path.removeprefix("src/") for path in WRITTEN if path.startswith("src/")}
    assert dict(parser["recipes"]) == {"acme": "recipes_acme.plugin"}


def test_core_s_wheel_holds_every_template(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["recipes-core"]) as archive:
        templates = {name for name in archive.namelist() if name.endswith(".template")}
    assert len(templates) == len(WRITTEN)
    source = ROOT / "core" / "src"
    assert templates == {path.relative_to(source).as_posix() for path in source.rglob("*.template")}


def test_installed_it_is_listed_without_torch_and_imports_none(
    wheel: Path, environment: Environment, toolchains: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    command = ("install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    subprocess.run([sys.executable, "-m", "pip", *command], check=True, timeout=300)
    ask = (
        "import recipes, sys\n"
        "print([(t.name, t.state, t.hint) for t in recipes.list_targets(include_unavailable=True)])\n"
        "print([(p.name, p.state, p.reason) for p in recipes.list_plugins()])\n"
        "print(recipes.list_recipes()[0].info.options[0].name)\n"
        "print(sorted({'torch', 'executorch', 'numpy'} & set(sys.modules)))\n"
    )
    name, plugin = "linux-x86_64-acme-fp32", "[('acme', 'ok', '')]"
    with_torch = environment("recipes-core", extra=(toolchains, site))(ask)
    assert with_torch.splitlines() == [f"[({name!r}, 'ready', '')]", plugin, "alignment", "[]"]
    without = environment("recipes-core", extra=(site,))(ask)
    hint = "pip install 'executorch>=1.5,<1.6'"
    assert without.splitlines() == [f"[({name!r}, 'unavailable', {hint!r})]", plugin, "alignment", "[]"]

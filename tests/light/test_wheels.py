"""What is inside the built wheels."""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import recipes

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "recipes-core": "recipes",
    "recipes-coreml": "recipes_coreml",
    "recipes-openvino": "recipes_openvino",
    "recipes-xnnpack": "recipes_xnnpack",
}
FOLDERS = {
    name: ROOT / ("core" if name == "recipes-core" else f"plugins/{name.removeprefix('recipes-')}") for name in PACKAGES
}
PLUGINS = {name: package for name, package in PACKAGES.items() if name != "recipes-core"}


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_names_its_licence_and_carries_it(
    name: str, wheels: dict[str, Path], metadata: dict[str, Message]
) -> None:
    assert metadata[name]["License-Expression"] == "BSD-3-Clause"
    assert metadata[name].get_all("License-File") == ["LICENSE"]
    (member,) = [n for n in names_in(wheels[name]) if n.endswith(".dist-info/licenses/LICENSE")]
    with zipfile.ZipFile(wheels[name]) as archive:
        assert archive.read(member).decode() == (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_holds_its_package_its_types_and_nothing_else(name: str, wheels: dict[str, Path]) -> None:
    names = names_in(wheels[name])
    folders = {n.split("/")[0] for n in names}
    assert folders == {PACKAGES[name], next(f for f in folders if f.endswith(".dist-info"))}
    assert f"{PACKAGES[name]}/py.typed" in names
    sources = {p.relative_to(ROOT).parts[-1] for p in ROOT.glob(f"*/src/{PACKAGES[name]}/*.py")} | {
        p.relative_to(ROOT).parts[-1] for p in ROOT.glob(f"plugins/*/src/{PACKAGES[name]}/*.py")
    }
    assert sources, "the source folder was not found"
    assert {f"{PACKAGES[name]}/{source}" for source in sources} <= set(names)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_is_for_python_3_10_to_3_13(name: str, metadata: dict[str, Message]) -> None:
    accepted = SpecifierSet(metadata[name]["Requires-Python"])
    versions = [f"3.{minor}.1" for minor in range(8, 16)]
    assert [v for v in versions if v in accepted] == ["3.10.1", "3.11.1", "3.12.1", "3.13.1"]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_tells_what_it_is(name: str, metadata: dict[str, Message]) -> None:
    assert metadata[name]["Description-Content-Type"] == "text/markdown"
    readme = str(metadata[name].get_payload())
    assert f"# {name}" in readme
    assert len(readme.split()) > 30, "the README is a stub"


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_is_found_by_its_entry_point_and_depends_on_core_alone(
    name: str, wheels: dict[str, Path], metadata: dict[str, Message]
) -> None:
    parser = configparser.ConfigParser()
    with zipfile.ZipFile(wheels[name]) as archive:
        (member,) = [n for n in archive.namelist() if n.endswith(".dist-info/entry_points.txt")]
        parser.read_string(archive.read(member).decode())
    assert dict(parser["recipes"]) == {name.removeprefix("recipes-"): f"{PLUGINS[name]}.plugin"}
    requirements = [Requirement(text) for text in metadata[name].get_all("Requires-Dist", [])]
    ours = [r for r in requirements if r.name.startswith("recipes-")]
    assert [r.name for r in ours] == ["recipes-core"]
    assert str(ours[0].specifier).startswith("~=")


def test_core_depends_on_no_plugin_and_names_them_in_the_extra_all(metadata: dict[str, Message]) -> None:
    requirements = [Requirement(text) for text in metadata["recipes-core"].get_all("Requires-Dist", [])]
    named = {r.name for r in requirements if r.name in PLUGINS}
    assert named == set(PLUGINS)
    assert all(str(r.marker) == 'extra == "all"' for r in requirements if r.name in PLUGINS)


def test_the_version_of_core_is_the_one_that_the_program_prints(metadata: dict[str, Message]) -> None:
    assert metadata["recipes-core"]["Version"] == recipes.__version__


@pytest.mark.parametrize("name", PACKAGES)
def test_a_version_is_written_once(name: str, metadata: dict[str, Message]) -> None:
    folder = FOLDERS[name]
    in_metadata = [
        line
        for line in (folder / "pyproject.toml").read_text(encoding="utf-8").splitlines()
        if line == f'version = "{metadata[name]["Version"]}"'
    ]
    in_sources = [
        node
        for path in (folder / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value == metadata[name]["Version"]
    ]
    assert len(in_metadata) + len(in_sources) == 1


@pytest.mark.parametrize("name", PACKAGES)
def test_a_source_archive_has_the_licence_and_the_tests(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=FOLDERS[name], check=True, capture_output=True, timeout=120)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        members = {member.partition("/")[2] for member in opened.getnames()}
    tests = {path.relative_to(FOLDERS[name]).as_posix() for path in (FOLDERS[name] / "tests").rglob("*.py")}
    assert tests, "the folder of tests was not found"
    assert {"LICENSE", "README.md", "pyproject.toml", f"src/{PACKAGES[name]}/py.typed", *tests} <= members

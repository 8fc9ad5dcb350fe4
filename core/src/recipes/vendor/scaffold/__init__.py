"""Write a new plugin's project: files that work unchanged, for a vendor to adapt."""

from __future__ import annotations

import importlib.resources
import keyword
import os
import re
import shlex
from pathlib import Path
from string import Template

import importlib_metadata
from packaging.requirements import Requirement

from recipes import __version__
from recipes.common import ArgumentError, SaveError
from recipes.plugins import known_plugin_packages
from recipes.registry import Registry

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

_FILES = (
    ".gitignore",
    "README.md",
    "pyproject.toml",
    "src/package/__init__.py",
    "src/package/plugin.py",
    "src/package/provider.py",
    "src/package/py.typed",
    "src/package/recipe_types.py",
    "src/package/recipes.py",
    "tests/test_conformance.py",
    "tests/test_recipes.py",
)
"""The files of the project. Each is made from `template/<path>.template`; `package` stands for the import package."""


def new_plugin(name: str, out: str | os.PathLike[str], registry: Registry) -> list[Path]:
    """Write the project of a plugin for a backend.

    Args:
        name: The backend's name and the plugin's: `acme`. The distribution is called `recipes-acme`.
        out: The folder to write to. It is created; if it exists, it must be empty.
        registry: The registry whose plugins and backends have names that are taken.

    Returns:
        The files written, relative to `out`.

    Raises:
        ArgumentError: The name cannot be used, or `out` is not empty; nothing was written.
        SaveError: A file could not be written.
    """
    _check_name(name, registry)
    folder = Path(out)
    _check_empty(folder)
    package = f"recipes_{name}"
    values = {
        "name": name,
        # `my_chip` becomes MyChip.
        "Name": "".join(part.capitalize() for part in name.split("_")),
        "core": f"recipes-core~={'.'.join(__version__.split('.')[:2])}",
        "executorch": _executorch(),
    }
    template = importlib.resources.files(__name__) / "template"
    texts = {
        Path(path.replace("package", package)): Template(
            template.joinpath(*f"{path}.template".split("/")).read_text(encoding="utf-8")
        ).substitute(values)
        for path in _FILES
    }
    try:
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SaveError(
            f"Cannot write the plugin to {str(folder)!r}: {error}. The folder is incomplete: remove it, or name "
            "another folder."
        ) from error
    return list(texts)


def next_commands(name: str, out: str | os.PathLike[str]) -> list[str]:
    """What to run after `new_plugin`, as for a shell.

    Args:
        name: The plugin's name.
        out: The folder that it was written to.
    """
    return [
        f"cd {shlex.quote(str(out))}",
        "pip install --editable '.[test]'",
        f"recipes show linux-x86_64-{name}-fp32",
        "pytest",
    ]


def _check_name(name: str, registry: Registry) -> None:
    """Refuse a name that a plugin, its package or its backend could not have."""
    if not _NAME.fullmatch(name):
        nearest = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_").removeprefix("recipes_")
        hint = f" {nearest!r} is a valid name." if _NAME.fullmatch(nearest) and not keyword.iskeyword(nearest) else ""
        raise ArgumentError(
            f"A plugin cannot be called {name!r}: it is used in recipe ids, target names and Python, so it must "
            f"consist of lower-case letters, digits and single underscores, and begin with a letter.{hint}"
        )
    if keyword.iskeyword(name):
        raise ArgumentError(
            f"A plugin cannot be called {name!r}, which is a Python keyword: a backend's options are given as "
            f"{name}={{...}}. Choose a longer name, such as '{name}_npu'."
        )
    owner = _owner(name, registry)
    if owner:
        raise ArgumentError(f"The name {name!r} is taken by {owner}. Choose another.")


def _owner(name: str, registry: Registry) -> str:
    """What a plugin of that name would clash with, or an empty string."""
    for plugin in registry.list_plugins():
        backends = {provider.backend_name for provider in plugin.providers}
        if name == plugin.name or name in backends or name in {t.name.split("-")[2] for t in plugin.targets}:
            return f"the {plugin.origin}"
    distribution = f"recipes-{name}"
    if distribution in known_plugin_packages():
        return f"the plugin {distribution}, which is not installed here"
    try:
        return f"the distribution {distribution} {importlib_metadata.version(distribution)}"
    except importlib_metadata.PackageNotFoundError:
        return ""


def _check_empty(folder: Path) -> None:
    """Refuse a folder in which files would be overwritten or mixed with other files."""
    if folder.is_dir():
        found = sorted(path.name for path in folder.iterdir())
        if found:
            named = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
            raise ArgumentError(
                f"The folder {str(folder)!r} is not empty: it contains {named}. "
                "Name one that is empty or does not exist."
            )
    elif folder.exists() or folder.is_symlink():
        raise ArgumentError(f"{str(folder)!r} is not a folder. Name one that is empty or does not exist.")


def _executorch() -> str:
    """The range of ExecuTorch that this recipes-core is for, as a requirement."""
    requirements = (Requirement(text) for text in importlib_metadata.requires("recipes-core") or ())
    (found,) = (requirement for requirement in requirements if requirement.name == "executorch")
    bounds = sorted(str(bound) for bound in found.specifier)
    return f"executorch{','.join(reversed(bounds))}"

"""Fixtures for all of core's tests: plugins that are really installed, as far as metadata can tell."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("normal", max_examples=100, deadline=None)
settings.register_profile("thorough", max_examples=10_000, deadline=None)
settings.load_profile(os.environ.get("RECIPES_HYPOTHESIS_PROFILE", "normal"))


@pytest.fixture
def plugin_site(tmp_path: Path) -> Iterator[Path]:
    """An empty folder that stands for a site-packages; put it on `sys.path`, or on PYTHONPATH of a subprocess.

    Modules that were imported from it are forgotten afterwards.
    """
    site = tmp_path / "plugin-site"
    site.mkdir()
    yield site
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and site in Path(file).parents:
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def installed_plugin(plugin_site: Path, install_plugin: Callable[..., Path]) -> Callable[..., Path]:
    """Install a plugin into `plugin_site`, as `install_plugin` does."""
    return functools.partial(install_plugin, plugin_site)


@pytest.fixture(scope="session")
def install_plugin() -> Callable[..., Path]:
    """Install a plugin into a folder: a module and a real `.dist-info` folder; returns the latter.

    `install_plugin(site, name, source, *, distribution=None, version="1.0", requires=(), module=None)`:
        site: The folder.
        name: The entry point's name.
        source: The module's text; it is dedented.
        distribution: The distribution's name; `recipes-<name>` by default.
        version: Its version.
        requires: Its `Requires-Dist`, such as `["recipes-core~=0.1"]`.
        module: The module's name; by default the distribution's name with underscores.
    """

    def install(
        site: Path,
        name: str,
        source: str,
        *,
        distribution: str | None = None,
        version: str = "1.0",
        requires: Sequence[str] = (),
        module: str | None = None,
    ) -> Path:
        distribution = distribution or f"recipes-{name}"
        escaped = distribution.replace("-", "_")
        module = module or escaped
        (site / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        info = site / f"{escaped}-{version}.dist-info"
        info.mkdir()
        metadata = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
        metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
        (info / "METADATA").write_text("\n".join(metadata) + "\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[recipes]\n{name} = {module}\n", encoding="utf-8")
        (info / "INSTALLER").write_text("pip\n", encoding="utf-8")
        importlib.invalidate_caches()
        return info

    return install

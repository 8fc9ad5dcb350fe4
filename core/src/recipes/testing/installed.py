"""The plugin as it is installed: as the registry sees it here, and as a fresh interpreter does."""

from __future__ import annotations

import functools
import subprocess
import sys
import warnings
from pathlib import Path

import importlib_metadata
import pytest

from recipes.common import RecipesWarning
from recipes.plugins import PROJECT, Plugin
from recipes.registry import Registry

HEAVY = ("torch", "executorch", "torchao", "numpy")
"""Top-level modules that no listing may import, whatever the plugin."""

PROBE = Path(__file__).with_name("probe.py")
"""The script that a fresh interpreter runs."""


def entry_points(plugin: str) -> tuple[importlib_metadata.EntryPoint, ...]:
    """The entry points with a plugin's name: one where it is installed."""
    return tuple(importlib_metadata.entry_points(group=PROJECT, name=plugin))


def load(plugin: str) -> Plugin | None:
    """The plugin as the registry sees it, alone; None where it is not installed."""
    return _load_from(plugin, tuple(sys.path))


@functools.cache
def _load_from(plugin: str, path: tuple[str, ...]) -> Plugin | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecipesWarning)
        rows = Registry(entry_points(plugin), environ={}).list_plugins()
    return rows[0] if rows else None


def only_dangling(row: Plugin) -> bool:
    """Whether the only fault is that components name recipes that do not exist, for which there is a separate test."""
    return row.state == "broken" and row.stage == "register" and row.error is None


@functools.cache
def ask(request: str) -> str:
    """What `PROBE` answers to a request, cached; both are JSON."""
    done = subprocess.run([sys.executable, str(PROBE), request], capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        pytest.fail(
            f"The interpreter that lists the plugin ended with {done.returncode}:\n{done.stderr}", pytrace=False
        )
    return lines[-1]


def recipes_by_backend(row: Plugin) -> dict[str, set[str]]:
    """The recipe ids of every backend that is installed, the plugin's own among them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecipesWarning)
        rows = Registry().list_plugins()
    providers = [p for other in rows for p in other.providers] + list(row.providers)
    return {provider.backend_name: {r.id for r in provider.get_supported_recipes()} for provider in providers}

"""Lists one plugin in a fresh interpreter in which some modules are traps and others are absent.

Run as a script: `python probe.py REQUEST`, both request and answer in JSON. It imports `recipes` only after the
modules are prepared, so that it reports what the first listing in a process does.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import sys
import traceback
import types
import warnings
from collections.abc import Sequence
from typing import Any


class Trap(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes modules look installed, and records who imports them.

    Args:
        modules: Top-level modules.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = frozenset(modules)
        self.sprung: list[dict[str, str]] = []

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """A spec with this loader for a trap; None for everything else."""
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in self.modules else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Nothing special."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Record who imports the module, and raise."""
        frame, where, during = sys._getframe(1), "", "listing"
        above: types.FrameType | None = frame
        while above is not None:
            if not where and not above.f_code.co_filename.startswith("<frozen importlib"):
                where = f"{above.f_code.co_filename}, line {above.f_lineno}"
            if above.f_code.co_name == "availability":
                during = "availability"
            above = above.f_back
        self.sprung.append({"module": module.__name__, "where": where, "during": during})
        raise ImportError(f"{module.__name__} must not be imported here")


class Without:
    """A finder of `sys.meta_path` that does not find some modules.

    Args:
        finder: The finder that it replaces.
        modules: Top-level modules to leave out.
    """

    def __init__(self, finder: Any, modules: Sequence[str]) -> None:
        self._finder = finder
        self._modules = frozenset(modules)

    def find_spec(self, fullname: str, *rest: Any) -> Any:
        """Like the finder's own, but None for the modules that are left out."""
        return None if fullname.partition(".")[0] in self._modules else self._finder.find_spec(fullname, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def look(name: str, options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What a listing reports about a plugin.

    Args:
        name: The plugin.
        options: By recipe id: values with which its options resolve. Other recipes are only described.
    """
    import importlib_metadata

    from recipes.registry import Registry

    entry_points = importlib_metadata.entry_points(group="recipes", name=name)
    registry = Registry(entry_points, environ={})
    (row,) = registry.list_plugins()
    for provider in row.providers:
        for recipe_type in provider.get_supported_recipes():
            if recipe_type.id in options:
                provider.resolve_options(recipe_type, options[recipe_type.id])
    return {
        "state": row.state,
        "stage": row.stage,
        "reason": row.reason,
        "raised": "".join(traceback.format_exception(row.error)) if row.error is not None else "",
        "availability": {backend: vars(found) for backend, found in row.availability.items()},
        "recipes": [recipe.id for recipe in registry.list_recipes()],
        "targets": {
            target.name: {"state": target.state, "reason": target.reason}
            for target in registry.list_targets(include_unavailable=True)
        },
    }


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Prepare the modules, list the plugin, and report what happened.

    Args:
        request: `path` for `sys.path`, `traps` and `absent` modules, the `plugin`, and `options` by recipe id.
    """
    sys.path[:] = request["path"]
    trap = Trap(request["traps"])
    sys.meta_path[:] = [Without(finder, request["absent"]) for finder in (trap, *sys.meta_path)]
    loaded = sorted({*request["traps"], *request["absent"]} & set(sys.modules))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = look(request["plugin"], request["options"])
    except Exception:
        answer = {"failed": traceback.format_exc()}
    return answer | {"sprung": trap.sprung, "loaded": loaded}


if __name__ == "__main__":
    answered = main(json.loads(sys.argv[1]))
    # A separate line: the plugin may have printed before.
    print("\n" + json.dumps(answered))

"""Find, load and isolate plugins: from entry points to rows.

Every entry point of the group `recipes` becomes one `Plugin`, whatever is wrong with it. Plugins are
imported, registered and called one at a time, so that a fault in one cannot affect another.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import importlib_metadata
import pluggy

import recipes.plugins.hookspecs as hookspecs
from recipes.common import RecipesWarning, did_you_mean
from recipes.plugins.loading import describe_error, identity, load, row_of
from recipes.plugins.rows import DISABLE, ONLY, STRICT, Plugin, PluginState


def load_plugins(
    entry_points: Iterable[importlib_metadata.EntryPoint] | None, environ: Mapping[str, str]
) -> tuple[Plugin, ...]:
    """A row for each plugin, sorted by name and distribution.

    Args:
        entry_points: The entry points to load; None for all that are installed.
        environ: Where `RECIPES_DISABLE`, `RECIPES_ONLY` and `RECIPES_STRICT` are looked up.

    Raises:
        PluginError: With `RECIPES_STRICT`, for the first plugin that is not `ok`; `__cause__` is its exception.
    """
    unreadable: list[Plugin] = []
    if entry_points is None:
        entry_points, unreadable = _installed()
    by_name: dict[str, list[importlib_metadata.EntryPoint]] = defaultdict(list)
    for entry_point in entry_points:
        by_name[entry_point.name].append(entry_point)

    names = {*by_name, *(row.name for row in unreadable)}
    for variable, word in unknown_names(names, environ):
        _warn_once(f"{variable} names {word!r}, but no installed plugin has that name.{did_you_mean(word, names)}")
    switched_off = _switched_off(names, environ)
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    rows = [_disabled(row, switched_off[row.name]) if row.name in switched_off else row for row in unreadable]
    for name in sorted(by_name):
        found = sorted(
            ((row_of(entry_point), entry_point) for entry_point in by_name[name]),
            key=lambda pair: (pair[0].distribution, pair[0].version),
        )
        if name in switched_off:
            rows += [_disabled(row, switched_off[name]) for row, _ in found]
        elif len(found) > 1:
            everybody = " and ".join(f"{row.distribution} {row.version}".rstrip() for row, _ in found)
            reason = f"the plugin name {name!r} is taken by {everybody}, so none of them is used; uninstall all but one"
            rows += [replace(row, state="conflict", stage="metadata", reason=reason) for row, _ in found]
        else:
            row, entry_point = found[0]
            rows.append(load(row, entry_point, manager) if row.state == "ok" else row)
    rows.sort(key=lambda row: (row.name, row.distribution, row.version))
    plugins = _with_clashes(rows)
    bad = [plugin for plugin in plugins if plugin.state not in ("ok", "disabled")]
    if bad and environ.get(STRICT, "") not in ("", "0"):
        raise bad[0].unusable()
    for plugin in bad:
        _warn_once(f"The {plugin.origin} is {plugin.state}: {plugin.reason}.")
    return plugins


def _installed() -> tuple[list[importlib_metadata.EntryPoint], list[Plugin]]:
    """The entry points of everything that is installed, and a row for each plugin whose entry points are unreadable."""
    try:
        return list(importlib_metadata.entry_points(group=hookspecs.PROJECT)), []
    except Exception:  # one unreadable file ends the whole scan, so the files are read one by one
        pass
    entry_points: list[importlib_metadata.EntryPoint] = []
    unreadable = []
    seen: set[str] = set()
    for distribution in importlib_metadata.distributions():
        name, version, fault = identity(distribution)
        if not fault:
            if name in seen:
                continue  # hidden by one that comes earlier on the path
            seen.add(name)
        try:
            entry_points += distribution.entry_points.select(group=hookspecs.PROJECT)
        except Exception as error:
            if _mentions_plugins(distribution):
                reason = f"its entry_points.txt cannot be read: {describe_error(error)}; reinstall {name}"
                unreadable.append(Plugin(name, name, version, "broken", reason, "metadata", error=error))
    return entry_points, unreadable


def _mentions_plugins(distribution: Any) -> bool:
    """Whether entry points that cannot be read include plugins of recipes."""
    try:
        text = distribution.read_text("entry_points.txt") or ""
    except UnicodeDecodeError as error:
        text = error.object.decode("latin-1")
    return f"[{hookspecs.PROJECT}]" in text


def _disabled(row: Plugin, reason: str) -> Plugin:
    return replace(row, state="disabled", stage="", reason=reason)


def _listed(environ: Mapping[str, str]) -> Iterator[tuple[str, set[str]]]:
    """The variables that switch plugins off, each with the names in it."""
    for variable in (DISABLE, ONLY):
        yield variable, {word for word in re.split(r"[,\s]+", environ.get(variable, "")) if word}


def unknown_names(names: Iterable[str], environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """The names in `RECIPES_DISABLE` and `RECIPES_ONLY` that no plugin has, as (variable, name).

    Args:
        names: The names of all plugins.
        environ: The environment.
    """
    known = set(names)
    return [(variable, word) for variable, words in _listed(environ) for word in sorted(words - known)]


def _switched_off(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The plugins that the environment switches off, with the reason."""
    known = set(names)
    reasons: dict[str, str] = {}
    for variable, words in _listed(environ):
        if words:
            off = words & known if variable == DISABLE else known - words
            reasons.update(dict.fromkeys(off, f"switched off by {variable}={environ[variable]}"))
    return reasons


_warned: set[str] = set()


def _warn_once(text: str) -> None:
    """Warn only once per process with the same text, so that a refresh does not repeat it."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RecipesWarning, stacklevel=2)


def find_clashes(plugins: Iterable[Plugin]) -> dict[tuple[str, str], str]:
    """What is declared more than once, so no declaration is used: (`backend` or `target`, its name) to the reason."""
    owners: dict[tuple[str, str], list[Plugin]] = defaultdict(list)
    for plugin in plugins:
        for provider in plugin.providers:
            owners["backend", provider.backend_name].append(plugin)
        for target in plugin.targets:
            owners["target", target.name].append(plugin)
    return {
        (what, name): f"the {what} {name!r} is declared by "
        + " and by ".join(plugin.origin for plugin in declaring)
        + ", so neither declaration is used"
        for (what, name), declaring in sorted(owners.items())
        if len(declaring) > 1
    }


def _with_clashes(plugins: Sequence[Plugin]) -> tuple[Plugin, ...]:
    """Record in each row what cannot be used: clashes, and components whose recipe does not exist."""
    clashing = find_clashes(plugins)
    recipes = {backend: {r.id for r in known} for row in plugins for backend, known in row.recipes.items()}
    rows = []
    for plugin in plugins:
        declared = [("backend", provider.backend_name) for provider in plugin.providers]
        declared += [("target", target.name) for target in plugin.targets]
        conflicts = [clashing[key] for key in dict.fromkeys(declared) if key in clashing]
        components = [(f"target {t.name!r}", c) for t in plugin.targets for c in t.components]
        components += [(f"extension of {e.targets!r}", e.component) for e in plugin.extensions]
        faults = [
            f"its {place} names the recipe {component.recipe!r}, which backend {component.backend!r} does not have."
            + did_you_mean(component.recipe, recipes[component.backend])
            for place, component in components
            if component.recipe not in recipes.get(component.backend, {component.recipe})
        ]
        if conflicts or faults:
            state: PluginState = "conflict" if conflicts else "broken"
            reason = "; ".join(conflicts + faults).rstrip(".")
            plugin = replace(plugin, state=state, stage="register", reason=reason)
        rows.append(plugin)
    return tuple(rows)

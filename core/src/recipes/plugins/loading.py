"""Load one plugin and query what it declares, so that its faults cannot affect another plugin."""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

import importlib_metadata
import pluggy

import recipes.plugins.hookspecs as hookspecs
from recipes.common import PluginError, did_you_mean
from recipes.plugins.options import Option
from recipes.plugins.provider import Availability, RecipeInfo, RecipeProvider, RecipeType
from recipes.plugins.rows import Plugin
from recipes.plugins.targets import TargetExtension, TargetProfile

_CHECKED_REQUIREMENTS = ("recipes-core", "executorch")
"""Distributions whose versions a plugin's own metadata must accept before its module is imported."""

HEAVY = frozenset({"executorch", "numpy", "torch", "torchao"})
"""Packages that a plugin must not import when it is listed: they would slow down every listing."""

MANY_MODULES = 50
"""A package with at least this many loaded modules is heavy too: a toolchain whose name recipes-core does not know."""


def identity(distribution: Any) -> tuple[str, str, str]:
    """A distribution's name and version, and what is wrong with its metadata if they are missing."""
    fault = "it has no name or no version"
    try:
        name, version = distribution.name, distribution.version
        if name and version:
            return name, version, ""
    except Exception as error:
        fault = describe_error(error).rstrip(".")
    place = distribution.locate_file("")
    return (
        "unknown distribution",
        "",
        f"the metadata of its distribution, in {place}, is unreadable: {fault}; reinstall it",
    )


def row_of(entry_point: importlib_metadata.EntryPoint) -> Plugin:
    """The row of a plugin that has not been imported yet; `broken` if its distribution cannot be identified."""
    if entry_point.dist is None:
        return Plugin(entry_point.name, "no distribution", "")
    distribution, version, fault = identity(entry_point.dist)
    if fault:
        return Plugin(entry_point.name, distribution, version, "broken", fault, "metadata")
    return Plugin(entry_point.name, distribution, version)


def load(row: Plugin, entry_point: importlib_metadata.EntryPoint, manager: pluggy.PluginManager) -> Plugin:
    """Load a plugin, and record the time that it took and the heavy packages that it imported."""
    loaded = set(sys.modules)
    started = time.perf_counter()
    row = _load(row, entry_point, manager)
    seconds = time.perf_counter() - started
    return replace(row, seconds=seconds, heavy_imports=_heavy_imports(entry_point, sys.modules.keys() - loaded))


def _heavy_imports(entry_point: importlib_metadata.EntryPoint, imported: Iterable[str]) -> tuple[str, ...]:
    """The heavy packages that a plugin imported when it was listed, or that its modules hold.

    Args:
        entry_point: The plugin's entry point.
        imported: The modules that were imported while it was listed.
    """
    module = entry_point.value.partition(":")[0].strip()
    own = module.partition(".")[0]
    used = set(imported)
    # Other code may have imported a package before, so look at what the modules hold. The plugin's other modules may
    # hold anything: they were loaded to build a recipe.
    for name in {module, *(name for name in used if name.partition(".")[0] == own)}:
        for value in list(getattr(sys.modules.get(name), "__dict__", {}).values()):
            # Plain attribute access would run the plugin's code and load a lazy module.
            if issubclass(type(value), ModuleType):
                used.add(str(object.__getattribute__(value, "__dict__").get("__name__", "")))
            elif issubclass(type(value), type):
                used.add(str(type.__getattribute__(value, "__module__")))
            elif type(value) is FunctionType:
                used.add(str(value.__module__))
    packages = {name.partition(".")[0] for name in used} - {own, "recipes"} - sys.stdlib_module_names
    if not packages:
        return ()
    sizes = Counter(name.partition(".")[0] for name in list(sys.modules))
    return tuple(sorted(name for name in packages if name in HEAVY or sizes[name] >= MANY_MODULES))


def _load(row: Plugin, entry_point: importlib_metadata.EntryPoint, manager: pluggy.PluginManager) -> Plugin:
    stage = "metadata"
    try:
        mismatch = _incompatibility(entry_point)
        if mismatch:
            return replace(row, state="incompatible", stage=stage, reason=mismatch)
        stage = "import"
        module = entry_point.load()
        stage = "register"
        _check_hook_names(module)
        manager.register(module, name=row.name)
        manager.check_pending()
        stage = "recipes_register_providers"
        providers = _declared(manager, row.name, stage, RecipeProvider)
        asked = {provider.backend_name: _ask(provider) for provider in providers}
        recipe_availability = {
            recipe_type.id: _ask_of(provider, recipe_type, asked[provider.backend_name][0])
            for provider in providers
            for recipe_type in asked[provider.backend_name][1]
        }
        stage = "recipes_register_targets"
        declared = _declared(manager, row.name, stage, (TargetProfile, TargetExtension))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit: a plugin must not end the process that lists it
        if manager.has_plugin(row.name):
            manager.unregister(name=row.name)
        return replace(row, state="broken", stage=stage, reason=describe_error(error), error=error)
    return replace(
        row,
        providers=tuple(providers),
        availability={backend: availability for backend, (availability, _) in asked.items()},
        recipes={backend: recipes for backend, (_, recipes) in asked.items()},
        recipe_availability=recipe_availability,
        targets=tuple(t for t in declared if isinstance(t, TargetProfile)),
        extensions=tuple(t for t in declared if isinstance(t, TargetExtension)),
    )


def describe_error(error: BaseException) -> str:
    """`ImportError: No module named 'x' (plugin.py, line 3)`: the exception and the last line of plugin code."""
    try:
        text = str(error).strip() or "no message"
    except Exception as own:
        text = f"its text is unknown, because str() raises {type(own).__name__}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    where = ""
    if frames and frames[-1].filename != __file__ and "pluggy" not in frames[-1].filename:
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})"
    return f"{type(error).__name__}: {text}{where}"


def _incompatibility(entry_point: importlib_metadata.EntryPoint) -> str:
    """Why the plugin's own metadata rules out what is installed, or an empty string."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    reasons = []
    for text in (entry_point.dist.requires if entry_point.dist is not None else None) or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            reasons.append(f"its metadata has a requirement that cannot be read: {text!r}")
            continue
        name = canonicalize_name(requirement.name)
        if name not in _CHECKED_REQUIREMENTS or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        try:
            installed = importlib_metadata.version(name)
        except importlib_metadata.PackageNotFoundError:
            continue  # if it is missing, availability() says how to install it
        if not requirement.specifier.contains(installed, prereleases=True):
            reasons.append(f"it needs {name}{requirement.specifier}, but {name} {installed} is installed")
    return "; ".join(reasons)


def _check_hook_names(plugin: object) -> None:
    """Refuse what pluggy would ignore silently: no hook at all, an unmarked hook, or one with an unknown name."""
    specified = [name for name in vars(hookspecs) if name.startswith("recipes_")]
    named = [name for name in dir(plugin) if name.startswith("recipes_register")]
    for name in named:
        if name not in specified:
            raise PluginError(f"there is no hook {name}.{did_you_mean(name, specified)} Hooks: {', '.join(specified)}")
        if not hasattr(getattr(plugin, name), f"{hookspecs.PROJECT}_impl"):
            raise PluginError(f"{name} is not marked with @recipes.hookimpl, so it would never be called")
    if not named:
        raise PluginError(f"it implements no hook. Hooks: {', '.join(specified)}")


def _declared(manager: pluggy.PluginManager, plugin: str, hook: str, kind: type | tuple[type, ...]) -> Sequence[Any]:
    """What one plugin's implementation of a hook returns, checked."""
    others = [other for name, other in manager.list_name_plugin() if name != plugin and other is not None]
    caller = manager.subset_hook_caller(hook, remove_plugins=others)
    if all(implementation.plugin_name != plugin for implementation in caller.get_hookimpls()):
        return ()
    declared = next(iter(caller()), None)  # pluggy leaves out a result that is None
    names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
    if not isinstance(declared, list | tuple):
        raise TypeError(f"{hook} must return a list of {names}, not {type(declared).__name__}")
    for item in declared:
        if not isinstance(item, kind):
            raise TypeError(f"{hook} must return {names} objects, and one is a {type(item).__name__}: {item!r}")
    return declared


def _ask(provider: RecipeProvider) -> tuple[Availability, dict[RecipeType, RecipeInfo]]:
    """Query a provider once for all that listing needs, so that a fault is reported for the right plugin."""
    backend = provider.backend_name
    if not isinstance(backend, str) or not re.fullmatch(r"[a-z0-9_]+", backend):
        raise TypeError(f"{type(provider).__name__}.backend_name must be a lower-case name, not {backend!r}")
    recipes = {}
    for recipe_type in provider.get_supported_recipes():
        if not isinstance(recipe_type, RecipeType):
            raise TypeError(f"backend {backend!r} lists {recipe_type!r}, which is not a recipes.RecipeType")
        if recipe_type.get_backend_name() != backend:
            raise ValueError(f"backend {backend!r} lists {recipe_type!r}, whose id is {recipe_type.id!r}")
        info = provider.describe(recipe_type)
        if not isinstance(info, RecipeInfo):
            raise TypeError(f"describe({recipe_type}) must return a RecipeInfo, not {type(info).__name__}")
        for option in info.options:
            if not isinstance(option, Option):
                raise TypeError(f"describe({recipe_type}) has the option {option!r}, which is not a recipes.Option")
        recipes[recipe_type] = info
    availability = provider.availability()
    if not isinstance(availability, Availability):
        raise TypeError(f"availability() must return an Availability, not {type(availability).__name__}")
    return availability, recipes


def _ask_of(provider: RecipeProvider, recipe_type: RecipeType, backend: Availability) -> Availability:
    if not backend.available:
        return backend
    availability = provider.recipe_availability(recipe_type)
    if not isinstance(availability, Availability):
        raise TypeError(f"recipe_availability() must return an Availability, not {type(availability).__name__}")
    return availability

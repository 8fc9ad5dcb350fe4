"""Find, load and isolate plugins: from entry points to rows.

Every entry point of the group `recipes` becomes one `Plugin`, whatever is wrong with it. Plugins are
imported, registered and called one at a time, so that nothing that one of them does can lose another.
"""

from __future__ import annotations

import re
import sys
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType, ModuleType
from typing import Any, Literal

import importlib_metadata
import pluggy

from recipes import hookspecs
from recipes.errors import PluginError, RecipesWarning, did_you_mean
from recipes.provider import Availability, Option, RecipeInfo, RecipeProvider, RecipeType
from recipes.targets import TargetExtension, TargetProfile

PluginState = Literal["ok", "disabled", "incompatible", "conflict", "broken"]

DISABLE = "RECIPES_DISABLE"
ONLY = "RECIPES_ONLY"
STRICT = "RECIPES_STRICT"

_CHECKED_REQUIREMENTS = ("recipes-core", "executorch")
"""Distributions whose versions a plugin's own metadata must accept before its module is imported."""

HEAVY = frozenset({"executorch", "numpy", "torch", "torchao"})
"""Packages that a plugin must not import when it is listed; everybody would wait for them."""

MANY_MODULES = 50
"""A package that has at least so many modules loaded is heavy too: toolchains, whose names core does not know."""


@dataclass(frozen=True)
class Plugin:
    """One installed plugin, in whatever state it is.

    Args:
        name: The entry point's name.
        distribution: The distribution that it comes in, as `pip` calls it.
        version: The distribution's version.
        state: `ok`: all that it declares is in use. `disabled`: switched off by the environment.
            `incompatible`: made for another version of recipes-core or ExecuTorch; not imported.
            `conflict`: what `reason` names is declared twice and used from nobody; the rest is in use.
            `broken`: what `reason` names is not used; what it did register is.
        reason: What is wrong, for a person; empty when nothing is.
        stage: Where it went wrong: `metadata`, `import`, `register`, a hook's name, or empty.
        providers: What it registered, one for each backend.
        availability: Whether each of its backends can lower here, by the backend's name.
        recipes: What each recipe type of each backend does, by the backend's name.
        recipe_availability: Whether each of its recipes can be made here, by the recipe's id.
        targets: The targets that it declares.
        extensions: The components that it adds to targets of others.
        error: What was raised, if anything.
        seconds: How long it took to import the plugin and to ask it, in seconds.
        heavy_imports: The packages that this imported, or that the plugin's module holds, and that a plugin should
            import only when it builds a recipe.
    """

    name: str
    distribution: str
    version: str
    state: PluginState = "ok"
    reason: str = ""
    stage: str = ""
    providers: tuple[RecipeProvider, ...] = ()
    availability: Mapping[str, Availability] = field(default_factory=dict)
    recipes: Mapping[str, Mapping[RecipeType, RecipeInfo]] = field(default_factory=dict)
    recipe_availability: Mapping[str, Availability] = field(default_factory=dict)
    targets: tuple[TargetProfile, ...] = ()
    extensions: tuple[TargetExtension, ...] = ()
    error: BaseException | None = field(default=None, compare=False, repr=False)
    seconds: float = field(default=0.0, compare=False)
    heavy_imports: tuple[str, ...] = field(default=(), compare=False)

    @property
    def origin(self) -> str:
        """`plugin 'acme' (recipes-acme 1.0)`."""
        distribution = f"{self.distribution} {self.version}".rstrip()
        return f"plugin {self.name!r} ({distribution})"

    @property
    def way_out(self) -> str:
        """What to do about the state that it is in; empty when it is `ok`."""
        if self.state == "ok":
            return ""
        if self.state == "disabled":
            return f"Remove it from {DISABLE} or {ONLY} to use it."
        return f"Mend or uninstall {self.distribution}, or switch the plugin off with {DISABLE}={self.name}."

    def unusable(self) -> PluginError:
        """The error to raise when this plugin is needed: which, from where, at which stage, why, and the way out."""
        stage = f" at {self.stage}" if self.stage else ""
        error = PluginError(f"The {self.origin} is {self.state}{stage}: {self.reason}. {self.way_out}")
        error.__cause__ = self.error
        return error


def load_plugins(
    entry_points: Iterable[importlib_metadata.EntryPoint] | None, environ: Mapping[str, str]
) -> tuple[Plugin, ...]:
    """A row for each plugin, sorted by name and distribution.

    Args:
        entry_points: The entry points to load; None for those of everything that is installed.
        environ: Where `RECIPES_DISABLE`, `RECIPES_ONLY` and `RECIPES_STRICT` are looked up.

    Raises:
        PluginError: With `RECIPES_STRICT`, for the first plugin that is not `ok`; `__cause__` is what it raised.
    """
    unreadable: list[Plugin] = []
    if entry_points is None:
        entry_points, unreadable = _installed()
    by_name: dict[str, list[importlib_metadata.EntryPoint]] = defaultdict(list)
    for entry_point in entry_points:
        by_name[entry_point.name].append(entry_point)

    names = {*by_name, *(row.name for row in unreadable)}
    for variable, word in unknown_names(names, environ):
        _warn_once(f"{variable} names {word!r}, which no installed plugin is called.{did_you_mean(word, names)}")
    switched_off = _switched_off(names, environ)
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    rows = [_disabled(row, switched_off[row.name]) if row.name in switched_off else row for row in unreadable]
    for name in sorted(by_name):
        found = sorted(
            ((_row(entry_point), entry_point) for entry_point in by_name[name]),
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
            rows.append(_measured(row, entry_point, manager) if row.state == "ok" else row)
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
    except Exception:  # one distribution's file ends the scan of all; so they are read one by one
        pass
    entry_points: list[importlib_metadata.EntryPoint] = []
    unreadable = []
    seen: set[str] = set()
    for distribution in importlib_metadata.distributions():
        name, version, fault = _identity(distribution)
        if not fault:
            if name in seen:
                continue  # hidden by one that comes earlier on the path
            seen.add(name)
        try:
            entry_points += distribution.entry_points.select(group=hookspecs.PROJECT)
        except Exception as error:
            if _mentions_plugins(distribution):
                reason = f"its entry_points.txt cannot be read: {_describe(error)}; reinstall {name}"
                unreadable.append(Plugin(name, name, version, "broken", reason, "metadata", error=error))
    return entry_points, unreadable


def _mentions_plugins(distribution: Any) -> bool:
    """Whether entry points that cannot be read are, in part, ours."""
    try:
        text = distribution.read_text("entry_points.txt") or ""
    except UnicodeDecodeError as error:
        text = error.object.decode("latin-1")
    return f"[{hookspecs.PROJECT}]" in text


def _identity(distribution: Any) -> tuple[str, str, str]:
    """A distribution's name and version, and what is wrong with its metadata where it has none."""
    fault = "it has no name or no version"
    try:
        name, version = distribution.name, distribution.version
        if name and version:
            return name, version, ""
    except Exception as error:
        fault = _describe(error).rstrip(".")
    place = distribution.locate_file("")
    return (
        "unknown distribution",
        "",
        f"the metadata of its distribution, in {place}, is unreadable: {fault}; reinstall it",
    )


def _row(entry_point: importlib_metadata.EntryPoint) -> Plugin:
    """The row of a plugin that has not been imported yet; `broken` where its distribution cannot be told."""
    if entry_point.dist is None:
        return Plugin(entry_point.name, "no distribution", "")
    distribution, version, fault = _identity(entry_point.dist)
    if fault:
        return Plugin(entry_point.name, distribution, version, "broken", fault, "metadata")
    return Plugin(entry_point.name, distribution, version)


def _disabled(row: Plugin, reason: str) -> Plugin:
    return replace(row, state="disabled", stage="", reason=reason)


def _listed(environ: Mapping[str, str]) -> Iterator[tuple[str, set[str]]]:
    """The variables that switch plugins off, each with the names in it."""
    for variable in (DISABLE, ONLY):
        yield variable, {word for word in re.split(r"[,\s]+", environ.get(variable, "")) if word}


def unknown_names(names: Iterable[str], environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """What `RECIPES_DISABLE` and `RECIPES_ONLY` name and no plugin is called: (variable, name).

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
    """Warn, but only once in a process about the same thing: a refresh does not repeat it."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RecipesWarning, stacklevel=2)


def _measured(row: Plugin, entry_point: importlib_metadata.EntryPoint, manager: pluggy.PluginManager) -> Plugin:
    """Load a plugin, and note what that cost."""
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
    # Somebody else may have imported it before. Modules that are there since a recipe was built may hold anything.
    for name in {module, *(name for name in used if name.partition(".")[0] == own)}:
        for value in list(getattr(sys.modules.get(name), "__dict__", {}).values()):
            # Not by plain attribute access, which runs the plugin's code and would load a module that is lazy.
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
        return replace(row, state="broken", stage=stage, reason=_describe(error), error=error)
    return replace(
        row,
        providers=tuple(providers),
        availability={backend: availability for backend, (availability, _) in asked.items()},
        recipes={backend: recipes for backend, (_, recipes) in asked.items()},
        recipe_availability=recipe_availability,
        targets=tuple(t for t in declared if isinstance(t, TargetProfile)),
        extensions=tuple(t for t in declared if isinstance(t, TargetExtension)),
    )


def _describe(error: BaseException) -> str:
    """`ImportError: No module named 'x' (plugin.py, line 3)`: what was raised and the last line of the plugin's own."""
    try:
        text = str(error).strip() or "no message"
    except Exception as own:
        text = f"its text cannot be made, for that raises {type(own).__name__}"
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
            continue  # absent is a matter of availability, which says how to install it
        if not requirement.specifier.contains(installed, prereleases=True):
            reasons.append(f"it needs {name}{requirement.specifier}, and {name} {installed} is installed")
    return "; ".join(reasons)


def _check_hook_names(plugin: object) -> None:
    """Refuse what pluggy would pass over without a word: no hook at all, one without its mark or of another name."""
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
    """Ask a provider, once, for all that listing needs, so that its faults show while its plugin can still be named."""
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


def clashes(plugins: Iterable[Plugin]) -> dict[tuple[str, str], str]:
    """What is declared more than once, and so is used from nobody: (`backend` or `target`, its name) to the reason."""
    owners: dict[tuple[str, str], list[Plugin]] = defaultdict(list)
    for plugin in plugins:
        for provider in plugin.providers:
            owners["backend", provider.backend_name].append(plugin)
        for target in plugin.targets:
            owners["target", target.name].append(plugin)
    return {
        (what, name): f"the {what} {name!r} is declared by "
        + " and by ".join(plugin.origin for plugin in declaring)
        + ", so it is used from neither"
        for (what, name), declaring in sorted(owners.items())
        if len(declaring) > 1
    }


def _with_clashes(plugins: Sequence[Plugin]) -> tuple[Plugin, ...]:
    """Write into each row what of it nobody can use: clashes, and components whose recipe does not exist."""
    clashing = clashes(plugins)
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

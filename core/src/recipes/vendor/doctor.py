"""What is installed, which parts work, and what must be fixed: the facts for `recipes doctor`."""

from __future__ import annotations

import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import importlib_metadata

from recipes.common import Finding, RecipesWarning, UnknownPluginError, did_you_mean
from recipes.plugins import no_plugins
from recipes.vendor.runtime import Runtime, ask_runtime

if TYPE_CHECKING:
    from recipes.plugins import Plugin, Target, TargetExtension
    from recipes.registry import Registry


SLOW = 1.0
"""Seconds; a plugin that takes longer to list slows down every listing."""

_DISTRIBUTIONS = ("recipes-core", "executorch", "torch", "torchao")


@dataclass(frozen=True)
class Diagnosis:
    """What is installed and which parts work.

    Args:
        python: The version of Python.
        executable: The path of Python.
        platform: The system and the machine, as Python names them.
        distributions: The version of each distribution that matters here; None where it is not installed.
        plugins: A row for each plugin, whatever its state.
        runtime: What this host can execute.
        targets: The targets that are not ready, with what each needs.
        findings: What is wrong. Findings of level `error` must be fixed: a plugin or a variable must be changed.
            Findings of level `warning` may be intended on this machine.
    """

    python: str
    executable: str
    platform: str
    distributions: Mapping[str, str | None]
    plugins: tuple[Plugin, ...]
    runtime: Runtime
    targets: tuple[Target, ...]
    findings: tuple[Finding, ...]

    @property
    def needs_a_person(self) -> bool:
        """Whether a finding is an error."""
        return any(finding.level == "error" for finding in self.findings)


def diagnose(registry: Registry, plugin: str | None = None, tell: Callable[[str], None] = lambda _: None) -> Diagnosis:
    """Check everything that is installed, or one plugin.

    Args:
        registry: The plugins to check. `RECIPES_STRICT` has no effect here.
        plugin: The name of the plugin to check; None for all.
        tell: Called with a text about the next step, before a step that takes seconds.

    Raises:
        UnknownPluginError: No plugin has that name; the message says which name is nearest.
    """
    registry = registry.tolerant()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecipesWarning)  # each is a finding below
        everybody = registry.list_plugins()
        targets = registry.list_targets(include_unavailable=True)
    rows = tuple(row for row in everybody if plugin in (None, row.name))
    if plugin is not None and not rows:
        names = sorted({row.name for row in everybody})
        here = f"Plugins here: {', '.join(names)}." if names else no_plugins()
        raise UnknownPluginError(f"No installed plugin is called {plugin!r}.{did_you_mean(plugin, names)} {here}")
    tell("Querying ExecuTorch's runtime for what it can execute here; this imports torch and takes seconds ...")
    runtime = ask_runtime()
    findings = [
        *_findings_on_names(registry, everybody),
        *(finding for row in rows for finding in _findings_on_plugin(row)),
        *(finding for row in rows for finding in _findings_on_extensions(row, targets)),
        *_findings_on_environment(everybody, runtime),
    ]
    named = {row.name for row in rows}
    return Diagnosis(
        python=platform.python_version(),
        executable=sys.executable,
        platform=platform.platform(),
        distributions={
            **{name: _version(name) for name in _DISTRIBUTIONS},
            **{row.distribution: row.version for row in rows if row.version},
        },
        plugins=rows,
        runtime=runtime,
        targets=tuple(
            target
            for target in targets
            if target.state != "ready" and named & {target.plugin, *(slot.plugin for slot in target.components)}
        ),
        findings=tuple(sorted(findings, key=lambda finding: finding.level != "error")),
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return None
    except Exception:  # damaged metadata is what the doctor must report
        return "unreadable"


def _findings_on_names(registry: Registry, plugins: Sequence[Plugin]) -> Iterator[Finding]:
    names = sorted({row.name for row in plugins})
    for variable, word in registry.unknown_plugin_names():
        message = f"it names {word!r}, but no installed plugin has that name.{did_you_mean(word, names)}"
        way_out = f"Plugins here: {', '.join(names) or 'none'}."
        yield Finding("error", "unknown-plugin-name", variable, message, way_out)


def _findings_on_plugin(row: Plugin) -> Iterator[Finding]:
    if row.state not in ("ok", "disabled"):
        state = "in conflict" if row.state == "conflict" else row.state
        stage = f" at {row.stage}" if row.stage else ""
        message = f"it is {state}{stage}: {row.reason}{'' if row.reason.endswith('?') else '.'}"
        yield Finding("error", "unusable-plugin", row.origin, message, row.way_out)
    if row.heavy_imports:
        message = f"listing it imports {', '.join(row.heavy_imports)}, which slows down every listing."
        way_out = "Its maintainers should import that in build_recipe only."
        yield Finding("error", "heavy-plugin", row.origin, message, way_out)
    if row.seconds > SLOW:
        message = f"listing it takes {row.seconds:.1f} s, which slows down every listing."
        way_out = f"The plugin's hooks should only declare; until they do, RECIPES_DISABLE={row.name} switches it off."
        yield Finding("error", "slow-plugin", row.origin, message, way_out)


def _findings_on_extensions(row: Plugin, targets: Sequence[Target]) -> Iterator[Finding]:
    for extension in row.extensions:
        matched = [target for target in targets if target.plugin != row.name and extension.matches(target.name)]
        joined = [target for target in matched if _joins(row, extension, target)]
        what = f"its extension of {extension.targets!r} with {extension.component.recipe}"
        if not matched:
            known = [target.name for target in targets if target.plugin != row.name]
            message = f"{what} matches no target of another plugin.{did_you_mean(extension.targets, known)}"
            way_out = "Install the plugin that has such targets, or fix the pattern."
            yield Finding("warning", "idle-extension", row.origin, message, way_out)
        elif not joined and row.state == "ok":
            message = (
                f"{what} adds nothing: the targets that it matches have that recipe already, or are declared twice."
            )
            yield Finding("warning", "idle-extension", row.origin, message, "Remove it.")
        elif joined and extension.before:
            role = extension.component.role
            slots = [slot.component for target in joined for slot in target.components]
            backends = {c.backend for c in slots if c.role == role and c != extension.component}
            if extension.before not in backends:
                message = (
                    f"{what} goes before {extension.before!r}, but no target that it joins has such a backend "
                    f"as {role}, so it goes last.{did_you_mean(extension.before, backends)}"
                )
                way_out = f"Backends there: {', '.join(sorted(backends)) or 'none'}."
                yield Finding("warning", "unknown-before", row.origin, message, way_out)


def _joins(row: Plugin, extension: TargetExtension, target: Target) -> bool:
    return any(slot.plugin == row.name and slot.component == extension.component for slot in target.components)


def _findings_on_environment(plugins: Sequence[Plugin], runtime: Runtime) -> Iterator[Finding]:
    if not plugins:
        yield Finding("warning", "no-plugins", "", no_plugins() + ".")
    if runtime.problem:
        message = f"what this machine can execute is not known, because of ExecuTorch's runtime: {runtime.problem}."
        way_out = "To export and to run the files, install the missing packages: pip install recipes-core"
        yield Finding("warning", "no-runtime", "executorch", message, way_out)

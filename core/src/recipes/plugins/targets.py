"""Targets: what plugins declare, and how it is assembled from the installed plugins."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["accelerator", "fallback"]
State = Literal["ready", "degraded", "unavailable"]

_NAME = re.compile(r"(?P<os>[a-z0-9]+)-(?P<arch>[a-z0-9_]+)-(?P<accelerator>[a-z0-9_]+)-(?P<precision>[a-z0-9_]+)")
_RECIPE_ID = re.compile(r"(?P<backend>[a-z0-9_]+):(?P<name>[a-z0-9_]+)")


def split_target_name(name: str) -> dict[str, str] | None:
    """The parts `os`, `arch`, `accelerator` and `precision` of a target's name, or None where it has another form."""
    match = _NAME.fullmatch(name)
    return match.groupdict() if match else None


@dataclass(frozen=True)
class Component:
    """One slot of a target: a recipe and its purpose.

    Args:
        recipe: A recipe id, `acme:fp16`. The recipe may belong to another plugin.
        role: `accelerator`: what the target is named after. `fallback`: takes what accelerators leave.
        required: Whether the target is unavailable without it.
        options: Values for the recipe's options that apply in this target unless the user gives others.
        distribution: The name, for `pip install`, of the plugin that provides the recipe, for the hint where it is
            missing; `recipes-<backend>` by default.
    """

    recipe: str
    role: Role = "accelerator"
    required: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    distribution: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.recipe, str) or not _RECIPE_ID.fullmatch(self.recipe):
            raise ValueError(f"A component's recipe must be 'backend:name' in lower case, not {self.recipe!r}.")
        if self.role not in ("accelerator", "fallback"):
            raise ValueError(f"A component's role must be 'accelerator' or 'fallback', not {self.role!r}.")
        if not isinstance(self.options, Mapping):
            raise TypeError(f"The options of the component {self.recipe!r} must be a mapping, not {self.options!r}.")
        if not self.distribution:
            object.__setattr__(self, "distribution", f"recipes-{self.backend}")

    @property
    def backend(self) -> str:
        """The part of the recipe's id before the colon."""
        return self.recipe.partition(":")[0]


@dataclass(frozen=True)
class TargetProfile:
    """A target as its owner declares it.

    Args:
        name: `<os>-<arch>-<accelerator>-<precision>`, in lower case.
        components: Its components, in partitioning order within each role.
        summary: One line.
        default: Whether `get_<os>_recipe()` picks this target when none is named.
    """

    name: str
    components: tuple[Component, ...]
    summary: str = ""
    default: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or split_target_name(self.name) is None:
            raise ValueError(f"A target's name must be '<os>-<arch>-<accelerator>-<precision>', not {self.name!r}.")
        object.__setattr__(self, "components", tuple(self.components))
        if not self.components:
            raise ValueError(f"Target {self.name!r} has no components.")
        for component in self.components:
            if not isinstance(component, Component):
                raise TypeError(f"Target {self.name!r} has the component {component!r}, not a recipes.Component.")


@dataclass(frozen=True)
class TargetExtension:
    """A component that a plugin adds to targets of other plugins; a target that has its recipe already stays as it is.

    Args:
        targets: A pattern for target names, as `fnmatch` reads it: `ios-arm64-*`.
        component: What to add. It is never `required`: the targets work without it, degraded where it is missing.
        before: A backend of the same role, the owner's or another extension's, that the component goes in front of.
            By default, and where the target has no such backend, it goes after the owner's components of its role.
    """

    targets: str
    component: Component
    before: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.targets, str) or not isinstance(self.component, Component):
            raise TypeError(
                f"TargetExtension takes a pattern of target names and a Component, not {self.targets!r} and "
                f"{self.component!r}."
            )
        if self.component.required:
            raise ValueError(
                f"The component {self.component.recipe!r} that extends {self.targets!r} must be declared with "
                "required=False: a plugin cannot make another's target depend on it."
            )

    def matches(self, target: str) -> bool:
        """Whether the target's name fits the pattern."""
        return fnmatch.fnmatchcase(target, self.targets)


@dataclass(frozen=True)
class TargetComponent:
    """A component of an assembled target.

    Args:
        component: What was declared.
        plugin: The plugin that added it.
        available: Whether its recipe can be made here.
        reason: Why not.
        hint: How to fix it.
    """

    component: Component
    plugin: str
    available: bool
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, repr=False)
class Target:
    """A target as assembled from the installed plugins.

    Args:
        name: `<os>-<arch>-<accelerator>-<precision>`.
        state: `ready`; `degraded`: an optional component is missing; `unavailable`: a required one is.
        components: All of them, in partitioning order, available or not.
        plugin: The plugin that owns the target.
        summary: One line.
        default: Whether `get_<os>_recipe()` picks it when no target is named.
        reason: Why it is not ready; empty when it is.
        hint: How to fix it, preferably as a command.
    """

    name: str
    state: State
    components: tuple[TargetComponent, ...]
    plugin: str
    summary: str = ""
    default: bool = False
    reason: str = ""
    hint: str = ""

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<Target {self.name} {self.state}>"

    def _part(self, part: str) -> str:
        parts = split_target_name(self.name)
        assert parts is not None, "TargetProfile checks the name"
        return parts[part]

    @property
    def os(self) -> str:
        """The operating system: `ios`, `android`, `linux`."""
        return self._part("os")

    @property
    def arch(self) -> str:
        """The processor: `arm64`, `x86_64`."""
        return self._part("arch")

    @property
    def accelerator(self) -> str:
        """The accelerator that the target is named after, usually a backend."""
        return self._part("accelerator")

    @property
    def precision(self) -> str:
        """The precision that the name promises: `fp32`, `fp16`, `int8`."""
        return self._part("precision")

    @property
    def active(self) -> tuple[Component, ...]:
        """The components that can be used here, in partitioning order."""
        return tuple(c.component for c in self.components if c.available)


Check = Callable[[Component], tuple[str, str]]
"""Given a component: why its recipe cannot be made here and how to fix that; two empty strings when it can."""


def order_components(
    plugin: str, profile: TargetProfile, extensions: Sequence[tuple[str, TargetExtension]]
) -> list[tuple[str, Component]]:
    """All components of a target in partitioning order, each with the plugin that added it.

    Accelerators come first: the owner's in its order, then those of extensions by plugin name; then fallbacks in the
    same way. An extension with `before` goes in front of that backend, which may be another extension's.

    Args:
        plugin: The owner; its own extensions are for targets of others.
        profile: What the owner declared.
        extensions: Every extension of every plugin; those that do not match, or whose recipe is present already, are
            left out.
    """
    joining = sorted(
        ((name, e) for name, e in extensions if name != plugin and e.matches(profile.name)),
        key=lambda pair: (pair[0], pair[1].component.recipe),
    )
    present = {component.recipe for component in profile.components}
    ordered: list[tuple[str, Component]] = []
    for role in ("accelerator", "fallback"):
        slots = [(plugin, component) for component in profile.components if component.role == role]
        waiting = [(name, e) for name, e in joining if e.component.role == role]
        while waiting:
            backends = {component.backend for _, component in slots}
            # An extension that goes in front of another one waits for it; only then do names decide the order.
            chosen = next((pair for pair in waiting if not pair[1].before or pair[1].before in backends), waiting[0])
            waiting.remove(chosen)
            name, extension = chosen
            if extension.component.recipe in present:
                continue
            present.add(extension.component.recipe)
            places = [i for i, (_, component) in enumerate(slots) if component.backend == extension.before]
            slots.insert(places[0] if places else len(slots), (name, extension.component))
        ordered += slots
    return ordered


def assemble(
    plugin: str,
    profile: TargetProfile,
    extensions: Sequence[tuple[str, TargetExtension]],
    check: Check,
) -> Target:
    """Make a target from its profile and the installed plugins.

    Args:
        plugin: The plugin that owns the profile.
        profile: What it declared.
        extensions: Every extension of every plugin, with the plugin's name.
        check: Finds out whether a component's recipe can be made here.
    """
    components = []
    for owner, component in order_components(plugin, profile, extensions):
        reason, hint = check(component)
        components.append(TargetComponent(component, owner, available=not reason, reason=reason, hint=hint))
    missing = [c for c in components if not c.available]
    fatal = [c for c in missing if c.component.required]
    if not any(c.available for c in components):
        fatal = fatal or missing
    state: State = "unavailable" if fatal else "degraded" if missing else "ready"
    named = fatal or missing
    return Target(
        name=profile.name,
        state=state,
        components=tuple(components),
        plugin=plugin,
        summary=profile.summary,
        default=profile.default,
        reason="; ".join(f"{c.component.recipe}: {c.reason}" for c in named),
        hint="; ".join(dict.fromkeys(c.hint for c in named if c.hint)),
    )

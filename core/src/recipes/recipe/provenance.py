"""Where each part of a recipe comes from: plain records, how they are kept current, and the table that shows them."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from recipes.common import Copier, describe, same
from recipes.plugins import OptionValue
from recipes.recipe.policies import BY_ELEMENT, NESTED, Policy, normal, slots

if TYPE_CHECKING:
    import executorch.export
    from rich.console import Group


BY_HAND = "set by hand"
DERIVED = "set by derive()"

_WIDTH = 160
"""The width of `str(explanation)` in columns: the longest field path, a value and two names fit."""


@dataclass(frozen=True)
class Source:
    """A recipe that set a part, and the plugin and options that it was made with.

    Args:
        plugin: The plugin's name; empty where no plugin made the recipe.
        distribution: The plugin's distribution, by its name for `pip install`.
        version: The distribution's version.
        recipe: The recipe's id, `acme:fp16`, or its name; empty where it has none.
        options: The effective options that the recipe was made with.
        manner: Empty where the recipe was made with the part; else how the part was set afterwards (`BY_HAND`,
            `DERIVED`).
    """

    plugin: str = ""
    distribution: str = ""
    version: str = ""
    recipe: str = ""
    options: Mapping[str, OptionValue] = dataclasses.field(default_factory=dict)
    manner: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", dict(self.options))

    @property
    def label(self) -> str:
        """The recipe's id or name, and how the part was set where that was done afterwards."""
        recipe = self.recipe or "(unnamed)"
        return f"{self.manner} ({recipe})" if self.manner else recipe

    @property
    def package(self) -> str:
        """`recipes-acme 1.0`; empty where no plugin made the recipe."""
        return f"{self.distribution} {self.version}".strip()

    def to_dict(self) -> dict[str, Any]:
        """Plain data that can be written as JSON."""
        return {
            "plugin": self.plugin,
            "distribution": self.distribution,
            "version": self.version,
            "recipe": self.recipe,
            "options": {
                name: {"value": _plain(option.value), "source": option.source} for name, option in self.options.items()
            },
            "manner": self.manner,
        }


@dataclass(frozen=True)
class Origin:
    """One element of a list, or one value that is not ExecuTorch's default, and the recipes that set it.

    Args:
        field: Where it is, as attributes of the recipe: `lowering_recipe.partitioners`.
        text: The element or value in a few words.
        sources: The recipes that set it: one for an element; for a value, all recipes that hold the same value.
        shared: Why the element could not be copied and is shared with the input; empty where it is a copy.
        value: The element itself (recognized by identity), or a copy of the value.
    """

    field: str
    text: str
    sources: tuple[Source, ...]
    shared: str = ""
    value: Any = dataclasses.field(default=None, compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that can be written as JSON."""
        return {
            "field": self.field,
            "value": self.text,
            "sources": [source.to_dict() for source in self.sources],
            "shared": self.shared,
        }


@dataclass(frozen=True)
class Decision:
    """A disagreement that a target resolved by role.

    Args:
        field: Where the recipes disagreed.
        winner: The label of the recipe whose value is used.
        value: That value in a few words.
        losers: The label and value of each recipe whose value is not used.
        reason: Why, in one sentence.
    """

    field: str
    winner: str
    value: str
    losers: tuple[tuple[str, str], ...]
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data that can be written as JSON."""
        return {
            "field": self.field,
            "winner": self.winner,
            "value": self.value,
            "losers": [{"recipe": label, "value": text} for label, text in self.losers],
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Provenance:
    """What is known about where a recipe's parts came from.

    Args:
        origins: In the order of the recipe's fields.
        decisions: The disagreements that were resolved by roles in a target.
        filled_in: Fields that hold a default config which no recipe set.
    """

    origins: tuple[Origin, ...] = ()
    decisions: tuple[Decision, ...] = ()
    filled_in: tuple[str, ...] = ()

    def by_element(self) -> dict[tuple[str, int], list[Origin]]:
        """Origins by field and the element's `id`; several where a field holds one object several times."""
        found: dict[tuple[str, int], list[Origin]] = {}
        for origin in self.origins:
            found.setdefault((origin.field, id(origin.value)), []).append(origin)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain data that can be written as JSON."""
        return {
            "origins": [origin.to_dict() for origin in self.origins],
            "decisions": [decision.to_dict() for decision in self.decisions],
            "filled_in": list(self.filled_in),
        }


def trace(recipe: executorch.export.ExportRecipe, unrecorded: Source | None = None) -> Provenance:
    """Where each part of a recipe comes from, in the recipe's current state.

    Args:
        recipe: ExecuTorch's, or ours with its records.
        unrecorded: The source of what is not as recorded; by default it was set by hand.
    """
    recorded: Provenance = getattr(recipe, "provenance", None) or Provenance()
    others = (unrecorded or Source(recipe=recipe.name or "", manner=BY_HAND),)
    elements = recorded.by_element()
    values = {origin.field: origin for origin in recorded.origins}
    origins: list[Origin] = []
    standing: set[str] = set()
    filled_in: list[str] = []
    for slot in slots(recipe):
        name = slot.field.name
        if slot.policy is Policy.MERGE:
            if slot.path in recorded.filled_in and slot.value is not None:
                changed = any(inner.is_set for inner in slots(slot.value, NESTED[name]))
                filled_in += [] if changed else [slot.path]
        elif slot.policy in BY_ELEMENT:
            for path, element in slot.elements:
                known = elements.get((path, id(element)))
                origins.append(known.pop(0) if known else Origin(path, describe(element), others, value=element))
        elif slot.policy not in (Policy.NAME, Policy.PROVENANCE):
            value = values.get(slot.path)
            if value and same(normal(name, value.value), normal(name, slot.value)):
                origins.append(value)
                standing.add(slot.path)
            elif value or slot.is_set:
                # A copy: the value may be changed in place, and would then differ from what was recorded.
                origins.append(Origin(slot.path, describe(slot.value), others, value=Copier()(name, slot.value)))
    decisions = tuple(decision for decision in recorded.decisions if decision.field in standing)
    return Provenance(tuple(origins), decisions, tuple(filled_in))


def copied_provenance(provenance: Provenance, copier: Copier) -> Provenance:
    """The provenance of a recipe for the copy that `copier` made of that recipe."""
    origins = (
        replace(o, value=copier.copied(o.value), shared=copier.shared.get(id(o.value), o.shared))
        for o in provenance.origins
    )
    return replace(provenance, origins=tuple(origins))


@dataclass(frozen=True)
class Explanation:
    """Where every part of a recipe comes from; print it, or give it to a rich console.

    Args:
        name: The recipe's name.
        provenance: The provenance of the recipe's current state.
    """

    name: str
    provenance: Provenance

    def to_dict(self) -> dict[str, Any]:
        """Plain data that can be written as JSON."""
        return {"name": self.name, **self.provenance.to_dict()}

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        def table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
            made = Table(title=title, title_justify="left", box=None, pad_edge=False)
            for i, column in enumerate(columns):
                made.add_column(column, overflow="fold", no_wrap=i == 0)
            for row in rows:
                # As Text: a value such as "[forward]" must not be read as markup.
                made.add_row(*(Text(cell) for cell in row))
            return made

        origins, decisions = self.provenance.origins, self.provenance.decisions
        sources: list[Source] = []
        for origin in origins:
            sources += [source for source in origin.sources if source.options and source not in sources]
        tables = [
            table(
                f"Recipe {self.name or '(unnamed)'}; what is not listed has ExecuTorch's default",
                ("field", "value", "recipe", "plugin"),
                [
                    (
                        origin.field,
                        origin.text + (f" (shared, not copied: {origin.shared})" if origin.shared else ""),
                        _each(origin.sources, lambda source: source.label),
                        _each(origin.sources, lambda source: source.package or "-"),
                    )
                    for origin in origins
                ],
            )
        ]
        if sources:
            options = [
                (source.label, name, str(_plain(option.value)), option.source)
                for source in sources
                for name, option in source.options.items()
            ]
            tables.append(table("Options", ("recipe", "option", "value", "from"), options))
        if decisions:
            settled = [
                (
                    d.field,
                    f"{d.value} ({d.winner})",
                    "\n".join(f"{text} ({label})" for label, text in d.losers),
                    d.reason,
                )
                for d in decisions
            ]
            tables.append(table("Decided in this target", ("field", "kept", "given up", "why"), settled))
        return Group(*(part for made in tables for part in (made, "")))

    def __str__(self) -> str:
        from rich.console import Console

        # Its own console: the text must not depend on the current terminal.
        console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, legacy_windows=False)
        with console.capture() as capture:
            console.print(self)
        return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip() + "\n"


def _each(sources: tuple[Source, ...], text: Callable[[Source], str]) -> str:
    return "\n".join(text(source) for source in sources)


def _plain(value: Any) -> Any:
    """A value that can be written as JSON: itself where possible, else its name or text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if callable(value):
        return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    return str(value)

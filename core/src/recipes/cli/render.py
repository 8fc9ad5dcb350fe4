"""The text on stdout: tables and pages that fit the width of the terminal, coloured only on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from recipes.cli.records import Record, plain_value

if TYPE_CHECKING:
    from recipes.plugins import Plugin, Target, TargetComponent
    from recipes.vendor import Diagnosis

_STYLES = {
    "ready": "green",
    "ok": "green",
    "degraded": "yellow",
    "disabled": "dim",
    "unavailable": "red",
    "incompatible": "red",
    "conflict": "red",
    "broken": "red",
    "error": "red",
    "warning": "yellow",
    "note": "dim",
}


def _console() -> Console:
    # Texts from plugins may contain [brackets] and :colons:; they are printed unchanged.
    return Console(markup=False, emoji=False, highlight=False)


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, header in enumerate(headers):
        # People copy the first column, so it is never wrapped or cut.
        table.add_column(header, no_wrap=number == 0, min_width=len(header), overflow="fold")
    return table


def _indented(text: Text, columns: int) -> Padding:
    return Padding(text, (0, 0, 0, columns), expand=False)


def _print_hint(console: Console, hint: str, columns: int) -> None:
    """Print a hint; it is never wrapped, since it is usually a command to copy."""
    console.print(Text(" " * columns + f"-> {hint}", style="bold"), soft_wrap=True)


def _state(state: str) -> Text:
    return Text(state, style=_STYLES[state])


def _explain(console: Console, reasons: Iterable[tuple[str, str, str]]) -> None:
    """Explain below a table why rows are not as they should be; rows with the same reason share one text."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, reason, hint in reasons:
        if reason:
            names.setdefault((reason, hint), []).append(name)
    for (reason, hint), sharing in names.items():
        console.print()
        console.print(Text(", ".join(sharing), style="bold"))
        console.print(_indented(Text(reason), 2))
        if hint:
            _print_hint(console, hint, 2)


def targets(shown: Sequence[Target], hidden: int) -> None:
    """Print a table of targets.

    Args:
        shown: The targets.
        hidden: How many others are known but not available.
    """
    console = _console()
    if shown:
        table = _table("Target", "State", "Components")
        for target in shown:
            table.add_row(target.name, _state(target.state), _components(target.components))
        console.print(table)
        _explain(console, ((target.name, target.reason, target.hint) for target in shown))
    else:
        console.print("This host can build for no target with the installed plugins.")
    if hidden:
        are = "is" if hidden == 1 else "are"
        console.print(f"\n{hidden} more {are} known but unavailable here: recipes targets --all")


def _components(components: Sequence[TargetComponent]) -> Text:
    parts = []
    for slot in components:
        style = "" if slot.available else "dim"
        parts.append(Text(slot.component.recipe + ("" if slot.available else " (missing)"), style=style))
    return Text(", ").join(parts)


def target_in_full(target: Record) -> None:
    """Print a target's page, from what `records.of_target_in_full` returns."""
    console = _console()
    console.print(Text(target["name"], style="bold") + "  " + _state(target["state"]))
    if target["summary"]:
        console.print(target["summary"])
    if target["reason"]:
        console.print(f"Why: {target['reason']}")
    if target["hint"]:
        _print_hint(console, target["hint"], 0)
    console.print("\nComponents, in partitioning order:")
    for number, component in enumerate(target["components"], 1):
        console.print()
        _print_component(console, number, component)


def _print_component(console: Console, number: int, component: Record) -> None:
    required = "required" if component["required"] else "optional"
    facts = f"  {component['role']}, {required}, added by plugin {component['plugin']}"
    console.print(Text(f"{number}. ") + Text(component["recipe"], style="bold") + facts)
    if not component["available"]:
        console.print(_indented(Text(f"not available: {component['reason']}", style="red"), 3))
        if component["hint"]:
            _print_hint(console, component["hint"], 3)
    if component["summary"] is not None:
        needs = "needs calibration inputs" if component["needs_calibration"] else "needs no calibration"
        lowest = component["deployment_target"]
        for line in (
            component["summary"],
            f"weights {component['weights']}, activations {component['activations']}",
            f"{needs}; runs on {f'{lowest} and later' if lowest else 'any deployment target'}",
            "options:" if component["options"] else "no options",
        ):
            console.print(_indented(Text(line), 3))
    for option in component["options"]:
        _print_option(console, option)


def _print_option(console: Console, option: Record) -> None:
    title = Text(option["name"], style="bold")
    if option["source"] is not None:
        title += f" = {_value(option['value'])}  ({option['source']})"
    default = "no default, must be given" if option["required"] else f"default {_value(option['default'])}"
    console.print(_indented(title, 5))
    console.print(_indented(Text(option["help"]), 9))
    console.print(_indented(Text(f"{option['expects']}; {default}"), 9))


def _value(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "(empty)"
    return plain_value(value)


def plugins(rows: Sequence[Plugin]) -> None:
    """Print a table of plugins."""
    console = _console()
    if not rows:
        from recipes.plugins import no_plugins

        console.print(no_plugins(), soft_wrap=True)
        return
    table = _table("Plugin", "State", "Distribution", "Version", "Backends", "Targets")
    for row in rows:
        backends = ", ".join(sorted(row.availability))
        table.add_row(row.name, _state(row.state), row.distribution, row.version, backends, str(len(row.targets)))
    console.print(table)
    _explain(console, ((row.name, row.reason, "") for row in rows))
    _explain_backends(console, rows)


def _explain_backends(console: Console, rows: Sequence[Plugin]) -> None:
    _explain(
        console,
        (
            (f"{row.name}: backend {name} is not available", availability.reason, availability.hint)
            for row in rows
            for name, availability in sorted(row.availability.items())
        ),
    )


def diagnosis(found: Diagnosis) -> None:
    """Print what is installed, which parts work, and at the end what is wrong."""
    console = _console()
    console.print(f"Python {found.python} on {found.platform}\n{found.executable}\n", soft_wrap=True)
    table = _table("Distribution", "Version")
    for name, version in found.distributions.items():
        table.add_row(name, Text("not installed", style="yellow") if version is None else version)
    console.print(table)
    if found.plugins:
        table = _table("Plugin", "State", "Listed in", "Heavy imports", "Backends")
        for row in found.plugins:
            backends = ", ".join(
                name if availability.available else f"{name} (not available)"
                for name, availability in sorted(row.availability.items())
            )
            heavy = ", ".join(row.heavy_imports)
            table.add_row(row.name, _state(row.state), f"{row.seconds:.2f} s", heavy, backends)
        console.print()
        console.print(table)
        _explain(console, ((row.name, row.reason, "") for row in found.plugins if row.state == "disabled"))
        _explain_backends(console, found.plugins)
    if not found.runtime.problem:
        console.print("\nBackends in ExecuTorch's runtime here:")
        for name, available in found.runtime.backends.items():
            console.print(f"  {name}: {'reports that it can execute' if available else 'cannot execute'}")
        console.print("A backend that reports this may still lack its vendor's libraries at run time.")
    if found.targets:
        console.print("\nTargets that are not ready:")
        _explain(console, ((f"{t.name} ({t.state})", t.reason, t.hint) for t in found.targets))
    console.print()
    for finding in found.findings:
        console.print(Text(str(finding), style=_STYLES[finding.level]), soft_wrap=True)
    if not found.needs_a_person:
        console.print("Nothing needs fixing.")

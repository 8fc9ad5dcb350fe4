"""The progress of an export on stderr: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

StageState = Literal["started", "finished", "failed"]


@dataclass
class _Row:
    ended: list[tuple[str, StageState, float]] = field(default_factory=list)
    running: tuple[str, float] | None = None
    """The stage that runs and when it started, by `time.monotonic()`."""


class Display:
    """Shows the stages of each target, and prints lines without disturbing them.

    Args:
        targets: Every target that will be exported for, in order.
        stream: Where to print.
        live: Whether to redraw in place where `stream` is a terminal that supports it.
    """

    def __init__(self, targets: Sequence[str], stream: TextIO, *, live: bool) -> None:
        self._rows = {target: _Row() for target in targets}
        self._console = Console(file=stream, markup=False, emoji=False, highlight=False)
        self._live: Live | None = None
        if live and self._console.is_terminal and not self._console.is_dumb_terminal:
            # What libraries print is captured elsewhere.
            self._live = Live(
                get_renderable=self._render, console=self._console, redirect_stdout=False, redirect_stderr=False
            )

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def print_line(self, text: str) -> None:
        """Print a line above the live display."""
        self._console.print(text, soft_wrap=True)

    def report(self, target: str, stage: str, state: StageState, seconds: float) -> None:
        """Record that a stage of a target started, finished or failed.

        Args:
            target: The target's name.
            stage: The stage's name.
            state: What happened to it.
            seconds: How long it took, if it has ended.
        """
        row = self._rows[target]
        if state == "started":
            row.running = (stage, time.monotonic())
            return
        row.running = None
        row.ended.append((stage, state, seconds))
        if self._live is None:
            self.print_line(f"{target}: {_words(stage, state, seconds)}")

    @contextmanager
    def stage(self, target: str, stage: str) -> Iterator[None]:
        """Report the block as a stage."""
        started = time.monotonic()
        self.report(target, stage, "started", 0.0)
        try:
            yield
        except BaseException:
            self.report(target, stage, "failed", time.monotonic() - started)
            raise
        self.report(target, stage, "finished", time.monotonic() - started)

    def _render(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for target, row in self._rows.items():
            parts = [
                Text(_words(stage, state, seconds), style="red" if state == "failed" else "green")
                for stage, state, seconds in row.ended
            ]
            if row.running is not None:
                stage, started = row.running
                parts.append(Text(f"{_words(stage, 'started', time.monotonic() - started)} ...", style="bold"))
            table.add_row(target, Text(", ").join(parts) if parts else Text("waiting", style="dim"))
        return table


def _words(stage: str, state: StageState, seconds: float) -> str:
    failed = " failed after" if state == "failed" else ""
    return f"{stage.replace('_', ' ')}{failed} {seconds:.1f} s"

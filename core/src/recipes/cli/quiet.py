"""Hide what libraries print, and show the warnings of recipes.

In real exports, imports and stages warn, log and draw progress bars, all through Python's streams, so this module
captures those.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO

from recipes.common import RecipesWarning

_TAIL = 20
"""How many lines of captured output are worth showing when an export fails."""


@contextmanager
def warnings_as_lines(print_line: Callable[[str], None], is_debug: Callable[[], bool]) -> Iterator[None]:
    """Print every RecipesWarning as one line, and other warnings only in debug, as Python does.

    Args:
        print_line: Prints a line where people see it.
        is_debug: Called at each warning, because the command line is still being parsed when this starts.
    """
    as_python_does = warnings.showwarning

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, RecipesWarning):
            print_line("warning: " + " ".join(str(message).split()))
        elif is_debug():
            as_python_does(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        # Libraries, and models' modules, install filters that would hide our warnings.
        warnings.simplefilter("always", RecipesWarning)
        warnings.showwarning = show_warning
        yield


@contextmanager
def library_chatter(debug: bool) -> Iterator[None]:
    """Hide libraries' logs below ERROR and their progress bars, unless in debug; what they print is shown.

    Args:
        debug: Whether to do nothing.
    """
    if debug:
        yield
        return
    level = logging.root.manager.disable
    bars = os.environ.get("TQDM_DISABLE")
    logging.disable(max(level, logging.WARNING))
    os.environ["TQDM_DISABLE"] = "1"
    try:
        yield
    finally:
        logging.disable(level)
        if bars is None:
            del os.environ["TQDM_DISABLE"]
        else:
            os.environ["TQDM_DISABLE"] = bars


@contextmanager
def library_output(debug: bool) -> Iterator[io.StringIO]:
    """Like `library_chatter`, and capture what is printed; yield the capture, which stays empty in debug.

    Args:
        debug: Whether to do nothing.
    """
    captured = io.StringIO()
    if debug:
        yield captured
        return
    with library_chatter(debug), redirect_stdout(captured), redirect_stderr(captured):
        yield captured


def silence(debug: bool) -> None:
    """Silence a worker process of the command line until it ends; its errors report what failed.

    Args:
        debug: Whether to do nothing.
    """
    if not debug:
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends


def tail(captured: io.StringIO) -> str:
    """The last lines of a capture, each as a screen would finally show it: progress bars redraw their lines."""
    lines = (line.rpartition("\r")[2].rstrip() for line in captured.getvalue().split("\n"))
    return "\n".join([line for line in lines if line][-_TAIL:])

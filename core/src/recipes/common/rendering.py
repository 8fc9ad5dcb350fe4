"""Tables and pages as text: the same to `print`, to a rich console and in a file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group


_WIDTH = 120
"""Columns of text that is not made for a terminal."""


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Group:
    """A table with a title and no lines; the first column is never broken.

    Args:
        title: What stands above it.
        columns: The headers; one that ends in `#` is of numbers, which stand right.
        rows: The cells, shown as `str` has them.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    # A title of the table's own would be broken at the table's width.
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        made.add_column(
            column.removesuffix("#"),
            justify="right" if column.endswith("#") else "left",
            overflow="fold",
            no_wrap=number == 0,
        )
    for row in rows:
        made.add_row(*(Text(str(cell)) for cell in row))  # as Text: "[forward]" must not be read as markup
    return Group(Text(title, style="bold"), made)


def as_text(renderable: Any) -> str:
    """What a rich console would print, without colours, whatever terminal there is."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, legacy_windows=False, markup=False)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip() + "\n"


def size(count: int) -> str:
    """Bytes in words: `1.2 MB`."""
    from rich.filesize import decimal

    return decimal(count)

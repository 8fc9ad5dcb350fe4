"""Tables and pages as text that is the same in `print`, on a rich console and in a file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group


_WIDTH = 120
"""The width, in columns, of text that is not printed to a terminal."""


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Group:
    """A table with a title and without lines; the first column is never wrapped.

    Args:
        title: The title above the table.
        columns: The headers; a header that ends in `#` marks a column of numbers, which is aligned right.
        rows: The cells, each shown as `str` returns it.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    # Rich would wrap the table's own title at the table's width.
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
    """The text that a rich console would print, without colours and whatever the terminal."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, legacy_windows=False, markup=False)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip() + "\n"


def size(count: int) -> str:
    """A number of bytes for people to read: `1.2 MB`."""
    from rich.filesize import decimal

    return decimal(count)

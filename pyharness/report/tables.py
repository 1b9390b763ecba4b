"""Tables on a terminal; elsewhere one line for each row, however long."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pyharness.messages import printable


def print_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()
) -> None:
    """``right``: columns of numbers."""
    table = Table(box=None, pad_edge=False)
    for name in head:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000  # a log has no width to fit into: one row stays one line
    console.print(table)

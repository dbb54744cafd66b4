"""Tables as the command prints them: no lines, one row a thing, numbers to the right."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.words import harmless

NARROW = 100  # columns of a terminal that is called narrow


class Rows:
    """A table that leaves out columns which are empty, or which a narrow terminal has no room for."""

    def __init__(self, *columns: str, right: tuple[str, ...] = (), wide_only: tuple[str, ...] = ()) -> None:
        self._columns = columns
        self._right = right
        self._wide_only = wide_only
        self._rows: list[tuple[Text, ...]] = []

    def add(self, *cells: str | Text) -> None:
        """Add a row."""
        self._rows.append(tuple(each if isinstance(each, Text) else Text(harmless(each)) for each in cells))

    def print(self, console: Console) -> None:
        """Print what there is."""
        narrow = console.width < NARROW
        kept = [
            at
            for at, name in enumerate(self._columns)
            if any(row[at].plain for row in self._rows) and not (narrow and name in self._wide_only)
        ]
        drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for at in kept:
            name = self._columns[at]
            last = at == kept[-1]
            drawn.add_column(
                name.upper(),
                justify="right" if name in self._right else "left",
                overflow="fold",
                no_wrap=not last,
                min_width=None if last else max(len(name), *(row[at].cell_len for row in self._rows)),
            )
        for row in self._rows:
            drawn.add_row(*(row[at] for at in kept))
        console.print(drawn)


def fields(console: Console, pairs: list[tuple[str, str | Text]], indent: int = 2) -> None:
    """Print names and values, a line each; in a terminal long values go on below themselves."""
    width = max((len(name) for name, _ in pairs), default=0)
    if console.is_terminal:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in pairs:
            grid.add_row(Text(" " * indent + name, "dim"), value if isinstance(value, Text) else Text(harmless(value)))
        console.print(grid)
        return
    for name, value in pairs:
        text = value if isinstance(value, Text) else Text(harmless(value))
        console.print(Text.assemble(" " * indent, (f"{name:{width}}", "dim"), "  ", text), soft_wrap=True)

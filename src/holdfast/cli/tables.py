"""Tables of the command: no rules between the cells, one row per item, numbers aligned to the right."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.formatting import age, harmless
from holdfast.repository.verdicts import LastVerify

NARROW = 100  # a terminal with fewer columns is narrow
_MINIMUM = 8  # width of a text column
_GAP = "  "


class TableRows:
    """A table that omits empty columns and, in a narrow terminal where it does not fit, those of `wide_only`."""

    def __init__(self, *columns: str, right: tuple[str, ...] = (), wide_only: tuple[str, ...] = ()) -> None:
        self._columns = columns
        self._right = right
        self._wide_only = wide_only
        self._rows: list[tuple[Text, ...]] = []

    def add(self, *cells: str | Text) -> None:
        """Add a row."""
        self._rows.append(tuple(each if isinstance(each, Text) else Text(harmless(each)) for each in cells))

    def print(self, console: Console) -> None:
        """Print the table."""
        kept = [at for at in range(len(self._columns)) if any(row[at].plain for row in self._rows)]
        if console.width < NARROW and self._natural(kept) > console.width:
            kept = [at for at in kept if self._columns[at] not in self._wide_only]
        drawn = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0), header_style="dim")
        for at, width in self._widths(kept, console.width).items():
            name = self._columns[at]
            drawn.add_column(
                name.upper(), justify="right" if name in self._right else "left", overflow="fold", width=width
            )
        for row in self._rows:
            drawn.add_row(*(row[at] for at in kept))
        console.print(drawn)

    def _natural(self, kept: list[int]) -> int:
        """Return the width of the table if nothing is wrapped."""
        widths = (max(len(self._columns[at]), *(row[at].cell_len for row in self._rows)) for at in kept)
        return sum(widths) + len(_GAP) * (len(kept) - 1)

    def _widths(self, kept: list[int], room: int) -> dict[int, int]:
        """Return the width of each column. If the table is too wide, its widest text columns are wrapped."""
        widths = {at: max(len(self._columns[at]), *(row[at].cell_len for row in self._rows)) for at in kept}
        texts = [at for at in kept if self._columns[at] not in self._right]
        room -= len(_GAP) * (len(kept) - 1)
        while texts and sum(widths.values()) > room:
            widest = max(texts, key=lambda at: widths[at])
            if widths[widest] <= _MINIMUM:
                break
            widths[widest] -= 1
        return widths


def print_damaged(console: Console, damaged: list[str]) -> None:
    """Print a line for each record that could not be read, then the next step."""
    do = "restore these files from a copy; to find other damage: holdfast verify --all"
    print_problems(console, damaged, do)


def print_problems(console: Console, problems: Sequence[str], do: str = "") -> None:
    """Print a line for each problem, then the next step, unless the problems name it."""
    for each in problems:
        console.print(Text(harmless(each), "bold red"), soft_wrap=True)
    if problems and do:
        console.print(f"next: {do}", soft_wrap=True, markup=False)


def verdict_text(verdict: LastVerify) -> Text:
    """Return a recorded verdict and its age."""
    style = "green" if verdict.ok else "bold red" if verdict.is_unsound else "yellow"
    return Text.assemble((verdict.word, style), f" {age(verdict.at_ms)} ago")


def fields(console: Console, pairs: list[tuple[str, str | Text]], indent: int = 2) -> None:
    """Print names and values, one pair per line. A terminal wraps long values within their column."""
    pairs = [(harmless(name), value) for name, value in pairs]
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

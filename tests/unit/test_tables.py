"""Tables of the command: whatever the width, no cell loses a character, and numbers stay in one piece."""

import io
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from holdfast.cli.tables import TableRows, fields

NAME = "a_stream_with_quite_a_long_name_of_its_own"
FOLDER = "some/where/far/down/in/a/tree/of/folders/with/names/that/are/long/orders"


def printed(rows: TableRows, width: int) -> list[str]:
    out = io.StringIO()
    rows.print(Console(file=out, width=width))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_table_that_is_too_wide_folds_its_texts_and_never_its_numbers(width: int) -> None:
    rows = TableRows("folder", "stream", "epochs", "rows", "files", "size", right=("rows", "files", "size"))
    rows.add(FOLDER, NAME, "12345-12999 of timeline 2", "1,234,567", "16,000", "26.6 kB")
    rows.add("out", "s", "1-2", "10", "10", "100 B")
    lines = printed(rows, width)
    assert max(map(len, lines)) <= width
    assert lines[0].split() == ["FOLDER", "STREAM", "EPOCHS", "ROWS", "FILES", "SIZE"]
    text = "\n".join(lines)
    for number in ("1,234,567", "16,000", "26.6 kB"):
        assert number in text
    begins = [found.start() for found in re.finditer(r"FOLDER|STREAM|EPOCHS", lines[0])]
    folder, name = ("".join(line[a:b].strip() for line in lines[1:-1]) for a, b in itertools.pairwise(begins))
    assert (folder, name) == (FOLDER, NAME)


@given(st.lists(st.text("abcdefgh", min_size=1, max_size=60), min_size=1, max_size=6), st.integers(40, 200))
def test_no_character_is_lost_where_there_is_room_for_ten_of_each_column(cells: list[str], width: int) -> None:
    rows = TableRows(*(f"c{number}" for number in range(len(cells))))
    rows.add(*cells)
    if len(cells) * 12 > width:
        return
    lines = printed(rows, width)
    assert max(map(len, lines)) <= width
    assert sum(len(re.sub(r"\s", "", line)) for line in lines[1:]) == sum(map(len, cells))


@pytest.mark.parametrize(
    ("epochs", "width", "full"), [("a 1", 40, True), ("a 1, b 22, c 333", 40, False), ("a 1", 30, False)]
)
def test_columns_for_wide_terminals_are_left_out_only_where_they_do_not_fit(
    epochs: str, width: int, full: bool
) -> None:
    rows = TableRows("id", "taken (UTC)", "epochs", wide_only=("taken (UTC)",))
    rows.add("1", "2026-11-18 04:34:27", epochs)
    assert ("TAKEN" in printed(rows, width)[0]) == full


@pytest.mark.parametrize("terminal", [True, False])
def test_control_characters_in_a_name_do_not_reach_the_terminal(terminal: bool) -> None:
    """The difference of two checkpoints names sources and settings."""
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=terminal, color_system=None)
    fields(console, [("offset of a\x1b[31m", "1\x1b[31m -> 2")])
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().count("\\x1b[31m") == 2

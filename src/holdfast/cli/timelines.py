"""The timelines of a pipeline as a tree, and a rewind that was not finished."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.repository import Lineage, Repository
from holdfast.repository.lineage import FIRST, branches
from holdfast.repository.rewinds import RewindRecord


class TimelineLine(msgspec.Struct, frozen=True, kw_only=True):
    """A timeline."""

    timeline: int  # its number
    parent: int | None  # the timeline that it continues; null for the first one
    checkpoint: int | None  # the checkpoint that it began at; null: the end of its parent
    bases: dict[str, int]  # by stream that it took over: the epoch that it continues after
    current: bool  # new epochs are decided in it
    abandoned: bool  # it is not part of the current history
    why: str  # why it was begun
    at_ms: int  # when it was begun; 0 for the first one
    who: str = ""  # who began it


def timeline_lines(repository: Repository, lineage: Lineage) -> list[TimelineLine]:
    """Return all timelines, by number."""
    first = TimelineLine(
        timeline=FIRST,
        parent=None,
        checkpoint=None,
        bases={},
        current=lineage.current == FIRST,
        abandoned=False,
        why="",
        at_ms=0,
    )
    later = [
        TimelineLine(
            timeline=number,
            parent=record.parent,
            checkpoint=record.checkpoint,
            bases=record.bases,
            current=number == lineage.current,
            abandoned=number not in lineage.timelines,
            why=record.why,
            at_ms=record.at_ms,
            who=record.who,
        )
        for number, record in branches(repository).items()
    ]
    return [first, *later]


def print_timelines(console: Console, lines: list[TimelineLine]) -> None:
    """Print the timelines as a tree, if there are several."""
    if len(lines) > 1:
        _print_below(console, lines, None, 0)


def _print_below(console: Console, lines: list[TimelineLine], parent: int | None, depth: int) -> None:
    for line in lines:
        if line.parent != parent:
            continue
        text = f"{'  ' * depth}timeline {line.timeline}"
        if line.parent is not None:
            begun = f"checkpoint {line.checkpoint}" if line.checkpoint else f"the end of timeline {line.parent}"
            text += f" from {begun}, {formatting.moment(line.at_ms)}"
            text += f": {line.why}" if line.why else ""
        text += "  (current)" if line.current else "  (abandoned)" if line.abandoned else ""
        style = "dim" if line.abandoned else ""
        console.print(Text(formatting.harmless(text), style), soft_wrap=True)
        _print_below(console, lines, line.timeline, depth + 1)


def unfinished_text(record: RewindRecord) -> str:
    """Return a rewind that was not finished, as a warning."""
    return f"{record.title} is unfinished: run the same program (holdfast run), which finishes it first"

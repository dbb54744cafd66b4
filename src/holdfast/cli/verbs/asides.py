"""`holdfast asides`: lists the rows that rewinds have set aside, or discards them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from holdfast.cli import formatting
from holdfast.cli.answers import Answer, approved
from holdfast.cli.asking import Why
from holdfast.cli.options import Arguments, Json, TakeOver, TargetName, Yes
from holdfast.cli.programs import find_target, named_in_errors, pipeline_of
from holdfast.cli.tables import TableRows

if TYPE_CHECKING:
    from holdfast.rewind.kept import KeptRows


class Aside(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one sink that one rewind has set aside."""

    stream: str  # its name
    sink: str  # its name
    timeline: int  # the timeline that the rewind started
    rows: int  # how many; for upserts, one for each version that was taken back
    kept: str  # where
    undoable: bool  # the rewind can still be undone, and the undo needs them
    discarded: bool  # whether this command has deleted them


class Asides(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that rewinds have set aside."""

    asides: list[Aside]


SHAPES = {"asides": Asides}


def asides(
    target: TargetName,
    arguments: Arguments = None,
    discard: Annotated[
        bool, typer.Option("--discard", help="Delete the rows permanently. The pipeline must be stopped.")
    ] = False,
    undoable: Annotated[
        bool,
        typer.Option(
            "--undoable", help="With --discard: also delete the rows that an undo of the newest rewind needs."
        ),
    ] = False,
    take_over: TakeOver = False,
    why: Why = "",
    yes: Yes = False,
    as_json: Json = False,
) -> Answer:
    """List or discard the rows that rewinds have set aside.

    A rewind takes rows back from the sinks, and the sinks keep them until you discard them. Without --discard, the rows
    are only listed. The rows of the newest rewind are kept as long as it can be undone, unless you pass --undoable.
    Loads the program, but does not need Java.

    [bold]Examples[/]

        holdfast asides app.py:pipeline
        holdfast asides app.py:pipeline --discard
    """
    pipeline = pipeline_of(find_target(target), arguments or [])
    from holdfast.rewind.kept import discard_rows, kept_rows  # PySpark may not be installed

    with named_in_errors(target):
        found = kept_rows(pipeline)
    chosen = [each for each in found if undoable or not each.undoable] if discard else []
    gone: list[KeptRows] = []
    if chosen:
        approved(
            "asides --discard",
            yes=yes,
            as_json=as_json,
            show=lambda console: _print(console, chosen),
            look="without --discard",
        )
        with named_in_errors(target):
            gone = discard_rows(pipeline, chosen, take_over=take_over, why=why)

    def print_it(console: Console) -> None:
        if gone:
            rows = formatting.counted(sum(each.rows for each in gone), "row")
            console.print(f"discarded {rows}, in {formatting.counted(len(gone), 'place')}")
        elif found:
            _print(console, found)
        if not found:
            console.print("no rows are set aside")
        elif not discard:
            console.print("next: to delete the rows that no undo needs, run the same command with --discard")
        elif not chosen:
            console.print("nothing was discarded: an undo needs these rows; to delete them anyway, pass --undoable")

    shown = [_aside(each, each in gone) for each in found]
    return Answer(Asides(asides=shown), print_it, repository=pipeline.repository.where)


def _aside(rows: KeptRows, discarded: bool) -> Aside:
    return msgspec.convert(msgspec.to_builtins(rows) | {"discarded": discarded}, Aside)


def _print(console: Console, found: list[KeptRows]) -> None:
    table = TableRows("timeline", "stream", "sink", "rows", "undo", "kept in", right=("timeline", "rows"))
    for each in found:
        undo = "possible" if each.undoable else "no longer"
        table.add(str(each.timeline), each.stream, each.sink, formatting.number(each.rows), undo, each.kept)
    table.print(console)

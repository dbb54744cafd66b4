"""Rows that rewinds have set aside: list what the sinks of a program keep, and discard it.

Rules:
- Only a user discards them. An undo needs the rows of the newest rewind, and is possible until the timeline of that
  rewind has decided an epoch. Until then these rows are `undoable`. An undo that lacks them is refused.
- Discarding is idempotent. If it is interrupted, the next try continues.

Not listed: the rows of sinks that the program lacks, and events of a log, which stay in its files.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from holdfast.errors import Corrupt
from holdfast.repository import History, Lineage
from holdfast.repository.rewinds import read_rewind
from holdfast.rewind.answering import asked
from holdfast.rewind.apply import taken_lease
from holdfast.rewind.members import last_decision
from holdfast.rewind.planning import loaded_lineage
from holdfast.rewind.program import Program, Rewindable
from holdfast.sinks.base import StreamIdentity

DISCARD = "discard"  # in the history


class KeptRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one sink that one rewind has set aside."""

    stream: str
    sink: str
    timeline: int  # the timeline that the rewind started
    rows: int  # for upserts, one for each version that was taken back
    kept: str  # where
    undoable: bool  # the rewind can still be undone, and the undo needs them


def kept_rows(pipeline: Rewindable) -> list[KeptRows]:
    """Return the rows that the sinks of a pipeline have set aside. Nothing is changed, and no Spark session is needed.

    Raises `RewindUnfinished` while a rewind is not finished.
    """
    return _found(pipeline.program)


def discard_rows(
    pipeline: Rewindable, chosen: Collection[KeptRows], *, take_over: bool = False, why: str = ""
) -> list[KeptRows]:
    """Permanently delete rows that `kept_rows` has listed; return those that were still there.

    The pipeline must be stopped. Once the rows of the newest rewind are deleted, it can no longer be undone.
    `take_over` and `why` are as in `apply_rewind`.
    """
    program = pipeline.program
    wanted = {(each.stream, each.sink, each.timeline) for each in chosen}
    with taken_lease(program, take_over=take_over) as lease:
        found = [each for each in _found(program) if (each.stream, each.sink, each.timeline) in wanted]
        for each in found:
            lease.check()
            _discard(program, each)
        if found:
            facts = {"discarded": [msgspec.to_builtins(each) for each in found]}
            History(program.repository).add(DISCARD, why or "rows that rewinds had set aside", facts)
    return found


def _found(program: Program) -> list[KeptRows]:
    lineage = loaded_lineage(program)
    undoable = _undoable(program, lineage)
    return [
        KeptRows(
            stream=name,
            sink=sink.name,
            timeline=each.timeline,
            rows=each.rows,
            kept=each.kept,
            undoable=each.timeline == undoable,
        )
        for name, stream in program.streams.items()
        for sink in stream.sinks
        for each in asked(sink, "be asked", lambda: sink.set_aside(_owner(program, lineage, name)))  # noqa: B023 - called at once
    ]


def _undoable(program: Program, lineage: Lineage) -> int | None:
    """Return the timeline of the rewind that can be undone, or `None`. One whose record is damaged may be repaired."""
    try:
        record = read_rewind(program.repository, lineage.current)
    except Corrupt:
        return lineage.current
    if record is None or record.undoes is not None:
        return None
    for name, aim in record.streams.items():
        decision, _ = last_decision(program.repository, name, record.timeline)
        if decision is not None and decision.attempt.epoch > aim.epoch:
            return None
    return record.timeline


def _discard(program: Program, rows: KeptRows) -> None:
    sink = program.sink(rows.stream, rows.sink)
    if sink is not None:
        owner = _owner(program, Lineage.load(program.repository), rows.stream)
        asked(sink, "discard rows", lambda: sink.discard_aside(owner, rows.timeline))


def _owner(program: Program, lineage: Lineage, stream: str) -> StreamIdentity:
    return StreamIdentity(program.name, lineage.identity.uid, stream)

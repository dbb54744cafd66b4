"""Resetting a durable cursor: the only way to move its committed position backwards.

It is for a cursor that stands past a rewind of its log (`LogRewound`), or that must read events again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast._validation import checked_u64
from holdfast.errors import BadValue, CursorLogMismatch, CursorMissing
from holdfast.eventlog._cursor_file import CursorRecord
from holdfast.eventlog._cursor_slot import open_slot, read_cursor
from holdfast.repository import Repository

if TYPE_CHECKING:
    from holdfast.eventlog.log import EventLog


class CursorReset(msgspec.Struct, frozen=True):
    """Where a reset moves a cursor."""

    cursor: str  # its name
    before: int  # the sequence that it would read next
    after: int  # the sequence that it reads next, after the reset
    log: str | None = None  # the identity of its log


def plan_reset(repository: Repository, name: str, log: EventLog | None, to: int | None = None) -> CursorReset:
    """Return where a reset would move a cursor: to a sequence or, by default, to before all events that have changed.

    Without a log, the only place to go to is 0, the beginning. Changes nothing.
    """
    record = read_cursor(repository, name)
    if record is None:
        raise CursorMissing(cursor=name, where=repository.where)
    before = record.position + 1 if record.started else 0
    if log is None:
        if to != 0:
            why = "the log is needed to move the cursor to another place than 0, the beginning"
            raise BadValue(what="to", value=to, why=why, do="name the log with --log, or pass --to 0")
        return CursorReset(name, before, 0, record.log_identity)
    if record.log_identity not in (None, log.identity):
        raise CursorLogMismatch(cursor=name, saved=str(record.log_identity), asked=log.identity)
    tail = log.refresh()
    if 0 < before <= tail:
        log.seek(before - 1, record.record)
    if to is None:
        changed = log.changed_before(min(before, tail))
        return CursorReset(name, before, before if changed is None else changed, log.identity)
    if checked_u64("to", to) > tail:
        raise BadValue(what="to", value=to, why=f"the log ends before sequence {tail}")
    return CursorReset(name, before, to, log.identity)


def apply_reset(repository: Repository, plan: CursorReset, log: EventLog | None) -> None:
    """Move a cursor. Raises `Locked` if a process is using it; on a store, its next commit raises `CursorFenced`."""
    slot = open_slot(repository, plan.cursor)
    try:
        saved = slot.read()
        if saved is None:
            raise CursorMissing(cursor=plan.cursor, where=repository.where)
        last = plan.after - 1
        record = None if log is None or not plan.after else log.record_of(last)
        slot.write(
            CursorRecord(
                position=max(last, 0),
                started=plan.after > 0,
                region_identity=saved.region_identity,
                log_identity=plan.log,
                log_chain=log.chain_at(last) if log is not None and plan.after else None,
                log_record=msgspec.UNSET if record is None else record,
            )
        )
    finally:
        slot.release()

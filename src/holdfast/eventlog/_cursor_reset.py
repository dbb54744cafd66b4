"""Resetting a durable cursor: the only way to move its committed position backwards.

It is for a cursor that stands past a rewind of its log (`LogRewound`), or that must read events again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast._validation import checked_u64
from holdfast.errors import BadValue, CursorLogMismatch, CursorMissing
from holdfast.eventlog._cursor_file import CursorRecord, cursor_key, lock_key, read_cursor
from holdfast.repository import FileRepository

if TYPE_CHECKING:
    from holdfast.eventlog.log import EventLog


class CursorReset(msgspec.Struct, frozen=True):
    """Where a reset moves a cursor."""

    cursor: str  # its name
    before: int  # the sequence that it would read next
    after: int  # the sequence that it reads next, after the reset
    log: str | None = None  # the identity of its log


def plan_reset(repository: FileRepository, name: str, log: EventLog | None, to: int | None = None) -> CursorReset:
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
    if to is None:
        changed = log.changed_before(min(before, tail))
        return CursorReset(name, before, before if changed is None else changed, log.identity)
    if checked_u64("to", to) > tail:
        raise BadValue(what="to", value=to, why=f"the log ends before sequence {tail}")
    return CursorReset(name, before, to, log.identity)


def apply_reset(repository: FileRepository, plan: CursorReset, log: EventLog | None) -> None:
    """Move a cursor. Raises `Locked` if a process is using it."""
    with repository.lock(lock_key(plan.cursor), f"cursor {plan.cursor!r} in {repository.where}"):
        saved = read_cursor(repository, plan.cursor)
        if saved is None:
            raise CursorMissing(cursor=plan.cursor, where=repository.where)
        record = CursorRecord(
            position=max(plan.after - 1, 0),
            started=plan.after > 0,
            region_identity=saved.region_identity,
            log_identity=plan.log,
            log_chain=log.chain_at(plan.after - 1) if log is not None and plan.after else None,
        )
        repository.put(cursor_key(plan.cursor), record.to_bytes())

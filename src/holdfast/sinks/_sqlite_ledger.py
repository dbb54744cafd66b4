"""The ledger of the SQLite sink: the table `holdfast_epochs`, in the same database as the rows.

The last two epochs of a table are kept. Before the first one there is a claim: a row of epoch 0. A rewind writes a
stamp: a row without a handle, of the timeline that it begins.

`mode` records how the rows of an epoch were written, and `since` the first epoch from which on all were written like
that: only those can be taken back. Rows of earlier versions have neither.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from holdfast.sinks.base import EpochKey, EpochPlace, Link, StreamIdentity, handle_digest
from holdfast.sinks.held_epochs import HeldEpochs

LEDGER = "holdfast_epochs"
_CREATE = f"""
CREATE TABLE IF NOT EXISTS {LEDGER} (
    pipeline TEXT NOT NULL, uid TEXT NOT NULL, stream TEXT NOT NULL, target TEXT NOT NULL,
    timeline INTEGER NOT NULL, epoch INTEGER NOT NULL, rows INTEGER NOT NULL, at_ms INTEGER NOT NULL, handle TEXT,
    mode TEXT, since INTEGER,
    PRIMARY KEY (uid, stream, target, timeline, epoch)
)"""
_COLUMNS = "pipeline, uid, stream, target, timeline, epoch, rows, at_ms"
_OWN = "uid = ? AND stream = ? AND target = ?"
_ADDED = {"handle": "TEXT", "mode": "TEXT", "since": "INTEGER"}  # ledgers of earlier versions lack them


class WriteMode(StrEnum):
    """How an epoch was written, as far as going back depends on it."""

    APPEND = "append"
    UPSERT = "upsert"
    UNDO = "undo"  # an upsert with an undo journal
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """The last epoch of a table, and how it and the epochs before it were written."""

    place: EpochPlace
    mode: WriteMode | None  # None: not known, or nothing was written
    column: str | None  # of an append: the epoch column
    since: int  # all epochs from this one on were written like that

    def known_since(self, epoch: int) -> WrittenRows:
        """Return the same from a later epoch on."""
        return replace(self, since=epoch)

    @property
    def nothing(self) -> bool:
        """Whether nothing was ever written: this is the stamp of a rewind into an empty table."""
        return self.mode is None and not self.since

    @property
    def stored(self) -> str | None:
        """The mode as the ledger stores it."""
        return self.mode if self.column is None else f"{self.mode}:{self.column}"


def create_ledger(connection: sqlite3.Connection) -> None:
    """Create the ledger if it does not exist; add the columns that ledgers of earlier versions lack."""
    connection.execute(_CREATE)
    there = _columns(connection)
    for name in (name for name in _ADDED if name not in there):
        connection.execute(f"ALTER TABLE {LEDGER} ADD COLUMN {name} {_ADDED[name]}")


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({LEDGER})")}


def has_ledger(connection: sqlite3.Connection) -> bool:
    """Whether the database has a ledger."""
    return connection.execute(f"PRAGMA table_info({LEDGER})").fetchone() is not None


@dataclass(frozen=True, slots=True)
class SqliteLedger:
    """The entries of one stream for one table. Every method runs in the caller's transaction."""

    owner: StreamIdentity
    target: str  # the table's name in lower case, because SQLite ignores case

    def claim(self, connection: sqlite3.Connection) -> None:
        """Record the owner of the table before its first epoch."""
        values = (self.owner.pipeline, *self._own, _now_ms())
        connection.execute(f"INSERT OR IGNORE INTO {LEDGER} ({_COLUMNS}) VALUES (?, ?, ?, ?, 0, 0, 0, ?)", values)  # noqa: S608 - constants

    def knows_table(self, connection: sqlite3.Connection) -> bool:
        """Whether the table holds epochs of any owner, according to the ledger."""
        query = f"SELECT 1 FROM {LEDGER} WHERE target = ? AND epoch > 0"  # noqa: S608 - a constant
        return connection.execute(query, (self.target,)).fetchone() is not None

    def foreign(self, connection: sqlite3.Connection, *, share: bool) -> str | None:
        """Return another owner that must not share the table with this one, as text.

        That is every other stream, unless `share` is set; and always an earlier pipeline of the same name.
        """
        others = connection.execute(
            f"SELECT pipeline, stream, uid FROM {LEDGER} WHERE target = ? AND NOT (uid = ? AND stream = ?)",  # noqa: S608 - a constant
            (self.target, self.owner.uid, self.owner.stream),
        ).fetchall()
        for pipeline, stream, uid in others:
            if not share or (pipeline, stream) == (self.owner.pipeline, self.owner.stream):
                return StreamIdentity(pipeline, uid, stream).summary
        return None

    def last(self, connection: sqlite3.Connection, timeline: int) -> int:
        """Return the last epoch of a timeline, or 0."""
        query = f"SELECT max(epoch) FROM {LEDGER} WHERE {_OWN} AND timeline = ?"  # noqa: S608 - constants
        return int(connection.execute(query, (*self._own, timeline)).fetchone()[0] or 0)

    def timeline(self, connection: sqlite3.Connection) -> int:
        """Return the latest timeline, or 0."""
        query = f"SELECT max(timeline) FROM {LEDGER} WHERE {_OWN}"  # noqa: S608 - constants
        return int(connection.execute(query, self._own).fetchone()[0] or 0)

    def written(self, connection: sqlite3.Connection) -> WrittenRows | None:
        """Return the last epoch, and how it was written; `None` if there is none."""
        known = "mode, since" if _columns(connection) >= {"mode", "since"} else "NULL, NULL"
        query = (
            f"SELECT timeline, epoch, {known} FROM {LEDGER} WHERE {_OWN} AND timeline > 0 "  # noqa: S608 - constants
            "ORDER BY timeline DESC, epoch DESC LIMIT 1"
        )
        row = connection.execute(query, self._own).fetchone()
        if row is None:
            return None
        timeline, epoch, stored, since = row
        mode, _, column = (stored or "").partition(":")
        found = WriteMode(mode) if mode in set(WriteMode) else None
        return WrittenRows((timeline, epoch), found, column or None, epoch + 1 if since is None else since)

    def held(self, connection: sqlite3.Connection, key: EpochKey) -> HeldEpochs:
        """Return the entries that decide whether an epoch is committed."""
        timeline = self.timeline(connection)
        last = self.last(connection, key.timeline)
        own, before = self._link(connection, *key.place), self._link(connection, key.timeline, last)
        return HeldEpochs(timeline, own, before or Link(last, None))

    def _link(self, connection: sqlite3.Connection, timeline: int, epoch: int) -> Link | None:
        """Return the entry of an epoch. Earlier versions recorded no handle."""
        query = f"SELECT handle FROM {LEDGER} WHERE {_OWN} AND timeline = ? AND epoch = ?"  # noqa: S608 - constants
        found = connection.execute(query, (*self._own, timeline, epoch)).fetchone()
        return Link(epoch, found[0]) if found else None

    def add(
        self,
        connection: sqlite3.Connection,
        key: EpochKey,
        handle: dict[str, Any],
        mode: WriteMode,
        column: str | None = None,
    ) -> None:
        """Record an epoch and how it was written, and remove all entries but the last two."""
        before = self.written(connection)
        now = WrittenRows(key.place, mode, column, key.epoch)
        if before is None:
            now = now.known_since(0)
        elif before.mode is None or before.stored == now.stored:
            now = now.known_since(before.since)
        self._insert(connection, key.place, handle["rows"], handle_digest(handle), now)
        connection.execute(
            f"DELETE FROM {LEDGER} WHERE {_OWN} AND (timeline < ? OR epoch < ?)",  # noqa: S608 - constants
            (*self._own, key.timeline, key.epoch - 1),
        )

    def stamp(self, connection: sqlite3.Connection, base: EpochPlace, into: int, written: WrittenRows | None) -> None:
        """Record the beginning of a timeline at a base, and remove all entries of earlier ones."""
        self._insert(connection, (into, base[1]), 0, None, written)
        connection.execute(f"DELETE FROM {LEDGER} WHERE {_OWN} AND timeline < ?", (*self._own, into))  # noqa: S608 - constants

    def _insert(
        self,
        connection: sqlite3.Connection,
        place: EpochPlace,
        rows: int,
        handle: str | None,
        written: WrittenRows | None,
    ) -> None:
        mode, since = (None, 0) if written is None else (written.stored, written.since)
        connection.execute(
            f"INSERT INTO {LEDGER} ({_COLUMNS}, handle, mode, since) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - constants
            (self.owner.pipeline, *self._own, *place, rows, _now_ms(), handle, mode, since),
        )

    @property
    def _own(self) -> tuple[str, str, str]:
        return self.owner.uid, self.owner.stream, self.target


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

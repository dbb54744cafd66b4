"""The ledger of the SQLite sink: the table `holdfast_epochs`, in the same database as the rows.

The last two epochs of a table are kept. Before the first one there is a claim: a row of epoch 0.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from typing import Any

from holdfast.sinks.base import EpochKey, Link, StreamIdentity, handle_digest
from holdfast.sinks.held_epochs import HeldEpochs

LEDGER = "holdfast_epochs"
_CREATE = f"""
CREATE TABLE IF NOT EXISTS {LEDGER} (
    pipeline TEXT NOT NULL, uid TEXT NOT NULL, stream TEXT NOT NULL, target TEXT NOT NULL,
    timeline INTEGER NOT NULL, epoch INTEGER NOT NULL, rows INTEGER NOT NULL, at_ms INTEGER NOT NULL, handle TEXT,
    PRIMARY KEY (uid, stream, target, timeline, epoch)
)"""
_COLUMNS = "pipeline, uid, stream, target, timeline, epoch, rows, at_ms"
_OWN = "uid = ? AND stream = ? AND target = ?"


def create_ledger(connection: sqlite3.Connection) -> None:
    """Create the ledger if it does not exist; add the column that ledgers of earlier versions lack."""
    connection.execute(_CREATE)
    if "handle" not in {row[1] for row in connection.execute(f"PRAGMA table_info({LEDGER})")}:
        connection.execute(f"ALTER TABLE {LEDGER} ADD COLUMN handle TEXT")


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

    def held(self, connection: sqlite3.Connection, key: EpochKey) -> HeldEpochs:
        """Return the entries that decide whether an epoch is committed."""
        query = f"SELECT max(timeline) FROM {LEDGER} WHERE {_OWN}"  # noqa: S608 - constants
        timeline = int(connection.execute(query, self._own).fetchone()[0] or 0)
        last = self.last(connection, key.timeline)
        own, before = self._link(connection, *key.place), self._link(connection, key.timeline, last)
        return HeldEpochs(timeline, own, before or Link(last, None))

    def _link(self, connection: sqlite3.Connection, timeline: int, epoch: int) -> Link | None:
        """Return the entry of an epoch. Earlier versions recorded no handle."""
        query = f"SELECT handle FROM {LEDGER} WHERE {_OWN} AND timeline = ? AND epoch = ?"  # noqa: S608 - constants
        found = connection.execute(query, (*self._own, timeline, epoch)).fetchone()
        return Link(epoch, found[0]) if found else None

    def add(self, connection: sqlite3.Connection, key: EpochKey, handle: dict[str, Any]) -> None:
        """Record an epoch, and remove all entries but the last two."""
        connection.execute(
            f"INSERT INTO {LEDGER} ({_COLUMNS}, handle) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - constants
            (self.owner.pipeline, *self._own, *key.place, handle["rows"], _now_ms(), handle_digest(handle)),
        )
        connection.execute(
            f"DELETE FROM {LEDGER} WHERE {_OWN} AND (timeline < ? OR epoch < ?)",  # noqa: S608 - constants
            (*self._own, key.timeline, key.epoch - 1),
        )

    @property
    def _own(self) -> tuple[str, str, str]:
        return self.owner.uid, self.owner.stream, self.target


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

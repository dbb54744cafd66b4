"""The undo journal of a SQLite sink that upserts: the table `holdfast_undo_<owner>`, in the same database as the rows.

In the transaction of each epoch, one entry is written for each row: its key, its previous version, and a digest of the
version that the epoch wrote. Going back restores the previous versions, newest first. If the digest of a row is not the
one in its newest entry, another program has changed the row since then. The entries form a chain: the version that one
entry restores must have the digest of the entry before it. So a change between two epochs is found too.

`aside` is 0, or the timeline of the rewind that has undone the entry. Such entries are kept for the undo of the rewind.

A row is stored as a MessagePack map from column to value. Columns that are NULL are not part of its digest, so that
adding a column to the table does not look like a change of all rows.
"""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from holdfast.errors import RecordCorrupt
from holdfast.formats.decoding import Undecodable, from_msgpack
from holdfast.sinks._sqlite_table import SqliteTable, quoted
from holdfast.sinks.base import EpochKey, EpochPlace

KEPT_EPOCHS = 1000  # going back further is not possible
_CREATE = """
CREATE TABLE IF NOT EXISTS {} (
    timeline INTEGER NOT NULL, epoch INTEGER NOT NULL, n INTEGER NOT NULL,
    key BLOB NOT NULL, previous BLOB, digest BLOB NOT NULL, aside INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (timeline, epoch, n)
) WITHOUT ROWID"""
_SINCE = "aside = 0 AND (timeline, epoch) > (?, ?) AND timeline < ?"
_DIGEST = 16
_WANTED = "temp.holdfast_wanted"

StoredRow: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Undone:
    """One key that is taken back: its row as it is, and the version to restore; `None`: the row did not exist."""

    key: StoredRow
    now: StoredRow
    previous: StoredRow | None


def row_digest(row: StoredRow | None) -> bytes:
    """Return the digest of a row; an empty one if there is no row."""
    if row is None:
        return b""
    filled = [(name, row[name]) for name in sorted(row) if row[name] is not None]
    return hashlib.blake2b(msgspec.msgpack.encode(filled), digest_size=_DIGEST).digest()


def encoded(row: StoredRow | None) -> bytes | None:
    """Return a row as it is stored."""
    return None if row is None else msgspec.msgpack.encode(row)


def decoded(data: bytes | None, where: str) -> StoredRow | None:
    """Return a row that was stored."""
    if data is None:
        return None
    try:
        return from_msgpack(data, dict[str, Any])
    except Undecodable as error:
        raise RecordCorrupt(key=where, why=str(error)) from error


@dataclass(frozen=True, slots=True)
class UndoJournal:
    """The journal of one owner. Every method runs in the caller's transaction."""

    owner: str  # its digest
    table: SqliteTable

    @property
    def name(self) -> str:
        """The name of the journal's table."""
        return f"holdfast_undo_{self.owner}"

    def create(self, connection: sqlite3.Connection) -> None:
        """Create the journal if it does not exist."""
        connection.execute(_CREATE.format(quoted(self.name)))

    def exists(self, connection: sqlite3.Connection) -> bool:
        """Whether there is a journal."""
        return connection.execute(f"PRAGMA table_info({quoted(self.name)})").fetchone() is not None

    def keys_of(self, names: Sequence[str], rows: Iterable[Sequence[Any]], by: Sequence[str]) -> list[StoredRow]:
        """Return the keys of rows that are about to be written."""
        places = [list(names).index(name) for name in by]
        return [dict(zip(by, (row[place] for place in places), strict=True)) for row in rows]

    def versions(self, connection: sqlite3.Connection, keys: Sequence[StoredRow]) -> list[StoredRow | None]:
        """Return the rows with these keys, in the same order.

        One query for all of them, through a temporary table, is several times faster than one for each.
        """
        found: dict[int, StoredRow] = {}
        for _, group in itertools.groupby(enumerate(keys), key=lambda each: list(each[1])):  # a key may have changed
            found |= self._versions(connection, list(group))
        return [found.get(number) for number in range(len(keys))]

    def _versions(self, connection: sqlite3.Connection, keys: list[tuple[int, StoredRow]]) -> dict[int, StoredRow]:
        """Return the rows with these keys by number. All keys have the same columns."""
        columns, by = sorted(self.table.column_names(connection)), [quoted(name) for name in keys[0][1]]
        places = [f"k{number}" for number in range(len(by))]
        connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS {_WANTED} (n INTEGER PRIMARY KEY, {', '.join(places)})")
        marks = ", ".join("?" * (len(by) + 1))
        numbered = [(number, *key.values()) for number, key in keys]
        connection.executemany(f"INSERT INTO {_WANTED} VALUES ({marks})", numbered)  # noqa: S608 - constants
        same = " AND ".join(f"t.{name} = w.{place}" for name, place in zip(by, places, strict=True))
        query = (
            f"SELECT w.n, {', '.join(f't.{quoted(name)}' for name in columns)} "  # noqa: S608 - quoted
            f"FROM {_WANTED} w CROSS JOIN {quoted(self.table.name)} t ON {same}"
        )
        found = {number: dict(zip(columns, row, strict=True)) for number, *row in connection.execute(query)}
        connection.execute(f"DROP TABLE {_WANTED}")
        return found

    def add(
        self,
        connection: sqlite3.Connection,
        key: EpochKey,
        keys: Sequence[StoredRow],
        before: Sequence[StoredRow | None],
    ) -> None:
        """Record rows that were just written, with their versions from before."""
        count = f"SELECT count(*) FROM {quoted(self.name)} WHERE timeline = ? AND epoch = ?"  # noqa: S608 - quoted
        first = int(connection.execute(count, key.place).fetchone()[0])
        written = self.versions(connection, keys)
        connection.executemany(
            f"INSERT INTO {quoted(self.name)} (timeline, epoch, n, key, previous, digest) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608 - quoted
            [
                (*key.place, first + number, encoded(each), encoded(previous), row_digest(now))
                for number, (each, previous, now) in enumerate(zip(keys, before, written, strict=True))
            ],
        )

    def forget_old(self, connection: sqlite3.Connection, epoch: int) -> None:
        """Remove the entries of all but the last epochs."""
        old = f"DELETE FROM {quoted(self.name)} WHERE aside = 0 AND epoch <= ?"  # noqa: S608 - quoted
        connection.execute(old, (epoch - KEPT_EPOCHS,))

    def counted(self, connection: sqlite3.Connection, base: EpochPlace, into: int) -> tuple[int, int]:
        """Return the number of epochs and of rows after a base."""
        query = f"SELECT count(DISTINCT timeline || '-' || epoch), count(*) FROM {quoted(self.name)} WHERE {_SINCE}"  # noqa: S608 - quoted
        epochs, rows = connection.execute(query, (*base, into)).fetchone()
        return int(epochs), int(rows)

    def undone(
        self, connection: sqlite3.Connection, base: EpochPlace, into: int
    ) -> tuple[list[Undone], list[StoredRow]]:
        """Return what going back to a base restores, and the keys of the rows that another program has changed."""
        entries = self._entries(connection, base, into)
        keys = {data: decoded(data, self.name) or {} for data, _, _ in entries}
        now = dict(zip(keys, self.versions(connection, list(keys.values())), strict=True))
        state, changed = dict(now), {}
        for data, previous, digest in entries:
            if row_digest(state[data]) != digest:
                changed[data] = keys[data]
            state[data] = previous
        found = [Undone(keys[data], row, state[data]) for data, row in now.items() if row is not None]
        return found, list(changed.values())

    def _entries(
        self, connection: sqlite3.Connection, base: EpochPlace, into: int
    ) -> list[tuple[bytes, StoredRow | None, bytes]]:
        """Return key, previous version and digest of each entry after a base, newest first."""
        query = (
            f"SELECT key, previous, digest FROM {quoted(self.name)} WHERE {_SINCE} "  # noqa: S608 - quoted
            "ORDER BY timeline DESC, epoch DESC, n DESC"
        )
        rows = connection.execute(query, (*base, into)).fetchall()
        return [(key, decoded(previous, self.name), digest) for key, previous, digest in rows]

    def set_aside(self, connection: sqlite3.Connection, base: EpochPlace, into: int) -> None:
        """Mark the entries after a base as undone by the rewind into a timeline."""
        update = f"UPDATE {quoted(self.name)} SET aside = ? WHERE {_SINCE}"  # noqa: S608 - quoted
        connection.execute(update, (into, *base, into))

    def take_up(self, connection: sqlite3.Connection, taken: int) -> None:
        """Reverse `set_aside`."""
        connection.execute(f"UPDATE {quoted(self.name)} SET aside = 0 WHERE aside = ?", (taken,))  # noqa: S608 - quoted

    def counted_aside(self, connection: sqlite3.Connection, timeline: int) -> tuple[int, int]:
        """Return the number of entries that the rewind into a timeline has undone, and of their keys."""
        if not self.exists(connection):
            return 0, 0
        query = f"SELECT count(*), count(DISTINCT key) FROM {quoted(self.name)} WHERE aside = ?"  # noqa: S608 - quoted
        entries, keys = connection.execute(query, (timeline,)).fetchone()
        return int(entries), int(keys)

    def discard(self, connection: sqlite3.Connection, timeline: int) -> None:
        """Remove the entries that the rewind into a timeline has undone."""
        if self.exists(connection):
            connection.execute(f"DELETE FROM {quoted(self.name)} WHERE aside = ?", (timeline,))  # noqa: S608 - quoted

    def restore(self, connection: sqlite3.Connection, key: StoredRow, row: StoredRow | None) -> int:
        """Give the row of a key this version; return how many rows were changed: one."""
        table, where = quoted(self.table.name), _matching(key)
        if row is None:
            return connection.execute(f"DELETE FROM {table} WHERE {where}", tuple(key.values())).rowcount  # noqa: S608 - quoted
        names = [name for name in row if name not in key] or list(row)
        sets = ", ".join(f"{quoted(name)} = ?" for name in names)
        values = (*(row[name] for name in names), *key.values())
        changed = connection.execute(f"UPDATE {table} SET {sets} WHERE {where}", values).rowcount  # noqa: S608 - quoted
        if changed:
            return changed
        listed, marks = ", ".join(map(quoted, row)), ", ".join("?" * len(row))
        insert = f"INSERT INTO {table} ({listed}) VALUES ({marks})"  # noqa: S608 - quoted
        return connection.execute(insert, tuple(row.values())).rowcount


def _matching(key: StoredRow) -> str:
    return " AND ".join(f"{quoted(name)} = ?" for name in key)

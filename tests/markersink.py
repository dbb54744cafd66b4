"""A marker sink into SQLite, for tests that start many processes or need thousands of commits."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from handstaged import query, staged_files, table_of
from holdfast.sinks.base import EpochKey, OutputMode, Staged
from holdfast.sinks.marker.rows import StagedRows
from holdfast.sinks.marker.sink import MarkerSink

KEYS = "CREATE TABLE IF NOT EXISTS keys (sink TEXT PRIMARY KEY, key TEXT)"
ROWS = "CREATE TABLE IF NOT EXISTS rows (n INTEGER, text TEXT)"


class SqliteMarkerSink(MarkerSink):
    """Rows and key in one transaction, which compares the key first."""

    output_modes: ClassVar[tuple[OutputMode, ...]] = ("append", "complete")

    def __init__(self, file: Path, *, staging: Path | None = None, name: str = "out") -> None:
        super().__init__(name, target=str(file), staging=staging)
        self.file = file

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(self.file, timeout=30, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            for table in (KEYS, ROWS):
                db.execute(table)
            yield db
            db.execute("COMMIT")

    def stored(self, db: sqlite3.Connection) -> str | None:
        found = db.execute("SELECT key FROM keys WHERE sink = ?", [self.name]).fetchone()
        return found[0] if found else None

    def last_key(self) -> str | None:
        with self.transaction() as db:
            return self.stored(db)

    def apply(self, rows: StagedRows, key: str, before: str | None) -> None:
        with self.transaction() as db:
            if self.stored(db) != before:
                return
            db.execute("INSERT OR REPLACE INTO keys VALUES (?, ?)", [self.name, key])
            if rows.replaces:
                db.execute("DELETE FROM rows")
            db.executemany("INSERT INTO rows VALUES (?, ?)", [(row["n"], row["text"]) for row in rows])

    def seen(self) -> list[tuple[Any, ...]]:
        """The rows that a reader sees."""
        return sorted(query(self.file, "SELECT n, text FROM rows")) if self.file.exists() else []


class HandMarkerSink(SqliteMarkerSink):
    """The same, with rows that are staged without Spark."""

    def prepare(self, df: Any, key: EpochKey) -> Staged:
        return hand_staged(self, key, *df)


def hand_staged(sink: MarkerSink, key: EpochKey, *numbers: int) -> Staged:
    """Stage rows as `prepare` would."""
    replaces = sink.context.output_mode == "complete"
    return Staged(staged_files(sink._staged, key, table_of(*numbers)) | {"replaces": replaces}, len(numbers))

"""Taking the epochs of a SQLite table back, and putting them back: rows and stamp in one transaction.

    holdfast_aside_<owner>_<n>    the rows that the rewind into timeline n took back, in the same database

The method depends on how the epochs were written, as the ledger records it:

- append with an epoch column: rows with a later epoch are moved to the table above.
- upsert with an undo journal: the previous versions of the rows are restored; the table above keeps the later ones.
- replace: nothing moves, because the next epoch replaces all rows.
- anything else cannot be taken back, unless the table holds no later epoch.

Rules:
- A table whose rows other programs or other tables depend on is refused: one that is shared, that has triggers (they
  would fire again, or not at all), or that a foreign key of another table refers to.
- Stamp and rows are written together, and a commit of an older timeline is refused in its own transaction. So if the
  stamp is there, no rows can be left, and nothing is done: rows of the new timeline may have the same epochs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.epoch import Reach
from holdfast.errors import RecordCorrupt, SinkFailed, SinkForeign
from holdfast.sinks._sqlite_ledger import SqliteLedger, WriteMode, WrittenRows, create_ledger, has_ledger
from holdfast.sinks._sqlite_table import SqliteTable, quoted
from holdfast.sinks._sqlite_undo import KEPT_EPOCHS, StoredRow, UndoJournal, decoded, encoded, row_digest
from holdfast.sinks.asides import aside_table
from holdfast.sinks.base import CannotTakeBack, EpochPlace, RowsAside, TakeBack
from holdfast.sinks.taking_back import refuse_outdated

_UNDONE = ["key", "later", "left_as"]  # the columns of a table that keeps later versions of rows
_NAMED = 10  # rows in an error
_EVER = 1 << 62  # a timeline after all others


@dataclass(frozen=True, slots=True)
class TableRewind:
    """What a rewind does with one table, for one owner. Every method runs in the caller's transaction."""

    table: SqliteTable
    ledger: SqliteLedger
    journal: UndoJournal
    share: bool
    reach: Reach

    def found(self, connection: sqlite3.Connection, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Return what taking back would do, or why it is impossible."""
        if not has_ledger(connection) or not self.table.exists(connection):
            return TakeBack(0, 0, "")
        foreign = self.ledger.foreign(connection, share=self.share)
        if foreign is not None:
            return CannotTakeBack(why=f"its table belongs to {foreign}", do="choose another table")
        written = self.ledger.written(connection)
        if written is None or written.nothing or written.place <= base:
            return TakeBack(0, 0, "")
        if written.mode == WriteMode.REPLACE:
            return TakeBack(0, None, "")
        return next(self._obstacles(connection, base, written), None) or self._later(connection, base, written)

    def _later(self, connection: sqlite3.Connection, base: EpochPlace, written: WrittenRows) -> TakeBack:
        kept = f"tables {aside_table(self.journal.owner, '*')}"
        if written.mode == WriteMode.UNDO:
            return TakeBack(*self.journal.counted(connection, base, _EVER), kept)
        return TakeBack(*self._counted(connection, written.column, base), kept)

    def _obstacles(
        self, connection: sqlite3.Connection, base: EpochPlace, written: WrittenRows
    ) -> Iterator[CannotTakeBack]:
        cannot = cannot_with(written.mode, written.column, share=self.share)
        if cannot is not None:
            yield cannot
        for why in self.table.dependents(connection):
            yield CannotTakeBack(why, do="remove it, and compute what it does in a separate stream")
        if written.mode is None or base[1] + 1 < written.since:
            why = f"rows of epochs before {written.since} were written without the setting that going back needs"
            yield CannotTakeBack(why, do=f"go back to a checkpoint at epoch {written.since - 1} or later")
        elif written.mode == WriteMode.UNDO:
            yield from self._obstacles_to_undo(connection, base, written)

    def _obstacles_to_undo(
        self, connection: sqlite3.Connection, base: EpochPlace, written: WrittenRows
    ) -> Iterator[CannotTakeBack]:
        if written.place[1] - base[1] > KEPT_EPOCHS:
            why = f"the previous versions of rows are kept for {KEPT_EPOCHS} epochs"
            yield CannotTakeBack(why, do=f"go back to a checkpoint at epoch {written.place[1] - KEPT_EPOCHS} or later")
        elif changed := self.journal.undone(connection, base, _EVER)[1]:
            do = "give these rows the values that the stream wrote, then try again"
            yield CannotTakeBack(_changed(changed), do)

    def take_back(self, connection: sqlite3.Connection, base: EpochPlace, into: int) -> None:
        """Take back all epochs between the base and the timeline `into`, unless that is done."""
        if self._is_stamped(connection, into):
            return
        written = self.ledger.written(connection)
        found = self.found(connection, base)
        if isinstance(found, CannotTakeBack):
            raise SinkFailed(sink=self.table.sink, action="be taken back", why=found.why, do=found.do)
        if written is not None and found.kept:
            if written.mode == WriteMode.UNDO:
                self._undo(connection, base, into)
            else:
                self._move_out(connection, written.column, base, into)
        self.ledger.stamp(connection, base, into, written)
        self.reach("stamped")

    def put_back(self, connection: sqlite3.Connection, base: EpochPlace, into: int, taken: int) -> None:
        """Put back what the rewind into the timeline `taken` took back, unless that is done."""
        if self._is_stamped(connection, into):
            return
        aside = aside_table(self.journal.owner, taken)
        columns = SqliteTable(self.table.sink, aside, (), None).column_names(connection)
        if columns == _UNDONE:
            self._redo(connection, aside, taken)
        elif columns:
            self._move_in(connection, aside, columns)
        self.ledger.stamp(connection, base, into, self.ledger.written(connection))
        self.reach("stamped")

    def set_aside(self, connection: sqlite3.Connection) -> list[RowsAside]:
        """Return the rows that are set aside, by timeline."""
        start = aside_table(self.journal.owner, "")
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, ?) = ?"
        names = [str(name) for (name,) in connection.execute(query, (len(start), start))]
        timelines = sorted(int(name[len(start) :]) for name in names if name[len(start) :].isdecimal())
        return [RowsAside(each, self._kept(connection, each), f"table {start}{each}") for each in timelines]

    def _kept(self, connection: sqlite3.Connection, timeline: int) -> int:
        aside = aside_table(self.journal.owner, timeline)
        rows = int(connection.execute(f"SELECT count(*) FROM {quoted(aside)}").fetchone()[0])  # noqa: S608 - quoted
        if SqliteTable(self.table.sink, aside, (), None).column_names(connection) != _UNDONE:
            return rows
        entries, keys = self.journal.counted_aside(connection, timeline)
        return entries - (keys - rows)  # one row for each key, which several entries may have

    def discard(self, connection: sqlite3.Connection, timeline: int) -> None:
        """Delete the rows that the rewind into a timeline took back, with their entries in the journal."""
        connection.execute(f"DROP TABLE IF EXISTS {quoted(aside_table(self.journal.owner, timeline))}")
        self.journal.discard(connection, timeline)

    def stamp(self, connection: sqlite3.Connection, base: EpochPlace, into: int) -> None:
        """End all earlier timelines, and move nothing. Later epochs may have the same numbers as those that stay."""
        if not self._is_stamped(connection, into):
            written = self.ledger.written(connection)
            if written is not None and written.mode == WriteMode.APPEND:
                written = written.known_since(written.place[1] + 1)
            self.ledger.stamp(connection, base, into, written)
            self.reach("stamped")

    def _is_stamped(self, connection: sqlite3.Connection, into: int) -> bool:
        """Whether the table is stamped; refuse one of another owner, and a rewind that a later one has followed."""
        create_ledger(connection)
        foreign = self.ledger.foreign(connection, share=self.share)
        if foreign is not None:
            raise SinkForeign(sink=self.table.sink, place=f"table {self.table.name}", owner=foreign)
        timeline = self.ledger.timeline(connection)
        refuse_outdated(self.ledger.owner, into, timeline)
        self.reach("stamping")
        return timeline == into

    # --- append ---

    def _counted(self, connection: sqlite3.Connection, column: str | None, base: EpochPlace) -> tuple[int, int]:
        name = quoted(column or "")
        query = f"SELECT count(DISTINCT {name}), count(*) FROM {quoted(self.table.name)} WHERE {name} > ?"  # noqa: S608 - quoted
        epochs, rows = connection.execute(query, (base[1],)).fetchone()
        return int(epochs), int(rows)

    def _move_out(self, connection: sqlite3.Connection, column: str | None, base: EpochPlace, into: int) -> None:
        _, rows = self._counted(connection, column, base)
        if not rows:
            return
        aside, where = quoted(aside_table(self.journal.owner, into)), f"{quoted(column or '')} > {base[1]:d}"
        columns = ", ".join(map(quoted, self.table.column_names(connection)))
        table = quoted(self.table.name)
        connection.execute(f"CREATE TABLE {aside} AS SELECT {columns} FROM {table} WHERE {where}")  # noqa: S608 - quoted
        kept = connection.execute(f"SELECT count(*) FROM {aside}").fetchone()[0]  # noqa: S608 - quoted
        gone = connection.execute(f"DELETE FROM {table} WHERE {where}").rowcount  # noqa: S608 - quoted
        self._require_same(rows, kept, gone)

    def _move_in(self, connection: sqlite3.Connection, aside: str, columns: list[str]) -> None:
        listed = ", ".join(map(quoted, columns))
        rows = connection.execute(f"SELECT count(*) FROM {quoted(aside)}").fetchone()[0]  # noqa: S608 - quoted
        insert = f"INSERT INTO {quoted(self.table.name)} ({listed}) SELECT {listed} FROM {quoted(aside)}"  # noqa: S608 - quoted
        self._require_same(rows, connection.execute(insert).rowcount)
        connection.execute(f"DROP TABLE {quoted(aside)}")

    # --- upsert ---

    def _undo(self, connection: sqlite3.Connection, base: EpochPlace, into: int) -> None:
        found, _ = self.journal.undone(connection, base, into)
        aside = quoted(aside_table(self.journal.owner, into))
        connection.execute(f"CREATE TABLE {aside} (key BLOB NOT NULL, later BLOB NOT NULL, left_as BLOB NOT NULL)")
        for each in found:
            self._require_same(1, self.journal.restore(connection, each.key, each.previous))
        left = self.journal.versions(connection, [each.key for each in found])
        connection.executemany(
            f"INSERT INTO {aside} VALUES (?, ?, ?)",  # noqa: S608 - quoted
            [(encoded(each.key), encoded(each.now), row_digest(row)) for each, row in zip(found, left, strict=True)],
        )
        self.journal.set_aside(connection, base, into)

    def _redo(self, connection: sqlite3.Connection, aside: str, taken: int) -> None:
        rows = connection.execute(f"SELECT key, later, left_as FROM {quoted(aside)}").fetchall()  # noqa: S608 - quoted
        keys = [decoded(key, aside) for key, _, _ in rows]
        if None in keys:
            raise RecordCorrupt(key=aside, why="a key is missing")
        known = [key for key in keys if key is not None]
        changed = [
            key
            for key, now, (_, _, left) in zip(known, self.journal.versions(connection, known), rows, strict=True)
            if row_digest(now) != left
        ]
        if changed:
            do = "give these rows the values that they had after the rewind, then undo it again"
            raise SinkFailed(sink=self.table.sink, action="be put back", why=_changed(changed), do=do)
        for key, (_, later, _) in zip(known, rows, strict=True):
            self._require_same(1, self.journal.restore(connection, key, decoded(later, aside)))
        self.journal.take_up(connection, taken)
        connection.execute(f"DROP TABLE {quoted(aside)}")

    def _require_same(self, expected: int, *found: int) -> None:
        if any(count != expected for count in found):
            why = f"{expected} rows were to be moved, but {', '.join(map(str, found))} were"
            raise SinkFailed(sink=self.table.sink, action="be taken back", why=why)


def cannot_with(mode: WriteMode | None, column: str | None, *, share: bool) -> CannotTakeBack | None:
    """Return why rows that are written like this can never be taken back, or `None`."""
    if share:
        return CannotTakeBack("other streams may write to its table", do="use a table of its own, without share=True")
    if mode == WriteMode.UPSERT:
        why = "an upsert replaces rows, and their previous versions are not kept"
        return CannotTakeBack(why, do="pass undo=True; it applies to later epochs")
    if mode == WriteMode.APPEND and column is None:
        why = "its rows do not show their epochs"
        return CannotTakeBack(why, do="pass epoch_column=...; it applies to later epochs")
    return None


def _changed(keys: list[StoredRow]) -> str:
    """Return an error text with the rows that another program has changed."""
    named = "; ".join(", ".join(f"{name}={value!r}" for name, value in key.items()) for key in keys[:_NAMED])
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return f"another program has changed rows that the stream wrote: {named}{more}"

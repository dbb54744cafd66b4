"""A SQLite table as a sink, written together with its ledger in one transaction for each epoch.

Spark stages an attempt as Parquet next to the database. `commit` reads it on the driver, and writes rows and ledger in
one transaction with `synchronous=FULL`.

Rules:
- `append` inserts rows. With a key it is an upsert: the last version of a row remains. `complete` replaces all rows.
- A rewind takes later epochs out in one transaction, together with its stamp in the ledger: see `_sqlite_rewind.py`.
- One stream owns a table, from its first start on, unless all streams that write to it pass `share=True`. A table that
  is replaced cannot be shared.
- Integers and booleans are stored as INTEGER, float and double as REAL, strings as TEXT, binary as BLOB. Types that
  SQLite lacks are stored as text that reads back exactly: decimals, dates, timestamps (in UTC if they have a zone).

Not preserved: NaN, which becomes NULL.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import BadValue, NotSupported, SinkFailed, SinkUnavailable
from holdfast.repository.files import is_there, local_path, make_folder, sync_folder
from holdfast.sinks import base
from holdfast.sinks._sqlite_ledger import LEDGER, SqliteLedger, WriteMode, create_ledger, has_ledger
from holdfast.sinks._sqlite_rewind import TableRewind, cannot_with
from holdfast.sinks._sqlite_rows import check_keys, check_nulls, staged_rows
from holdfast.sinks._sqlite_table import SqliteTable, quoted
from holdfast.sinks._sqlite_undo import UndoJournal
from holdfast.sinks.asides import owner_digest
from holdfast.sinks.base import (
    CannotTakeBack,
    EpochKey,
    EpochPlace,
    SinkContext,
    Staged,
    StreamIdentity,
    TakeBack,
    failing,
)
from holdfast.sinks.held_epochs import is_committed
from holdfast.sinks.rows import not_null
from holdfast.sinks.staged_files import proven, require_arrow, require_seen_by_all, stage
from holdfast.sinks.staging import SUFFIX, Staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# An outage: the disk is full, fails, is read-only or is not mounted, or another process holds a lock.
_OUTAGES = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_BUSY")
_BUSY_S = 30.0


class SqliteSink(base.Sink):
    """Writes a stream into a table of a SQLite database, every epoch exactly once, in one durable transaction.

        hf.SqliteSink("shop.db", table="totals", key=["day"])

    Output mode "append" inserts rows, or upserts them if there is a `key`; "update" needs a `key`; "complete" replaces
    the whole table. The driver writes the rows, so this sink suits results rather than bulk data.

    - `path`: the database file, on a local disk; it is created if it does not exist.
    - `table`: the table. With `create=True` (default) it is created from the stream's columns if it does not exist.
    - `key`: the column or columns to upsert by. The table needs a unique index on them; a created table has one. A key
      must not be null and may occur once per epoch.
    - `epoch_column`: a column to fill with the number of the epoch.
    - `changelog`: keep every version of a row instead of upserting or replacing.
    - `share`: allow several streams to write to the table, if all of them pass `share=True`. By default one stream owns
      it from its first start on. A table that is replaced cannot be shared.
    - `undo`: with a `key`, keep the previous version of each row that an epoch changes, for the last 1,000 epochs, so
      that a rewind can restore it. The table `holdfast_undo_…` of the same database holds them.
    - `name`: the sink's name in decisions, errors and checkpoints; by default made from the table.

    Integers and booleans are stored as INTEGER, float and double as REAL, strings as TEXT, binary as BLOB. Decimals,
    dates and timestamps are stored as text that reads back exactly. Not preserved: NaN, which becomes NULL. The table
    `holdfast_epochs` of the same database records which epochs are in the table.

    A rewind moves the rows of later epochs to a table `holdfast_aside_…` if there is an `epoch_column`, restores
    previous versions if `undo=True`, and does nothing with a table that is replaced: the next epoch replaces it. Other
    tables cannot be taken back, nor can those that are shared, have triggers, or are referred to by a foreign key.
    """

    one_action = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str,
        *,
        key: str | Sequence[str] | None = None,
        create: bool = True,
        epoch_column: str | None = None,
        changelog: bool = False,
        share: bool = False,
        undo: bool = False,
        name: str | None = None,
    ) -> None:
        if isinstance(path, str) and "://" in path and not path.startswith("file:"):
            why = "SQLite is for one machine: its file must be on a disk of the machine that runs the pipeline"
            raise NotSupported(what=f"a SqliteSink at {path.partition(':')[0]}:", why=why, do="use PostgresSink")
        self.path = local_path("database", path)
        if not isinstance(table, str) or not table or "\0" in table or table.lower().startswith("sqlite_"):
            raise BadValue(what="table", value=table, expected="the name of a table")
        if table.lower() == LEDGER:
            raise BadValue(what="table", value=table, why="this table is the ledger")
        super().__init__(name or base.default_name("sqlite", table))
        self.table = table
        self.key = [key] if isinstance(key, str) else list(key or ())
        if key is not None and not self.key:
            raise BadValue(what="key", value=key, expected="one or more columns", do="leave it out to append rows")
        self.create = create
        self.epoch_column = epoch_column
        self.changelog = changelog
        self.share = share
        self.undo = undo
        if undo and not self.key:
            raise BadValue(what="undo", value=undo, why="it is for upserts", do="pass key=[...], or epoch_column=...")
        self.target = None if share else f"sqlite {os.path.realpath(self.path)} {table.lower()}"
        self._staging = Staging(self.path.with_name(self.path.name + SUFFIX) / self.name)
        self._table = SqliteTable(self.name, table, tuple(self.key), epoch_column)
        self._not_null: set[str] = set()

    def __repr__(self) -> str:
        return f"SqliteSink({str(self.path)!r}, table={self.table!r})"

    def describe(self) -> dict[str, Any]:
        """Return the key, the epoch column, and whether every version of a row is kept."""
        return {"key": self.key, "epoch_column": self.epoch_column, "changelog": self.changelog}

    # --- before the first epoch ---

    def open(self, context: SinkContext) -> None:
        """Create the ledger and, on request, the table; check that the table accepts the columns."""
        super().open(context)
        require_arrow()
        require_seen_by_all(self.name, context)
        if not self.key and context.output_mode == "update":
            base.refuse_mode(self, context.output_mode, self.changelog, "pass key=[...] to upsert")
        columns = self._table.columns(context.schema)
        ledger = self._ledger(context.owner)
        with self._failing("be opened"):
            if self.path.is_dir():
                raise BadValue(what="database", value=str(self.path), why="it is a folder", do="choose a file")
            make_folder(self.path.parent)
            self._staging.make()
            with self._connected() as connection:
                create_ledger(connection)
                if not self._table.exists(connection):
                    self._create_table(connection, ledger, columns)
                self._table.check(connection, columns)
                self._not_null = self._table.not_null(connection)
                if ledger.foreign(connection, share=self._shares) is None:  # otherwise `inspect` reports the owner
                    ledger.claim(connection)
                connection.execute("COMMIT")
            sync_folder(self.path.parent)

    def _create_table(self, connection: sqlite3.Connection, ledger: SqliteLedger, columns: dict[str, str]) -> None:
        if ledger.knows_table(connection):  # an empty table would look as if it held all those epochs
            why = f"it does not exist, but {LEDGER} records that it holds epochs"
            do = f"restore it, or, to start with an empty one, delete the rows of {ledger.target!r} in {LEDGER}"
            raise self._table.mismatch(why, do=do)
        if not self.create:
            raise self._table.mismatch("there is no such table", do="create it, or pass create=True")
        self._table.create(connection, columns)

    def _ledger(self, owner: StreamIdentity) -> SqliteLedger:
        return SqliteLedger(owner, self.table.lower())

    @property
    def _shares(self) -> bool:
        return self.share and not self._replaces

    @property
    def _replaces(self) -> bool:
        """Whether an epoch replaces all rows; false before `open`, when the output mode is not known."""
        mode = self._context.output_mode if self._context else None
        return mode == "complete" and not self.changelog

    def row_checks(self) -> dict[str, str]:
        """Columns that are NOT NULL or part of the key must have a value; NaN is stored as NULL."""
        keys = {name.lower() for name in self.key} if self.key and not self._replaces else set()
        return {
            f"{field.name} is null": not_null(field.name, floating=field.dataType.typeName() in ("float", "double"))
            for field in self.context.schema.fields
            if field.name.lower() in self._not_null | keys
        }

    # --- an epoch ---

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Stage the rows as Parquet. An epoch without rows leaves no trace, unless it replaces all rows."""
        with self._failing("prepare"):
            staged = stage(df, key, self._staging, self.context)
            effect = "replace" if self._replaces else "upsert" if self.key else "append"
            folder = self._staging.folder(key)
            if effect == "upsert" and staged.rows:
                check_keys(self.name, folder, self.key)
            if staged.rows:
                check_nulls(self.name, folder, self._not_null)
        handle = staged.handle | {"effect": effect, "key": self.key}  # fixed by the decision, even if the sink changes
        return Staged(handle, staged.rows, staged.paths, trace=staged.trace or effect == "replace")

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Write rows and ledger in one transaction."""
        if handle["rows"] or handle["effect"] == "replace":
            place = f"table {self.table} of {self.path}"
            ledger = self._ledger(key.owner)
            with self._failing(f"commit epoch {key.epoch}"), self._connected() as connection:
                if self._context is None:
                    create_ledger(connection)
                if not is_committed(self, key, handle, ledger.held(connection, key), place):
                    mode = self._write(connection, key, handle)
                    ledger.add(connection, key, handle, mode, self.epoch_column if mode == WriteMode.APPEND else None)
                    self._reach("committing")
                connection.execute("COMMIT")
        self._staging.sweep(key)

    def _write(self, connection: sqlite3.Connection, key: EpochKey, handle: dict[str, Any]) -> WriteMode:
        """Write the rows, and return how."""
        mode = WriteMode(handle["effect"])
        if mode == WriteMode.REPLACE:
            connection.execute(f"DELETE FROM {quoted(self.table)}")  # noqa: S608 - quoted
        if not handle["rows"]:
            return mode
        proven(self.name, self._staging, key, handle)
        upsert_by = handle["key"] if mode == WriteMode.UPSERT else ()
        journal = self._journal(key.owner) if upsert_by and self.undo else None
        if journal is not None:
            journal.create(connection)
        moved = 0
        for names, rows in staged_rows(self._staging.folder(key)):
            self._insert(connection, key, names, rows, upsert_by, journal=journal)
            moved += len(rows)
        if moved != handle["rows"]:
            why = f"{moved} rows were staged, but the decision counts {handle['rows']}"
            raise SinkFailed(sink=self.name, action=f"commit epoch {key.epoch}", why=why)
        if journal is None:
            return mode
        journal.forget_old(connection, key.epoch)
        return WriteMode.UNDO

    def _insert(
        self,
        connection: sqlite3.Connection,
        key: EpochKey,
        names: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
        upsert_by: Sequence[str],
        *,
        journal: UndoJournal | None,
    ) -> None:
        """Insert or upsert rows; with a journal, record their versions before and after."""
        epoch = () if self.epoch_column is None else (key.epoch,)
        keys = journal.keys_of(names, rows, upsert_by) if journal else []
        before = journal.versions(connection, keys) if journal else []
        connection.executemany(self._table.insert_statement(names, upsert_by), [(*row, *epoch) for row in rows])
        if journal is not None:
            journal.add(connection, key, keys, before)

    def abort(self, key: EpochKey) -> None:
        """Remove the staged data of the attempt."""
        self._staging.clear(key)

    def is_missing(self) -> bool:
        """Whether the file does not exist."""
        with failing(self.name, "be inspected"):
            return not is_there(self.path)

    def inspect(self, owner: StreamIdentity, timeline: int) -> base.SinkPosition:
        """Return the last epoch in the ledger, and a foreign owner if there is one."""
        if self.is_missing():
            return base.SinkPosition()
        with self._failing("be inspected"), self._connected() as connection:
            if not has_ledger(connection):
                return base.SinkPosition()
            ledger = self._ledger(owner)
            foreign = ledger.foreign(connection, share=self._shares)
            epoch = 0 if foreign else ledger.last(connection, timeline)
            return base.SinkPosition(epoch, foreign)

    # --- going back ---

    def can_take_back(self, owner: StreamIdentity, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Return what would be moved aside or restored, or why that is impossible."""
        if self.is_missing():
            return TakeBack(0, 0, "")
        with self._failing("be inspected"), self._connected() as connection:
            return self._rewind(owner).found(connection, base)

    def cannot_be_taken_back(self) -> CannotTakeBack | None:
        """Rows that are appended need an epoch column, upserts need an undo journal."""
        mode = WriteMode.UNDO if self.undo else WriteMode.UPSERT if self.key else WriteMode.APPEND
        return None if self._replaces else cannot_with(mode, self.epoch_column, share=self.share)

    def take_back(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Take later epochs out of the table, in one transaction with the stamp."""
        self._go_back("be taken back", owner, into, lambda rewind, conn: rewind.take_back(conn, base, into))

    def put_back(self, owner: StreamIdentity, base: EpochPlace, into: int, taken: int) -> None:
        """Put back what the rewind into the timeline `taken` took out, in one transaction with the stamp."""
        self._go_back("be put back", owner, into, lambda rewind, conn: rewind.put_back(conn, base, into, taken))

    def set_aside(self, owner: StreamIdentity) -> list[base.RowsAside]:
        """Return the rows in the tables `holdfast_aside_…` of this stream."""
        if self.is_missing():
            return []
        with self._failing("be inspected"), self._connected() as connection:
            return self._rewind(owner).set_aside(connection)

    def discard_aside(self, owner: StreamIdentity, timeline: int) -> None:
        """Drop the table of a timeline."""
        if not self.is_missing():
            with self._failing("discard rows"), self._connected() as connection:
                self._rewind(owner).discard(connection, timeline)
                connection.execute("COMMIT")

    def stamp(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Write the stamp, and remove what earlier timelines staged."""
        self._go_back("be stamped", owner, into, lambda rewind, conn: rewind.stamp(conn, base, into))

    def cannot_be_left(self, owner: StreamIdentity) -> str | None:
        """Rows that are appended again would violate a unique index."""
        del owner
        if self.key or self.is_missing():
            return None
        with self._failing("be inspected"), self._connected() as connection:
            unique = self._table.unique_keys(connection)
        named = ", ".join(sorted(unique[0])) if unique else ""
        return (
            f"its table has a unique index on ({named}), which rows that are written again violate" if unique else None
        )

    def _go_back(
        self,
        action: str,
        owner: StreamIdentity,
        into: int,
        act: Callable[[TableRewind, sqlite3.Connection], None],
    ) -> None:
        """1. Change rows and stamp in one transaction.  2. Remove what earlier timelines staged."""
        with self._failing(action):
            make_folder(self.path.parent)
            with self._connected() as connection:
                act(self._rewind(owner), connection)  # 1
                connection.execute("COMMIT")
            self._reach("moved")
            self._staging.retire(owner, (into, 0))  # 2

    def _rewind(self, owner: StreamIdentity) -> TableRewind:
        return TableRewind(self._table, self._ledger(owner), self._journal(owner), self._shares, self._reach)

    def _journal(self, owner: StreamIdentity) -> UndoJournal:
        return UndoJournal(owner_digest(owner, "", self.table.lower()), self._table)

    def _reach(self, point: str) -> None:
        if self._context is not None:
            self._context.reach(point)

    # --- the database ---

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Open a connection inside a write transaction, which is rolled back unless the caller commits it."""
        connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            yield connection
        finally:
            connection.close()

    @contextlib.contextmanager
    def _failing(self, action: str) -> Iterator[None]:
        try:
            with failing(self.name, action):
                yield
        except sqlite3.Error as error:
            kind = SinkUnavailable if getattr(error, "sqlite_errorname", "").startswith(_OUTAGES) else SinkFailed
            raise kind(sink=self.name, action=action, why=f"{error} ({self.path})") from error

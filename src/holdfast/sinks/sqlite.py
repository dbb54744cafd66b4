"""SQLite: a table in a database file, filled by one transaction an epoch, together with the ledger.

Spark stages an attempt as Parquet beside the database; `commit` reads it back on the driver and writes rows and ledger
in one transaction with `synchronous=FULL`.

Rules:
- `append` adds rows. A key makes it an upsert: the last version of a row stands. `complete` replaces the whole table.
- The ledger is the table `holdfast_epochs` in the same database. The last two epochs are kept in it, or, before the
  first one, a claim: a row of epoch 0.
- One stream owns a table, from its first start on, unless all who write to it say `share=True`. A table that is
  replaced cannot be shared.
- Types: whole numbers and booleans as INTEGER, float and double as REAL, text as TEXT, binary as BLOB. What SQLite has
  no type for is kept as text that reads back exactly: decimals, dates, timestamps (UTC where they have a zone).
- Not kept: NaN becomes NULL, because SQLite has none.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import BadValue, MissingExtra, NotSupported, SchemaMismatch, SinkFailed, SinkUnavailable
from holdfast.repository.files import local_path, make_folder, sync_folder
from holdfast.sinks.base import (
    EpochKey,
    Link,
    Sink,
    SinkContext,
    SinkPosition,
    Staged,
    StreamIdentity,
    decided_elsewhere,
    failing,
    handle_digest,
    is_past,
    refuse_mode,
)
from holdfast.sinks.rows import default_name
from holdfast.sinks.staged_files import proven, require_seen_by_all, stage
from holdfast.sinks.staging import SUFFIX, Staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LEDGER = "holdfast_epochs"
# An outage: the disk is full, fails, is read-only or is not mounted, or another process holds a lock.
_AWAY = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_BUSY")
_BUSY_S = 30.0
_BATCH = 10_000
_TYPES = {
    "boolean": "INTEGER",
    "byte": "INTEGER",
    "short": "INTEGER",
    "integer": "INTEGER",
    "long": "INTEGER",
    "float": "REAL",
    "double": "REAL",
    "string": "TEXT",
    "varchar": "TEXT",
    "char": "TEXT",
    "binary": "BLOB",
    "decimal": "TEXT",
    "date": "TEXT",
    "timestamp": "TEXT",
    "timestamp_ntz": "TEXT",
}
# by how the names of Arrow's types begin
_AS_TEXT: dict[str, Callable[[Any], str]] = {
    "decimal": str,
    "date": lambda value: str(value.isoformat()),
    "timestamp": lambda value: str(value.isoformat(sep=" ", timespec="microseconds")),
}
_CREATE_LEDGER = f"""
CREATE TABLE IF NOT EXISTS {LEDGER} (
    pipeline TEXT NOT NULL, uid TEXT NOT NULL, stream TEXT NOT NULL, target TEXT NOT NULL,
    timeline INTEGER NOT NULL, epoch INTEGER NOT NULL, rows INTEGER NOT NULL, at_ms INTEGER NOT NULL, handle TEXT,
    PRIMARY KEY (uid, stream, target, timeline, epoch)
)"""
_FACTS = "pipeline, uid, stream, target, timeline, epoch, rows, at_ms"
_OF_OURS = "uid = ? AND stream = ? AND target = ?"


class SqliteSink(Sink):
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
    - `name`: the sink's name in decisions, errors and checkpoints; by default made from the table.

    Integers and booleans are stored as INTEGER, float and double as REAL, strings as TEXT, binary as BLOB. Decimals,
    dates and timestamps are stored as text that reads back exactly. Not preserved: NaN, which becomes NULL. The table
    `holdfast_epochs` of the same database records which epochs are in the table.
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
        name: str | None = None,
    ) -> None:
        self.path = local_path("database", path)
        if not isinstance(table, str) or not table or "\0" in table or table.lower().startswith("sqlite_"):
            raise BadValue(what="table", value=table, expected="a table's name")
        if table.lower() == LEDGER:
            raise BadValue(what="table", value=table, why="the ledger is kept there")
        super().__init__(name or default_name("sqlite", table))
        self.table = table
        self.key = [key] if isinstance(key, str) else list(key or ())
        if key is not None and not self.key:
            raise BadValue(what="key", value=key, why="it names no column", do="leave it out to append rows")
        self.create = create
        self.epoch_column = epoch_column
        self.changelog = changelog
        self.share = share
        self.target = None if share else f"sqlite {os.path.realpath(self.path)} {table.lower()}"
        self._staging = Staging(self.path.with_name(self.path.name + SUFFIX) / self.name)
        self._not_null: set[str] = set()

    @property
    def _ledger_name(self) -> str:
        return self.table.lower()  # as SQLite compares names

    def __repr__(self) -> str:
        return f"SqliteSink({str(self.path)!r}, table={self.table!r})"

    # --- before the first epoch ---

    def open(self, setting: SinkContext) -> None:
        """Make the ledger and, on request, the table; check that the table takes the columns."""
        super().open(setting)
        _require_arrow()
        require_seen_by_all(self.name, setting)
        if not self.key and setting.output_mode == "update":
            refuse_mode(self, setting.output_mode, self.changelog, "pass key=[...] to upsert")
        columns = self._columns(setting)
        if self.path.is_dir():
            raise BadValue(what="database", value=str(self.path), why="there is a folder", do="choose a file")
        with self._failing("be opened"):
            make_folder(self.path.parent)
            self._staging.make()
            with self._connected() as connection:
                connection.execute(_CREATE_LEDGER)
                if "handle" not in _columns_of(connection, LEDGER):  # it was made by an older version
                    connection.execute(f"ALTER TABLE {LEDGER} ADD COLUMN handle TEXT")
                if not _columns_of(connection, self.table):
                    self._refuse_lost_table(connection)
                    self._create_table(connection, columns)
                self._check_table(connection, columns)
                self._not_null = _not_null(connection, self.table)
                self._claim(connection, setting.owner)
                connection.execute("COMMIT")
            sync_folder(self.path.parent)

    def _claim(self, connection: sqlite3.Connection, owner: StreamIdentity) -> None:
        """Say whose the table is, before the first epoch. Of somebody else's, `inspect` tells."""
        if self._foreign(connection, owner) is None:
            values = (owner.pipeline, owner.uid, owner.stream, self._ledger_name, time.time_ns() // 1_000_000)
            connection.execute(f"INSERT OR IGNORE INTO {LEDGER} ({_FACTS}) VALUES (?, ?, ?, ?, 0, 0, 0, ?)", values)  # noqa: S608

    def _columns(self, setting: SinkContext) -> dict[str, str]:
        """Return the stream's columns with their types here, or refuse one that has none."""
        found: dict[str, str] = {}
        for each in setting.schema.fields:
            kind = each.dataType.typeName()
            if kind not in _TYPES:
                raise NotSupported(
                    what=f"column {each.name!r} of type {each.dataType.simpleString()} in sink {self.name!r}",
                    why="SQLite has no such type",
                    do=f"write it as text: to_json({each.name})",
                )
            found[each.name] = _TYPES[kind]
        lower = {name.lower() for name in found}
        for column in self.key:
            if column not in found:
                raise BadValue(what="key", value=column, why=f"the stream has no such column: {sorted(found)}")
        if self.epoch_column is not None:
            if self.epoch_column.lower() in lower:
                raise BadValue(what="epoch_column", value=self.epoch_column, why="the stream has such a column")
            found[self.epoch_column] = "INTEGER"
        return found

    def _refuse_lost_table(self, connection: sqlite3.Connection) -> None:
        """Refuse to make a table that the ledger knows: an empty one would pass for one that holds all those epochs."""
        query = f"SELECT 1 FROM {LEDGER} WHERE target = ? AND epoch > 0"  # noqa: S608 - a constant
        known = connection.execute(query, (self._ledger_name,)).fetchone()
        if known:
            why = f"it does not exist, and {LEDGER} says that it holds epochs"
            do = f"bring it back, or, to begin with an empty one, delete the rows of {self._ledger_name!r} in {LEDGER}"
            raise SchemaMismatch(sink=self.name, table=self.table, why=why, do=do)

    def _create_table(self, connection: sqlite3.Connection, columns: dict[str, str]) -> None:
        if not self.create:
            do = "create it, or pass create=True"
            raise SchemaMismatch(sink=self.name, table=self.table, why="there is no such table", do=do)
        parts = [f"{_quoted(name)} {kind}{' NOT NULL' * (name in self.key)}" for name, kind in columns.items()]
        if self.key:  # no PRIMARY KEY: of a whole number it would be SQLite's own row number, and NULL a new one
            parts.append(f"UNIQUE ({', '.join(map(_quoted, self.key))})")
        connection.execute(f"CREATE TABLE {_quoted(self.table)} ({', '.join(parts)})")

    def _check_table(self, connection: sqlite3.Connection, columns: dict[str, str]) -> None:
        there = _columns_of(connection, self.table)
        missing = [name for name in columns if name.lower() not in there]
        if missing:
            raise self._mismatch(f"it has no column {', '.join(missing)}")
        given = {name.lower() for name in columns}
        for name, required in there.items():
            if required and name not in given:
                raise self._mismatch(f"its column {name!r} may not be null, and the stream has none such")
        if self.key and {name.lower() for name in self.key} not in _unique_keys(connection, self.table):
            raise self._mismatch(f"it has no unique index on ({', '.join(self.key)}), which an upsert needs")

    def _mismatch(self, why: str) -> SchemaMismatch:
        return SchemaMismatch(sink=self.name, table=self.table, why=why)

    # --- an epoch ---

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Stage the rows as Parquet. An epoch without rows leaves no trace, unless it replaces what was there."""
        with self._failing("prepare"):
            staged = stage(df, key, self._staging, self.setting)
            effect = "replace" if self._replaces else "upsert" if self.key else "append"
            if effect == "upsert" and staged.rows:
                self._check_keys(key)
            if staged.rows:
                self._check_nulls(key)
        handle = staged.handle | {"effect": effect, "key": self.key}  # decided with the epoch, whatever is said later
        return Staged(handle, staged.rows, staged.paths, trace=staged.trace or effect == "replace")

    def _check_nulls(self, key: EpochKey) -> None:
        """Refuse nulls where the table takes none: after the decision it would be too late."""
        import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

        for path in _staged_files(self._staging.folder(key)):
            with pq.ParquetFile(path) as staged:
                names = [name for name in staged.schema_arrow.names if name.lower() in self._not_null]
                found = staged.read(columns=names) if names else None
            nulls = [name for name in names if found is not None and _has_nulls(found[name])]
            if nulls:
                why = f"column {', '.join(nulls)} is null or NaN in some rows, and the table says NOT NULL"
                do = "give every row a value there (coalesce, filter), then run again"
                raise SinkFailed(sink=self.name, action="take the rows", why=why, do=do)

    def _check_keys(self, key: EpochKey) -> None:
        """Refuse keys that are null, or come twice in one epoch: none of those rows is the last."""
        import pyarrow as pa  # noqa: PLC0415 - an extra
        import pyarrow.parquet as pq  # noqa: PLC0415

        files = _staged_files(self._staging.folder(key))
        keys = pa.concat_tables([pq.ParquetFile(path).read(columns=self.key) for path in files])
        nulls = [name for name in self.key if _has_nulls(keys[name])]
        if nulls:
            raise self._unfit(f"its key {', '.join(nulls)} is null in some rows")
        if keys.group_by(self.key).aggregate([]).num_rows != keys.num_rows:
            raise self._unfit("several rows of one epoch have the same key, and none of them is the last")

    def _unfit(self, why: str) -> SinkFailed:
        do = "give each key once an epoch and never null (aggregate by it, dropDuplicates, filter), then run again"
        return SinkFailed(sink=self.name, action="take the rows", why=why, do=do)

    @property
    def _replaces(self) -> bool:
        """Whether an epoch takes the place of all rows; not known, and so not said, before `open`."""
        mode = self._setting.output_mode if self._setting else None
        return mode == "complete" and not self.changelog

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Write rows and ledger in one transaction."""
        if handle["rows"] or handle["effect"] == "replace":
            with self._failing(f"commit epoch {key.epoch}"), self._connected() as connection:
                if not self._is_done(connection, key, handle):
                    self._write(connection, key, handle)
                    self.setting.reach("committing")
                connection.execute("COMMIT")
        self._staging.sweep(key)

    def _is_done(self, connection: sqlite3.Connection, key: EpochKey, handle: dict[str, Any]) -> bool:
        """Whether the table holds the epoch; raise where another copy of the repository wrote it, or the one before."""
        if self._later(connection, key):
            return True
        place = f"table {self.table} of {self.path}"
        own = self._handle(connection, key.owner, *key.place)
        if own is not None:
            if own.handle not in (None, handle_digest(handle)):
                raise decided_elsewhere(self, key, place)
            return True
        last = self._last(connection, key.owner, key.timeline)
        held = self._handle(connection, key.owner, key.timeline, last) or Link(last, None)
        return is_past(self, key, held, place)

    def _handle(self, connection: sqlite3.Connection, owner: StreamIdentity, timeline: int, epoch: int) -> Link | None:
        """Return the ledger's row of an epoch, if there is one. Older versions wrote rows without a handle."""
        found = connection.execute(
            f"SELECT handle FROM {LEDGER} WHERE {_OF_OURS} AND timeline = ? AND epoch = ?",  # noqa: S608 - constants
            (owner.uid, owner.stream, self._ledger_name, timeline, epoch),
        ).fetchone()
        return Link(epoch, found[0]) if found else None

    def _write(self, connection: sqlite3.Connection, key: EpochKey, handle: dict[str, Any]) -> None:
        if handle["effect"] == "replace":
            connection.execute(f"DELETE FROM {_quoted(self.table)}")  # noqa: S608 - quoted
        if handle["rows"]:
            proven(self.name, self._staging, key, handle)
            moved = 0
            for names, rows in _rows(self._staging.folder(key)):
                connection.executemany(self._insert(names, handle), [self._row(row, key) for row in rows])
                moved += len(rows)
            if moved != handle["rows"]:
                why = f"{moved} rows were staged where the decision counts {handle['rows']}"
                raise SinkFailed(sink=self.name, action=f"commit epoch {key.epoch}", why=why)
        owner = key.owner
        ours = (owner.uid, owner.stream, self._ledger_name)
        connection.execute(
            f"INSERT INTO {LEDGER} ({_FACTS}, handle) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - constants
            (owner.pipeline, *ours, *key.place, handle["rows"], time.time_ns() // 1_000_000, handle_digest(handle)),
        )
        connection.execute(
            f"DELETE FROM {LEDGER} WHERE {_OF_OURS} AND (timeline < ? OR epoch < ?)",  # noqa: S608 - constants
            (*ours, key.timeline, key.epoch - 1),
        )

    def _row(self, row: tuple[Any, ...], key: EpochKey) -> tuple[Any, ...]:
        return (*row, key.epoch) if self.epoch_column is not None else row

    def _insert(self, staged: list[str], handle: dict[str, Any]) -> str:
        """Return the statement that adds one row of the staged columns, or replaces the one of its key."""
        names = staged if self.epoch_column is None else [*staged, self.epoch_column]
        marks = ", ".join("?" * len(names))
        text = f"INSERT INTO {_quoted(self.table)} ({', '.join(map(_quoted, names))}) VALUES ({marks})"  # noqa: S608
        if handle["effect"] != "upsert":
            return text
        rest = [f"{_quoted(name)} = excluded.{_quoted(name)}" for name in names if name not in handle["key"]]
        keys = ", ".join(map(_quoted, handle["key"]))
        return f"{text} ON CONFLICT ({keys}) DO " + (f"UPDATE SET {', '.join(rest)}" if rest else "NOTHING")

    def abort(self, key: EpochKey) -> None:
        """Remove what the attempt staged."""
        self._staging.clear(key)

    # --- what is there ---

    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        """Ask the ledger."""
        if not self.path.exists():
            return SinkPosition()
        with self._failing("be inspected"), self._connected() as connection:
            if not _columns_of(connection, LEDGER):
                return SinkPosition()
            foreign = self._foreign(connection, owner)
            return SinkPosition(foreign=foreign) if foreign else SinkPosition(self._last(connection, owner, timeline))

    def _foreign(self, connection: sqlite3.Connection, owner: StreamIdentity) -> str | None:
        """Return another owner that must not share the table with this one, in words."""
        others = connection.execute(
            f"SELECT pipeline, stream, uid FROM {LEDGER} WHERE target = ? AND NOT (uid = ? AND stream = ?)",  # noqa: S608
            (self._ledger_name, owner.uid, owner.stream),
        ).fetchall()
        for pipeline, stream, uid in others:
            if not self.share or self._replaces or (pipeline, stream) == (owner.pipeline, owner.stream):
                return f"stream {stream!r} of pipeline {pipeline!r} with the uid {uid}"
        return None

    def _last(self, connection: sqlite3.Connection, owner: StreamIdentity, timeline: int) -> int:
        found = connection.execute(
            f"SELECT max(epoch) FROM {LEDGER} WHERE {_OF_OURS} AND timeline = ?",  # noqa: S608 - constants
            (owner.uid, owner.stream, self._ledger_name, timeline),
        ).fetchone()
        return int(found[0] or 0)

    def _later(self, connection: sqlite3.Connection, key: EpochKey) -> bool:
        """Whether a later timeline has begun here: then this epoch is of one that was left."""
        found = connection.execute(
            f"SELECT 1 FROM {LEDGER} WHERE {_OF_OURS} AND timeline > ?",  # noqa: S608 - constants
            (key.owner.uid, key.owner.stream, self._ledger_name, key.timeline),
        ).fetchone()
        return found is not None

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Give a connection inside a write transaction; whoever does not commit has changed nothing."""
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
            kind = SinkUnavailable if getattr(error, "sqlite_errorname", "").startswith(_AWAY) else SinkFailed
            raise kind(sink=self.name, action=action, why=f"{error} ({self.path})") from error


def _columns_of(connection: sqlite3.Connection, table: str) -> dict[str, bool]:
    """Return a table's columns, in lower case, and whether each must be given; nothing where there is no table."""
    rows = connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
    return {row[1].lower(): bool(row[3]) and row[4] is None for row in rows}


def _not_null(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the columns, in lower case, that take no NULL; of a row number SQLite makes one up."""
    rows = connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
    primary = [row for row in rows if row[5]]
    numbers = {row[1] for row in primary if len(primary) == 1 and row[2].upper() == "INTEGER"}
    return {row[1].lower() for row in rows if row[3] and row[1] not in numbers}


def _has_nulls(column: Any) -> bool:
    """Whether a column of Arrow holds what becomes NULL here."""
    import pyarrow as pa  # noqa: PLC0415 - an extra
    import pyarrow.compute as pc  # noqa: PLC0415

    return bool(column.null_count or (pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py()))


def _unique_keys(connection: sqlite3.Connection, table: str) -> list[set[str]]:
    found = []
    columns = connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
    if primary := {row[1].lower() for row in columns if row[5]}:
        found.append(primary)
    for index in connection.execute(f"PRAGMA index_list({_quoted(table)})").fetchall():
        if index[2] and not index[4]:  # unique, and not partial
            rows = connection.execute(f"PRAGMA index_info({_quoted(index[1])})").fetchall()
            found.append({str(row[2]).lower() for row in rows})
    return found


def _staged_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))


def _rows(folder: Path) -> Iterator[tuple[list[str], list[tuple[Any, ...]]]]:
    """Give what was staged, some rows at a time, as SQLite takes them, with the names of the staged columns."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    for path in _staged_files(folder):
        with pq.ParquetFile(path) as staged:
            for batch in staged.iter_batches(_BATCH):
                if batch.num_rows:
                    columns = [_values(column) for column in batch.columns]
                    yield batch.schema.names, list(zip(*columns, strict=True))


def _values(column: Any) -> list[Any]:
    kind = str(column.type)
    values: list[Any] = column.to_pylist()
    for name, convert in _AS_TEXT.items():
        if kind.startswith(name):
            return [None if value is None else convert(value) for value in values]
    return values


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _require_arrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError:
        raise MissingExtra(extra="spark", module="pyarrow") from None

"""The two methods that keep the rows of an epoch in PostgreSQL until its decision: prepared transactions, or a table.

*Prepared*: each task copies into the target table and prepares its transaction. The rows are written once, and a commit
is one statement per part. The transactions hold locks until then, so this is only for appends to a plain table, where
rows cannot conflict. The parts become visible one after the other.

*Staged*: the tasks copy into a staging table of the attempt. A commit moves the rows in one transaction: it appends,
upserts, or replaces all rows. The staging table is logged: an unlogged one would be empty after a server crash.

A handle records its method, and is committed with it even if the sink would now choose the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.epoch import Reach
from holdfast.errors import BadValue, SchemaMismatch, SinkFailed, SinkUnavailable, StagedGone
from holdfast.sinks.base import CollectRows, EpochKey, raised_in_task
from holdfast.sinks.postgres import driver_copy
from holdfast.sinks.postgres.column_types import Fit, StreamColumn, fit, staged_column
from holdfast.sinks.postgres.copying import (
    COPYING,
    PART_COLUMN,
    RESULT,
    Connect,
    Copier,
    CopyTask,
    changed_type,
    connected,
    copy_failed,
    into_prepared,
    into_stage,
)
from holdfast.sinks.postgres.driver_copy import DriverConnections, Forecast, Part
from holdfast.sinks.postgres.ledger import Ledger
from holdfast.sinks.postgres.names import Mark
from holdfast.sinks.postgres.server import Connection, Server, finish_prepared, sql
from holdfast.sinks.postgres.sweep import prepared_gids
from holdfast.sinks.postgres.target_table import Effect, Table, TableName, find_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COMMA = sql.SQL(", ")
_TYPES = """
SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped
"""


class PreparedHandle(msgspec.Struct, frozen=True, tag_field="method", tag="prepared", forbid_unknown_fields=True):
    """The prepared transactions of all tasks."""

    gids: list[str]
    rows: int


class StagedHandle(msgspec.Struct, frozen=True, tag_field="method", tag="staged", forbid_unknown_fields=True):
    """The staging table, the task attempts whose rows in it are valid, and their effect on the target.

    The effect is fixed by the decision: the sink's arguments may have changed when it is committed.
    """

    table: str
    parts: list[int]
    rows: int
    effect: Effect
    key: list[str]


Handle: TypeAlias = PreparedHandle | StagedHandle
CopierOver: TypeAlias = Callable[[Connect], Copier]
"""Returns the function that copies rows, given how it connects to the server."""


def read_handle(handle: dict[str, Any]) -> Handle:
    """Return a handle that `prepare` returned, from its JSON."""
    try:
        return msgspec.convert(handle, PreparedHandle | StagedHandle)
    except msgspec.ValidationError as error:
        do = "use the version of Holdfast that prepared it"
        raise BadValue(what="handle", value=handle, why=str(error), do=do) from None


@dataclass(frozen=True, slots=True)
class CommitTarget:
    """The input of a commit: the sink's arguments, and the table as it was at the time of `open`, or is now."""

    sink: str
    server: Server
    table: Table
    ledger: Ledger
    effect: Effect
    key: tuple[str, ...]
    epoch_column: str | None
    reach: Reach

    def changed_type(self, conn: Connection, names: Sequence[str]) -> str | None:
        """Return an error text if one of these columns, or the epoch column, has another type than at `open`."""
        return changed_type(self.types(names), dict(conn.execute(self.types_query).fetchall()))

    def types(self, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """Return the types of these columns, and of the epoch column."""
        written = {*names, self.epoch_column}
        return tuple((column.name, column.type) for column in self.table.columns if column.name in written)

    @property
    def types_query(self) -> sql.Composed:
        """A query of the types that the table has now."""
        return sql.SQL(_TYPES).format(sql.Literal(self.table.target))


@dataclass(frozen=True, slots=True)
class OpenTarget(CommitTarget):
    """The input of both methods: also what `prepare` needs."""

    columns: tuple[StreamColumn, ...]
    parts: int
    collect: CollectRows | None
    forecast: Forecast
    driver: DriverConnections

    def task(self, table: str) -> CopyTask:
        """Return the input of the tasks that fill a staging table."""
        server = self.server
        names = tuple(column.name for column in self.columns)
        return CopyTask(self.sink, server.address, self.table.schema, table, names, server.lock_milliseconds)

    def connect(self, task: CopyTask) -> AbstractContextManager[Any]:
        """Return the driver's own connection for a copy."""
        return self.driver.connect(replace(task, idle_timeout=self.server.idle_milliseconds))

    def direct_task(self, epoch: int) -> CopyTask:
        """Return the input of the tasks that write to the target table, with the types that it must still have."""
        constants = ((self.epoch_column, epoch),) if self.epoch_column else ()
        types = self.types([column.name for column in self.columns])
        query = self.types_query.as_string(None)
        return replace(self.task(self.table.name), constants=constants, types=types, types_query=query)

    def run(self, df: DataFrame, copier: CopierOver) -> list[Part]:
        """Copy the rows, with one action on the DataFrame: in the driver, if they are few, or on the executors."""
        names = [column.name for column in self.columns]
        if df.columns != names:
            why = f"the epoch has the columns {df.columns}, but the sink was opened for {names}"
            raise SchemaMismatch(sink=self.sink, table=self.table.target, why=why)
        if self.collect is None or not self.forecast.is_small():
            parts = self._run_tasks(df, copier(connected))
            self.forecast.record(parts, collected=False)
            return parts
        with self.collect(df, self.parts, driver_copy.MOST_BYTES) as (rows, batches):
            if batches is None:
                self.forecast.correct()
                parts = self._run_tasks(rows, copier(connected))
                self.forecast.record(parts, collected=False)
                return parts
        copied = copier(self.connect)(iter(batches))
        parts = [Part(row["part"], row["rows"], row["bytes"]) for made in copied for row in made.to_pylist()]
        self.forecast.record(parts, collected=True)
        return parts

    def _run_tasks(self, df: DataFrame, copier: Copier) -> list[Part]:
        """Copy the rows on the executors. Return the parts.

        The rows are not shuffled: if there are more than `parts` partitions, a task copies several. The columns are
        numbered, because Spark's mapInArrow fails for a name with a dot.
        """
        numbered = df.toDF(*(f"c{number}" for number in range(len(self.columns))))
        try:
            rows = numbered.coalesce(self.parts).mapInArrow(copier, RESULT).collect()
        except Exception as error:
            found = raised_in_task(error, COPYING)
            if found is None:
                raise
            raise copy_failed(self.sink, found[1], outage=found[0] is SinkUnavailable) from None
        return [Part(row["part"], row["rows"], row["bytes"]) for row in rows]


# --- prepared --------------------------------------------------------------------------------------------------------


def prepare_transactions(target: OpenTarget, df: DataFrame, key: EpochKey) -> PreparedHandle:
    """Copy the rows into the target table, in prepared transactions."""
    mark = Mark.of(target.ledger.digest, key)
    task, record = target.direct_task(key.epoch), target.ledger.part_statement(key)
    parts = target.run(df, lambda connect: into_prepared(task, mark, record, connect))
    target.reach("staging")
    return PreparedHandle(sorted(part.name for part in parts), sum(part.rows for part in parts))


def commit_transactions(
    target: CommitTarget, conn: Connection, other: Connection, key: EpochKey, handle: PreparedHandle
) -> None:
    """Commit the prepared transactions; the transaction of `conn` holds the lock, and will close the epoch.

    1. Require that every part is prepared or committed: an incomplete epoch must not become visible. Prepared ones are
       listed first, so one that another driver commits in between is found in the ledger.
    2. Commit them on the other connection: COMMIT PREPARED cannot run inside a transaction.
    3. Require that every part is in the ledger, with as many rows as the handle counts.
    """
    prepared = set(prepared_gids(conn, target.ledger.digest))
    done = target.ledger.parts(conn, handle.gids)
    if not prepared | done.keys() >= set(handle.gids):
        raise StagedGone(sink=target.sink, epoch=key.epoch)
    todo = [gid for gid in handle.gids if gid not in done]
    for gid in todo[:1]:
        finish_prepared(other, "COMMIT", gid, target.server.lock_timeout)
    target.reach("committing")
    for gid in todo[1:]:
        finish_prepared(other, "COMMIT", gid, target.server.lock_timeout)
    done = target.ledger.parts(conn, handle.gids)
    if done.keys() != set(handle.gids):
        raise StagedGone(sink=target.sink, epoch=key.epoch)
    check_rows(target, sum(done.values()), handle.rows)


# --- staged ----------------------------------------------------------------------------------------------------------


def prepare_stage(target: OpenTarget, df: DataFrame, key: EpochKey) -> StagedHandle:
    """Copy the rows into a staging table, and refuse values that a commit could not insert."""
    mark = Mark.of(target.ledger.digest, key)
    with target.server.transaction("create a staging table") as conn:
        why = target.changed_type(conn, [column.name for column in target.columns])
        if why:
            raise copy_failed(target.sink, why)
        conn.execute(_stage_definition(target, mark.table))
    found = target.run(df, lambda connect: into_stage(target.task(mark.table), connect))
    parts, rows = sorted(int(part.name) for part in found), sum(part.rows for part in found)
    handle = StagedHandle(mark.table, parts, rows, target.effect, list(target.key))
    checked = [column.name for column in target.columns if _is_checked(target.table, column)]
    if checked or target.key:
        with target.server.transaction("accept the staged rows") as conn:
            _check_values(target, conn, handle, checked)
            _check_keys(target, conn, handle)
    target.reach("staging")
    return handle


def commit_stage(target: CommitTarget, conn: Connection, key: EpochKey, handle: StagedHandle) -> None:
    """Move the rows, in the transaction of `conn`, which also closes the epoch in the ledger.

    The columns are those of the staging table: the stream's columns may have changed since. INSERT silently rounds and
    truncates, so the types of the table are compared after it: from then on they are locked.
    """
    target = replace(target, effect=handle.effect, key=tuple(handle.key))
    stage = find_table(conn, TableName(target.table.schema, handle.table))
    if stage is None:
        raise StagedGone(sink=target.sink, epoch=key.epoch)
    names = [column.name for column in stage.columns if column.name != PART_COLUMN]
    _refuse_narrowing(target, stage, names)
    if target.effect is Effect.REPLACE:
        # Not TRUNCATE: concurrent readers could find the table empty.
        conn.execute(sql.SQL("DELETE FROM {}").format(target.table.identifier))
    values = [_converted(target.table, stage, name) for name in names]
    if target.epoch_column:
        names = [*names, target.epoch_column]
        values = [*values, sql.Literal(key.epoch)]
    rest = [name for name in names if name not in target.key]
    moved = conn.execute(
        sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} s WHERE {}{}").format(
            target.table.identifier,
            _COMMA.join(map(sql.Identifier, names)),
            _COMMA.join(values),
            stage.identifier,
            _counted(handle),
            _on_conflict(target, rest),
        )
    ).rowcount
    if target.effect is Effect.UPSERT and not rest:  # DO NOTHING does not count rows that exist already
        row = conn.execute(
            sql.SQL("SELECT count(*) FROM {} s WHERE {}").format(stage.identifier, _counted(handle))
        ).fetchone()
        moved = row[0] if row else 0
    check_rows(target, moved, handle.rows)
    if why := target.changed_type(conn, names):
        do = "run again: the restart reads the table's types again, and converts the epoch or reports the column"
        raise SinkFailed(sink=target.sink, action="commit", why=why, do=do)
    target.reach("committing")


def _refuse_narrowing(target: CommitTarget, stage: Table, names: Sequence[str]) -> None:
    """Refuse to change the values of a decided epoch: table and stream may both have narrower types by now."""
    for name in names:
        wanted, has = target.table.column(name), stage.column(name)
        if wanted and has and fit(staged_column(has), wanted) is Fit.NONE:
            raise SinkFailed(
                sink=target.sink,
                action="commit",
                why=f"the epoch was staged with column {name!r} as {has.type}, and the table's is now {wanted.type}",
                do=f"change column {name!r} back to {has.type} until this epoch is committed, then change both again",
            )


def _stage_definition(target: OpenTarget, name: str) -> sql.Composed:
    """Return the SQL that creates a staging table.

    A column has the type of the target's column if COPY writes the same bytes, so that its limits are checked before
    the decision. The same holds for NOT NULL. Keys are always NOT NULL: two NULLs are never the same key.
    """
    lines: list[sql.Composable] = []
    for column in target.columns:
        found = target.table.column(column.name)
        same = found if found and fit(column, found) is Fit.SAME else None
        line = sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(same.type if same else column.sql))
        if same and same.collation:
            line += sql.SQL(" COLLATE {}").format(sql.Identifier(*same.collation))
        if column.name in target.table.not_null or column.name in target.key:
            line += sql.SQL(" NOT NULL")
        lines.append(line)
    lines.append(sql.SQL("{} int8 NOT NULL").format(sql.Identifier(PART_COLUMN)))
    # The table exists for two epochs and is read once, so vacuuming it is useless.
    return sql.SQL("CREATE TABLE {} ({}) WITH (autovacuum_enabled = false)").format(
        sql.Identifier(target.table.schema, name), _COMMA.join(lines)
    )


def _converted(table: Table, stage: Table, name: str) -> sql.Composable:
    """Return a staged column, cast to the type of the target's column.

    The cast is to the type without its length: with it, SQL would silently truncate a text that is too long, whereas
    the INSERT rejects it.
    """
    wanted, has = table.column(name), stage.column(name)
    value = sql.Identifier("s", name)
    if wanted is None or has is None or wanted.bare == has.bare:
        return value
    return sql.SQL("{}::{}").format(value, sql.SQL(wanted.bare))


def _counted(handle: StagedHandle) -> sql.Composed:
    return sql.SQL("s.{} = ANY ({})").format(sql.Identifier(PART_COLUMN), sql.Literal(handle.parts))


def _on_conflict(target: CommitTarget, rest: Sequence[str]) -> sql.Composable:
    if target.effect is not Effect.UPSERT:
        return sql.SQL("")
    updates = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in rest]
    action = sql.SQL("UPDATE SET {}").format(_COMMA.join(updates)) if updates else sql.SQL("NOTHING")
    return sql.SQL(" ON CONFLICT ({}) DO {}").format(_COMMA.join(map(sql.Identifier, target.key)), action)


def _check_values(target: OpenTarget, conn: Connection, handle: StagedHandle, names: Sequence[str]) -> None:
    """Try the conversions that may fail. After the decision it would be too late to refuse a value."""
    stage = find_table(conn, TableName(target.table.schema, handle.table))
    if stage and names:
        counts = [sql.SQL("count({})").format(_converted(target.table, stage, name)) for name in names]
        query = sql.SQL("SELECT {} FROM {} s WHERE {}")
        conn.execute(query.format(_COMMA.join(counts), stage.identifier, _counted(handle)))


def _check_keys(target: OpenTarget, conn: Connection, handle: StagedHandle) -> None:
    """Refuse a key that occurs twice in one epoch: rows have no order, so neither is the last."""
    stage = find_table(conn, TableName(target.table.schema, handle.table)) if target.key else None
    if stage is None:
        return
    keys = _COMMA.join(_converted(target.table, stage, name) for name in target.key)
    query = sql.SQL("SELECT 1 FROM {} s WHERE {} GROUP BY {} HAVING count(*) > 1 LIMIT 1")
    if conn.execute(query.format(stage.identifier, _counted(handle), keys)).fetchone():
        raise SinkFailed(
            sink=target.sink,
            action="accept the staged rows",
            why=f"several rows of one epoch have the same key ({', '.join(target.key)}), and rows have no order",
            do="emit each key at most once per epoch (dropDuplicates, or an aggregation by this key), then run again",
        )


def _is_checked(table: Table, column: StreamColumn) -> bool:
    found = table.column(column.name)
    return found is not None and fit(column, found) is Fit.CHECKED


def check_rows(target: CommitTarget, moved: int, counted: int) -> None:
    """Refuse an epoch if more or fewer rows were inserted than prepared."""
    if moved != counted:
        raise SinkFailed(
            sink=target.sink,
            action="commit",
            why=f"{counted} rows were prepared, but {moved} were inserted",
            do="check the table's triggers and rules, and other programs that change the staging table; then run again",
        )

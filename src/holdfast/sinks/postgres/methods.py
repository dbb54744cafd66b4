"""The two ways in which an epoch waits in PostgreSQL for its decision: in prepared transactions, or in a table.

*Prepared*: each task copies into the table itself and prepares its transaction. The rows are written once, and commit
is a word to the server. The transactions hold their locks meanwhile, so this is only for appending to a plain table
where no row can get into another's way. The parts become visible one after the other.

*Staged*: the tasks copy into a logged table of this attempt, and commit moves the rows in one transaction, by
appending, by upserting or by replacing everything. An unlogged table would be empty after a crash of the server.

A handle says which way it went, and is committed that way whatever the sink would choose today.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.epoch import Reach
from holdfast.errors import BadValue, SchemaMismatch, SinkFailed, SinkUnavailable, StagedGone
from holdfast.sinks.base import EpochKey
from holdfast.sinks.postgres.column_types import Fit, StreamColumn, fit, staged_column
from holdfast.sinks.postgres.copying import (
    COPYING,
    PART_COLUMN,
    RESULT,
    Copier,
    Task,
    changed_type,
    copy_failed,
    into_prepared,
    into_stage,
)
from holdfast.sinks.postgres.ledger import Ledger
from holdfast.sinks.postgres.names import Mark
from holdfast.sinks.postgres.server import Connection, Server, finish_prepared, sql
from holdfast.sinks.postgres.sweep import prepared_gids
from holdfast.sinks.postgres.target_table import Effect, Table, TableName, find_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOLD = re.compile(rf"(?P<kind>SinkFailed|SinkUnavailable): sink .* could not {COPYING}: (?P<why>.*?)\.? Next: ")
_COMMA = sql.SQL(", ")
_TYPES = """
SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped
"""


class PreparedHandle(msgspec.Struct, frozen=True, tag_field="method", tag="prepared", forbid_unknown_fields=True):
    """The transactions that reached the driver."""

    gids: list[str]
    rows: int


class StagedHandle(msgspec.Struct, frozen=True, tag_field="method", tag="staged", forbid_unknown_fields=True):
    """The table of this attempt, the task attempts whose rows in it count, and what they do to the target.

    That is decided with the epoch: the program may say otherwise when it is committed.
    """

    table: str
    parts: list[int]
    rows: int
    effect: Effect
    key: list[str]


Handle: TypeAlias = PreparedHandle | StagedHandle


def read_handle(handle: dict[str, Any]) -> Handle:
    """Return what `prepare` once returned, out of its JSON."""
    try:
        return msgspec.convert(handle, PreparedHandle | StagedHandle)
    except msgspec.ValidationError as error:
        raise BadValue(what="handle", value=handle, why=str(error), do="use the Holdfast that prepared it") from None


@dataclass(frozen=True, slots=True)
class Work:
    """What both methods need: the sink's choices, and what was found when it was opened."""

    sink: str
    server: Server
    table: Table
    ledger: Ledger
    effect: Effect
    columns: tuple[StreamColumn, ...]
    key: tuple[str, ...]
    epoch_column: str | None
    parts: int
    reach: Reach

    def task(self, table: str) -> Task:
        """Return what the executors are told."""
        server = self.server
        names = tuple(column.name for column in self.columns)
        return Task(self.sink, server.address, self.table.schema, table, names, server.lock_milliseconds)

    def direct_task(self, epoch: int) -> Task:
        """Return the same for the user's own table, with the types that it must still have."""
        constants = ((self.epoch_column, epoch),) if self.epoch_column else ()
        types = self._types([column.name for column in self.columns])
        query = self._types_query.as_string(None)
        return replace(self.task(self.table.name), constants=constants, types=types, types_query=query)

    def changed_type(self, conn: Connection, names: Sequence[str]) -> str | None:
        """Say which of these columns of the table, or the epoch's, has another type than when the sink was opened."""
        return changed_type(self._types(names), dict(conn.execute(self._types_query).fetchall()))

    def _types(self, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
        written = {*names, self.epoch_column}
        return tuple((column.name, column.type) for column in self.table.columns if column.name in written)

    @property
    def _types_query(self) -> sql.Composed:
        return sql.SQL(_TYPES).format(sql.Literal(self.table.target))

    def run(self, df: DataFrame, copier: Copier) -> list[tuple[str, int]]:
        """Copy the rows: the one action on the DataFrame. Return what the tasks tell of their parts.

        The rows are not shuffled: several partitions become one task's work where there are more than `parts`. The
        columns go by number: Spark's mapInArrow trips over a name with a dot.
        """
        names = [column.name for column in self.columns]
        if df.columns != names:
            why = f"the epoch has the columns {df.columns}, and the sink was opened for {names}"
            raise SchemaMismatch(sink=self.sink, table=self.table.target, why=why)
        numbered = df.toDF(*(f"c{number}" for number in range(len(names))))
        try:
            rows = numbered.coalesce(self.parts).mapInArrow(copier, RESULT).collect()
        except Exception as error:
            told = _TOLD.search(str(error))
            if told is None:  # not ours: the user's code, or Spark
                raise
            raise copy_failed(self.sink, told["why"], outage=told["kind"] == SinkUnavailable.__name__) from None
        return [(row["part"], row["rows"]) for row in rows]


# --- prepared --------------------------------------------------------------------------------------------------------


def prepare_transactions(work: Work, df: DataFrame, key: EpochKey) -> PreparedHandle:
    """Copy the rows into the table, in transactions that are prepared."""
    mark = Mark.of(work.ledger.digest, key)
    told = work.run(df, into_prepared(work.direct_task(key.epoch), mark, work.ledger.part_statement(key)))
    work.reach("staging")
    return PreparedHandle(sorted(gid for gid, _ in told), sum(rows for _, rows in told))


def commit_transactions(work: Work, conn: Connection, other: Connection, key: EpochKey, handle: PreparedHandle) -> None:
    """Commit what is prepared; the transaction of `conn` holds the lock, and will close the epoch in the ledger.

    1. Every part must be prepared, or committed before: nothing becomes visible of an epoch that cannot be whole.
       Prepared ones are listed first: one that is committed in between is then found in the ledger.
    2. Commit them, on the other connection: it cannot be done inside a transaction.
    3. Every part must be in the ledger now, with as many rows as the handle counts.
    """
    prepared = set(prepared_gids(conn, work.ledger.digest))
    done = work.ledger.parts(conn, handle.gids)
    if not prepared | done.keys() >= set(handle.gids):
        raise StagedGone(sink=work.sink, epoch=key.epoch)
    todo = [gid for gid in handle.gids if gid not in done]
    for gid in todo[:1]:
        finish_prepared(other, "COMMIT", gid, work.server.lock_timeout)
    work.reach("committing")
    for gid in todo[1:]:
        finish_prepared(other, "COMMIT", gid, work.server.lock_timeout)
    done = work.ledger.parts(conn, handle.gids)
    if done.keys() != set(handle.gids):
        raise StagedGone(sink=work.sink, epoch=key.epoch)
    check_rows(work, sum(done.values()), handle.rows)


# --- staged ----------------------------------------------------------------------------------------------------------


def prepare_stage(work: Work, df: DataFrame, key: EpochKey) -> StagedHandle:
    """Copy the rows into a table of this attempt, and find out now what commit could not take."""
    mark = Mark.of(work.ledger.digest, key)
    with work.server.transaction("make a staging table") as conn:
        why = work.changed_type(conn, [column.name for column in work.columns])
        if why:
            raise copy_failed(work.sink, why)
        conn.execute(_stage_definition(work, mark.table))
    told = work.run(df, into_stage(work.task(mark.table)))
    parts, rows = sorted(int(part) for part, _ in told), sum(rows for _, rows in told)
    handle = StagedHandle(mark.table, parts, rows, work.effect, list(work.key))
    checked = [column.name for column in work.columns if _is_checked(work.table, column)]
    if checked or work.key:
        with work.server.transaction("take the staged rows") as conn:
            _check_values(work, conn, handle, checked)
            _check_keys(work, conn, handle)
    work.reach("staging")
    return handle


def commit_stage(work: Work, conn: Connection, key: EpochKey, handle: StagedHandle) -> None:
    """Move the rows, in the transaction of `conn`, which also closes the epoch in the ledger.

    The columns are those that the staging table has: the stream's may have changed since. INSERT rounds and cuts in
    silence, so the table's types are compared after it: from there on they are locked.
    """
    work = replace(work, effect=handle.effect, key=tuple(handle.key))
    stage = find_table(conn, TableName(work.table.schema, handle.table))
    if stage is None:
        raise StagedGone(sink=work.sink, epoch=key.epoch)
    names = [column.name for column in stage.columns if column.name != PART_COLUMN]
    _refuse_narrowing(work, stage, names)
    if work.effect is Effect.REPLACE:
        # Not TRUNCATE: whoever reads meanwhile would find the table empty.
        conn.execute(sql.SQL("DELETE FROM {}").format(work.table.identifier))
    values = [_converted(work.table, stage, name) for name in names]
    if work.epoch_column:
        names = [*names, work.epoch_column]
        values = [*values, sql.Literal(key.epoch)]
    rest = [name for name in names if name not in work.key]
    moved = conn.execute(
        sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} s WHERE {}{}").format(
            work.table.identifier,
            _COMMA.join(map(sql.Identifier, names)),
            _COMMA.join(values),
            stage.identifier,
            _counted(handle),
            _on_conflict(work, rest),
        )
    ).rowcount
    if work.effect is Effect.UPSERT and not rest:  # rows that are there already are not counted
        row = conn.execute(
            sql.SQL("SELECT count(*) FROM {} s WHERE {}").format(stage.identifier, _counted(handle))
        ).fetchone()
        moved = row[0] if row else 0
    check_rows(work, moved, handle.rows)
    if why := work.changed_type(conn, names):
        do = "run again: the restart looks at the table anew, and converts the epoch or says what it cannot take"
        raise SinkFailed(sink=work.sink, action="commit", why=why, do=do)
    work.reach("committing")


def _refuse_narrowing(work: Work, stage: Table, names: Sequence[str]) -> None:
    """Refuse to change values that are decided: table and stream may both have narrower types by now."""
    for name in names:
        wanted, has = work.table.column(name), stage.column(name)
        if wanted and has and fit(staged_column(has), wanted) is Fit.NONE:
            raise SinkFailed(
                sink=work.sink,
                action="commit",
                why=f"the epoch was staged with column {name!r} as {has.type}, and the table's is {wanted.type} now",
                do=f"ALTER column {name!r} to {has.type}, let this epoch be committed, and change both sides then",
            )


def _stage_definition(work: Work, name: str) -> sql.Composed:
    """Return the SQL of a staging table.

    A column has the type of the table's own where COPY writes the same bytes, so that its limits are met before the
    decision. NOT NULL likewise, and for keys in any case: two NULLs are never the same key.
    """
    lines: list[sql.Composable] = []
    for column in work.columns:
        found = work.table.column(column.name)
        same = found if found and fit(column, found) is Fit.SAME else None
        line = sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(same.type if same else column.sql))
        if same and same.collation:
            line += sql.SQL(" COLLATE {}").format(sql.Identifier(*same.collation))
        if column.name in work.table.not_null or column.name in work.key:
            line += sql.SQL(" NOT NULL")
        lines.append(line)
    lines.append(sql.SQL("{} int8 NOT NULL").format(sql.Identifier(PART_COLUMN)))
    # It lives for two epochs and is read once: there is nothing for a vacuum to do.
    return sql.SQL("CREATE TABLE {} ({}) WITH (autovacuum_enabled = false)").format(
        sql.Identifier(work.table.schema, name), _COMMA.join(lines)
    )


def _converted(table: Table, stage: Table, name: str) -> sql.Composable:
    """Return a staged column as the table takes it.

    The cast is to the type without its length: with it, SQL would cut a text that is too long in silence, where the
    INSERT itself refuses it.
    """
    wanted, has = table.column(name), stage.column(name)
    value = sql.Identifier("s", name)
    if wanted is None or has is None or wanted.bare == has.bare:
        return value
    return sql.SQL("{}::{}").format(value, sql.SQL(wanted.bare))


def _counted(handle: StagedHandle) -> sql.Composed:
    return sql.SQL("s.{} = ANY ({})").format(sql.Identifier(PART_COLUMN), sql.Literal(handle.parts))


def _on_conflict(work: Work, rest: Sequence[str]) -> sql.Composable:
    if work.effect is not Effect.UPSERT:
        return sql.SQL("")
    updates = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in rest]
    action = sql.SQL("UPDATE SET {}").format(_COMMA.join(updates)) if updates else sql.SQL("NOTHING")
    return sql.SQL(" ON CONFLICT ({}) DO {}").format(_COMMA.join(map(sql.Identifier, work.key)), action)


def _check_values(work: Work, conn: Connection, handle: StagedHandle, names: Sequence[str]) -> None:
    """Convert what may not convert. After the decision it would be too late to refuse it."""
    stage = find_table(conn, TableName(work.table.schema, handle.table))
    if stage and names:
        counts = [sql.SQL("count({})").format(_converted(work.table, stage, name)) for name in names]
        query = sql.SQL("SELECT {} FROM {} s WHERE {}")
        conn.execute(query.format(_COMMA.join(counts), stage.identifier, _counted(handle)))


def _check_keys(work: Work, conn: Connection, handle: StagedHandle) -> None:
    """Refuse a key that comes twice in one epoch: rows have no order, so none of them is the last."""
    stage = find_table(conn, TableName(work.table.schema, handle.table)) if work.key else None
    if stage is None:
        return
    keys = _COMMA.join(_converted(work.table, stage, name) for name in work.key)
    query = sql.SQL("SELECT 1 FROM {} s WHERE {} GROUP BY {} HAVING count(*) > 1 LIMIT 1")
    if conn.execute(query.format(stage.identifier, _counted(handle), keys)).fetchone():
        raise SinkFailed(
            sink=work.sink,
            action="take the staged rows",
            why=f"several rows of one epoch have the same key ({', '.join(work.key)}), and none of them is the last",
            do="give each key once an epoch (dropDuplicates, or an aggregation by this key), then run again",
        )


def _is_checked(table: Table, column: StreamColumn) -> bool:
    found = table.column(column.name)
    return found is not None and fit(column, found) is Fit.CHECKED


def check_rows(work: Work, moved: int, counted: int) -> None:
    """Refuse an epoch of which more or less came through than was prepared."""
    if moved != counted:
        raise SinkFailed(
            sink=work.sink,
            action="commit",
            why=f"{counted} rows were prepared and {moved} came through",
            do="look at the table's triggers and rules, and at who else changes what is staged; then run again",
        )

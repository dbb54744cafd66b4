"""Taking the epochs of a PostgreSQL table back, and putting them back, under the lock of its commits.

    holdfast_aside_<owner>_<n>    in the schema of the table: the rows that the rewind into timeline n took back

Only rows that are appended with an epoch column can be taken back. A table that is replaced needs nothing: the next
epoch replaces all rows. Upserts cannot be taken back, because their previous versions are not kept.

Rules:
- Prepared transactions of the old timelines are rolled back first. A decided epoch has been given to the sink by then,
  so what is still prepared is not decided. A driver that was paused within a commit finds nothing left to commit.
- Rows and stamp change in one transaction, and commits check the stamp under the same lock. So if the stamp is there,
  no rows can be left, and none are looked for: rows of the new timeline may have the same epochs.
- Rows are deleted and kept by one statement, so that both see the same rows.
- A table whose rows others depend on is refused: one that is shared, that has triggers, rules or row level security,
  or that a foreign key refers to.

Not guaranteed: that a paused task of the old timeline does not prepare another transaction later. It is never
committed, and the next commit rolls it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.epoch import Reach
from holdfast.errors import SinkFailed, SinkForeign
from holdfast.sinks.asides import aside_table
from holdfast.sinks.base import CannotTakeBack, EpochPlace, RowsAside, TakeBack
from holdfast.sinks.postgres.ledger import Ledger, TableMode
from holdfast.sinks.postgres.names import Mark
from holdfast.sinks.postgres.server import Connection, finish_prepared, sql
from holdfast.sinks.postgres.sweep import prepared_gids
from holdfast.sinks.postgres.target_table import Effect, Table
from holdfast.sinks.taking_back import refuse_outdated

_COMMA = sql.SQL(", ")
_COLUMNS = """
SELECT attname::text FROM pg_attribute
WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""
_DEPENDENTS = """
SELECT 'trigger ' || tgname || ' of its table has effects that cannot be taken back' FROM pg_trigger
WHERE tgrelid = to_regclass({0}) AND NOT tgisinternal
UNION ALL SELECT 'rule ' || rulename || ' of its table has effects that cannot be taken back' FROM pg_rewrite
WHERE ev_class = to_regclass({0})
UNION ALL SELECT 'a foreign key of table ' || conrelid::regclass || ' refers to its rows' FROM pg_constraint
WHERE confrelid = to_regclass({0}) AND contype = 'f'
ORDER BY 1
"""
_TABLES = """
SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname::text, %s)
"""
_NEEDED = ("DELETE", "INSERT", "SELECT")


@dataclass(frozen=True, slots=True)
class TargetRewind:
    """What a rewind does with one table, for one owner. The transaction of `conn` holds the lock of the owner."""

    sink: str
    table: Table
    ledger: Ledger
    share: bool
    reach: Reach
    patience: float  # seconds to wait for a prepared transaction that is in use

    def found(self, conn: Connection, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Return what taking back would do, or why it is impossible."""
        newest = self.ledger.newest(conn)
        if newest is None or newest <= base:
            return TakeBack(0, 0, "")
        foreign = self.ledger.foreign(conn, share=self.share)
        if foreign is not None:
            return CannotTakeBack(why=f"its table belongs to {foreign}", do="choose another table")
        mode = self.ledger.mode(conn)
        if mode is not None and mode.effect is Effect.REPLACE:
            return TakeBack(0, None, "")
        cannot = next(self._obstacles(conn, base, mode), None)
        if cannot is not None or mode is None:
            return cannot or TakeBack(0, 0, "")
        query = sql.SQL("SELECT count(DISTINCT {0}), count(*) FROM {1} WHERE {0} > {2}")
        values = (sql.Identifier(mode.column), self._only, sql.Literal(base[1]))
        epochs, rows = conn.execute(query.format(*values)).fetchone() or (0, 0)
        return TakeBack(int(epochs), int(rows), f"tables {self.table.schema}.{aside_table(self.ledger.digest, '*')}")

    def _obstacles(self, conn: Connection, base: EpochPlace, mode: TableMode | None) -> Iterator[CannotTakeBack]:
        cannot = None if mode is None else cannot_with(mode.effect, mode.column, share=self.share)
        if mode is None:
            why, do = "an earlier version wrote its rows", "start the pipeline once, and go back to a later checkpoint"
            yield CannotTakeBack(why, do)
        elif cannot is not None:
            yield cannot
        elif base[1] + 1 < mode.since:
            why = f"rows of epochs before {mode.since} may have been written in another way"
            yield CannotTakeBack(why, do=f"go back to a checkpoint at epoch {mode.since - 1} or later")
        for (why,) in conn.execute(sql.SQL(_DEPENDENTS).format(sql.Literal(self.table.target))).fetchall():
            yield CannotTakeBack(why, do="remove it, and compute what it does in a separate stream")
        if self.table.row_security:
            yield CannotTakeBack("its table has row level security", do="use a user that is not subject to it")
        lacking = [right for right in _NEEDED if right not in self.table.rights]
        if lacking:
            why = f"its database user lacks the privilege {', '.join(lacking)}"
            yield CannotTakeBack(why, do=f"GRANT {', '.join(lacking)} ON {self.table.target} TO <user>")
        if not self.table.may_create:
            schema = sql.Identifier(self.table.schema).as_string(None)
            why = "its database user cannot create tables"
            yield CannotTakeBack(why, do=f"GRANT CREATE ON SCHEMA {schema} TO <user>")

    def take_back(self, conn: Connection, other: Connection, base: EpochPlace, into: int) -> None:
        """1. Roll back what is prepared.  2. Unless that is done, move the rows out, and write the stamp."""
        if self._is_stamped(conn, other, into):  # 1
            return
        found, mode = self.found(conn, base), self.ledger.mode(conn)
        if isinstance(found, CannotTakeBack):
            raise SinkFailed(sink=self.sink, action="be taken back", why=found.why, do=found.do)
        if found.kept and found.rows and mode is not None:
            self._move_out(conn, mode.column, base, into, found.rows)  # 2
        self.ledger.stamp(conn, base, into)
        self.reach("stamped")

    def put_back(self, conn: Connection, other: Connection, base: EpochPlace, into: int, taken: int) -> None:
        """1. Roll back what is prepared.  2. Unless that is done, move the rows in, and write the stamp."""
        if self._is_stamped(conn, other, into):  # 1
            return
        self._move_in(conn, aside_table(self.ledger.digest, taken))  # 2
        self.ledger.stamp(conn, base, into)
        self.reach("stamped")

    def set_aside(self, conn: Connection) -> list[RowsAside]:
        """Return the rows that are set aside, by timeline."""
        start, found = aside_table(self.ledger.digest, ""), []
        for (name,) in conn.execute(_TABLES, [self.table.schema, start]).fetchall():
            if name[len(start) :].isdecimal():
                count = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(self.table.schema, name))
                rows = conn.execute(count).fetchone() or (0,)
                found.append(RowsAside(int(name[len(start) :]), int(rows[0]), f"table {self.table.schema}.{name}"))
        return sorted(found, key=lambda each: each.timeline)

    def discard(self, conn: Connection, timeline: int) -> None:
        """Drop the rows that the rewind into a timeline took back."""
        aside = sql.Identifier(self.table.schema, aside_table(self.ledger.digest, timeline))
        conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(aside))

    def stamp(self, conn: Connection, other: Connection, base: EpochPlace, into: int) -> None:
        """End all earlier timelines, and move nothing. Later epochs may have the same numbers as those that stay."""
        if not self._is_stamped(conn, other, into):
            newest = self.ledger.newest(conn)
            self.ledger.stamp(conn, base, into)
            if newest is not None:
                self.ledger.written_since(conn, newest[1] + 1)
            self.reach("stamped")

    def _is_stamped(self, conn: Connection, other: Connection, into: int) -> bool:
        """Roll back what old timelines have prepared; return whether the table is stamped.

        Refuse a table of another owner, and a rewind that a later one has followed.
        """
        self.ledger.create(conn)
        foreign = self.ledger.foreign(conn, share=self.share)
        if foreign is not None:
            raise SinkForeign(sink=self.sink, place=f"table {self.table.target}", owner=foreign)
        newest = self.ledger.newest(conn) or (0, 0)
        refuse_outdated(self.ledger.owner, into, newest[0])
        self.reach("stamping")
        for gid in prepared_gids(conn, self.ledger.digest):
            mark = Mark.read(gid)
            if mark is not None and mark.place < (into, 0):
                finish_prepared(other, "ROLLBACK", gid, self.patience)
        return newest[0] == into

    @property
    def _only(self) -> sql.Composed:
        """The table in a statement. Tables that inherit from it are not the stream's; its partitions are."""
        only = sql.SQL("{}") if self.table.kind == "p" else sql.SQL("ONLY {}")
        return only.format(self.table.identifier)

    def _columns(self, conn: Connection) -> list[str]:
        """Return the columns that are not computed by the table."""
        rows = conn.execute(sql.SQL(_COLUMNS).format(sql.Literal(self.table.target))).fetchall()
        return [name for (name,) in rows]

    def _move_out(self, conn: Connection, column: str, base: EpochPlace, into: int, rows: int) -> None:
        aside = sql.Identifier(self.table.schema, aside_table(self.ledger.digest, into))
        listed = _listed(self._columns(conn))
        create = sql.SQL("CREATE TABLE {} AS SELECT {} FROM {} WITH NO DATA")
        conn.execute(create.format(aside, listed, self.table.identifier))
        move = sql.SQL("WITH gone AS (DELETE FROM {} WHERE {} > {} RETURNING {}) INSERT INTO {} SELECT * FROM gone")
        values = (self._only, sql.Identifier(column), sql.Literal(base[1]), listed, aside)
        self._require_same(rows, conn.execute(move.format(*values)).rowcount)

    def _move_in(self, conn: Connection, name: str) -> None:
        aside = sql.Identifier(self.table.schema, name)
        names = sql.SQL(_COLUMNS).format(sql.Literal(aside.as_string(None)))
        columns = [column for (column,) in conn.execute(names).fetchall()]
        if not columns:
            return  # nothing was moved out
        count = conn.execute(sql.SQL("SELECT count(*) FROM {}").format(aside)).fetchone() or (0,)
        insert = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}")
        moved = conn.execute(insert.format(self.table.identifier, _listed(columns), _listed(columns), aside)).rowcount
        self._require_same(count[0], moved)
        conn.execute(sql.SQL("DROP TABLE {}").format(aside))

    def _require_same(self, expected: int, moved: int) -> None:
        if moved != expected:
            why = f"{expected} rows were to be moved, but {moved} were: another program writes to the table"
            raise SinkFailed(sink=self.sink, action="be taken back", why=why, do="stop it, then try again")


def cannot_with(effect: Effect, column: str | None, *, share: bool) -> CannotTakeBack | None:
    """Return why rows that are written like this can never be taken back, or `None`."""
    if effect is Effect.REPLACE:
        return None
    if share:
        return CannotTakeBack("other streams may write to its table", do="use a table of its own, without share=True")
    if effect is Effect.UPSERT:
        why = "an upsert replaces rows, and their previous versions are not kept"
        do = "append every version, with changelog=True and epoch_column=..., and read the last ones with a view"
        return CannotTakeBack(why, do)
    if column:
        return None
    return CannotTakeBack("its rows do not show their epochs", do="pass epoch_column=...; it applies to later epochs")


def _listed(names: Sequence[str]) -> sql.Composed:
    return _COMMA.join(map(sql.Identifier, names))

"""A PostgreSQL table as a sink.

The effect of each output mode on the table:

| mode | with `key` | without | `changelog=True` |
|---|---|---|---|
| append | upsert | append | append |
| update | upsert | refused | append |
| complete | replace all | replace all | append |

Rows are replaced in one transaction: until it is committed, every reader sees the previous result.

`methods.py` describes how rows are kept until the decision, `ledger.py` what the server records, `rewind.py` how epochs
are taken back, `names.py` the names of tables and transactions. A method that fails does not clean up: the next `abort`
or `commit` does, by name.

Not guaranteed:

- that an epoch becomes visible at once: with prepared transactions, its parts become visible one after the other;
- that the table accepts the rows of a decided epoch: with a staging table, CHECK and FOREIGN KEY constraints, triggers
  and unique indexes other than the key's apply only at commit. The epoch is committed once the table accepts the rows;
- that rows which other programs write into a table that is replaced are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec

from holdfast._validation import checked_positive, checked_seconds, checked_u64
from holdfast.errors import BadValue, NotSupported, SchemaMismatch, SinkFailed, SinkForeign
from holdfast.sinks import base
from holdfast.sinks.base import (
    OUTPUT_MODES,
    CannotTakeBack,
    EpochKey,
    EpochPlace,
    SinkContext,
    SinkPosition,
    Staged,
    StreamIdentity,
    TakeBack,
)
from holdfast.sinks.held_epochs import is_committed
from holdfast.sinks.postgres.column_types import StreamColumn, stream_columns
from holdfast.sinks.postgres.copying import NEEDED, require_extras
from holdfast.sinks.postgres.driver_copy import DriverConnections, Forecast
from holdfast.sinks.postgres.ledger import LEDGER, Ledger, is_known
from holdfast.sinks.postgres.methods import (
    CommitTarget,
    Handle,
    OpenTarget,
    PreparedHandle,
    StagedHandle,
    commit_stage,
    commit_transactions,
    prepare_stage,
    prepare_transactions,
    read_handle,
)
from holdfast.sinks.postgres.names import lock_number
from holdfast.sinks.postgres.rewind import TargetRewind, cannot_with
from holdfast.sinks.postgres.server import Connection, Server
from holdfast.sinks.postgres.sweep import Selection, clear
from holdfast.sinks.postgres.target_table import (
    Effect,
    Table,
    TableName,
    create_table,
    find_table,
    lacking_right,
    misfits,
    obstacles,
    unfit_names,
)
from holdfast.sinks.rows import not_null

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Method: TypeAlias = Literal["auto", "prepared", "staged"]
"""How rows are kept until their epoch is decided; see `PostgresSink`."""
METHODS: tuple[Method, ...] = get_args(Method)
_SWEEP_PATIENCE = 0.1  # seconds: a table that is in use is removed after the next epoch


class PostgresSink(base.Sink):
    """Writes a stream into a PostgreSQL table, every epoch exactly once.

        hf.PostgresSink("host=db dbname=shop user=etl", table="totals", key=["day"])

    Output mode "append" inserts rows, or upserts them if there is a `key`; "update" needs a `key`; "complete" replaces
    the whole table in one transaction. The executors copy rows in bulk, and the driver copies small epochs. Requires
    `pip install 'holdfast-spark[postgres]'`.

    - `dsn`: any libpq connection string or URL. It reaches the executors, and never a log, an error or the repository.
      Passwords can also come from `~/.pgpass` or the environment.
    - `table`: `table` or `schema.table`. With `create=True` it is created if it does not exist; the default is False.
    - `key`: the column or columns to upsert by. The table needs a unique index on them. A key must not be null and may
      occur once per epoch.
    - `method`: "prepared" uses prepared transactions: fast, for appends into a table without unique or exclusion
      constraints; the server needs `max_prepared_transactions` of at least twice `parts`. "staged" uses a staging table
      and one INSERT. "auto" (default) chooses "prepared" where it is possible.
    - `epoch_column`: a bigint column to fill with the number of the epoch.
    - `changelog`: keep every version of a row instead of upserting or replacing.
    - `share`: allow several streams to write to the table, if all of them pass `share=True`. By default one stream owns
      it from its first start on.
    - `parts`: how many connections copy at the same time (4).
    - `driver_rows`: after an epoch of at most this many rows (20,000), the driver itself copies the next one, if it has
      at most 4 MB: starting the copy on the executors takes longer. With 0, no row passes through the driver.
    - `lock_timeout`: how many seconds a statement waits for a lock (30).
    - `name`: the sink's name in decisions, errors and checkpoints; by default made from the table.

    Which epochs are in the table is recorded in the same database, in `holdfast_epochs`. A rewind moves the rows of
    later epochs to a table `holdfast_aside_…` if they are appended with an `epoch_column`, and does nothing with a
    table that is replaced: the next epoch replaces it. Upserts cannot be taken back, nor can tables that are shared,
    have triggers or rules, or are referred to by a foreign key. Not guaranteed: with
    "prepared", the parts of an epoch become visible one after the other. With "staged", a row that violates a CHECK, a
    foreign key or another unique index is found only after the epoch is decided: the stream then waits until the table
    accepts the row.
    """

    one_action = True
    on_executors = NEEDED

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        key: str | Sequence[str] | None = None,
        method: Method = "auto",
        create: bool = False,
        epoch_column: str | None = None,
        changelog: bool = False,
        share: bool = False,
        parts: int = 4,
        driver_rows: int = 20_000,
        lock_timeout: float | timedelta = 30,
        name: str | None = None,
    ) -> None:
        self._table = TableName.read(table)
        super().__init__(base.default_name("postgres", str(self._table)) if name is None else name)
        self._server = Server(self.name, dsn, checked_seconds("lock_timeout", lock_timeout))
        self._key = _checked_names("key", key)
        self._method = method
        self._create = create
        self._epoch_column = epoch_column
        self._changelog = changelog
        self._share = share
        place = f"{self._server.place} {self._table.identifier.as_string(None)}"
        self.target = None if share else f"postgres {place}"
        self._parts = checked_positive("parts", parts)
        self._driver_rows = checked_u64("driver_rows", driver_rows)
        self._driver = DriverConnections()
        self._explained = False
        self._opened: OpenTarget | None = None
        self._prepares = False
        if method not in METHODS:
            raise BadValue(what="method", value=method, expected=f"one of {', '.join(METHODS)}")
        if epoch_column is not None:
            _checked_names("epoch_column", epoch_column)
        if self._key and changelog:
            raise BadValue(what="key", value=self._key, why="a changelog keeps every version, a key only the last one")

    def __repr__(self) -> str:
        return f"PostgresSink({str(self._table)!r}, name={self.name!r}, {self._server.shown or 'all defaults'})"

    def describe(self) -> dict[str, Any]:
        """Return the key, the epoch column, and whether every version of a row is kept."""
        return {"key": list(self._key), "epoch_column": self._epoch_column, "changelog": self._changelog}

    # --- before the first epoch --------------------------------------------------------------------------------------

    def row_checks(self) -> dict[str, str]:
        """Columns that are NOT NULL or part of the key must have a value."""
        required = self._ready.table.not_null | set(self._key)
        return {f"{each.name} is null": not_null(each.name) for each in self._ready.columns if each.name in required}

    def open(self, context: SinkContext) -> None:
        """Connect, find or create table and ledger, check the columns, choose the method, and claim the table."""
        super().open(context)
        self._opened = None
        require_extras()
        self._server.kept.open()
        self._driver.kept.open()
        effect = self._effect(context.output_mode)
        columns = stream_columns(self.name, context.schema)
        self._refuse(unfit_names(columns, self._key, self._epoch_column))
        with self._server.transaction("open") as conn:
            _lock(conn, "open")  # two drivers that create the same table concurrently would conflict
            table = self._found(conn, columns)
            self._refuse(misfits(table, columns, self._epoch_column))
            self._refuse(self._no_arbiter(table, effect))
            ledger = Ledger(table.schema, table.target, context.owner, self.name, effect is Effect.REPLACE)
            ledger.create(conn)
            self._refuse_rival(conn, ledger)
            obstacle = next(chain(obstacles(table, columns, effect), self._obstacles(conn, context)), None)
            self._prepares = self._method != "staged" and obstacle is None
            self._explain(context, effect, obstacle)
            self._refuse_without_rights(table, effect)
            if ledger.foreign(conn, share=self._share) is None:  # otherwise `inspect` reports the owner
                ledger.claim(conn)
                ledger.note_mode(conn, effect, self._epoch_column)
            forecast = Forecast(self._driver_rows, ledger.last_rows(conn))
        self._opened = OpenTarget(
            sink=self.name,
            server=self._server,
            table=table,
            ledger=ledger,
            effect=effect,
            columns=columns,
            key=self._key,
            epoch_column=self._epoch_column,
            parts=self._parts,
            reach=context.reach,
            collect=context.collect,
            forecast=forecast,
            driver=self._driver,
        )

    def close(self) -> None:
        """Discard the results of `open`, and close the kept connections."""
        super().close()
        self._opened = None
        self._server.kept.close()
        self._driver.kept.close()

    def _effect(self, output_mode: str) -> Effect:
        if output_mode not in OUTPUT_MODES:
            raise BadValue(what="output mode", value=output_mode, expected=f"one of {', '.join(OUTPUT_MODES)}")
        if output_mode == "complete" and not self._changelog:
            return Effect.REPLACE
        if self._key:
            return Effect.UPSERT
        base.refuse_mode(self, output_mode, self._changelog, "pass key=[...] to upsert")
        return Effect.APPEND

    def _found(self, conn: Connection, columns: Sequence[StreamColumn]) -> Table:
        table = find_table(conn, self._table)
        if table is None and self._create:
            create_table(conn, self._table, columns, self._key, self._epoch_column)
            table = find_table(conn, self._table)
            if table is not None and is_known(conn, table.schema, table.target):
                # An empty table would look as if it held all those epochs.
                raise self._mismatch(
                    f"it does not exist, but {LEDGER} records that it holds epochs",
                    f"restore it, or, to start with an empty one, delete the rows of {table.target} in {LEDGER}",
                )
        if table is None:
            raise self._mismatch("it does not exist", "create it, or pass create=True")
        if table.kind not in ("r", "p"):
            raise self._mismatch("it is not a table, but a view or another relation")
        return table

    def _no_arbiter(self, table: Table, effect: Effect) -> Iterator[str]:
        if effect is Effect.UPSERT and frozenset(self._key) not in table.arbiters:
            listed = ", ".join(self._key)
            yield f"it has no unique index on exactly ({listed}), which an upsert by this key needs"

    def _refuse(self, reasons: Iterator[str]) -> None:
        found = "; ".join(reasons)
        if found:
            raise self._mismatch(found)

    def _mismatch(self, why: str, do: str | None = None) -> SchemaMismatch:
        return SchemaMismatch(sink=self.name, table=str(self._table), why=why, **({"do": do} if do else {}))

    def _refuse_rival(self, conn: Connection, ledger: Ledger) -> None:
        rival = ledger.rival(conn)
        if rival is not None:
            place = f"table {self._table}, whose rows one of the two sinks replaces,"
            raise SinkForeign(sink=self.name, place=place, owner=f"{rival} of this pipeline")

    def _refuse_without_rights(self, table: Table, effect: Effect) -> None:
        wanted = lacking_right(table, effect, stages=not self._prepares)
        if wanted is not None:
            why = f"its database user lacks the privilege {wanted}"
            raise SinkFailed(sink=self.name, action="open", why=why, do=f"GRANT {wanted} TO <user>; then run again")

    # --- choosing the method -----------------------------------------------------------------------------------------

    def _obstacles(self, conn: Connection, context: SinkContext) -> Iterator[str]:
        """Yield each reason why Spark or the server prevents prepared transactions."""
        if str(context.spark.conf.get("spark.speculation", "false")).lower() == "true":
            yield "spark.speculation is on, and speculative tasks would leave prepared transactions behind"
        needed = 2 * self._parts  # for one attempt, and for an earlier one that is not removed yet
        row = conn.execute("SELECT current_setting('max_prepared_transactions')::int").fetchone()
        allowed = row[0] if row else 0
        if allowed < needed:
            yield f"the server's max_prepared_transactions is {allowed}, but {needed} are needed"

    def _explain(self, context: SinkContext, effect: Effect, obstacle: str | None) -> None:
        """Refuse a requested method that is not possible, or report once why the faster one is not used."""
        if obstacle is None:
            return
        if self._method == "prepared":
            do = "remove the obstacle, or use method='auto'"
            raise NotSupported(what=f"method='prepared' in sink {self.name!r}", why=obstacle, do=do)
        if self._method == "auto" and effect is Effect.APPEND and not self._explained:
            self._explained = True
            context.tell(f"sink {self.name!r} uses a staging table, not the faster prepared transactions: {obstacle}")

    # --- the epoch ---------------------------------------------------------------------------------------------------

    @property
    def _ready(self) -> OpenTarget:
        if self._opened is None:
            raise NotSupported(what=f"using sink {self.name!r}", why="it is not open", do="pass it to a stream")
        return self._opened

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Write the rows into prepared transactions or a staging table."""
        target = self._ready
        prepared = prepare_transactions(target, df, key) if self._prepares else prepare_stage(target, df, key)
        return Staged(handle=msgspec.to_builtins(prepared), rows=prepared.rows)

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Make an epoch visible, once.

        1. Take the lock: a second driver waits, and then finds the epoch in the ledger.
        2. An epoch in the ledger is already committed. One that was closed with another handle, or that does not follow
           the epoch that the decision names, is refused: two copies of one repository run.
        3. Move the rows, or commit their transactions.
        4. Close the epoch in the ledger: with the rows, or after the last part.
        5. Remove the tables and transactions of earlier epochs and of other attempts, outside the transaction: a task
           that outlived its attempt may still lock its table.
        """
        read = read_handle(handle)
        target = self._opened or self._committed(key.owner, read)
        with self._server.outside("commit") as other:
            with self._server.transaction("commit") as conn:
                _lock(conn, target.ledger.digest)  # 1
                held, place = target.ledger.held(conn, key), f"table {target.table.target}"
                if not is_committed(self, key, handle, held, place):  # 2
                    if isinstance(read, PreparedHandle):  # 3
                        commit_transactions(target, conn, other, key, read)
                    else:
                        commit_stage(target, conn, key, read)
                    target.ledger.close(conn, key, read.rows, base.handle_digest(handle), held.last.epoch)  # 4
            kept = set(read.gids) if isinstance(read, PreparedHandle) else {read.table}
            self._clear(
                other, target.ledger, lambda mark, name: mark.place <= key.place and name not in kept, _SWEEP_PATIENCE
            )  # 5

    def _committed(self, owner: StreamIdentity, handle: Handle) -> CommitTarget:
        """Return the input of a commit for a sink that is not open."""
        with self._server.transaction("commit") as conn:
            table = find_table(conn, self._table)
        if table is None:
            raise self._mismatch("it does not exist", "restore it")
        effect = handle.effect if isinstance(handle, StagedHandle) else Effect.APPEND
        return CommitTarget(
            sink=self.name,
            server=self._server,
            table=table,
            ledger=Ledger(table.schema, table.target, owner, self.name, effect is Effect.REPLACE),
            effect=effect,
            key=self._key,
            epoch_column=self._epoch_column,
            reach=self._reach,
        )

    def abort(self, key: EpochKey) -> None:
        """Remove the tables and transactions of one attempt: under its lease or, if that is `None`, under any."""
        with self._server.outside("abort") as conn:
            self._clear(conn, self._ready.ledger, lambda mark, _: mark.belongs_to(key), self._server.lock_timeout)

    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        """Return the last closed epoch, and a foreign owner if there is one. This works without `open`."""
        with self._server.transaction("inspect") as conn:
            table = find_table(conn, self._table)
            if table is None:
                return SinkPosition()
            replaces = self._opened is not None and self._opened.effect is Effect.REPLACE
            ledger = Ledger(table.schema, table.target, owner, self.name, replaces)
            if not ledger.exists(conn):
                return SinkPosition()
            last = ledger.last(conn, timeline)
            return SinkPosition(epoch=last[1] if last else 0, foreign=ledger.foreign(conn, share=self._share))

    # --- going back --------------------------------------------------------------------------------------------------

    def can_take_back(self, owner: StreamIdentity, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Return what would be moved aside, or why that is impossible."""
        with self._server.transaction("inspect") as conn:
            rewind = self._rewind(conn, owner)
            return TakeBack(0, 0, "") if rewind is None else rewind.found(conn, base)

    def cannot_be_taken_back(self) -> CannotTakeBack | None:
        """Rows that are appended need an epoch column; upserts can never be."""
        return cannot_with(self._effect(self.context.output_mode), self._epoch_column, share=self._share)

    def take_back(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Move the rows of later epochs to another table, in one transaction with the stamp."""
        self._go_back("be taken back", owner, into, lambda rewind, *two: rewind.take_back(*two, base, into))

    def put_back(self, owner: StreamIdentity, base: EpochPlace, into: int, taken: int) -> None:
        """Move the rows back that the rewind into the timeline `taken` set aside, in one transaction with the stamp."""
        self._go_back("be put back", owner, into, lambda rewind, *two: rewind.put_back(*two, base, into, taken))

    def set_aside(self, owner: StreamIdentity) -> list[base.RowsAside]:
        """Return the rows in the tables `holdfast_aside_…` of this sink."""
        with self._server.transaction("inspect") as conn:
            rewind = self._rewind(conn, owner)
            return [] if rewind is None else rewind.set_aside(conn)

    def discard_aside(self, owner: StreamIdentity, timeline: int) -> None:
        """Drop the table of a timeline."""
        with self._server.transaction("discard rows") as conn:
            rewind = self._rewind(conn, owner)
            if rewind is not None:
                rewind.discard(conn, timeline)

    def stamp(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Write the stamp, and remove what earlier timelines staged."""
        self._go_back("be stamped", owner, into, lambda rewind, *two: rewind.stamp(*two, base, into))

    def cannot_be_left(self, owner: StreamIdentity) -> str | None:
        """Rows that are appended again would violate a unique index."""
        del owner
        with self._server.transaction("inspect") as conn:
            table = find_table(conn, self._table)
        if self._key or table is None or not table.unique:
            return None
        return "its table has a unique or exclusion constraint or index, which rows that are written again may violate"

    def _go_back(
        self,
        action: str,
        owner: StreamIdentity,
        into: int,
        act: Callable[[TargetRewind, Connection, Connection], None],
    ) -> None:
        """1. Take the lock of commits.  2. Change rows and stamp in one transaction.  3. Remove what is staged."""
        with self._server.outside(action) as other:
            with self._server.transaction(action) as conn:
                rewind = self._rewind(conn, owner, create=True)
                if rewind is None:
                    return  # the table does not exist: no driver can commit to it either
                _lock(conn, rewind.ledger.digest)  # 1
                act(rewind, conn, other)  # 2
            self._reach("moved")
            self._clear(other, rewind.ledger, lambda mark, _: mark.place < (into, 0), _SWEEP_PATIENCE)  # 3

    def _rewind(self, conn: Connection, owner: StreamIdentity, *, create: bool = False) -> TargetRewind | None:
        """Return what a rewind does with the table; `None` if it does not exist, or has no ledger and needs none."""
        table = find_table(conn, self._table)
        if table is None:
            return None
        ledger = Ledger(table.schema, table.target, owner, self.name, replaces=False)
        if not create and not ledger.exists(conn):
            return None
        return TargetRewind(self.name, table, ledger, self._share, self._reach, self._server.lock_timeout)

    def _reach(self, point: str) -> None:
        if self._context is not None:
            self._context.reach(point)

    def _clear(self, conn: Connection, ledger: Ledger, selected: Selection, patience: float) -> None:
        clear(conn, ledger.schema, ledger.digest, selected, patience)


def _lock(conn: Connection, what: str) -> None:
    """Take an advisory lock until the end of the transaction, or fail after `lock_timeout`."""
    conn.execute("SELECT pg_advisory_xact_lock(%s)", [lock_number(what)])


def _checked_names(what: str, names: object) -> tuple[str, ...]:
    """Return column names that were passed as a str or a sequence."""
    if names is None:
        return ()
    listed = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Sequence) else ()
    if not listed or len(set(listed)) < len(listed) or not all(isinstance(name, str) and name for name in listed):
        raise BadValue(what=what, value=names, expected="the name of a column, or several different names")
    return listed

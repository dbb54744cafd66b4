"""A PostgreSQL table as a sink: every epoch in it once.

What an output mode does to the table:

| mode | with `key` | without | `changelog=True` |
|---|---|---|---|
| append | upsert | append | append |
| update | upsert | refused | append |
| complete | replace all | replace all | append |

Replacing is one transaction: until it is committed, everybody sees the result before.

How an epoch waits for its decision is told in `pgmethods.py`; what the server remembers, in `pgledger.py`; how
leftovers are named, in `pgnames.py`. A method that fails cleans nothing up: the next `abort` or `commit` does, by name.

Not promised:

- Parts of one epoch appear one after the other with prepared transactions, and together with a staging table.
- CHECK and FOREIGN KEY constraints, triggers and unique indexes other than the key's are met by a staging table's rows
  only at commit. The epoch is decided then: it is committed once the table is changed so that it takes the rows.
- Rows that other programs write into a table that is replaced are replaced too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec

from holdfast._validation import MAX_LENGTH, checked_positive, checked_seconds
from holdfast.errors import BadValue, NotSupported, SchemaMismatch, SinkFailed, SinkForeign
from holdfast.sinks.base import (
    OUTPUT_MODES,
    EpochKey,
    Link,
    Sink,
    SinkContext,
    SinkPosition,
    Staged,
    StreamIdentity,
    decided_elsewhere,
    handle_digest,
    is_past,
    refuse_mode,
)
from holdfast.sinks.postgres.column_types import StreamColumn, stream_columns
from holdfast.sinks.postgres.copying import require_extras
from holdfast.sinks.postgres.ledger import LEDGER, Ledger, is_known
from holdfast.sinks.postgres.methods import (
    PreparedHandle,
    Work,
    commit_stage,
    commit_transactions,
    prepare_stage,
    prepare_transactions,
    read_handle,
)
from holdfast.sinks.postgres.names import lock_number
from holdfast.sinks.postgres.server import Connection, Server
from holdfast.sinks.postgres.sweep import Doomed, clear
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Method: TypeAlias = Literal["auto", "prepared", "staged"]
"""How rows are kept until their epoch is decided; see `PostgresSink`."""
METHODS: tuple[Method, ...] = get_args(Method)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
_SWEEP_PATIENCE = 0.1  # seconds: what is in use now is swept after the next epoch


class PostgresSink(Sink):
    """Writes a stream into a PostgreSQL table, every epoch exactly once.

        hf.PostgresSink("host=db dbname=shop user=etl", table="totals", key=["day"])

    Output mode "append" inserts rows, or upserts them if there is a `key`; "update" needs a `key`; "complete" replaces
    the whole table in one transaction. The executors copy rows in bulk. Requires
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
    - `lock_timeout`: how many seconds a statement waits for a lock (30).
    - `name`: the sink's name in decisions, errors and checkpoints; by default made from the table.

    Which epochs are in the table is recorded in the same database, in `holdfast_epochs`. Not guaranteed: with
    "prepared", the parts of an epoch become visible one after the other. With "staged", a row that violates a CHECK, a
    foreign key or another unique index is found only after the epoch is decided: the stream then waits until the table
    accepts the row.
    """

    one_action = True

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
        lock_timeout: float | timedelta = 30,
        name: str | None = None,
    ) -> None:
        self._table = TableName.read(table)
        super().__init__(_default_name(self._table) if name is None else name)
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
        self._told = False
        self._work: Work | None = None
        self._prepares = False
        if method not in METHODS:
            raise BadValue(what="method", value=method, expected=f"one of {', '.join(METHODS)}")
        if epoch_column is not None:
            _checked_names("epoch_column", epoch_column)
        if self._key and changelog:
            raise BadValue(what="key", value=self._key, why="a changelog keeps every version, a key only the last one")

    def __repr__(self) -> str:
        return f"PostgresSink({str(self._table)!r}, name={self.name!r}, {self._server.shown or 'all defaults'})"

    # --- getting ready -----------------------------------------------------------------------------------------------

    def open(self, setting: SinkContext) -> None:
        """Reach the server, find or make table and ledger, check the columns, choose the method, claim the table."""
        super().open(setting)
        self._work = None
        require_extras()
        effect = self._effect(setting.output_mode)
        columns = stream_columns(self.name, setting.schema)
        self._refuse(unfit_names(columns, self._key, self._epoch_column))
        with self._server.transaction("open") as conn:
            _lock(conn, "open")  # two that make the same table at the same moment would get in each other's way
            table = self._found(conn, columns)
            self._refuse(misfits(table, columns, self._epoch_column))
            self._refuse(self._no_arbiter(table, effect))
            ledger = Ledger(table.schema, table.target, setting.owner, self.name, effect is Effect.REPLACE)
            ledger.create(conn)
            self._refuse_rival(conn, ledger)
            obstacle = next(chain(obstacles(table, columns, effect), self._obstacles(conn, setting)), None)
            self._prepares = self._method != "staged" and obstacle is None
            self._explain(setting, effect, obstacle)
            self._refuse_without_rights(table, effect)
            if ledger.foreign(conn, share=self._share) is None:  # else `inspect` tells whose it is
                ledger.claim(conn)
        self._work = Work(
            sink=self.name,
            server=self._server,
            table=table,
            ledger=ledger,
            effect=effect,
            columns=columns,
            key=self._key,
            epoch_column=self._epoch_column,
            parts=self._parts,
            reach=setting.reach,
        )

    def close(self) -> None:
        """Forget what `open` found."""
        super().close()
        self._work = None

    def _effect(self, output_mode: str) -> Effect:
        if output_mode not in OUTPUT_MODES:
            raise BadValue(what="output mode", value=output_mode, expected=f"one of {', '.join(OUTPUT_MODES)}")
        if output_mode == "complete" and not self._changelog:
            return Effect.REPLACE
        if self._key:
            return Effect.UPSERT
        refuse_mode(
            self, output_mode, self._changelog, "pass key=[...] so that a row takes the place of its last version"
        )
        return Effect.APPEND

    def _found(self, conn: Connection, columns: Sequence[StreamColumn]) -> Table:
        table = find_table(conn, self._table)
        if table is None and self._create:
            create_table(conn, self._table, columns, self._key, self._epoch_column)
            table = find_table(conn, self._table)
            if table is not None and is_known(conn, table.schema, table.target):
                # An empty table in its place would pass for one that holds all those epochs.
                raise self._mismatch(
                    f"it does not exist, and {LEDGER} says that it holds epochs",
                    f"bring it back, or, to begin with an empty one, delete the rows of {table.target} in {LEDGER}",
                )
        if table is None:
            raise self._mismatch("it does not exist", "create it, or pass create=True")
        if table.kind not in ("r", "p"):
            raise self._mismatch("it is not a table, but a view or something else")
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
            place = f"table {self._table}, which one of the two replaces as a whole,"
            raise SinkForeign(sink=self.name, place=place, owner=f"{rival} of this pipeline")

    def _refuse_without_rights(self, table: Table, effect: Effect) -> None:
        wanted = lacking_right(table, effect, stages=not self._prepares)
        if wanted is not None:
            why = f"its user lacks the right {wanted}"
            raise SinkFailed(sink=self.name, action="open", why=why, do=f"GRANT {wanted} TO that user, then run again")

    # --- choosing the method -----------------------------------------------------------------------------------------

    def _obstacles(self, conn: Connection, setting: SinkContext) -> Iterator[str]:
        """Say why neither Spark nor the server lets rows wait in prepared transactions."""
        if str(setting.spark.conf.get("spark.speculation", "false")).lower() == "true":
            yield "spark.speculation is on, and each task's twin would leave its transaction behind"
        needed = 2 * self._parts  # those of one attempt, and of one before it that is not cleared yet
        row = conn.execute("SELECT current_setting('max_prepared_transactions')::int").fetchone()
        allowed = row[0] if row else 0
        if allowed < needed:
            yield f"the server's max_prepared_transactions is {allowed}, and {needed} are needed"

    def _explain(self, setting: SinkContext, effect: Effect, obstacle: str | None) -> None:
        """Refuse the method that was asked for and cannot be, or tell once why the faster one is not taken."""
        if obstacle is None:
            return
        if self._method == "prepared":
            raise NotSupported(
                what=f"method='prepared' in sink {self.name!r}", why=obstacle, do="mend that, or leave method='auto'"
            )
        if self._method == "auto" and effect is Effect.APPEND and not self._told:
            self._told = True
            setting.tell(f"sink {self.name!r} uses a staging table, not the faster prepared transactions: {obstacle}")

    # --- the epoch ---------------------------------------------------------------------------------------------------

    @property
    def _ready(self) -> Work:
        if self._work is None:
            raise NotSupported(what=f"sink {self.name!r}", why="it is not open", do="give it to a stream")
        return self._work

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Write the rows where nobody sees them."""
        work = self._ready
        prepared = prepare_transactions(work, df, key) if self._prepares else prepare_stage(work, df, key)
        return Staged(handle=msgspec.to_builtins(prepared), rows=prepared.rows)

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Make an epoch visible, once.

        1. One driver at a time: the other waits, and then finds the epoch in the ledger.
        2. An epoch that the ledger holds is done already. One that was closed with another handle, or that does not
           follow the epoch that the decision names, is refused: two copies of one repository are run.
        3. Move the rows, or commit their transactions.
        4. Close the epoch in the ledger: with the rows, or after the last part.
        5. Sweep what earlier epochs and other attempts left. That is apart from the commit: a task that outlived its
           attempt may still hold its table.
        """
        work, read, digest = self._ready, read_handle(handle), handle_digest(handle)
        with self._server.outside("commit") as other:
            with self._server.transaction("commit") as conn:
                _lock(conn, work.ledger.digest)
                if not self._is_done(conn, work, key, digest):
                    if isinstance(read, PreparedHandle):
                        commit_transactions(work, conn, other, key, read)
                    else:
                        commit_stage(work, conn, key, read)
                    work.ledger.close(conn, key, read.rows, digest)
            kept = set(read.gids) if isinstance(read, PreparedHandle) else {read.table}
            self._clear(other, lambda mark, name: mark.place <= key.place and name not in kept, _SWEEP_PATIENCE)

    def _is_done(self, conn: Connection, work: Work, key: EpochKey, digest: str) -> bool:
        """Whether the table holds the epoch; raise where another copy of the repository wrote it, or the one before."""
        last = work.ledger.last(conn)
        if last is not None and last[0] > key.timeline:
            return True
        place = f"table {work.table.target}"
        own = work.ledger.closed(conn, key.place)
        if own is not None:
            if own.handle not in (None, digest):
                raise decided_elsewhere(self, key, place)
            return True
        held = work.ledger.closed(conn, last) if last is not None and last[0] == key.timeline else None
        return is_past(self, key, held or Link(0, None), place)

    def abort(self, key: EpochKey) -> None:
        """Clear what one attempt left, under its lease or, without one, under any."""
        with self._server.outside("abort") as conn:
            self._clear(conn, lambda mark, _: mark.belongs_to(key), self._server.lock_timeout)

    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        """Tell the last epoch that is there as a whole, and who else claims the table; also without `open`."""
        with self._server.transaction("inspect") as conn:
            table = find_table(conn, self._table)
            if table is None:
                return SinkPosition()
            replaces = self._work is not None and self._work.effect is Effect.REPLACE
            ledger = Ledger(table.schema, table.target, owner, self.name, replaces)
            if not ledger.exists(conn):
                return SinkPosition()
            last = ledger.last(conn, timeline)
            return SinkPosition(epoch=last[1] if last else 0, foreign=ledger.foreign(conn, share=self._share))

    def _clear(self, conn: Connection, doomed: Doomed, patience: float) -> None:
        work = self._ready
        clear(conn, work.table.schema, work.ledger.digest, doomed, patience)


def _lock(conn: Connection, what: str) -> None:
    """Keep others out until the end of the transaction, or fail after `lock_timeout`."""
    conn.execute("SELECT pg_advisory_xact_lock(%s)", [lock_number(what)])


def _default_name(table: TableName) -> str:
    return f"postgres.{_NOT_IN_NAMES.sub('-', str(table))}"[:MAX_LENGTH]


def _checked_names(what: str, names: object) -> tuple[str, ...]:
    """Return the names of columns, given as one or several."""
    if names is None:
        return ()
    listed = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Sequence) else ()
    if not listed or len(set(listed)) < len(listed) or not all(isinstance(name, str) and name for name in listed):
        raise BadValue(what=what, value=names, why="a name of a column is due, or several different ones")
    return listed

"""The copy from Arrow into PostgreSQL: in each task on the executors, or in the driver, in one transaction each.

Spark may retry a task although its first attempt has completed without the driver knowing. So each task attempt draws a
nonce, and returns it to the driver as its last output, after the server has all rows. Rows of a task attempt whose
nonce did not reach the driver never become visible:

- `into_stage`: the rows have the nonce in a column of the staging table, and only the returned nonces are selected at
  commit. One table per attempt burdens the catalog less than one per task, and a task that outlives its attempt finds
  that the table is gone.
- `into_prepared`: the transaction is prepared under a name that ends in the nonce, and only the returned names are
  committed. The rows go directly into the user's table, whose columns may be altered while the stream runs. A binary
  COPY accepts any eight bytes as a value of eight bytes. So the types are compared with those at the time of `open`,
  after the rows and before the transaction is prepared: from the first row on, its lock prevents an ALTER TABLE.

A task without rows opens no connection. No error raised here contains a password: Spark logs the text.

The ADBC driver reads the server's whole catalog before its first connection: tens of milliseconds, and more with many
tables. So a process caches the result (`_server`). A task opens one connection (`connected`), the driver keeps its own
(`driver_copy.py`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, TypeAlias

from holdfast._redaction import REDACTED, redacted_text
from holdfast.errors import MissingExtra, SinkFailed, SinkUnavailable
from holdfast.sinks.postgres.names import Mark, nonce

PART_COLUMN = "holdfast_part"
RESULT = "part string, rows bigint, bytes bigint"
COPYING = "copy rows"
# Two-phase commit needs commits that are on disk when the server reports them. A stronger setting, such as waiting for
# a replica, is left unchanged.
KEEP_COMMITS = "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
_TEMPORARY = re.compile(
    r"starting up|shutting down|recovery mode|not yet accepting|too many (?:connections|clients)|connection slots"
    r"|terminating connection"
)
Copier: TypeAlias = Callable[[Iterator[Any]], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Address:
    """The connection string of a server and the secrets in it. Neither is ever shown."""

    conninfo: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    def error_text(self, error: BaseException) -> str:
        """Return the text of an error on one line, without secrets."""
        text = " ".join(str(error).split()) or type(error).__name__
        for secret in self.secrets:
            text = text.replace(secret, REDACTED)
        return redacted_text(text)


@dataclass(frozen=True, slots=True)
class CopyTask:
    """The input of a task: the target, its columns, and columns with the same value in all rows."""

    sink: str
    address: Address
    schema: str
    table: str
    columns: tuple[str, ...]
    lock_timeout: int  # milliseconds
    constants: tuple[tuple[str, int], ...] = ()
    types: tuple[tuple[str, str], ...] = ()  # of the columns at the time of `open`; empty for a staging table
    types_query: str = ""  # SQL that selects the current types of all columns
    idle_timeout: int | None = None  # milliseconds between two statements; None: as the server is configured


Connect: TypeAlias = "Callable[[CopyTask], AbstractContextManager[Any]]"
"""Returns an ADBC connection in a new transaction, for the block of a `with` statement."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The amount of data that one transaction has copied."""

    rows: int
    bytes: int  # as Arrow


NEEDED = ("pyarrow", "adbc_driver_postgresql", "pandas")  # mapInArrow requires pandas, though it is not used here


def require_extras() -> None:
    """Raise `MissingExtra` for a package that the tasks need: on the driver, before the first epoch."""
    for module in NEEDED:
        if find_spec(module) is None:
            raise MissingExtra(extra="postgres", module=module)


@contextmanager
def connected(task: CopyTask) -> Iterator[Any]:
    """Run a block with a new connection, which is closed at its end."""
    with new_connection(task) as connection:
        begin(connection, task)
        yield connection


def new_connection(task: CopyTask) -> Any:
    """Return a new ADBC connection."""
    import adbc_driver_manager as driver  # noqa: PLC0415 - an extra

    return driver.AdbcConnection(_server(task.address.conninfo))


def begin(connection: Any, task: CopyTask) -> None:
    """Begin a transaction. Its statements must see changes that were committed after it began: see `_require_types`."""
    idle = task.idle_timeout
    settings = (
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
        f"SET LOCAL lock_timeout = {task.lock_timeout:d}",
        *([] if idle is None else [f"SET LOCAL idle_in_transaction_session_timeout = {idle:d}"]),
        KEEP_COMMITS,
    )
    connection.set_autocommit(False)
    _execute(connection, "; ".join(settings))


def into_stage(task: CopyTask, connect: Connect = connected) -> Copier:
    """Return the function that a task runs to fill a staging table."""

    def copy(batches: Iterator[Any]) -> Iterator[Any]:
        number = nonce()

        def finish(connection: Any, rows: int) -> None:
            del rows
            connection.commit()

        yield from _returned(str(number), _copied(task, connect, batches, ((PART_COLUMN, number),), finish))

    return copy


def into_prepared(task: CopyTask, mark: Mark, record: str, connect: Connect = connected) -> Copier:
    """Return the function that a task runs to prepare a transaction.

    `record` is the SQL that inserts its ledger row; the parameters are gid and rows.
    """

    def copy(batches: Iterator[Any]) -> Iterator[Any]:
        gid = mark.gid(nonce())

        def finish(connection: Any, rows: int) -> None:
            _require_types(connection, task)
            _execute(connection, record, gid, rows)
            _execute(connection, f"PREPARE TRANSACTION '{gid}'")

        yield from _returned(gid, _copied(task, connect, batches, task.constants, finish))

    return copy


def _returned(part: str, copied: Copied | None) -> Iterator[Any]:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if copied:
        yield pa.RecordBatch.from_pydict({"part": [part], "rows": [copied.rows], "bytes": [copied.bytes]})


def _copied(
    task: CopyTask,
    connect: Connect,
    batches: Iterator[Any],
    constants: tuple[tuple[str, int], ...],
    finish: Callable[[Any, int], None],
) -> Copied | None:
    """Copy all rows in one transaction and finish it; return `None` if there are none."""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return None
    import adbc_driver_manager as driver  # noqa: PLC0415 - an extra, and for tasks with rows only

    try:
        with connect(task) as connection:
            copied = _ingested(connection, task, itertools.chain([first], filled), constants)
            finish(connection, copied.rows)
    except driver.Error as error:
        _server.cache_clear()  # after any error, the next task reads the catalog again
        # The server's text, not the exception: exceptions that ADBC chains may contain the connection string.
        outage = is_outage(error, operational=isinstance(error, driver.OperationalError))
        raise copy_failed(task.sink, task.address.error_text(error), outage=outage) from None
    return copied


@lru_cache(maxsize=8)
def _server(conninfo: str) -> Any:
    """Return the ADBC driver's view of a server: its address and its types. It holds no open connection.

    It treats a type that was created later as the type of the rows, which may be wrong: see `_require_types`.
    """
    import adbc_driver_postgresql  # noqa: PLC0415 - an extra

    return adbc_driver_postgresql.connect(conninfo)


def _require_types(connection: Any, task: CopyTask) -> None:
    """Refuse rows that were copied into columns whose types have changed since `open`."""
    import adbc_driver_manager as driver  # noqa: PLC0415 - an extra
    import pyarrow as pa  # noqa: PLC0415

    with driver.AdbcStatement(connection) as statement:
        statement.set_sql_query(task.types_query)
        stream, _ = statement.execute_query()
        found = pa.RecordBatchReader.from_stream(stream).read_all()
    names, types = (column.to_pylist() for column in found.columns)
    if why := changed_type(task.types, dict(zip(names, types, strict=True))):
        _server.cache_clear()
        raise copy_failed(task.sink, why)


def changed_type(before: Iterable[tuple[str, str]], now: Mapping[str, str]) -> str | None:
    """Return an error text for the first column whose type has changed since the sink was opened."""
    for name, was in before:
        if now.get(name) != was:
            return f"column {name!r} of the table was {was} when the stream started, and is now {now.get(name)}"
    return None


def _execute(connection: Any, statement: str, *values: Any) -> None:
    import adbc_driver_manager as driver  # noqa: PLC0415 - an extra
    import pyarrow as pa  # noqa: PLC0415

    with driver.AdbcStatement(connection) as prepared:
        prepared.set_sql_query(statement)
        if values:
            prepared.prepare()
            prepared.bind(pa.RecordBatch.from_pylist([{str(n): value for n, value in enumerate(values)}]))
        prepared.execute_update()


def copy_failed(sink: str, why: str, *, outage: bool = False) -> SinkFailed:
    """Return the error of a task; the driver raises the same one."""
    if outage:
        return SinkUnavailable(sink=sink, action=COPYING, why=why)
    do = "fix the cause in the rows, the table or the server, then run again: nothing of the epoch is visible yet"
    return SinkFailed(sink=sink, action=COPYING, why=why, do=do)


def is_outage(error: BaseException, *, operational: bool) -> bool:
    """Whether an error means that the server cannot be reached, is shutting down, or lacks resources.

    It is decided by SQLSTATE if the server sent one: classes 08 (connection) and 53 (resources), 57P (shutdown), 58030
    (I/O) and 25P03 (idle in a transaction for too long: the server closes the connection of a suspended driver). A
    failed connection attempt has none: it raises an `operational` error. Then a message from the server (FATAL) is a
    rejection, such as of a password or a database, unless the server is starting, stopping or full. Any other message
    is a network error.
    """
    state = getattr(error, "sqlstate", None)
    if state and state != "00000":
        return str(state).startswith(("08", "53", "57P")) or state in ("25P03", "58030")
    text = str(error)
    return operational and ("FATAL" not in text or _TEMPORARY.search(text) is not None)


def _ingested(
    connection: Any, task: CopyTask, batches: Iterable[Any], constants: tuple[tuple[str, int], ...]
) -> Copied:
    import adbc_driver_manager as driver  # noqa: PLC0415 - an extra
    import pyarrow as pa  # noqa: PLC0415

    sent = size = 0

    def widened() -> Iterator[Any]:
        nonlocal sent, size
        for batch in batches:
            wide = batch.rename_columns(list(task.columns))
            for name, value in constants:
                wide = wide.append_column(name, pa.repeat(pa.scalar(value, pa.int64()), batch.num_rows))
            sent += batch.num_rows
            size += batch.nbytes
            yield wide

    stream = widened()
    first = next(stream)
    reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], stream))
    options = driver.StatementOptions
    with driver.AdbcStatement(connection) as statement:
        statement.set_options(
            **{
                options.INGEST_TARGET_TABLE.value: task.table,
                options.INGEST_TARGET_DB_SCHEMA.value: task.schema,
                options.INGEST_MODE.value: driver.INGEST_OPTION_MODE_APPEND,
            }
        )
        statement.bind_stream(reader)
        taken = statement.execute_update()
    if taken not in (sent, -1):  # -1: the driver did not count
        raise copy_failed(task.sink, f"{sent} rows were sent, but the server stored {taken}")
    return Copied(sent, size)

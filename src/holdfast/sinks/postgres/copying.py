"""The executors' side: one task copies its rows into PostgreSQL, in one transaction, straight from Arrow.

A task may be tried again, and its forerunner may have come to its end unheard. So each task attempt draws a nonce, and
tells it to the driver only with its last output, after the server has all rows. What the driver never heard of is never
made visible:

- `into_stage`: the rows carry the nonce in a column of the staging table, and only the nonces that were heard are
  selected at commit. One table an attempt is less for the catalog to bear than one a task, and a task that outlives its
  attempt finds the table gone.
- `into_prepared`: the transaction is prepared under a name that ends in the nonce, and only names that were heard are
  committed. The rows go straight into the user's table, which somebody may alter while the stream runs: a binary COPY
  takes any eight bytes for a value of eight bytes. So the types are compared with those that the sink was opened for,
  after the rows and before the transaction is prepared: from the first row on it holds a lock that keeps them.

A task without rows opens no connection. Nothing that is raised here holds a password: its text goes to Spark's log.

The driver reads the server's whole catalog before it connects for the first time: tens of milliseconds, and more the
more tables there are. So a Python worker keeps what was read (`_server`), and makes a connection a task.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, TypeAlias

from holdfast._redaction import REDACTED, redacted_text
from holdfast.errors import MissingExtra, SinkFailed, SinkUnavailable
from holdfast.sinks.postgres.names import Mark, nonce

try:
    import pyarrow as pa
except ModuleNotFoundError as _error:
    raise MissingExtra(extra="postgres", module="pyarrow") from _error

PART_COLUMN = "holdfast_part"
RESULT = "part string, rows bigint"
COPYING = "copy rows"
# A commit that the server tells of before it is on disk is worth nothing to two-phase commit. A stronger setting, such
# as waiting for a replica, is left alone.
KEEP_COMMITS = "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
_PASSING = re.compile(
    r"starting up|shutting down|recovery mode|not yet accepting|too many (?:connections|clients)|connection slots"
    r"|terminating connection"
)
Copier: TypeAlias = Callable[[Iterator[Any]], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is. Neither the string nor what is secret in it is shown."""

    conninfo: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    def told(self, error: BaseException) -> str:
        """Return an error's text in one line, without secrets."""
        text = " ".join(str(error).split()) or type(error).__name__
        for secret in self.secrets:
            text = text.replace(secret, REDACTED)
        return redacted_text(text)


@dataclass(frozen=True, slots=True)
class Task:
    """What a task is told: where to, which columns, and those that have the same value in all rows."""

    sink: str
    address: Address
    schema: str
    table: str
    columns: tuple[str, ...]
    lock_timeout: int  # milliseconds
    constants: tuple[tuple[str, int], ...] = ()
    types: tuple[tuple[str, str], ...] = ()  # of the columns, as the sink was opened for them; none for our own table
    types_query: str = ""  # the SQL that tells those of all columns now


def require_extras() -> None:
    """Raise `MissingExtra` for what the tasks will need; better the driver says it, before the first epoch."""
    needed = ("adbc_driver_postgresql", "pandas")  # Spark's mapInArrow insists on pandas, and does not use it here
    for module in needed:
        if find_spec(module) is None:
            raise MissingExtra(extra="postgres", module=module)


def into_stage(task: Task) -> Copier:
    """Return what a task does for a staging table."""

    def copy(batches: Iterator[Any]) -> Iterator[Any]:
        number = nonce()

        def finish(connection: Any, rows: int) -> None:
            del rows
            connection.commit()

        rows = _copied(task, batches, ((PART_COLUMN, number),), finish)
        yield from _heard(str(number), rows)

    return copy


def into_prepared(task: Task, mark: Mark, record: str) -> Copier:
    """Return what a task does for a prepared transaction; `record` is the SQL of its ledger row, of gid and rows."""

    def copy(batches: Iterator[Any]) -> Iterator[Any]:
        gid = mark.gid(nonce())

        def finish(connection: Any, rows: int) -> None:
            _require_types(connection, task)
            _execute(connection, record, gid, rows)
            _execute(connection, f"PREPARE TRANSACTION '{gid}'")

        rows = _copied(task, batches, task.constants, finish)
        yield from _heard(gid, rows)

    return copy


def _heard(part: str, rows: int) -> Iterator[Any]:
    if rows:
        yield pa.RecordBatch.from_pydict({"part": [part], "rows": [rows]})


def _copied(
    task: Task,
    batches: Iterator[Any],
    constants: tuple[tuple[str, int], ...],
    finish: Callable[[Any, int], None],
) -> int:
    """Copy all rows in one transaction and finish it; return how many there were."""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return 0
    import adbc_driver_manager as driver  # noqa: PLC0415 - an extra, and for tasks with rows only

    try:
        with driver.AdbcConnection(_server(task.address.conninfo)) as connection:
            connection.set_autocommit(False)
            _execute(connection, f"SET LOCAL lock_timeout = {task.lock_timeout:d}")
            _execute(connection, KEEP_COMMITS)
            rows = _ingested(connection, task, itertools.chain([first], filled), constants)
            finish(connection, rows)
    except driver.Error as error:
        _server.cache_clear()  # whatever it was, the next task asks the server anew
        # The server's text, not the exception: what ADBC chains may hold the connection string.
        outage = is_outage(error, operational=isinstance(error, driver.OperationalError))
        raise copy_failed(task.sink, task.address.told(error), outage=outage) from None
    return rows


@lru_cache(maxsize=8)
def _server(conninfo: str) -> Any:
    """Return what the driver knows of a server: where it is, and its types. It holds no connection.

    It writes a type that is made later as if it were that of the rows, which may be wrong: see `_require_types`.
    """
    import adbc_driver_postgresql  # noqa: PLC0415 - an extra

    return adbc_driver_postgresql.connect(conninfo)


def _require_types(connection: Any, task: Task) -> None:
    """Refuse rows that went into columns of other types than they were made for."""
    import adbc_driver_manager as driver  # noqa: PLC0415 - an extra

    with driver.AdbcStatement(connection) as statement:
        statement.set_sql_query(task.types_query)
        stream, _ = statement.execute_query()
        found = pa.RecordBatchReader.from_stream(stream).read_all()
    names, types = (column.to_pylist() for column in found.columns)
    if why := changed_type(task.types, dict(zip(names, types, strict=True))):
        _server.cache_clear()
        raise copy_failed(task.sink, why)


def changed_type(before: Iterable[tuple[str, str]], now: Mapping[str, str]) -> str | None:
    """Say which column has another type than when the sink was opened."""
    for name, was in before:
        if now.get(name) != was:
            return f"column {name!r} of the table was {was} when the stream began, and is {now.get(name)} now"
    return None


def _execute(connection: Any, statement: str, *values: Any) -> None:
    import adbc_driver_manager as driver  # noqa: PLC0415 - an extra

    with driver.AdbcStatement(connection) as prepared:
        prepared.set_sql_query(statement)
        if values:
            prepared.prepare()
            prepared.bind(pa.RecordBatch.from_pylist([{str(n): value for n, value in enumerate(values)}]))
        prepared.execute_update()


def copy_failed(sink: str, why: str, *, outage: bool = False) -> SinkFailed:
    """Return the error of a task, as the driver raises it too."""
    if outage:
        return SinkUnavailable(sink=sink, action=COPYING, why=why)
    do = "mend what it says of the rows, the table or the server, then run again: nothing of the epoch is visible yet"
    return SinkFailed(sink=sink, action=COPYING, why=why, do=do)


def is_outage(error: BaseException, *, operational: bool) -> bool:
    """Whether a driver's error says that the server cannot be reached, is shutting down, or lacks resources.

    By SQLSTATE where the server gave one: classes 08 (connection) and 53 (resources), 57P (shutdown), 58030 (I/O) and
    25P03 (idle in a transaction for too long: the server closes the connection of a driver that was suspended).
    A connection that could not be made has none: its error is an `operational` one. Then a message of the server
    (FATAL) is a refusal, such as of a password or a database, unless it says that the server is starting, stopping or
    full. Any other message is a network error.
    """
    state = getattr(error, "sqlstate", None)
    if state and state != "00000":
        return str(state).startswith(("08", "53", "57P")) or state in ("25P03", "58030")
    text = str(error)
    return operational and ("FATAL" not in text or _PASSING.search(text) is not None)


def _ingested(connection: Any, task: Task, batches: Iterable[Any], constants: tuple[tuple[str, int], ...]) -> int:
    import adbc_driver_manager as driver  # noqa: PLC0415 - an extra

    sent = 0

    def widened() -> Iterator[Any]:
        nonlocal sent
        for batch in batches:
            wide = batch.rename_columns(list(task.columns))
            for name, value in constants:
                wide = wide.append_column(name, pa.repeat(pa.scalar(value, pa.int64()), batch.num_rows))
            sent += batch.num_rows
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
        raise copy_failed(task.sink, f"{sent} rows were sent and {taken} were taken")
    return sent

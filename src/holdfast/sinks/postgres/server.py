"""A PostgreSQL server: connections, transactions, and errors without secrets.

Rules:
- The connection string is parsed once and never shown. Errors name host, port, user and database.
- Every transaction is `READ COMMITTED`, regardless of the default of the role: after waiting for a lock, the next
  statement must see the changes that the other driver has committed.
- An operation has a connection of its own, which is kept for the next operation (`kept.py`). After an error it is
  closed instead: that rolls back, and so does a crash.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from holdfast._redaction import REDACTED, redacted
from holdfast.errors import BadValue, MissingExtra, SinkFailed, SinkUnavailable
from holdfast.sinks.postgres.copying import KEEP_COMMITS, Address, is_outage
from holdfast.sinks.postgres.kept import KeptConnections

try:
    import psycopg
    from psycopg import conninfo, sql
except ModuleNotFoundError as _error:
    raise MissingExtra(extra="postgres", module="psycopg") from _error

# The other modules of this sink import psycopg from here, so that a missing package raises `MissingExtra`.
__all__ = ["Connection", "Server", "finish_prepared", "psycopg", "sql"]
Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
_SHOWN = ("host", "hostaddr", "port", "user", "dbname")
_DEFAULTS = {
    "connect_timeout": "10",
    "fallback_application_name": "holdfast",
    # A connection to a server that no longer responds fails after a minute; TCP alone would wait for hours.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",  # milliseconds
}
_ALSO_IN_PLACE = ("user", "options", "service", "servicefile")  # they may change which table a name refers to
_RETRY_PAUSE = 0.02
_KEPT = 2  # a commit needs one connection inside and one outside a transaction
_PING = "SELECT 1"


class Server:
    """The server of a sink's table, and how to connect to it."""

    def __init__(self, sink: str, dsn: object, lock_timeout: float) -> None:
        params = _parsed(dsn)
        hidden = {name for name, value in redacted(params).items() if value != params[name]}
        public = {value for name, value in params.items() if name not in hidden}
        self.sink = sink
        self.lock_timeout = lock_timeout
        shown = [name for name in _SHOWN if name in params and name not in hidden]
        self.shown = " ".join(f"{name}={params[name]}" for name in shown)
        database = [f"{name}={params[name]}" for name in shown if name != "user"]
        self.place = " ".join([*database, *_other_places(params)])
        # A password that equals a public value, such as the user name, is not replaced: it is shown as that value.
        secrets = tuple(params[name] for name in hidden if params[name] and params[name] not in public)
        self.address = Address(conninfo.make_conninfo("", **(_DEFAULTS | params)), secrets)
        self.kept: KeptConnections[Connection] = KeptConnections(_end, _KEPT)

    @property
    def lock_milliseconds(self) -> int:
        """How long a statement waits for a lock, in milliseconds."""
        return max(1, int(self.lock_timeout * 1000))

    @property
    def idle_milliseconds(self) -> int:
        """How long a transaction of the driver may wait for the driver, in milliseconds.

        The locks of a paused driver, or of one whose machine is down, expire while the next driver still waits.
        """
        return max(1, self.lock_milliseconds // 2)

    def connect(self) -> Connection:
        """Return a new connection in autocommit mode; raise `SinkFailed`, which names the server, if that fails."""
        try:
            # Named prepared statements do not work through a connection pool such as PgBouncer.
            return psycopg.connect(self.address.conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            why, kind = self.address.error_text(error), _kind(error)
        raise kind(
            sink=self.sink,
            action=f"connect to PostgreSQL ({self.shown or 'all defaults'})",
            why=why,
            do="check the server, its address, the user and the password; then run again",
        )

    @contextmanager
    def transaction(self, action: str) -> Iterator[Connection]:
        """Run a block in one transaction, which is committed at its end."""
        begin = (
            "BEGIN ISOLATION LEVEL READ COMMITTED",
            f"SET LOCAL lock_timeout = {self.lock_milliseconds:d}",
            f"SET LOCAL idle_in_transaction_session_timeout = {self.idle_milliseconds:d}",
            KEEP_COMMITS,
        )
        with self.doing(action), self._borrowed("; ".join(begin)) as conn:
            yield conn
            conn.execute("COMMIT")

    @contextmanager
    def outside(self, action: str) -> Iterator[Connection]:
        """Run a block in autocommit mode."""
        with self.doing(action), self._borrowed(_PING) as conn:
            yield conn

    @contextmanager
    def _borrowed(self, first: str) -> Iterator[Connection]:
        """Run a block with a connection on which the statement `first` has succeeded; it must have no effect."""
        conn = self._started(first)
        try:
            yield conn
        except BaseException:
            self.kept.end(conn)
            self.kept.drop()
            raise
        if conn.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
            self.kept.put(conn)
        else:
            self.kept.end(conn)

    def _started(self, first: str) -> Connection:
        conn = self.kept.take()
        if conn is not None:
            try:
                conn.execute(first)
            except psycopg.Error:  # it is dead
                self.kept.end(conn)
                self.kept.drop()
            else:
                return conn
        conn = self.connect()
        try:
            conn.execute(first)
        except BaseException:
            self.kept.end(conn)
            raise
        return conn

    @contextmanager
    def doing(self, action: str) -> Iterator[None]:
        """Raise errors from psycopg as `SinkFailed`."""
        try:
            yield
        except psycopg.Error as error:
            raise self.failed(action, error) from None

    def failed(self, action: str, error: psycopg.Error) -> SinkFailed:
        """Return the error to raise instead of psycopg's."""
        failure = _kind(error)(sink=self.sink, action=action, why=self.address.error_text(error))
        if isinstance(error, psycopg.errors.LockNotAvailable):
            failure.do = (
                "end the session that holds the lock (see pg_locks), or pass a longer lock_timeout; then run again"
            )
        elif isinstance(error, psycopg.IntegrityError | psycopg.DataError):
            failure.do = "change the table so that it accepts these rows, then run again: the epoch resumes"
        return failure


def _end(conn: Connection) -> None:
    conn.close()


def _kind(error: psycopg.Error) -> type[SinkFailed]:
    """Return the class of the error to raise instead of psycopg's."""
    outage = is_outage(error, operational=isinstance(error, psycopg.OperationalError))
    return SinkUnavailable if outage else SinkFailed


def finish_prepared(conn: Connection, verb: str, gid: str, patience: float) -> bool:
    """`COMMIT` or `ROLLBACK` a prepared transaction; return whether there was one.

    If another session is finishing or still preparing it, it is busy: then this is tried again for `patience` seconds.
    """
    statement = sql.SQL(f"{verb} PREPARED {{}}").format(sql.Literal(gid))
    deadline = time.monotonic() + patience
    while True:
        try:
            conn.execute(statement)
        except psycopg.errors.UndefinedObject:
            return False
        except psycopg.errors.ObjectNotInPrerequisiteState:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_PAUSE)
        else:
            return True


def _parsed(dsn: object) -> dict[str, str]:
    """Return the parts of a connection string. psycopg's error is not shown: it contains the string."""
    why = "it is not a str"
    if isinstance(dsn, str):
        try:
            return {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items() if value is not None}
        except psycopg.Error:
            why = "libpq cannot parse it"
    raise BadValue(
        what="dsn",
        value=REDACTED,
        why=why,
        do="pass key=value pairs, or a postgresql:// URL with %-escapes for special characters",
    )


def _other_places(params: Mapping[str, str]) -> Iterator[str]:
    """Yield a digest of the other parameters that distinguish two places: some of them must not be shown."""
    found = {name: params[name] for name in _ALSO_IN_PLACE if name in params}
    if found:
        yield f"#{hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:8]}"

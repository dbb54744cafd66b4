"""A PostgreSQL server as one sink sees it: connections, and errors that hold no secrets.

- The connection string is parsed once; what it holds is never shown. Errors name host, port, user and database.
- Every transaction is `READ COMMITTED`, whatever the role's default is: after waiting for a lock, the next statement
  must see what the other driver committed meanwhile.
- A connection an operation. To drop one is to roll back, which is also what a crash does.
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

try:
    import psycopg
    from psycopg import conninfo, sql
except ModuleNotFoundError as _error:
    raise MissingExtra(extra="postgres", module="psycopg") from _error

# The other files of this sink take psycopg from here, where it is missed with the right error.
__all__ = ["Connection", "Server", "finish_prepared", "psycopg", "sql"]
Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
_SHOWN = ("host", "hostaddr", "port", "user", "dbname")
_DEFAULTS = {
    "connect_timeout": "10",
    "fallback_application_name": "holdfast",
    # A server that is gone without a word is given up after a minute; TCP alone would wait for hours.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",  # milliseconds
}
_ELSEWHERE = ("user", "options", "service", "servicefile")  # what else may say which table a name is
_RETRY_PAUSE = 0.02


class Server:
    """Where a sink's table is, and how to get there."""

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
        # A password that is also the user's name gives nothing away where it is read as a name.
        secrets = tuple(params[name] for name in hidden if params[name] and params[name] not in public)
        self.address = Address(conninfo.make_conninfo("", **(_DEFAULTS | params)), secrets)

    @property
    def lock_milliseconds(self) -> int:
        """How long a statement waits for a lock."""
        return max(1, int(self.lock_timeout * 1000))

    def connect(self, autocommit: bool = False) -> Connection:
        """Return a new connection, or raise `SinkFailed` saying where to."""
        try:
            # Named statements would not survive a pool between us and the server.
            conn = psycopg.connect(self.address.conninfo, autocommit=autocommit, prepare_threshold=None)
        except psycopg.Error as error:
            why, kind = self.address.told(error), _kind(error)
        else:
            conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            return conn
        raise kind(
            sink=self.sink,
            action=f"connect to PostgreSQL ({self.shown or 'all defaults'})",
            why=why,
            do="check the server, its address, the user and the password; then run again",
        )

    @contextmanager
    def transaction(self, action: str) -> Iterator[Connection]:
        """Run a block in one transaction, committed at its end."""
        with self.doing(action), self.connect() as conn:
            conn.execute(f"SET LOCAL lock_timeout = {self.lock_milliseconds:d}")
            # A driver that is paused, or whose machine is gone, lets go of its locks while the next one still waits.
            conn.execute(f"SET LOCAL idle_in_transaction_session_timeout = {max(1, self.lock_milliseconds // 2):d}")
            conn.execute(KEEP_COMMITS)
            yield conn

    @contextmanager
    def outside(self, action: str) -> Iterator[Connection]:
        """Run a block whose statements are each their own transaction."""
        with self.doing(action), self.connect(autocommit=True) as conn:
            yield conn

    @contextmanager
    def doing(self, action: str) -> Iterator[None]:
        """Turn psycopg's errors into `SinkFailed`."""
        try:
            yield
        except psycopg.Error as error:
            raise self.failed(action, error) from None

    def failed(self, action: str, error: psycopg.Error) -> SinkFailed:
        """Return the error to raise in place of psycopg's."""
        failure = _kind(error)(sink=self.sink, action=action, why=self.address.told(error))
        if isinstance(error, psycopg.errors.LockNotAvailable):
            failure.do = (
                "end what holds the lock (see pg_locks), or give the sink a longer lock_timeout; then run again"
            )
        elif isinstance(error, psycopg.IntegrityError | psycopg.DataError):
            failure.do = "change the table so that it takes these rows, then run again: the epoch goes on where it was"
        return failure


def _kind(error: psycopg.Error) -> type[SinkFailed]:
    """Return which error to raise in place of psycopg's."""
    outage = is_outage(error, operational=isinstance(error, psycopg.OperationalError))
    return SinkUnavailable if outage else SinkFailed


def finish_prepared(conn: Connection, verb: str, gid: str, patience: float) -> bool:
    """`COMMIT` or `ROLLBACK` a prepared transaction; return whether there was one.

    Another session may be at it, or still be preparing it: it is busy for a moment then, and is asked for again.
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
    """Return the parts of a connection string. psycopg's own error would show it."""
    why = "it is not a str"
    if isinstance(dsn, str):
        try:
            return {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items() if value is not None}
        except psycopg.Error:
            why = "libpq cannot read it"
    raise BadValue(
        what="dsn",
        value=REDACTED,
        why=why,
        do="give key=value pairs, or a postgresql:// address with %-escapes for special characters",
    )


def _other_places(params: Mapping[str, str]) -> Iterator[str]:
    """Give a digest of what else tells two places apart: it may hold more than is to be shown."""
    told = {name: params[name] for name in _ELSEWHERE if name in params}
    if told:
        yield f"#{hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]}"

"""The copy of a small epoch: the driver collects its rows as Arrow, and copies them over a kept connection.

For a small epoch, starting a Python worker per task and a connection per task costs more than the copy. Rules:

- One Spark job computes the rows and returns them to the driver, which copies them. If a task has more than
  `MOST_BYTES`, it stops there, the driver drops what it was given, and the executors copy the rows. There are at most
  as many tasks as connections of the executors.
- The first job is then wasted work, so this is done only if the previous epoch was small. Each time that an epoch was
  too large, the sink stops trying for twice as many epochs, up to a limit. This is a forecast: it affects the duration
  of a copy, never its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.sinks.postgres.copying import CopyTask, begin, new_connection
from holdfast.sinks.postgres.kept import KeptConnections

MOST_BYTES = 4 << 20  # of a task, and of the epoch before
_LONGEST_PAUSE = 64  # epochs
_KEPT = 1


@dataclass(frozen=True, slots=True)
class Part:
    """The rows that one transaction has copied."""

    name: str
    rows: int
    bytes: int


class Forecast:
    """Whether the next epoch is expected to be small: of at most `most_rows` rows, and of `MOST_BYTES`."""

    def __init__(self, most_rows: int, last: int | None) -> None:
        self._most_rows = most_rows
        self._small = last is not None and last <= most_rows  # the epoch before
        self._pause = 1  # epochs after one that was too large
        self._left = 0

    def is_small(self) -> bool:
        """Whether to let the driver collect the next epoch."""
        if self._left:
            self._left -= 1
            return False
        return self._small and self._most_rows > 0

    def correct(self) -> None:
        """Record that an epoch was too large to be collected."""
        self._left = self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def record(self, parts: Iterable[Part], *, collected: bool) -> None:
        """Record the size of an epoch that was copied."""
        listed = list(parts)
        rows, size = sum(part.rows for part in listed), sum(part.bytes for part in listed)
        self._small = rows <= self._most_rows and size <= MOST_BYTES
        if collected:
            self._pause = 1


class DriverConnections:
    """The driver's own ADBC connection, kept from one epoch to the next."""

    def __init__(self) -> None:
        self.kept: KeptConnections[Any] = KeptConnections(_end, _KEPT)

    @contextmanager
    def connect(self, task: CopyTask) -> Iterator[Any]:
        """Run a block with a connection in a new transaction, which the block ends."""
        connection = self._begun(task)
        try:
            yield connection
            connection.set_autocommit(True)
        except BaseException:
            self.kept.end(connection)
            self.kept.drop()
            raise
        if _is_idle(connection):
            self.kept.put(connection)
        else:
            self.kept.end(connection)

    def _begun(self, task: CopyTask) -> Any:
        import adbc_driver_manager as driver  # noqa: PLC0415 - an extra

        connection = self.kept.take()
        if connection is not None:
            try:
                begin(connection, task)
            except driver.Error:  # it is dead; nothing was changed
                self.kept.end(connection)
            else:
                return connection
        connection = new_connection(task)
        try:
            begin(connection, task)
        except BaseException:
            self.kept.end(connection)
            raise
        return connection


def _is_idle(connection: Any) -> bool:
    """Whether the server has no open transaction on this connection."""
    import adbc_driver_postgresql  # noqa: PLC0415 - an extra

    status = adbc_driver_postgresql.ConnectionOptions.TRANSACTION_STATUS.value
    return bool(connection.get_option(status) == "idle")


def _end(connection: Any) -> None:
    connection.close()

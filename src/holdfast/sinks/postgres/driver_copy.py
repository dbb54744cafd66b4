"""The copy of a small epoch: the driver collects its rows as Arrow, and copies them over a kept connection.

For a small epoch, starting a Python worker per task and a connection per task costs more than the copy. Rules:

- One Spark job computes the rows, keeps them, and returns them to the driver, which copies them. If they are too large
  for the driver, it drops what it was given, and the executors copy the rows that were kept.
- What a task returns is bounded. Row n of a task is too large if it is wider than `WIDEST_ROW`, or if n rows of its
  size would be larger than `MOST_BYTES`. Its values of variable length are not returned. Rows with a number above
  `MOST_BYTES / _ROW` are not returned at all. There are at most as many tasks as connections of the executors.
- Keeping a large epoch is wasted work, so this is done only if the previous epoch was small. Each time that an epoch
  was too large, the sink stops trying for twice as many epochs, up to a limit. This is a forecast: it affects the
  duration of a copy, never its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from holdfast.sinks.postgres.copying import CopyTask, begin, new_connection
from holdfast.sinks.postgres.kept import KeptConnections
from holdfast.sinks.rows import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

MOST_BYTES = 4 << 20
WIDEST_ROW = 8 << 10
_LONGEST_PAUSE = 64  # epochs
_KEPT = 1
_NUMBER, _FITS = "number", "fits"
_IN_PARTITION = (1 << 33) - 1  # the bits of Spark's increasing id that count the rows of a partition
_ROW = 40  # bytes of a row, besides those of its values of variable length
_VARIABLE = ("string", "char", "varchar", "binary")
_ELEMENT = 16  # bytes of an element of an array, besides the bytes of a text


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


class Collector:
    """Collects rows in the driver, for DataFrames with one schema."""

    def __init__(self, schema: StructType, tasks: int) -> None:
        self._schema = schema
        self._tasks = tasks

    @cached_property
    def _steps(self) -> tuple[list[Column], Column, list[Column]]:
        """The numbered columns, the condition on the number of a row, and the columns to collect.

        They are built once: each of them takes several calls to the JVM.
        """
        from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

        number = f.monotonically_increasing_id().bitwiseAND(f.lit(_IN_PARTITION)).alias(_NUMBER)
        numbered = [f.col(quoted(each.name)).alias(f"c{at}") for at, each in enumerate(self._schema.fields)]
        values = [(f.col(f"c{at}"), each.dataType) for at, each in enumerate(self._schema.fields)]
        width = sum((found for value, kind in values if (found := _width(value, kind)) is not None), f.lit(0))
        before = f.col(_NUMBER)
        fits = (width <= WIDEST_ROW) & ((width + _ROW) * (before + 1) <= MOST_BYTES)
        collected = [
            (value if _width(value, kind) is None else f.when(fits, value)).alias(f"c{at}")
            for at, (value, kind) in enumerate(values)
        ]
        return [*numbered, number], before <= MOST_BYTES // _ROW, [*collected, fits.alias(_FITS)]

    def collect(self, df: DataFrame) -> Sequence[Any] | None:
        """Return the rows as Arrow batches, or `None` if they are too large for the driver; in one Spark job."""
        import pyarrow.compute as pc  # noqa: PLC0415 - an extra

        numbered, few, columns = self._steps
        found = df.coalesce(self._tasks).select(*numbered).where(few).select(*columns).toArrow()
        if pc.all(found[_FITS]).as_py() is False:
            return None
        batches: Sequence[Any] = found.drop_columns([_FITS]).combine_chunks().to_batches()
        return batches


def _width(value: Column, kind: DataType) -> Column | None:
    """Return the size in bytes of a value of variable length; `None` if all values of this type are small."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    zero = f.lit(0).cast("long")
    if kind.typeName() == "array":
        element: Any = kind.elementType
        if element.typeName() not in _VARIABLE:
            return f.coalesce(f.size(value).cast("long") * _ELEMENT, zero)
        length: Callable[[Column, Column], Column] = lambda total, each: (  # noqa: E731
            total + f.coalesce(f.octet_length(each).cast("long"), zero) + _ELEMENT
        )
        return f.coalesce(f.aggregate(value, zero, length), zero)
    if kind.typeName() in _VARIABLE:
        return f.coalesce(f.octet_length(value).cast("long"), zero)
    return None


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

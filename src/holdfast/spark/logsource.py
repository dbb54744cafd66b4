"""An event log as a Spark source: streams are chained through it, and a batch query reads its current content.

An offset is `{"log": uid, "sequence": the next one to read, "chain": 16 hex digits}`. The chain is a digest of the
whole history before that sequence, so a log that was rolled back and continued differently is detected.

Rules:
- A new stream begins with the first event that is kept. One that needs events that were removed gets `LogTrimmed`.
- Only events that the head counts are read. Cancelled ranges are skipped, and so are those that a rewind abandoned. If
  the stream has read such a range before the rewind, `LogRewound` is raised.
- Each segment is checked against its digest before any of its events is returned.
- Another log at the same path, one that ends before the offset, or one with another history is refused: `LogDiverged`.
- A partition is a run of whole segments, or of parts at the ends of an epoch, and contains their facts: executors read
  segments and `log.json`, and no index.

Not done: a segment is never split between partitions, because each reader of a part must check the whole segment.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from holdfast._validation import checked_positive, checked_u64
from holdfast.errors import BadValue, LogDiverged, LogRewound, LogTrimmed
from holdfast.eventlog._files import SEGMENTS, read_about, read_schema, read_segment
from holdfast.eventlog.index import Segment
from holdfast.eventlog.keeping import read_floor
from holdfast.eventlog.log import EventLog
from holdfast.formats.decoding import Undecodable, converted
from holdfast.repository.files import hadoop_address, local_path
from holdfast.sinks.log_types import arrow_of, spark_of
from holdfast.spark import adapter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "holdfast_log"
SEQUENCE = "sequence"
_PATH = "path"
_MAX_ROWS = "maxRowsPerTrigger"
_PARTITIONS = "partitions"
_DEFAULT_PARTITIONS = 8
_CHAIN_DIGITS = 16
_BATCH_ROWS = 32_768

_loading = threading.Lock()


def read_log_stream(
    spark: SparkSession, path: str | os.PathLike[str], *, rows_per_epoch: int | None = None
) -> DataFrame:
    """Return an event log as a streaming DataFrame, from the first event on that is kept.

    Columns: sequence, scope, entity, category, type, clock if the log has one, payload. `rows_per_epoch` is the most
    rows that one epoch reads. The log must exist. Not guaranteed on Spark 4.1: that a plain query with the trigger
    availableNow reads all available events; it ends after one epoch. A pipeline reads all of them.
    """
    folder = local_path("event log", path)
    spark_schema(folder)  # an error here is clearer than Spark's own
    reader = spark.readStream.format(FORMAT).option(_PATH, str(folder))
    reader = reader.option(_PARTITIONS, str(spark.sparkContext.defaultParallelism))
    if rows_per_epoch is not None:
        reader = reader.option(_MAX_ROWS, str(checked_positive("rows per epoch", rows_per_epoch)))
    with _loading:
        # Each reader registers the source again: two queries with the same registration share a map in the JVM, which
        # one of them may change while the tasks of the other are serialised.
        adapter.let_replace_sources(spark)
        spark.dataSource.register(LogSource)
        return reader.load()


def read_log(
    spark: SparkSession, path: str | os.PathLike[str], *, start: int | None = None, end: int | None = None
) -> DataFrame:
    """Return the events from `start`, or from the first one that is kept, to before `end`, or to the current tail.

    The result is a batch DataFrame. Raises `LogTrimmed` if the events at `start` were removed. Spark reads the segments
    itself, and only the requested columns and rows; therefore digests are not checked. Events that a rewind has taken
    back are left out.
    """
    log = EventLog.open(path)
    floor = read_floor(log.path)
    if start is not None and checked_u64("start", start) < floor:
        raise LogTrimmed(path=str(log.path), sequence=start, floor=floor)
    start = floor if start is None else start
    end = log.tail if end is None else min(checked_u64("end", end), log.tail)
    lowest = next((each.first for each in log.segments(start, end)), end)
    columns = spark_schema(log.path)
    first = StructField("first", LongType())
    segments = hadoop_address(log.path / SEGMENTS)
    files = spark.read.schema(StructType([*columns.fields[1:], first])).parquet(segments)
    sequence = (f.col("first") + f.col("_metadata.row_index")).alias(SEQUENCE)
    events = files.where(f.col("first").between(lowest, end - 1)).select(sequence, "first", *columns.names[1:])
    events = events.where((f.col(SEQUENCE) >= start) & (f.col(SEQUENCE) < end))
    for first, after in abandoned_in(log, start, end):
        events = events.where(~f.col("first").between(first, after - 1))
    return events.drop("first")


def abandoned_in(log: EventLog, start: int, end: int) -> list[tuple[int, int]]:
    """Return the half-open ranges that a rewind has abandoned, between two sequences; adjacent ranges are merged."""
    found: list[tuple[int, int]] = []
    for each in log.ranges() if log.rewinds else ():
        if log.is_abandoned(each) and each.first < end and each.first + each.count > start:
            adjacent = found and found[-1][1] == each.first
            found.append((found.pop()[0] if adjacent else each.first, each.first + each.count))
    return found


def uid_of(path: str | os.PathLike[str]) -> str:
    """Return the uid of an event log."""
    return read_about(local_path("event log", path)).uid


def spark_schema(folder: Path) -> StructType:
    """Return the columns of a log as Spark types; raise if the log cannot be read."""
    schema = read_schema(read_about(folder), folder)
    columns = [StructField(each.name, spark_of(each.type), each.nullable) for each in schema]
    return StructType([StructField(SEQUENCE, LongType(), nullable=False), *columns])


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a segment: its rows from `start` to before `stop`."""

    segment: Segment
    start: int
    stop: int


class SegmentRun(InputPartition):  # type: ignore[misc] # pyspark's classes are skipped by the type checker
    """Consecutive pieces: the input of one task."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = list(pieces)


class LogSource(DataSource):  # type: ignore[misc]
    """The format `holdfast_log`. Options: path, maxRowsPerTrigger, partitions (the most per epoch)."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the log's columns."""
        return spark_schema(_folder(self.options))

    def streamReader(self, schema: StructType) -> LogReader:  # noqa: N802 - Spark's name
        """Return the reader; it opens the log on first use."""
        limit = _integer(self.options, _MAX_ROWS, None)
        partitions = _integer(self.options, _PARTITIONS, _DEFAULT_PARTITIONS)
        return LogReader(_folder(self.options), schema, limit, partitions or _DEFAULT_PARTITIONS)


class _Offset(msgspec.Struct):
    """An offset as this source passes it to Spark."""

    log: str
    sequence: int
    chain: str


class LogReader(adapter.LimitedReader):  # type: ignore[misc]
    """Reports the end of the log to Spark, and reads it. The methods that Spark calls are those of its base class."""

    def __init__(self, folder: Path, schema: StructType, limit: int | None, partitions: int) -> None:
        self._folder = folder
        self._schema = schema
        self.rows_per_batch = limit
        self._partitions = partitions
        self._target: int | None = None
        self._opened: EventLog | None = None

    # --- on the driver ---

    def first_offset(self) -> dict[str, Any]:
        """Return the offset at which a new stream begins: the first event that is kept."""
        return self._offset(read_floor(self._folder))

    def last_offset(self) -> dict[str, Any]:
        """Return the tail."""
        return self._offset(self._log.refresh())

    def end_here(self) -> None:
        """Read up to the current tail, and no further."""
        self._target = self._log.refresh()

    def end_after(self, start: dict[str, Any], rows: int | None) -> dict[str, Any]:
        """Return the end of the next epoch: the tail, or the offset at which the limit is reached."""
        begin = self.position(start)
        end = self._log.tail if self._target is None else min(self._target, self._log.tail)
        if rows is not None:
            end = self._limited(begin, end, rows)
        return start if end <= begin else self._offset(end)

    def inputs_between(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Divide the segments between two offsets into runs of about equal numbers of rows."""
        pieces = list(self._pieces(self.position(start), self.position(end)))
        return [SegmentRun(run) for run in in_runs(pieces, self._partitions)]

    def _limited(self, begin: int, end: int, rows: int) -> int:
        for piece in self._pieces(begin, end):
            count = piece.stop - piece.start
            if count >= rows:
                return piece.segment.first + piece.start + rows
            rows -= count
        return end

    def _pieces(self, begin: int, end: int) -> Iterator[Piece]:
        for each in self._log.segments(begin, end):
            yield Piece(each, max(begin - each.first, 0), min(end - each.first, each.count))

    @property
    def _log(self) -> EventLog:
        if self._opened is None:
            self._opened = EventLog.open_end(self._folder)
        return self._opened

    def _offset(self, sequence: int) -> dict[str, Any]:
        return {"log": self._log.identity, SEQUENCE: sequence, "chain": self._chain(sequence)}

    def _chain(self, sequence: int) -> str:
        chain = self._log.chain_at(sequence - 1) if sequence else None
        return "" if chain is None else chain.hex()[:_CHAIN_DIGITS]

    def position(self, offset: dict[str, Any]) -> int:
        """Return the sequence of an offset; raise if this log does not have the history of the offset."""
        try:
            at = converted(offset, _Offset)
        except Undecodable as error:
            raise LogDiverged(path=str(self._folder), sequence=0, why=f"its offset cannot be read: {error}") from error
        sequence, tail = at.sequence, self._log.refresh()
        if at.log != self._log.identity:
            why = f"the offset is of log {at.log}, and this is log {self._log.identity}"
        elif sequence > tail:
            why = f"the log ends before sequence {tail}"
        elif at.chain != self._chain(sequence):
            why = "the log was rolled back since then and has other events"
        else:
            self._refuse_rewound(sequence)
            return sequence
        raise LogDiverged(path=str(self._folder), sequence=sequence, why=why)

    def _refuse_rewound(self, sequence: int) -> None:
        """Raise if a rewind of the log's writer has changed events before this sequence, which the stream has read."""
        changed = self._log.changed_before(sequence)
        if changed is not None:
            raise LogRewound(
                path=str(self._folder),
                reader="the stream",
                position=sequence - 1,
                changed=changed,
                do="rewind its pipeline to a checkpoint before that, or read the log with a stream of another name",
            )

    # --- on the executors ---

    def read(self, partition: SegmentRun) -> Iterator[pa.RecordBatch]:
        """Yield the events of a run, checked."""
        schema = read_schema(read_about(self._folder), self._folder)
        target = pa.schema([_field(each) for each in self._schema.fields])
        for piece in partition.pieces:
            table = read_segment(self._folder, piece.segment, schema).slice(piece.start, piece.stop - piece.start)
            first = piece.segment.first + piece.start
            table = table.add_column(0, SEQUENCE, _numbers(first, table.num_rows)).cast(target)
            yield from table.to_batches(_BATCH_ROWS)


def in_runs(pieces: Sequence[Piece], most: int) -> list[list[Piece]]:
    """Divide pieces into at most `most` runs of about equal numbers of rows."""
    rows = sum(piece.stop - piece.start for piece in pieces)
    runs: list[list[Piece]] = []
    done = 0
    for piece in pieces:
        if not runs or done * most >= len(runs) * rows:
            runs.append([])
        runs[-1].append(piece)
        done += piece.stop - piece.start
    return runs


def _numbers(first: int, count: int) -> pa.Array:
    """Return consecutive integers. `pa.array` would import pandas first, which takes a worker some time."""
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(array("q", range(first, first + count)))])


def _field(column: StructField) -> pa.Field:
    return pa.field(column.name, arrow_of(column.dataType, column.name), column.nullable)


def _folder(options: dict[str, str]) -> Path:
    if _PATH not in options:
        raise BadValue(what="option", value=_PATH, why="it is missing", do='set it: .option("path", ...)')
    return local_path("event log", options[_PATH])


def _integer(options: dict[str, str], name: str, otherwise: int | None) -> int | None:
    if name not in options:
        return otherwise
    text = options[name]
    return checked_positive(f"option {name}", int(text) if text.isdecimal() else text)

"""What a task on an executor does for an event log on an object store: it writes its rows as one object.

Rules:
- Each task attempt has a name of its own, `<partition>-<task attempt>.parquet`. So a repeated task, or a speculative
  one, never shares an object with another.
- The task returns the name, rows, size and SHA-256 of the object after the store has confirmed it. Spark passes on only
  what a successful task attempt returns, so an object that is not in the handle never becomes a segment.
- A task without rows writes nothing.
- Only the address of the log travels to the executors. Credentials come from each machine's own environment.
- The rows are written to a temporary file first: a partition may be larger than the memory of a task.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import OutcomeUnknown, SinkFailed, SinkUnavailable, StorageFailed, StoreUnreachable
from holdfast.eventlog.segment import schema_from_text
from holdfast.eventlog.store_home import StoreHome

RESULT = "part int, name string, rows bigint, bytes bigint, sha256 string"
RESULT_SCHEMA = pa.schema(
    [
        ("part", pa.int32()),
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("sha256", pa.string()),
    ]
)
STAGING = "write a segment"
_GROUP_BYTES = 64 << 20  # of rows in memory, per row group


@contextlib.contextmanager
def failing_store(sink: str, action: str) -> Iterator[None]:
    """Raise errors of the store as those of a sink."""
    try:
        yield
    except (StorageFailed, OutcomeUnknown) as error:
        away = any(isinstance(each, StoreUnreachable) for each in (error, error.__cause__))
        raise (SinkUnavailable if away else SinkFailed)(sink=sink, action=action, why=error.summary) from error


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """Writes the rows of one partition. It is sent to the executors, and contains no secrets."""

    sink: str
    address: str  # of the log
    prefix: str  # of the attempt, inside the log
    schema: str  # of the log, as `schema_to_text` returns it

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all rows, then return one row about the object."""
        from pyspark import TaskContext  # noqa: PLC0415 - only executors need it

        context = TaskContext.get()
        part, attempt = (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
        yield from self.write(batches, part, attempt)

    def write(self, batches: Iterator[pa.RecordBatch], part: int, attempt: int) -> Iterator[pa.RecordBatch]:
        """Do the same for a partition and a task attempt of these numbers."""
        name = segment_name(part, attempt)
        with tempfile.NamedTemporaryFile(prefix="holdfast-", suffix=".parquet") as file:
            rows = _written(file, batches, _nullable(schema_from_text(self.schema)))
            if not rows:
                return
            size, digest = Path(file.name).stat().st_size, _sha256(Path(file.name))
            with failing_store(self.sink, STAGING):
                StoreHome(self.address).repository.put_file(f"{self.prefix}/{name}", Path(file.name))
        found = {"part": part, "name": name, "rows": rows, "bytes": size, "sha256": digest}
        yield pa.RecordBatch.from_pylist([found], schema=RESULT_SCHEMA)


def segment_name(part: int, attempt: int) -> str:
    """Return the name of the object that a task attempt writes."""
    return f"{part:05}-{attempt}.parquet"


def _written(file: IO[bytes], batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write the rows as Parquet, in large row groups, and return their number."""
    rows = 0
    waiting: list[pa.RecordBatch] = []
    with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            if sum(each.nbytes for each in waiting) >= _GROUP_BYTES:
                writer.write_table(_table(waiting, schema))
                waiting = []
        if any(each.num_rows for each in waiting):
            writer.write_table(_table(waiting, schema))
    file.flush()
    return rows


def _table(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(batches).select(schema.names).cast(schema)


def _nullable(schema: pa.Schema) -> pa.Schema:
    """Return the columns without the rule that they contain no nulls: rows that break it are counted and reported."""
    return pa.schema([field.with_nullable(True) for field in schema])


def _sha256(path: Path) -> str:
    with path.open("rb") as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()

"""Writing to an event log on a local disk: atomic appends, and aborts that leave a cancelled range.

Rules:
- The steps of an append are segment, index, head, each synced before the next; writing the head commits the append.
- An append that a crash interrupted leaves no cancelled range: the next writer that opens the log drops everything
  after the head, which no reader has seen, and assigns its sequences again.
- An append makes the folder of its first sequence durable before it creates another one. So if there is no folder at
  the tail, there are no leftovers after it, and neither opening a log nor appending has to list the folders.
- A log is never cut: a rewind is a record that names the ranges that readers must skip from then on.
- One process writes at a time: opening a writer takes an OS lock. A failure from the index step on halts the writer
  until the log is opened again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast._validation import checked_positive
from holdfast.epoch import Reach
from holdfast.errors import LogCorrupt, OutcomeUnknown, StorageFailed
from holdfast.eventlog._files import (
    HEAD,
    INDEX,
    SEGMENTS,
    find_head,
    index_bytes,
    mark_rewound,
    read_about,
    read_head,
    read_schema,
    read_stored,
    sync_head,
    truncate_durably,
    write_head,
)
from holdfast.eventlog.appending import AdoptPlan, Appender, RangePlan, StagedSegment
from holdfast.eventlog.index import CHAIN, Cancelled, Committed, Range, RangeDamaged, Rewound, Segment, decode, encode
from holdfast.eventlog.segment import to_parquet
from holdfast.repository import FileBlocks, files
from holdfast.repository.files import local_path

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LogWriter", "StagedSegment"]

_FOLDER = re.compile(r"first=\d{20}")


class LogWriter(Appender):
    """The only writer of a log on a local disk. Close it, or use it as a context manager.

    Threads may share a writer: calls of `append`, `cancel`, `adopt` and `close` wait for one another. While an append
    of several steps is open, every other append raises `AppendOpen`, in all threads. Processes may not share a writer:
    opening a second one raises `Locked`, and using the parent's writer in a forked child raises `Closed`.

    Not guaranteed: an order among the appends of different threads.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path = local_path("event log", path)
        super().__init__(str(path), read_schema(read_about(path), path))
        read_head(path)  # report a damaged head before any other problem
        self._blocks = FileBlocks.open(path / HEAD, f"the writer lock of event log {path}")
        self._index = -1
        try:
            sync_head(path)  # the previous writer may have been killed before it synced the head
            self._stored = read_stored(path)
            self._found = find_head(self._blocks, path)
            self._drop_undecided()
            with files.failing_as("open", str(path)):
                files.sweep_temporaries(path)
                self._index = os.open(path / INDEX, os.O_RDWR | os.O_CLOEXEC)
        except BaseException:
            self.close()
            raise

    @property
    def tail(self) -> int:
        """The next sequence that will be assigned."""
        return self._stored.tail

    @property
    def _held(self) -> bool:
        return self._index >= 0 and self._blocks.held

    def _release(self) -> None:
        if self._index >= 0:
            os.close(self._index)
            self._index = -1
        self._blocks.close()

    def _rewind(self, key: str, plan: RangePlan, mark: str) -> int | None:
        """1. Make `log.json` version 2: programs that do not know such records refuse the log.  2. Record it."""
        del mark  # the end of the index shows the last keys
        planned = plan()
        if planned is None:
            return None
        abandoned, restored = planned
        self._clear()
        mark_rewound(self.path)  # 1
        return self._record(Rewound(self.tail, 1, key, tuple(abandoned), tuple(restored))).start  # 2

    def _cancel(self, count: int, why: str) -> range:
        cancelled = Cancelled(self.tail, count, why)
        self._clear()
        return self._record(cancelled)

    def _adopt(self, plan: AdoptPlan, key: str, reach: Reach, mark: str) -> range | None:
        """1. Link each file into the folder of its first sequence.  2. Make the names durable.  3. Record the range."""
        del mark  # the end of the index shows the last keys
        staged = plan()
        if staged is None:
            return None
        segments: list[Segment] = []
        at = first = self.tail
        self._clear()
        with files.failing_as("append to", str(self.path)):
            for each in staged:
                name = f"{_folder(at)}/{each.path.name}"
                self._link(each.path, self.path / name, durably=at == first)  # 1
                segments.append(Segment(name, at, checked_positive("count", each.count), each.size, each.sha256))
                at += each.count
            if not segments:
                return range(first, first)
            files.sync_all([*[(self.path / each.path).parent for each in segments], self.path / SEGMENTS])  # 2
        reach("committing")
        return self._record(Committed(first, at - first, tuple(segments), key))  # 3

    def _link(self, source: Path, target: Path, *, durably: bool) -> None:
        if durably:
            files.make_folder(target.parent)
        else:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(target.parent)  # for example, of a log that was copied while it was being written
            target.parent.mkdir()
        files.link_or_copy(source, target)

    def _commit(self, table: pa.Table) -> range:
        """Make a table visible: segment, then its range. A failure before the index step leaves the log unchanged."""
        data = to_parquet(table)
        first = self.tail
        self._clear()
        name = f"{_folder(first)}/{uuid.uuid4().hex}.parquet"
        path = self.path / name
        try:
            with files.failing_as("append to", str(self.path)):
                files.make_folder(path.parent)
                files.replace_durably(path, data, name)
        except OutcomeUnknown as error:  # only the segment is unknown; no record refers to it, so the log is unchanged
            raise StorageFailed(action="append to", key=str(self.path), why=error.why) from error
        segment = Segment(name, first, table.num_rows, len(data), hashlib.sha256(data).digest())
        return self._record(Committed(first, table.num_rows, (segment,)))

    def _record(self, range_: Range) -> range:
        """1. Append the record to the index and sync it.  2. Commit it by writing the head, synced.

        A failure here halts the writer: only the head on disk shows whether the range is committed.
        """
        record, after = encode(range_, self._stored.head)
        head = self._stored.followed_by(after)
        self._halted = True
        with files.failing_as("append to", str(self.path), unknown=True):
            os.lseek(self._index, self._stored.length, os.SEEK_SET)
            files.write_all(self._index, record)  # 1
            os.fdatasync(self._index)
        try:
            self._found = write_head(self._blocks, head, self._found)  # 2
        except Exception as error:
            raise OutcomeUnknown(action="append to", key=str(self.path), why=str(error)) from error
        self._stored = head
        self._halted = False
        return range(range_.first, range_.first + range_.count)

    def _clear(self) -> None:
        """Remove the leftovers of a failed or interrupted append at the tail and after it, the first folder last.

        They were never visible in the log, but a program that reads the folders as plain Parquet would see them.
        """
        first = self.path / _folder(self.tail)
        with files.failing_as("append to", str(self.path)):
            if not first.exists():
                return
            for folder in first.parent.iterdir():
                if _FOLDER.fullmatch(folder.name) and folder.name > first.name:
                    shutil.rmtree(folder)
            files.sync_folder(first.parent)
            shutil.rmtree(first)

    def _drop_undecided(self) -> None:
        """Truncate the record that a crashed append left after the head; no reader has seen it.

        A crash leaves at most one record. Several complete ones were once committed, so the head is outdated. The
        records that the head counts must exist, so that nothing is appended to a truncated index. The last chain is a
        digest of all of them, so only the chain is read.
        """
        head = self._stored.head
        last, rest = _end_of_index(self.path, head.length)
        if head.length and last != head.chain:
            raise LogCorrupt(path=str(self.path), part=INDEX, why="it does not end with the last record of its head")
        complete = 0
        with contextlib.suppress(RangeDamaged):
            for _ in decode(rest, head):
                complete += 1
        if complete > 1:
            why = f"it counts {head.records} records, but {complete} more complete records follow"
            raise LogCorrupt(path=str(self.path), part=HEAD, why=why)
        if rest:
            with files.failing_as("open", str(self.path)):
                truncate_durably(self.path / INDEX, head.length)


def _folder(first: int) -> str:
    return f"{SEGMENTS}/first={first:020}"


def _end_of_index(folder: Path, length: int) -> tuple[bytes, bytes]:
    """Return the last chain before byte `length`, and the bytes after it."""
    data = index_bytes(folder, max(length - CHAIN, 0))
    return data[: min(length, CHAIN)], data[CHAIN if length else 0 :]

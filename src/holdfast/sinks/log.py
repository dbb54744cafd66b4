"""The event log as a sink: a stream's rows become events, appended once, in one global sequence.

Spark writes an attempt as Parquet next to the log, with the columns of a segment. `commit` links those files into the
log as segments, and makes them visible with one record of the index.

Rules:
- `commit` assigns the sequence numbers, not `prepare`: an aborted attempt leaves no gap.
- The index is the ledger: `_log_ranges.py` describes the keys of its records.
- The log is never cut. A rewind appends one record, whose key is the stamp. It names the ranges of later epochs, which
  readers skip. An undo appends another one that restores them. The segments stay where they are: a program that reads
  them as plain Parquet sees abandoned events too.
- The log has one owner, recorded in `owner.key` in its folder.
- The writer lock is held for one commit only: a paused driver does not block the next one.
- An event's payload is a struct of all columns of the stream, under their own names.
- Events of one Spark partition keep their order; partitions follow one another by number.
- An epoch without rows leaves no trace.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import (
    AlreadyExists,
    BadValue,
    Locked,
    LogMissing,
    OutcomeUnknown,
    RecordCorrupt,
    SinkFailed,
    SinkForeign,
    StorageFailed,
    StreamChanged,
)
from holdfast.eventlog._files import read_about, read_head, sync_head
from holdfast.eventlog.keeping import set_keep
from holdfast.eventlog.log import EventLog
from holdfast.eventlog.region import checked_kind_part
from holdfast.eventlog.segment import schema_of
from holdfast.eventlog.writer import LogWriter, StagedSegment
from holdfast.formats.sealed_json import Record, digest_of
from holdfast.policy import seconds_of
from holdfast.repository.files import local_path
from holdfast.sinks import base
from holdfast.sinks._log_events import EventColumns, payload_type
from holdfast.sinks._log_ranges import (
    RangeBounds,
    abandoned_ranges,
    append_key,
    later_ranges,
    latest_timeline,
    place_in,
    stamp_key,
)
from holdfast.sinks.base import (
    CannotTakeBack,
    EpochKey,
    EpochPlace,
    Link,
    SinkContext,
    Staged,
    StreamIdentity,
    TakeBack,
    failing,
)
from holdfast.sinks.files.epoch_folders import KeyRecord
from holdfast.sinks.held_epochs import HeldEpochs, is_committed
from holdfast.sinks.owners import claim, owner_of, position_in
from holdfast.sinks.staged_files import (
    StagedCheck,
    digests,
    key_record,
    proven,
    refuse_file,
    require_seen_by_all,
    stage,
)
from holdfast.sinks.staging import SUFFIX, Staging
from holdfast.sinks.taking_back import refuse_outdated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

SEGMENTS_FILE = "_segments.key"
_SHAPE = "an event log"
_LOCK_WAIT_S = 10.0
_LOCK_PAUSE_S = 0.01
_PART = re.compile(r"part-.*\.parquet")


class StagedFile(msgspec.Struct, frozen=True):
    """A file that becomes a segment."""

    name: str
    rows: int
    size: int
    sha256: str


class SegmentsRecord(Record, frozen=True, kw_only=True):
    """The files of an attempt that become segments, in the order of their sequence numbers."""

    segments: list[StagedFile]


class LogSink(base.Sink):
    """Appends a stream's rows to an event log, every epoch exactly once; the log is created if it does not exist.

        hf.LogSink("out/log", entity="order_id", category=1)

    Each row becomes an event whose payload is a struct of all columns. Other streams read the log with
    `pipeline.read(...)` or `hf.read_log_stream(...)`; `hf.eventlog.EventLog`, cursors and workers read it without
    Spark. All events of an epoch become visible at once and get consecutive sequence numbers then.

    - `path`: the log's folder, on a local disk or on a file system that every machine mounts. One stream owns it.
    - `entity`, `scope`, `clock`: columns with each event's entity, scope and entity clock. Without them the entity is
      the stream's name, the scope is "default", and the log keeps no clock. Entity and scope must not be null or empty.
    - `category`, `type`: the kind of the events: a small integer, or the name of a column of them. The default is 0.
    - `changelog`: events are only ever appended, so the output modes "update" and "complete" are refused unless
      `changelog=True` asks for every version of a row to be kept.
    - `keep`: how long events are kept at least ("7d", seconds, a `timedelta`). A prune removes older events once no
      stream, checkpoint, savepoint or durable cursor of this pipeline needs them. By default everything is kept.
      Readers elsewhere are not known here: choose a time that is long enough for them.
    - `name`: the sink's name in decisions, errors and checkpoints; by default made from the path.

    Rows of one Spark partition keep their order, and partitions follow one another by number. A rewind does not remove
    events: it appends a record, and readers skip the events of later epochs. Sequence numbers are never used twice. A
    reader that has already read such events gets `LogRewound`. Not guaranteed: any other order between rows of an
    epoch. Nor that a program skips abandoned events if it reads the segments as plain Parquet.
    """

    one_action = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        entity: str | None = None,
        scope: str | None = None,
        category: int | str = 0,
        type: int | str = 0,
        clock: str | None = None,
        changelog: bool = False,
        keep: float | str | timedelta | None = None,
        name: str | None = None,
    ) -> None:
        self.path = local_path("event log", path)
        super().__init__(name or base.default_name("log", self.path.name))
        for what, column in (("entity", entity), ("scope", scope), ("clock", clock)):
            if column is not None and not isinstance(column, str):
                raise BadValue(what=what, value=column, expected="the name of a column")
        self.entity = entity
        self.scope = scope
        self.category = category if isinstance(category, str) else checked_kind_part("category", category)
        self.type = type if isinstance(type, str) else checked_kind_part("type", type)
        self.clock = clock
        self._columns = EventColumns(entity, scope, self.category, self.type, clock)
        self.changelog = changelog
        self.keep = None if keep is None else _kept_s(keep)
        self.target = f"log {os.path.realpath(self.path)}"
        self._staging = Staging(self.path.with_name(self.path.name + SUFFIX))
        self._log: EventLog | None = None
        self._read = range(0)  # the index records of that log that `_held` covers
        self._held: dict[int, tuple[int, str]] = {}  # by timeline: this owner's last epoch, and its handle's digest
        self._mutex = threading.Lock()  # guards the three above: a status query runs in its own thread

    def __repr__(self) -> str:
        return f"LogSink({str(self.path)!r})"

    def describe(self) -> dict[str, Any]:
        """Return which columns make an event."""
        names = ("entity", "scope", "category", "type", "clock")
        return {name: str(found) for name in names if (found := getattr(self, name)) is not None}

    # --- before the first epoch ---

    def open(self, context: SinkContext) -> None:
        """Check the columns and the path, create or open the log, and record its owner if it has none."""
        super().open(context)
        base.refuse_mode(self, context.output_mode, self.changelog, "use a table: SqliteSink or PostgresSink")
        require_seen_by_all(self.name, context)
        self._columns.check(context.schema)
        payload = payload_type(context.schema)
        refuse_file("event log", self.path)
        with self._failing("be opened"):
            self._staging.make()
            log = self._open_log(context.owner, payload)
            claim(self.path, context.owner, _SHAPE)
            set_keep(self.path, self.keep)
        with self._mutex:
            self._log = None
            self._held = {}
            self._read_keys(log, context.owner)

    def exists(self) -> bool:
        """Whether the log exists."""
        try:
            read_about(self.path)
        except LogMissing:
            return False
        return True

    def make(self, schema: StructType) -> None:
        """Create the log for rows of these columns, before the first epoch: its readers may start first."""
        with self._failing("be created"):
            EventLog.open_or_create(self.path, keep_clock=self.clock is not None, payload=payload_type(schema))

    def _open_log(self, owner: StreamIdentity, payload: pa.DataType) -> EventLog:
        keep_clock = self.clock is not None
        with contextlib.suppress(LogMissing):
            log = EventLog.open_end(self.path)
            if log.schema == schema_of(payload, keep_clock=keep_clock):
                return log
        try:
            return EventLog.open_or_create(self.path, keep_clock=keep_clock, payload=payload)
        except AlreadyExists:
            found = owner_of(self.path)
            if found is None:
                raise
            if found.owner != owner:
                raise SinkForeign(sink=self.name, place=str(self.path), owner=found.owner.summary) from None
            before, now = EventLog.open_end(self.path).schema, schema_of(payload, keep_clock=keep_clock)
            raise StreamChanged(what=f"sink {self.name!r}", before=_listing(before), now=_listing(now)) from None

    # --- an epoch ---

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Write the events as Parquet with Spark, and a list of the future segments next to them."""
        with self._failing("prepare"):
            events, misfits = self._columns.events(df, self.context.owner.stream)
            staged = stage(events, key, self._staging, self.context)
            if why := misfits():
                self._staging.clear(key)
                do = "give every row valid values in these columns (filter, coalesce), then run again"
                raise SinkFailed(sink=self.name, action="accept the rows", why=why, do=do)
            if not staged.rows:
                return staged
            folder = self._staging.folder(key)
            listed = _listed(folder, key_record(folder, key, staged.handle, self.name))
            self._check_rows("prepare", listed, staged.rows)
            record = SegmentsRecord(segments=listed).sealed()
            (folder / SEGMENTS_FILE).write_bytes(record)  # synced with the other files, before the decision
        paths = (*staged.paths, folder / SEGMENTS_FILE)
        return Staged(staged.handle | {"segments": digest_of(record)}, staged.rows, paths)

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Turn the staged files into segments of the log.

        1. Check whether the log holds the epoch.  2. Take the writer lock, and check again.  3. Check the staged files.
        4. Adopt them into the log.
        """
        if handle["rows"]:
            with self._failing(f"commit epoch {key.epoch}"):
                if not self._holds(key, handle):  # 1
                    with self._writing() as writer:  # 2
                        if not self._holds(key, handle):
                            segments = self._proven(key, handle)  # 3
                            writer.adopt(segments, append_key(key, handle), self._reach)  # 4
        self._staging.sweep(key)

    def _proven(self, key: EpochKey, handle: dict[str, Any]) -> list[StagedSegment]:
        """Return the staged files after checking them against their records."""
        action, folder = f"commit epoch {key.epoch}", self._staging.folder(key)
        listed = proven(self.name, self._staging, key, handle)
        path = folder / SEGMENTS_FILE
        data = path.read_bytes()
        record = SegmentsRecord.unsealed(data, str(path))
        if digest_of(data) != handle["segments"]:
            raise RecordCorrupt(key=str(path), why="it is not the one that the decision names")
        if listed.digests is None:  # written by an earlier version: only this record has digests
            segments = {each.name: each.sha256 for each in record.segments}
            StagedCheck(self.name, folder, key).digests({each.name: each.size for each in record.segments}, segments)
        self._check_rows(action, record.segments, handle["rows"])
        return [
            StagedSegment(folder / each.name, each.rows, each.size, bytes.fromhex(each.sha256))
            for each in record.segments
        ]

    def _check_rows(self, action: str, listed: list[StagedFile], rows: int) -> None:
        staged = sum(each.rows for each in listed)
        if staged != rows:
            why = f"{staged} rows were staged where {rows} were counted"
            raise SinkFailed(sink=self.name, action=action, why=why)

    def _writing(self) -> LogWriter:
        """Take the writer lock of the log; wait up to `_LOCK_WAIT_S` for another writer."""
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                return LogWriter(self.path)
            except Locked as locked:
                if time.monotonic() > deadline:
                    do = "end that process, or wait for it to end, then run again: the epoch resumes where it was"
                    raise SinkFailed(sink=self.name, action="append", why=locked.summary, do=do) from locked
            time.sleep(_LOCK_PAUSE_S)

    def abort(self, key: EpochKey) -> None:
        """Remove the attempt's folder."""
        self._staging.clear(key)

    # --- going back ---

    def can_take_back(self, owner: StreamIdentity, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Return what readers would skip. Nothing moves: the events stay in the log's files."""
        with self._failing("be inspected"):
            try:
                log = EventLog.open(self.path)
            except LogMissing:
                return TakeBack(0, 0, "")
            found = owner_of(self.path)
            if found is not None and found.owner != owner:
                return CannotTakeBack(why=f"its log belongs to {found.owner.summary}", do="choose another path")
            later = later_ranges(log, owner, base)
            return TakeBack(len(later), sum(count for _, count in later), f"{self.path}: its readers skip them")

    def take_back(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Append one record that is the stamp, and names the ranges that readers skip from then on."""
        self._go_back("be taken back", owner, (into, base[1]), lambda log: (later_ranges(log, owner, base, into), []))

    def put_back(self, owner: StreamIdentity, base: EpochPlace, into: int, taken: int) -> None:
        """Append one record that is the stamp, and restores the ranges that the rewind into `taken` abandoned."""
        self._go_back("be put back", owner, (into, base[1]), lambda log: ([], abandoned_ranges(log, owner, taken)))

    def stamp(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Append the stamp, and remove what earlier timelines staged."""
        self._go_back("be stamped", owner, (into, base[1]), lambda _: ([], []))

    def _go_back(
        self,
        action: str,
        owner: StreamIdentity,
        stamp: EpochPlace,
        ranges: Callable[[EventLog], tuple[list[RangeBounds], list[RangeBounds]]],
    ) -> None:
        """1. Take the writer lock.  2. Append the record, unless it is there.  3. Remove what is staged.

        The record is stamp and change in one, and commits check the stamp under the same lock. So if it is there,
        nothing is left to do.
        """
        with self._failing(action):
            if not self.exists():
                return  # no driver can commit to it either
            with self._writing() as writer:  # 1
                self._refuse_foreign(owner)
                log = EventLog.open(self.path)
                timeline = latest_timeline(log, owner)
                refuse_outdated(owner, stamp[0], timeline)
                self._reach("stamping")
                if timeline < stamp[0]:
                    writer.rewind(stamp_key(owner, stamp), *ranges(log))  # 2
                self._reach("stamped")
            self._reach("moved")
            self._staging.retire(owner, (stamp[0], 0))  # 3

    def _refuse_foreign(self, owner: StreamIdentity) -> None:
        found = claim(self.path, owner, _SHAPE)
        if found.owner != owner:
            raise SinkForeign(sink=self.name, place=str(self.path), owner=found.owner.summary)

    def _reach(self, point: str) -> None:
        if self._context is not None:
            self._context.reach(point)

    # --- the position ---

    def inspect(self, owner: StreamIdentity, timeline: int) -> base.SinkPosition:
        """Return the last epoch in the log's index, and a foreign owner if there is one."""
        with self._failing("be inspected"):
            try:
                return position_in(self.path, owner, lambda: self._places(owner, timeline).get(timeline, (0, ""))[0])
            except LogMissing:
                return base.SinkPosition()

    def mark(self) -> dict[str, Any]:
        """Return the log's identity, tail and path."""
        with self._failing("be marked"):
            log = self._log or EventLog.open_end(self.path)
            sync_head(self.path)
            return {"log": log.identity, "tail": read_head(self.path).tail, "path": str(self.path)}

    def close(self) -> None:
        """Discard the cached view of the log; no lock or file is held."""
        super().close()
        with self._mutex:
            self._log = None
            self._held = {}

    def _holds(self, key: EpochKey, handle: dict[str, Any]) -> bool:
        """Whether the log holds the epoch; raise if another copy of the repository appended it, or the one before."""
        places = self._places(key.owner, key.timeline)
        epoch, digest = places.get(key.timeline, (0, ""))
        last = Link(epoch, digest or None)
        held = HeldEpochs(max(places, default=0), last if epoch == key.epoch else None, last)
        return is_committed(self, key, handle, held, str(self.path))

    def _places(self, owner: StreamIdentity, timeline: int) -> dict[int, tuple[int, str]]:
        """Read new records of the index; return the last epoch of each timeline and the digest of its handle.

        Epochs are appended in order. So the end of the index shows the last one, unless it has no key of this owner, or
        only keys of later timelines. Then the whole index is read.
        """
        with self._mutex:
            log = self._log or EventLog.open_end(self.path)
            self._read_keys(log, owner)
            if self._read.start and timeline < max(self._held, default=timeline + 1):
                self._read_all(log, owner)
            return dict(self._held)

    def _read_keys(self, log: EventLog, owner: StreamIdentity) -> None:
        known = self._read if log is self._log else range(log.first_checked, log.first_checked)
        log.refresh()
        self._hold(log.keys(known.stop), owner)  # if this fails, the next call reads the same records again
        self._log, self._read = log, range(known.start, log.records)

    def _read_all(self, log: EventLog, owner: StreamIdentity) -> None:
        self._hold(log.keys(), owner)
        self._read = range(log.records)

    def _hold(self, keys: Iterable[str], owner: StreamIdentity) -> None:
        for key in keys:
            found = place_in(key, owner)
            if found is not None:
                (timeline, epoch), digest = found
                self._held[timeline] = max((epoch, digest), self._held.get(timeline, (0, "")))

    @contextlib.contextmanager
    def _failing(self, action: str) -> Iterator[None]:
        try:
            with failing(self.name, action):
                yield
        except (StorageFailed, OutcomeUnknown) as error:
            raise SinkFailed(sink=self.name, action=action, why=error.summary) from error


def _listed(folder: Path, record: KeyRecord) -> list[StagedFile]:
    """Return the files of an attempt that contain rows, ordered by name, each with its digest."""
    found = [(name, pq.read_metadata(folder / name).num_rows) for name in sorted(record.files) if _PART.fullmatch(name)]
    known = record.digests or digests(folder, record.files)
    return [StagedFile(name, rows, record.files[name], known[name]) for name, rows in found if rows]


def _listing(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name}: {each.type}" for each in schema)


def _kept_s(keep: float | str | timedelta) -> float:
    return 0.0 if keep in (0, "0", "0s") else seconds_of("keep", keep)

"""The event log as a sink: a stream's rows become events, appended once, in one global sequence.

An attempt is staged as Parquet with the columns of a segment: by Spark next to a log in a folder, and by the tasks
below an address on an object store (`_log_local`, `_log_store`). `commit` makes the segments visible with one record of
the index.

Rules:
- `commit` assigns the sequence numbers, not `prepare`: an aborted attempt leaves no gap.
- The index is the ledger: `_log_ranges.py` describes the keys of its records.
- The log is never cut. A rewind appends one record, whose key is the stamp. It names the ranges of later epochs, which
  readers skip. An undo appends another one that restores them. The segments stay where they are: a program that reads
  them as plain Parquet sees abandoned events too.
- The log has one owner, recorded in `owner.key`.
- Whether an epoch may be appended is decided for the very tail at which it is appended. In a folder the writer lock,
  held for one commit only, ensures that. On a store, the name of the record does.
- An event's payload is a struct of all columns of the stream, under their own names.
- Events of one Spark partition keep their order; partitions follow one another by number.
- An epoch without rows leaves no trace.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.errors import (
    AlreadyExists,
    BadValue,
    Locked,
    LogMissing,
    Mismatch,
    SinkFailed,
    SinkForeign,
    StreamChanged,
)
from holdfast.eventlog.appending import Appender, StagedSegment
from holdfast.eventlog.home import LogHome
from holdfast.eventlog.homes import home_of
from holdfast.eventlog.local_home import LocalHome
from holdfast.eventlog.log import EventLog
from holdfast.eventlog.region import checked_kind_part
from holdfast.eventlog.segment import schema_of
from holdfast.eventlog.store_home import StoreHome
from holdfast.policy import seconds_of
from holdfast.sinks import base
from holdfast.sinks._log_events import EventColumns, payload_type
from holdfast.sinks._log_local import LocalPlace
from holdfast.sinks._log_ranges import (
    RangeBounds,
    abandoned_ranges,
    append_key,
    later_ranges,
    latest_timeline,
    mark_name,
    place_in,
    stamp_key,
)
from holdfast.sinks._log_store import StorePlace
from holdfast.sinks._log_task import failing_store
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
from holdfast.sinks.held_epochs import HeldEpochs, is_committed
from holdfast.sinks.log_place import LogPlace
from holdfast.sinks.taking_back import refuse_outdated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_LOCK_WAIT_S = 10.0
_LOCK_PAUSE_S = 0.01


class LogSink(base.Sink):
    """Appends a stream's rows to an event log, every epoch exactly once; the log is created if it does not exist.

        hf.LogSink("out/log", entity="order_id", category=1)

    Each row becomes an event whose payload is a struct of all columns. Other streams read the log with
    `pipeline.read(...)` or `hf.read_log_stream(...)`; `hf.eventlog.EventLog`, cursors and workers read it without
    Spark. All events of an epoch become visible at once and get consecutive sequence numbers then.

    - `path`: the log's folder, on a local disk or on a file system that every machine mounts, or its address on an
      object store, such as `s3://bucket/logs/orders`. One stream owns it.
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
        self.home = home_of(path)
        self.path = self.home.address
        super().__init__(name or base.default_name("log", str(self.path).rpartition("/")[2]))
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
        self._place = _place_of(self.home, self.name)
        self.target = f"log {self._place.target}"
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

    def row_checks(self) -> dict[str, str]:
        """Entity and scope must be valid text that is not empty; the numbers must be in range."""
        return self._columns.conditions()

    # --- before the first epoch ---

    def open(self, context: SinkContext) -> None:
        """Check the columns and the path, create or open the log, and record its owner if it has none."""
        super().open(context)
        base.refuse_mode(self, context.output_mode, self.changelog, "use a table: SqliteSink or PostgresSink")
        self._columns.check(context.schema)
        payload = payload_type(context.schema)
        with failing(self.name, "be opened"):
            self._place.check(context)
        with self._failing("be opened"):
            self._place.make()
            log = self._open_log(context.owner, payload)
            self._place.claim(context.owner)
            self.home.set_keep(self.keep)
        with self._mutex:
            self._log = None
            self._held = {}
            self._read_keys(log, context.owner)

    def exists(self) -> bool:
        """Whether the log exists."""
        try:
            self.home.about()
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
            found = self._place.owner()
            if found is None:
                raise
            if found.owner != owner:
                raise SinkForeign(sink=self.name, place=str(self.path), owner=found.owner.summary) from None
            before, now = EventLog.open_end(self.path).schema, schema_of(payload, keep_clock=keep_clock)
            raise StreamChanged(what=f"sink {self.name!r}", before=_listing(before), now=_listing(now)) from None

    # --- an epoch ---

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Write the events as Parquet, in files or objects that can become segments."""
        with self._failing("prepare"):
            events, misfits = self._columns.events(df, self.context.owner.stream)
            staged = self._place.stage(events, key, self.context, self._view())
            if why := misfits():
                self._place.clear(key)
                do = "give every row valid values in these columns (filter, coalesce), then run again"
                raise SinkFailed(sink=self.name, action="accept the rows", why=why, do=do)
        return staged

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Make the staged events visible.

        1. Check whether the log holds the epoch.  2. Open it for writing. At the tail, check again.  3. Check what was
        staged.  4. Append it. If another writer was faster, repeat from 2.
        """
        with self._failing(f"commit epoch {key.epoch}"):
            if handle["rows"] and not self._holds(key, handle):  # 1
                with self._written_by(self._view()) as writer:

                    def planned() -> list[StagedSegment] | None:
                        return None if self._holds(key, handle) else self._place.proven(key, handle)  # 2, 3

                    mark = mark_name(key.owner, key.timeline)
                    writer.adopt_as(planned, append_key(key, handle), self._reach, mark)  # 4
            self._place.sweep(key, lambda: self._held_by(key))

    def _held_by(self, key: EpochKey) -> tuple[EpochPlace, EventLog]:
        """Return the last epoch that the log holds in the timeline of a key, and the view that shows it."""
        epoch, _ = self._places(key.owner, key.timeline).get(key.timeline, (0, ""))
        return (key.timeline, epoch), self._view()

    def _written_by(self, log: EventLog) -> Appender:
        """Open the log for writing. In a folder, wait up to `_LOCK_WAIT_S` for another writer."""
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                return log.own_writer()
            except Locked as locked:
                if time.monotonic() > deadline:
                    do = "end that process, or wait for it to end, then run again: the epoch resumes where it was"
                    raise SinkFailed(sink=self.name, action="append", why=locked.summary, do=do) from locked
            time.sleep(_LOCK_PAUSE_S)

    def abort(self, key: EpochKey) -> None:
        """Remove what the attempt has staged."""
        with self._failing("abort"):
            self._place.clear(key)

    # --- going back ---

    def can_take_back(self, owner: StreamIdentity, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Return what readers would skip. Nothing moves: the events stay in the log's files."""
        with self._failing("be inspected"):
            try:
                log = EventLog.open(self.path)
            except LogMissing:
                return TakeBack(0, 0, "")
            found = self._place.owner()
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
        """1. Open the log for writing.  2. Append the record, unless it is there.  3. Remove what is staged.

        The record is stamp and change in one, and commits check the stamp for the tail at which they append. So if it
        is there, nothing is left to do.
        """
        with self._failing(action):
            if not self.exists():
                return  # no driver can commit to it either
            log = EventLog.open(self.path)
            with self._written_by(log) as writer:  # 1
                self._refuse_foreign(owner)

                def planned() -> tuple[list[RangeBounds], list[RangeBounds]] | None:
                    log.catch_up()
                    timeline = latest_timeline(log, owner)
                    refuse_outdated(owner, stamp[0], timeline)
                    self._reach("stamping")
                    return ranges(log) if timeline < stamp[0] else None

                writer.rewind_as(stamp_key(owner, stamp), planned, mark_name(owner, stamp[0]))  # 2
                self._reach("stamped")
            self._reach("moved")
            log.refresh()
            self._place.retire(owner, (stamp[0], 0), log)  # 3

    def _refuse_foreign(self, owner: StreamIdentity) -> None:
        found = self._place.claim(owner)
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
                found = self._place.owner()
                if found is None:
                    return base.SinkPosition()
                if found.owner != owner:
                    return base.SinkPosition(foreign=found.owner.summary)
                self._refresh()
                return base.SinkPosition(self._places(owner, timeline).get(timeline, (0, ""))[0])
            except LogMissing:
                return base.SinkPosition()

    def mark(self) -> dict[str, Any]:
        """Return the log's identity, tail and path."""
        with self._failing("be marked"):
            log = self._view()
            with self._mutex:
                log.catch_up()
            return {"log": log.identity, "tail": log.tail, "path": str(self.path)}

    def close(self) -> None:
        """Discard the cached view of the log; no lock or file is held."""
        super().close()
        with self._mutex:
            self._log = None
            self._held = {}

    def _holds(self, key: EpochKey, handle: dict[str, Any]) -> bool:
        """Whether the log holds the epoch; raise if another copy of the repository appended it, or the one before.

        A view that is not up to date cannot refuse an epoch: the log is looked at before that.
        """
        try:
            return self._judged(key, handle)
        except Mismatch:
            self._refresh()
            return self._judged(key, handle)

    def _judged(self, key: EpochKey, handle: dict[str, Any]) -> bool:
        places = self._places(key.owner, key.timeline)
        epoch, digest = places.get(key.timeline, (0, ""))
        last = Link(epoch, digest or None)
        held = HeldEpochs(max(places, default=0), last if epoch == key.epoch else None, last)
        return is_committed(self, key, handle, held, str(self.path))

    def _view(self) -> EventLog:
        """Return this sink's view of the log."""
        with self._mutex:
            return self._log or EventLog.open_end(self.path)

    def _refresh(self) -> None:
        log = self._view()
        with self._mutex:
            log.refresh()

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
        known = self._read if log is self._log else range(log.first_known, log.first_known)
        log.catch_up()
        records = log.records  # a commit in another thread may add one meanwhile: the next call reads it
        self._hold(log.known_keys(known.stop), owner)  # if this fails, the next call reads the same records again
        self._log, self._read = log, range(known.start, records)

    def _read_all(self, log: EventLog, owner: StreamIdentity) -> None:
        records = log.records
        self._hold(log.keys(), owner)
        self._read = range(records)

    def _hold(self, keys: Iterable[str], owner: StreamIdentity) -> None:
        for key in keys:
            found = place_in(key, owner)
            if found is not None:
                (timeline, epoch), digest = found
                self._held[timeline] = max((epoch, digest), self._held.get(timeline, (0, "")))

    @contextlib.contextmanager
    def _failing(self, action: str) -> Iterator[None]:
        with failing_store(self.name, action), failing(self.name, action):
            yield


def _place_of(home: LogHome, sink: str) -> LogPlace:
    match home:
        case StoreHome():
            return StorePlace(home, sink)
        case LocalHome():
            return LocalPlace(home, sink)
    raise TypeError(type(home))


def _listing(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name}: {each.type}" for each in schema)


def _kept_s(keep: float | str | timedelta) -> float:
    return 0.0 if keep in (0, "0", "0s") else seconds_of("keep", keep)

"""The event log as a sink: a stream's rows become events, appended once, in one global sequence.

Spark writes an attempt as Parquet beside the log, in the columns of a segment. `commit` links those files into the log
as segments and makes them count by one record of the index.

Rules:
- Sequences are given by `commit`, not by `prepare`: an attempt that was aborted leaves no hole.
- The index is the ledger: each append of a sink carries its key, `<uid>/<stream>/t<timeline>-<epoch in ten digits>`,
  and behind that, since a later version, `/` and a digest of the handle.
- The log has one owner, written at `owner.key` in its folder.
- The writer's place is taken for each commit alone: a driver that was paused does not keep the next one out.
- An event's payload is a struct of all columns of the stream, under their own names.
- Events of one partition of Spark's keep their order; partitions follow one another in the order of their numbers.
- An epoch without rows leaves no trace.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Observation
from pyspark.sql import functions as f

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
from holdfast.eventlog.log import EventLog
from holdfast.eventlog.region import KIND_MAX, checked_kind_part
from holdfast.eventlog.segment import schema_of
from holdfast.eventlog.writer import LogWriter, StagedSegment
from holdfast.formats.sealed_json import Record, digest_of
from holdfast.repository.files import local_path, replace_durably
from holdfast.sinks.base import (
    EpochKey,
    Link,
    Sink,
    SinkContext,
    SinkPosition,
    Staged,
    StreamIdentity,
    decided_elsewhere,
    failing,
    handle_digest,
    is_past,
    refuse_mode,
)
from holdfast.sinks.files.epoch_folders import KeyRecord
from holdfast.sinks.log_types import arrow_of
from holdfast.sinks.owners import claim, owner_of
from holdfast.sinks.rows import default_name, quoted
from holdfast.sinks.staged_files import StagedCheck, digests, key_record, proven, require_seen_by_all, stage
from holdfast.sinks.staging import SUFFIX, Staging

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

SEGMENTS_FILE = "_segments.key"
DEFAULT_SCOPE = "default"
_SHAPE = "an event log"
_KEY = re.compile(r"(?P<uid>[^/]+)/(?P<stream>[^/]+)/t(?P<t>\d+)-(?P<e>\d{10})(/(?P<h>[0-9a-f]{16}))?")
_NO_TEXT = ("array", "map", "struct", "binary", "variant", "void")
_WHOLE = ("byte", "short", "integer", "long")
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
    """What of an attempt becomes segments, in the order of their sequences."""

    segments: list[StagedFile]


class LogSink(Sink):
    """Appends a stream's rows to an event log, every epoch exactly once; the log is created if it does not exist.

        hf.LogSink("out/log", entity="order_id", category=1)

    Each row becomes an event whose payload is a struct of all columns. Other streams read the log with
    `pipeline.read(...)` or `hf.read_log_stream(...)`; `hf.EventLog`, cursors and workers read it without Spark. All
    events of an epoch become visible at once and get consecutive sequence numbers then.

    - `path`: the log's folder, on a local disk or on a file system that every machine mounts. One stream owns it.
    - `entity`, `scope`, `clock`: columns with each event's entity, scope and entity clock. Without them the entity is
      the stream's name, the scope is "default", and the log keeps no clock. Entity and scope must not be null or empty.
    - `category`, `type`: the kind of the events: a small integer, or the name of a column of them. The default is 0.
    - `changelog`: events are only ever appended, so the output modes "update" and "complete" are refused unless
      `changelog=True` asks for every version of a row to be kept.
    - `name`: the sink's name in decisions, errors and checkpoints; by default made from the path.

    Rows of one Spark partition keep their order, and partitions follow one another by number. Not guaranteed: any other
    order between rows of an epoch.
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
        name: str | None = None,
    ) -> None:
        self.path = local_path("event log", path)
        super().__init__(name or default_name("log", self.path.name))
        for what, column in (("entity", entity), ("scope", scope), ("clock", clock)):
            if column is not None and not isinstance(column, str):
                raise BadValue(what=what, value=column, expected="a column's name")
        self.entity = entity
        self.scope = scope
        self.category = category if isinstance(category, str) else checked_kind_part("category", category)
        self.type = type if isinstance(type, str) else checked_kind_part("type", type)
        self.clock = clock
        self.changelog = changelog
        self.target = f"log {os.path.realpath(self.path)}"
        self._staging = Staging(self.path.with_name(self.path.name + SUFFIX))
        self._log: EventLog | None = None
        self._taken = 0  # the records of that log whose keys were looked at
        self._held: dict[int, tuple[int, str]] = {}  # by timeline: this owner's last epoch, and its handle's digest
        self._mutex = threading.Lock()  # of the three above: who looks at a pipeline asks from a thread of his own

    def __repr__(self) -> str:
        return f"LogSink({str(self.path)!r})"

    # --- before the first epoch ---

    def open(self, setting: SinkContext) -> None:
        """Check the columns and the place, make the log or open it, and write the owner into it if it has none."""
        super().open(setting)
        refuse_mode(self, setting.output_mode, self.changelog, "use a table: SqliteSink or PostgresSink")
        require_seen_by_all(self.name, setting)
        self._check_columns(setting)
        payload = _payload(setting.schema)
        if self.path.exists() and not self.path.is_dir():
            raise BadValue(what="event log", value=str(self.path), why="there is a file", do="choose a folder")
        with self._failing("be opened"):
            self._staging.make()
            log = self._open_log(setting.owner, payload)
            claim(self.path, setting.owner, _SHAPE)
        with self._mutex:
            self._log = None
            self._held = {}
            self._take_in(log, setting.owner)

    def exists(self) -> bool:
        """Whether the log is there."""
        try:
            read_about(self.path)
        except LogMissing:
            return False
        return True

    def make(self, schema: StructType) -> None:
        """Make the log for rows of these columns, before the first epoch: whoever reads it may be started first."""
        with self._failing("be made"):
            EventLog.open_or_create(self.path, keep_clock=self.clock is not None, payload=_payload(schema))

    def _check_columns(self, setting: SinkContext) -> None:
        kinds = {each.name: each.dataType.typeName() for each in setting.schema.fields}
        twice = len({name.lower() for name in kinds}) < len(setting.schema.fields)
        if twice or not kinds:
            why = "names that differ, in more than capitals, are due: they become the fields of the payload"
            raise BadValue(what="columns", value=[each.name for each in setting.schema.fields], why=why)
        texts = {"entity": self.entity, "scope": self.scope}
        numbers = {"clock": self.clock, "category": self.category, "type": self.type}
        for what, column in (texts | numbers).items():
            if not isinstance(column, str):
                continue
            if column not in kinds:
                raise BadValue(what=what, value=column, why=f"the stream has no such column: {sorted(kinds)}")
            if what in texts and kinds[column] in _NO_TEXT:
                raise BadValue(what=what, value=column, why=f"a column of {kinds[column]} cannot be written as text")
            if what in numbers and kinds[column] not in _WHOLE:
                raise BadValue(what=what, value=column, expected=f"whole numbers, not {kinds[column]}")

    def _open_log(self, owner: StreamIdentity, payload: pa.DataType) -> EventLog:
        keep_clock = self.clock is not None
        try:
            return EventLog.open_or_create(self.path, keep_clock=keep_clock, payload=payload)
        except AlreadyExists:
            found = owner_of(self.path)
            if found is None:
                raise
            if not found.is_of(owner):
                raise SinkForeign(sink=self.name, place=str(self.path), owner=found.summary) from None
            before, now = EventLog.open(self.path).schema, schema_of(payload, keep_clock=keep_clock)
            raise StreamChanged(what=f"sink {self.name!r}", before=_columns(before), now=_columns(now)) from None

    # --- an epoch ---

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Let Spark write the events as Parquet, and put the list of the segments-to-be beside them."""
        with self._failing("prepare"):
            events, unfit = self._events(df)
            staged = stage(events, key, self._staging, self.setting)
            if why := unfit():
                self._staging.clear(key)
                do = "give every row what an event must have (filter, coalesce), then run again"
                raise SinkFailed(sink=self.name, action="take the rows", why=why, do=do)
            if not staged.rows:
                return staged
            folder = self._staging.folder(key)
            listed = _listed(folder, key_record(folder, key, staged.handle, self.name))
            self._check_rows("prepare", listed, staged.rows)
            record = SegmentsRecord(segments=listed).sealed()
            replace_durably(folder / SEGMENTS_FILE, record, SEGMENTS_FILE)
        return Staged(staged.handle | {"segments": digest_of(record)}, staged.rows, staged.paths)

    def _events(self, df: DataFrame) -> tuple[DataFrame, Callable[[], str | None]]:
        """Return rows as events, and a function that tells, after one action on them, what is wrong with them."""
        columns = {
            "scope": _text(self.scope, DEFAULT_SCOPE),
            "entity": _text(self.entity, self.setting.owner.stream),
            "category": _number(self.category, "int"),
            "type": _number(self.type, "int"),
        }
        if self.clock is not None:
            columns["clock"] = _number(self.clock, "long")
        payload = f.struct(*[f.col(quoted(name)) for name in df.columns]).alias("payload")
        given = {"scope": self.scope, "entity": self.entity, "category": self.category, "type": self.type}
        named = {what: column for what, column in (given | {"clock": self.clock}).items() if isinstance(column, str)}
        events = df.select(*[column.alias(what) for what, column in columns.items()], payload)
        if not named:
            return events, lambda: None
        seen = Observation()
        events = events.observe(seen, *[f.count_if(_is_unfit(what)).alias(what) for what in named])

        def tell() -> str | None:
            found = [
                f"column {column!r} cannot be the {what} of {seen.get[what]} rows: {_DUE[what]} is due"
                for what, column in named.items()
                if seen.get[what]
            ]
            return "; ".join(found) or None

        return events, tell

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Make the staged files segments of the log.

        1. Look whether the log holds the epoch.  2. Take the writer's place, and look again.  3. Prove what was staged.
        4. Let the log adopt it.
        """
        if handle["rows"]:
            with self._failing(f"commit epoch {key.epoch}"):
                if not self._holds(key, handle):  # 1
                    with self._writing() as writer:  # 2
                        if not self._holds(key, handle):
                            segments = self._proven(key, handle)  # 3
                            writer.adopt(segments, _key(key, handle), self.setting.reach)  # 4
        self._staging.sweep(key)

    def _proven(self, key: EpochKey, handle: dict[str, Any]) -> list[StagedSegment]:
        """Return the staged files, after a check that they are what was staged."""
        action, folder = f"commit epoch {key.epoch}", self._staging.folder(key)
        listed = proven(self.name, self._staging, key, handle)
        path = folder / SEGMENTS_FILE
        data = path.read_bytes()
        record = SegmentsRecord.unsealed(data, str(path))
        if digest_of(data) != handle["segments"]:
            raise RecordCorrupt(key=str(path), why="it is not the one that the decision names")
        if listed.digests is None:  # of an earlier version: only this record has digests
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
        """Become the log's one writer; wait for another one, for a while."""
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                return LogWriter(self.path)
            except Locked as locked:
                if time.monotonic() > deadline:
                    do = "end that process, or let it end, then run again: the epoch goes on where it was"
                    raise SinkFailed(sink=self.name, action="append", why=locked.summary, do=do) from locked
            time.sleep(_LOCK_PAUSE_S)

    def abort(self, key: EpochKey) -> None:
        """Remove the attempt's folder."""
        self._staging.clear(key)

    # --- what is there ---

    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        """Look at the owner, and at the keys in the log's index."""
        with self._failing("be inspected"):
            found = owner_of(self.path)
            if found is None:
                return SinkPosition()
            if not found.is_of(owner):
                return SinkPosition(foreign=found.summary)
            try:
                return SinkPosition(self._places(owner).get(timeline, (0, ""))[0])
            except LogMissing:
                return SinkPosition()

    def mark(self) -> dict[str, Any]:
        """Return which log it is, where, and its tail."""
        with self._failing("be marked"):
            log = self._log or EventLog.open(self.path)
            sync_head(self.path)
            return {"log": log.identity, "tail": read_head(self.path).tail, "path": str(self.path)}

    def close(self) -> None:
        """Forget the log; nothing of it was held."""
        super().close()
        with self._mutex:
            self._log = None
            self._held = {}

    def _holds(self, key: EpochKey, handle: dict[str, Any]) -> bool:
        """Whether the log holds the epoch; raise where another copy of the repository appended it, or the one before.

        If the log holds a later timeline, this one is done. Earlier versions did not record handles.
        """
        places = self._places(key.owner)
        if max(places, default=0) > key.timeline:
            return True
        epoch, found = places.get(key.timeline, (0, ""))
        if epoch != key.epoch:
            return is_past(self, key, Link(epoch, found or None), str(self.path))
        if found not in ("", handle_digest(handle)):
            raise decided_elsewhere(self, key, str(self.path))
        return True

    def _places(self, owner: StreamIdentity) -> dict[int, tuple[int, str]]:
        """Return the last epoch of each timeline and its handle's digest, after a look at what is new in the index."""
        with self._mutex:
            self._take_in(self._log or EventLog.open(self.path), owner)
            return dict(self._held)

    def _take_in(self, log: EventLog, owner: StreamIdentity) -> None:
        taken = self._taken if log is self._log else 0
        log.refresh()
        for key in log.keys(taken):  # may fail, and is then gone over again
            match = _KEY.fullmatch(key)
            if match and (match["uid"], match["stream"]) == (owner.uid, owner.stream):
                timeline, epoch = int(match["t"]), int(match["e"])
                self._held[timeline] = max((epoch, match["h"] or ""), self._held.get(timeline, (0, "")))
        self._log, self._taken = log, log.records

    @contextlib.contextmanager
    def _failing(self, action: str) -> Iterator[None]:
        try:
            with failing(self.name, action):
                yield
        except (StorageFailed, OutcomeUnknown) as error:
            raise SinkFailed(sink=self.name, action=action, why=error.summary) from error


_DUE = {
    "scope": "text that is not empty",
    "entity": "text that is not empty",
    "category": f"a whole number from 0 to {KIND_MAX}",
    "type": f"a whole number from 0 to {KIND_MAX}",
    "clock": "a whole number from 0 on",
}


def _payload(schema: StructType) -> pa.DataType:
    """Return the type of an event's payload: all columns of the stream."""
    return pa.struct([pa.field(each.name, arrow_of(each.dataType, each.name)) for each in schema.fields])


def _text(column: str | None, otherwise: str) -> Column:
    return f.lit(otherwise) if column is None else f.col(quoted(column)).cast("string")


def _number(column: int | str, kind: str) -> Column:
    """Return a column as numbers of a log; what does not fit becomes null, and is counted."""
    return f.lit(column).cast(kind) if isinstance(column, int) else f.col(quoted(column)).try_cast(kind)


def _is_unfit(what: str) -> Column:
    value = f.col(what)
    if what in ("scope", "entity"):
        return value.isNull() | (value == "") | ~f.is_valid_utf8(value)
    return value.isNull() | (value < 0) | (f.lit(what != "clock") & (value > KIND_MAX))


def _listed(folder: Path, record: KeyRecord) -> list[StagedFile]:
    """Return the files of an attempt that hold rows, in the order of their names, each with its digest."""
    found = [(name, pq.read_metadata(folder / name).num_rows) for name in sorted(record.files) if _PART.fullmatch(name)]
    known = record.digests or digests(folder, record.files)
    return [StagedFile(name, rows, record.files[name], known[name]) for name, rows in found if rows]


def _key(key: EpochKey, handle: dict[str, Any]) -> str:
    return f"{key.owner.uid}/{key.owner.stream}/t{key.timeline}-{key.epoch:010}/{handle_digest(handle)}"


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name}: {each.type}" for each in schema)

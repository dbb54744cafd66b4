"""Staging for an event log on an object store: the tasks write the segments, and a commit moves nothing.

    segments/<stream>/t<timeline>-<epoch>/<lease>.<attempt>/<partition>-<task attempt>.parquet

Rules:
- The handle lists the objects that successful tasks have returned, by partition. Only they become segments.
- An object that is not in the index is removed only if its epoch lies before the last one that the log holds for its
  stream, or in a timeline that a rewind has ended. No driver can commit such an epoch later: the log answers that it is
  done, or that its timeline has ended. This covers aborted attempts, attempts that lost their epoch, and what their
  tasks write late. A newer object is never removed by this rule.
- An attempt whose slot is closed with `abort` is removed by `abort`.
- Every 50 epochs, the last 100 are looked at. Objects that a task writes later stay until `holdfast prune --deep`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import StagedDamaged, StagedGone
from holdfast.eventlog._files import SEGMENTS
from holdfast.eventlog.appending import StagedSegment
from holdfast.eventlog.index import Committed
from holdfast.eventlog.log import EventLog
from holdfast.eventlog.segment import schema_to_text
from holdfast.eventlog.store_home import StoreHome
from holdfast.eventlog.store_index import StoreIndex
from holdfast.repository.base import StoredObject
from holdfast.repository.objectstore import PAGE
from holdfast.sinks._log_local import SHAPE, check_rows
from holdfast.sinks._log_ranges import place_in
from holdfast.sinks._log_task import RESULT, STAGING, SegmentTask
from holdfast.sinks.base import (
    EpochKey,
    EpochPlace,
    SinkContext,
    Staged,
    StreamIdentity,
    handle_digest,
    raised_in_task,
)
from holdfast.sinks.key_files import place as place_name
from holdfast.sinks.log_place import HeldPlace
from holdfast.sinks.owners import OWNER_FILE, OwnerRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SWEEP_EVERY = 50  # epochs
_ATTEMPT = re.compile(r"(\d+)\.(\d+)")
_STAGED = re.compile(rf"{SEGMENTS}/(?P<stream>[^/]+)/t(?P<t>\d+)-(?P<e>\d{{10}})/(?P<l>\d+)\.(?P<a>\d+)/[^/]+")


class StorePlace:
    """The objects below `segments/` of a log."""

    def __init__(self, home: StoreHome, sink: str) -> None:
        self.home = home
        self.sink = sink
        self._staged = ""  # digest of the last handle that this object has staged: its objects were just confirmed

    @property
    def target(self) -> str:
        """The address."""
        return self.home.repository.where

    def check(self, context: SinkContext) -> None:
        """Every machine reaches the store. The tasks need pandas, though they do not use it."""
        del context

    def make(self) -> None:
        """Nothing has to exist."""
        self._staged = ""

    def stage(self, events: DataFrame, key: EpochKey, context: SinkContext, log: EventLog) -> Staged:
        """Let each task write one object, and list those that the driver knows to be complete."""
        task = SegmentTask(self.sink, self.home.address, attempt_prefix(key), schema_to_text(log.schema))
        try:
            rows_of_tasks = events.mapInArrow(task, RESULT).collect()
        except Exception as error:
            if raised := raised_in_task(error, STAGING):
                raise raised[0](sink=self.sink, action=STAGING, why=raised[1]) from None
            raise
        found = sorted(rows_of_tasks, key=lambda row: row["part"])
        context.reach("staging")
        rows = sum(row["rows"] for row in found)
        if not rows:
            return Staged({"rows": 0}, 0, trace=False)
        handle = {"rows": rows, "segments": [[row[each] for each in _FIELDS] for row in found]}
        self._staged = handle_digest(handle)
        return Staged(handle, rows)

    def proven(self, key: EpochKey, handle: dict[str, Any]) -> list[StagedSegment]:
        """Return the objects of the handle. Unless this object has staged them, one listing must show all of them."""
        prefix = attempt_prefix(key)
        check_rows(self.sink, f"commit epoch {key.epoch}", sum(each[1] for each in handle["segments"]), handle["rows"])
        if self._staged != handle_digest(handle):
            there = {each.key: each.size for each in self.home.repository.flat(prefix)}
            for name, _, size, _ in handle["segments"]:
                path = f"{prefix}/{name}"
                if path not in there:
                    raise StagedGone(sink=self.sink, epoch=key.epoch)
                if there[path] != size:
                    why = f"it has {there[path]} bytes, but {size} were staged"
                    raise StagedDamaged(sink=self.sink, epoch=key.epoch, path=f"{self.home.address}/{path}", why=why)
        return [
            StagedSegment(Path(prefix, name), rows, size, bytes.fromhex(digest))
            for name, rows, size, digest in handle["segments"]
        ]

    def clear(self, key: EpochKey) -> None:
        """Remove the objects of one attempt."""
        if key.lease is not None:
            self.home.repository.clear(attempt_prefix(key))
            return
        folder = epoch_prefix(key.owner, key.place)
        for name in self.home.repository.list(folder):
            match = _ATTEMPT.fullmatch(name.removesuffix("/"))
            if match and int(match[2]) == key.attempt.attempt:
                self.home.repository.clear(f"{folder}/{match[0]}")

    def sweep(self, key: EpochKey, held: HeldPlace) -> None:
        """Every 50 epochs, remove what the last 100 have left, up to the last one that the log holds."""
        if key.epoch % _SWEEP_EVERY:
            return
        owner, oldest = key.owner, (key.timeline, max(key.epoch - 2 * _SWEEP_EVERY, 0))
        last, log = held()
        self._remove(self._staged_since(owner, oldest, last), owner, oldest, last, _named_since(log, owner, oldest))

    def retire(self, owner: StreamIdentity, before: EpochPlace, log: EventLog) -> None:
        """Remove what earlier timelines have staged: the whole index shows what became part of the log."""
        self._remove(self.home.repository.flat(_stream_prefix(owner.stream)), owner, (0, 0), before, named_objects(log))

    def _staged_since(self, owner: StreamIdentity, oldest: EpochPlace, before: EpochPlace) -> Iterator[StoredObject]:
        """Yield the objects of a stream from one epoch to before another, in the order of their names."""
        after = epoch_prefix(owner, oldest)
        while page := self.home.repository.page(_stream_prefix(owner.stream), after):
            yield from page
            after = page[-1].key
            if len(page) < PAGE or after > epoch_prefix(owner, before):
                return

    def _remove(
        self,
        found: Iterable[StoredObject],
        owner: StreamIdentity,
        oldest: EpochPlace,
        before: EpochPlace,
        named: set[str],
    ) -> None:
        """Remove objects that are not named, from an epoch to before another: `named` covers these and no others."""
        garbage = [
            each.key
            for each in found
            if (place := place_of(each.key, owner.stream)) is not None
            and oldest <= place < before
            and each.key not in named
        ]
        if garbage:
            self.home.repository.delete_all(garbage)

    def claim(self, owner: StreamIdentity) -> OwnerRecord:
        """Write the owner's record if there is none."""
        record = OwnerRecord(pipeline=owner.pipeline, uid=owner.uid, stream=owner.stream, shape=SHAPE)
        found = self.owner()
        if found is not None:
            return found
        put = self.home.repository.put_if_absent(OWNER_FILE, record.sealed())
        return OwnerRecord.unsealed(put.data, f"{self.home.address}/{OWNER_FILE}")

    def owner(self) -> OwnerRecord | None:
        """Read the owner's record."""
        data = self.home.repository.read_all([OWNER_FILE])[OWNER_FILE]
        return None if data is None else OwnerRecord.unsealed(data, f"{self.home.address}/{OWNER_FILE}")


_FIELDS = ("name", "rows", "bytes", "sha256")


def attempt_prefix(key: EpochKey) -> str:
    """Return where the objects of an attempt are."""
    return f"{epoch_prefix(key.owner, key.place)}/{key.lease or 0}.{key.attempt.attempt}"


def epoch_prefix(owner: StreamIdentity, place: EpochPlace) -> str:
    """Return where the objects of all attempts at an epoch are."""
    return f"{_stream_prefix(owner.stream)}/{place_name(*place)}"


def _stream_prefix(stream: str) -> str:
    return f"{SEGMENTS}/{stream}"


def place_of(path: str, stream: str) -> EpochPlace | None:
    """Return the epoch that an object was staged for; `None` if it is another stream's, or another kind of object."""
    match = _STAGED.fullmatch(path)
    return (int(match["t"]), int(match["e"])) if match and match["stream"] == stream else None


def named_objects(log: EventLog) -> set[str]:
    """Return all objects that the index names, also those of abandoned ranges."""
    ranges = (each for each in log.ranges() if isinstance(each, Committed))
    return {segment.path for each in ranges for segment in each.segments}


def _named_since(log: EventLog, owner: StreamIdentity, oldest: EpochPlace) -> set[str]:
    """Return the objects that the index names for the epochs from a place on: they are at its end, in order."""
    if not isinstance(log.index, StoreIndex):
        raise TypeError(type(log.index))
    found: set[str] = set()
    for record in log.index.newest_first():
        place = place_in(record.key, owner)
        if place is not None and record.segments and place[0] < oldest:
            break
        found.update(each.path for each in record.segments)
    return found

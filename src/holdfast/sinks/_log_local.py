"""Staging for an event log in a folder: Spark writes Parquet files next to the log, and a commit links them into it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq

from holdfast.errors import RecordCorrupt, SinkFailed
from holdfast.eventlog.appending import StagedSegment
from holdfast.eventlog.local_home import LocalHome
from holdfast.eventlog.log import EventLog
from holdfast.formats.sealed_json import Record, digest_of
from holdfast.sinks.base import EpochKey, EpochPlace, SinkContext, Staged, StreamIdentity
from holdfast.sinks.files.epoch_folders import KeyRecord
from holdfast.sinks.log_place import HeldPlace
from holdfast.sinks.owners import OwnerRecord, claim, owner_of
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEGMENTS_FILE = "_segments.key"
SHAPE = "an event log"
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


class LocalPlace:
    """The staging folder next to the folder of a log."""

    def __init__(self, home: LocalHome, sink: str) -> None:
        self.path = home.address
        self.sink = sink
        self.staging = Staging(self.path.with_name(self.path.name + SUFFIX))

    @property
    def target(self) -> str:
        """The folder, without links."""
        return os.path.realpath(self.path)

    def check(self, context: SinkContext) -> None:
        """Refuse a folder that other machines do not see, and a file."""
        require_seen_by_all(self.sink, context)
        refuse_file("event log", self.path)

    def make(self) -> None:
        """Create the folder."""
        self.staging.make()

    def stage(self, events: DataFrame, key: EpochKey, context: SinkContext, log: EventLog) -> Staged:
        """Write the events as Parquet with Spark, and a list of the future segments next to them."""
        del log
        staged = stage(events, key, self.staging, context)
        if not staged.rows:
            return staged
        folder = self.staging.folder(key)
        listed = listed_files(folder, key_record(folder, key, staged.handle, self.sink))
        check_rows(self.sink, "prepare", sum(each.rows for each in listed), staged.rows)
        record = SegmentsRecord(segments=listed).sealed()
        (folder / SEGMENTS_FILE).write_bytes(record)  # synced with the other files, before the decision
        paths = (*staged.paths, folder / SEGMENTS_FILE)
        return Staged(staged.handle | {"segments": digest_of(record)}, staged.rows, paths)

    def proven(self, key: EpochKey, handle: dict[str, Any]) -> list[StagedSegment]:
        """Return the staged files after checking them against their records."""
        action, folder = f"commit epoch {key.epoch}", self.staging.folder(key)
        listed = proven(self.sink, self.staging, key, handle)
        path = folder / SEGMENTS_FILE
        data = path.read_bytes()
        record = SegmentsRecord.unsealed(data, str(path))
        if digest_of(data) != handle["segments"]:
            raise RecordCorrupt(key=str(path), why="it is not the one that the decision names")
        if listed.digests is None:  # written by an earlier version: only this record has digests
            segments = {each.name: each.sha256 for each in record.segments}
            StagedCheck(self.sink, folder, key).digests({each.name: each.size for each in record.segments}, segments)
        check_rows(self.sink, action, sum(each.rows for each in record.segments), handle["rows"])
        return [
            StagedSegment(folder / each.name, each.rows, each.size, bytes.fromhex(each.sha256))
            for each in record.segments
        ]

    def clear(self, key: EpochKey) -> None:
        """Remove the attempt's folder."""
        self.staging.clear(key)

    def sweep(self, key: EpochKey, held: HeldPlace) -> None:
        """Remove the folders of earlier epochs and of other attempts at this one."""
        del held
        self.staging.sweep(key)

    def retire(self, owner: StreamIdentity, before: EpochPlace, log: EventLog) -> None:
        """Take away all folders of earlier places."""
        del log
        self.staging.retire(owner, before)

    def claim(self, owner: StreamIdentity) -> OwnerRecord:
        """Link the owner's record into the folder of the log."""
        return claim(self.path, owner, SHAPE)

    def owner(self) -> OwnerRecord | None:
        """Read the owner's record."""
        return owner_of(self.path)


def check_rows(sink: str, action: str, staged: int, rows: int) -> None:
    """Require that as many rows were staged as were counted."""
    if staged != rows:
        raise SinkFailed(sink=sink, action=action, why=f"{staged} rows were staged where {rows} were counted")


def listed_files(folder: Path, record: KeyRecord) -> list[StagedFile]:
    """Return the files of an attempt that contain rows, ordered by name, each with its digest."""
    found = [(name, pq.read_metadata(folder / name).num_rows) for name in sorted(record.files) if _PART.fullmatch(name)]
    known = record.digests or digests(folder, record.files)
    return [StagedFile(name, rows, record.files[name], known[name]) for name, rows in found if rows]

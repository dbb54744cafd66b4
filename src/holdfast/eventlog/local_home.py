"""An event log in a folder on a local disk, or on a file system that every machine mounts.

    <log>/
      log.json      uid and columns of the log; sealed
      head          two slots (see `formats.blocks`): how many records of the index are committed
      index         committed and cancelled ranges, and rewinds, append-only (see `index`)
      segments/first=<sequence>/<token>.parquet

Readers take no lock and see the records that the head counts. The write protocol is described in `writer`.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import AlreadyExists, BadValue, LogCorrupt
from holdfast.eventlog._files import (
    ABOUT,
    HEAD,
    HEAD_BLOCKS,
    INDEX,
    SEGMENTS,
    About,
    has_records,
    read_about,
    read_head,
    read_index,
    read_segment,
    read_stored,
    sync_head,
    write_head,
)
from holdfast.eventlog.index import IndexHead, LiveIndex, LogIndex, RangeDamaged, Segment, StoredHead
from holdfast.eventlog.keeping import FLOOR, LogFloor, read_floor, read_keep, set_keep
from holdfast.eventlog.segment import schema_to_text
from holdfast.eventlog.writer import LogWriter
from holdfast.formats.blocks import MemoryBlocks
from holdfast.repository import FileBlocks, files
from holdfast.repository.files import hadoop_address, local_path

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST = re.compile(r"first=(\d{20})")


@dataclass(frozen=True, slots=True)
class LocalHome:
    """The folder of a log."""

    address: Path

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> LocalHome:
        """Return the folder at a path or a `file:` URL."""
        return cls(local_path("event log", path))

    @property
    def poll_every(self) -> float:
        """Looking at a local file costs next to nothing."""
        return 0.0

    @property
    def parquet(self) -> str | None:
        """The folder of the segments."""
        return hadoop_address(self.address / SEGMENTS)

    def about(self) -> About:
        """Read `log.json`."""
        return read_about(self.address)

    def create(self, schema: pa.Schema, *, keep_clock: bool) -> None:
        """Create the files under the writer lock. A folder that contains records never becomes a new log."""
        folder = self.address
        _require_own_folder(folder)
        with files.failing_as("create", str(folder)):
            files.make_folder(folder / SEGMENTS)
        with FileBlocks.lock(folder / HEAD, f"the writer lock of event log {folder}"):
            if (folder / ABOUT).exists():
                raise AlreadyExists(what=f"an event log at {folder}")
            if has_records(folder):
                raise LogCorrupt(path=str(folder), part=ABOUT, why="it is missing, but the log has records")
            uid, head = uuid.uuid4().hex, MemoryBlocks(HEAD_BLOCKS)
            write_head(head, StoredHead.of(IndexHead.first(uid)), None)
            files.replace_durably(folder / INDEX, b"", INDEX)
            files.replace_durably(folder / HEAD, head.data, HEAD)
            about = About(
                uid=uid,
                keep_clock=keep_clock,
                columns=", ".join(f"{each.name}: {each.type}" for each in schema),
                schema=schema_to_text(schema),
            )
            files.replace_durably(folder / ABOUT, about.sealed(), ABOUT)

    def index(self, about: About, *, whole: bool) -> DiskIndex:
        """Return the index; its end begins at the older anchor of the head."""
        anchors = () if whole else read_stored(self.address).anchors
        return DiskIndex(self.address, about.uid, anchors[0] if anchors else None)

    def tail(self) -> int:
        """Read the head."""
        return read_head(self.address).tail

    def segment(self, segment: Segment, schema: pa.Schema) -> pa.Table:
        """Read and check a file."""
        return read_segment(self.address, segment, schema)

    def writer(self) -> LogWriter:
        """Take the writer lock, or raise `Locked` with the pid of the current writer."""
        return LogWriter(self.address)

    def writer_of(self, index: LiveIndex, schema: pa.Schema) -> LogWriter:
        """Take the writer lock; the writer has its own view of the log."""
        del index, schema
        return LogWriter(self.address)

    def floor(self) -> int:
        """Read `floor.json`."""
        return read_floor(self.address)

    def keep(self) -> float | None:
        """Read `keep.json`."""
        return read_keep(self.address)

    def set_keep(self, seconds: float | None) -> None:
        """Write `keep.json`."""
        set_keep(self.address, seconds)

    def old_segments(self, index: LiveIndex) -> SegmentFolders:
        """Return the folders of the segments."""
        del index
        return SegmentFolders(self.address)


class DiskIndex(LogIndex, LiveIndex):
    """The index of a log on a local disk."""

    def __init__(self, folder: Path, uid: str, anchor: IndexHead | None) -> None:
        super().__init__(uid, partial(read_index, folder), anchor)
        self._folder = folder

    def refresh(self) -> None:
        """Read the head, and the records that it counts. A new head is made durable before it is used."""
        head = read_head(self._folder)
        if head == self.head:
            return
        sync_head(self._folder)
        if head.records < self.head.records:
            raise RangeDamaged(f"the head counts {head.records} records, but there were {self.head.records}")
        self.advance(head)

    def catch_up(self) -> None:
        """Refresh: an append does not compare the head with this view."""
        self.refresh()


@dataclass(frozen=True, slots=True)
class SegmentFolders:
    """The oldest segments in a folder: the name of a segment's folder is its first sequence."""

    folder: Path

    def written_s(self, segment: Segment) -> float:
        """Return the modification time of the file."""
        return (self.folder / segment.path).stat().st_mtime

    def below(self, floor: int) -> dict[str, int]:
        """List the folders before a sequence that is the end of a segment."""
        return {str(path.relative_to(self.folder)): path.stat().st_size for path in self._files(floor)}

    def remove(self, floor: int) -> None:
        """Write the floor, then remove the files before it and their folders."""
        if floor > read_floor(self.folder):
            files.replace_durably(self.folder / FLOOR, LogFloor(first=floor).sealed(), FLOOR)
        with files.failing_as("remove segments of", str(self.folder)):
            for path in self._files(floor):
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # it holds another file
                    path.parent.rmdir()

    def _files(self, floor: int) -> list[Path]:
        with files.failing_as("list", str(self.folder / SEGMENTS)):
            names = [(_FIRST.fullmatch(each.name), each) for each in (self.folder / SEGMENTS).iterdir()]
            found = [each for name, each in names if name and int(name[1]) < floor]
            return sorted(path for each in found for path in each.iterdir())


def _require_own_folder(folder: Path) -> None:
    """Raise if the folder contains files that do not belong to a log."""
    known = {ABOUT, HEAD, INDEX, SEGMENTS, f"{HEAD}.lock"}
    with files.failing_as("create", str(folder)):
        others = [path.name for path in folder.iterdir() if path.name not in known] if folder.is_dir() else []
    foreign = sorted(name for name in others if not name.startswith(files.TEMP_PREFIX))
    if foreign:
        why = f"the folder contains other files, such as {foreign[0]!r}"
        raise BadValue(what="event log", value=str(folder), why=why, do="use an empty folder")

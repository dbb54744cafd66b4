"""The files of an event log: `log.json`, head, index and segments. Each is checked when it is read.

Rules:
- Both slots of the head must be intact. A damaged slot is an error: falling back to the older one would lose committed
  events.
- A whole segment is checked against the digest in the index before any of its events is returned.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import Corrupt, LogCorrupt, LogMissing, LogTrimmed, StageBlank, StageCorrupt
from holdfast.eventlog.index import IndexHead, RangeDamaged, Segment, StoredHead
from holdfast.eventlog.keeping import read_floor
from holdfast.eventlog.segment import from_parquet, schema_from_text
from holdfast.formats.blocks import BLOCK_SIZE, BlockDevice, Device, Found, Image, MemoryBlocks
from holdfast.formats.decoding import Undecodable, from_msgpack
from holdfast.formats.sealed_json import Record
from holdfast.repository import files

if TYPE_CHECKING:
    import pyarrow as pa

ABOUT = "log.json"
HEAD = "head"
INDEX = "index"
SEGMENTS = "segments"
HEAD_BLOCKS = 4
WITH_REWINDS = 2  # the version of `log.json` in a log whose index may contain rewinds
_SEGMENT = re.compile(rf"{SEGMENTS}/first=\d{{20}}/[^/\0]+")
_HEAD_NAME = "log-head"
_HEAD_TYPE = "Head"  # the type name in the image: part of the format, independent of the class name
_HEAD_TRIES = 5
_HEAD_PAUSE_S = 0.002


class About(Record, frozen=True, kw_only=True):
    """The identity and the columns of a log, stored in `log.json`.

    Version 2 differs in the index: it may contain rewinds. Earlier programs, which cannot skip what they abandon,
    refuse the log.
    """

    KNOWN = (1, 2)
    uid: str
    keep_clock: bool
    columns: str  # for people; `schema` is authoritative
    schema: str


def read_about(folder: Path) -> About:
    """Return the contents of `log.json`, or raise `LogMissing`."""
    with files.failing_as("read", str(folder / ABOUT)):
        try:
            data = (folder / ABOUT).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            if has_records(folder):
                raise LogCorrupt(path=str(folder), part=ABOUT, why="it is missing, but the log has records") from None
            raise LogMissing(path=str(folder)) from None
    try:
        return About.unsealed(data, str(folder / ABOUT))
    except Corrupt as error:
        raise LogCorrupt(path=str(folder), part=ABOUT, why=error.summary) from error


def mark_rewound(folder: Path) -> None:
    """Make `log.json` version 2, before the first rewind is recorded in the index."""
    about = read_about(folder)
    if about.version < WITH_REWINDS:
        data = msgspec.structs.replace(about, version=WITH_REWINDS).sealed()
        files.replace_durably(folder / ABOUT, data, ABOUT)


def has_records(folder: Path) -> bool:
    """Whether a folder contains more than an interrupted creation of a log leaves behind."""
    index, segments = folder / INDEX, folder / SEGMENTS
    return (index.is_file() and index.stat().st_size > 0) or (segments.is_dir() and any(segments.iterdir()))


def sync_head(folder: Path) -> None:
    """Make the head durable. A reader does this before it uses a new head, which the writer may not have synced yet."""
    with files.failing_as("sync", str(folder / HEAD)):
        descriptor = os.open(folder / HEAD, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EINVAL):  # no writer can use this file system: nothing to sync
                raise
        finally:
            os.close(descriptor)


def read_index(folder: Path, start: int, end: int) -> bytes:
    """Return the bytes `start` to `end` of the index, or fewer if the index ends earlier."""
    with files.failing_as("read", str(folder / INDEX)):
        try:
            with (folder / INDEX).open("rb") as reader:
                reader.seek(start)
                return reader.read(end - start)
        except FileNotFoundError:
            raise RangeDamaged("it is missing") from None


def index_bytes(folder: Path, start: int = 0) -> bytes:
    """Return the index from byte `start` to its end, or raise `LogCorrupt` if it is missing."""
    with files.failing_as("read", str(folder / INDEX)):
        try:
            with (folder / INDEX).open("rb") as reader:
                reader.seek(start)
                return reader.read()
        except FileNotFoundError:
            raise LogCorrupt(path=str(folder), part=INDEX, why="it is missing") from None


def truncate_durably(path: Path, length: int) -> None:
    """Truncate a file and sync it."""
    with path.open("r+b") as file:
        os.ftruncate(file.fileno(), length)
        os.fsync(file.fileno())


def read_head(folder: Path) -> IndexHead:
    """Return the head without its anchors."""
    return read_stored(folder).head


def read_stored(folder: Path) -> StoredHead:
    """Return the head. A concurrent write may be read half done, so a damaged head is read again a few times."""
    for _ in range(_HEAD_TRIES - 1):
        with contextlib.suppress(LogCorrupt):
            return _sound_head(folder)
        time.sleep(_HEAD_PAUSE_S)
    return _sound_head(folder)


def require_head(folder: Path) -> bytes:
    """Return the bytes of the head, or raise `LogCorrupt` if its file is missing or has the wrong size."""
    with files.failing_as("read", str(folder / HEAD)):
        try:
            data = (folder / HEAD).read_bytes()
        except FileNotFoundError:
            raise LogCorrupt(path=str(folder), part=HEAD, why="it is missing") from None
    if len(data) != HEAD_BLOCKS * BLOCK_SIZE:
        raise LogCorrupt(path=str(folder), part=HEAD, why=f"it has {len(data)} bytes")
    return data


def _sound_head(folder: Path) -> StoredHead:
    blocks = MemoryBlocks(HEAD_BLOCKS)
    blocks.data[:] = require_head(folder)
    found = find_head(blocks, folder)
    if found.fell_back:
        raise LogCorrupt(path=str(folder), part=HEAD, why="one of its two slots is damaged")
    return head_in(found, folder)


def find_head(blocks: BlockDevice, folder: Path) -> Found:
    """Return the newest intact slot of the head."""
    try:
        found = Device(blocks, _HEAD_NAME).find()
    except (StageCorrupt, StageBlank) as error:
        raise LogCorrupt(path=str(folder), part=HEAD, why=error.summary) from error
    if found.image.stage != _HEAD_NAME:
        raise LogCorrupt(path=str(folder), part=HEAD, why="the image does not belong to a log head")
    return found


def head_in(found: Found, folder: Path) -> StoredHead:
    """Decode the head in a slot."""
    try:
        head = from_msgpack(found.image.payload, StoredHead)
    except Undecodable as error:
        raise LogCorrupt(path=str(folder), part=HEAD, why=str(error)) from error
    if not all(0 <= each.length <= head.length and 0 <= each.tail <= head.tail for each in head.anchors):
        raise LogCorrupt(path=str(folder), part=HEAD, why="one of its anchors is outside the log")
    return head


def write_head(blocks: BlockDevice, head: StoredHead, over: Found | None) -> Found:
    """Write the head into the slot that `over` does not occupy; durable on return."""
    generation = 1 + (over.highest if over else 0)
    image = Image(generation, _HEAD_NAME, _HEAD_TYPE, msgspec.msgpack.encode(head))
    return Device(blocks, _HEAD_NAME).write(image, over)


def read_schema(about: About, folder: Path | str) -> pa.Schema:
    """Return the columns of a log."""
    try:
        return schema_from_text(about.schema)
    except Exception as error:
        raise LogCorrupt(path=str(folder), part=ABOUT, why=f"its schema cannot be read: {error}") from error


def read_segment(folder: Path, segment: Segment, schema: pa.Schema) -> pa.Table:
    """Return the events of a segment in a folder; see `committed_events`."""

    def read() -> bytes | None:
        with files.failing_as("read", str(folder / segment.path)):
            try:
                return (folder / segment.path).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    place = SegmentPlace(str(folder), bool(_SEGMENT.fullmatch(segment.path)), read, lambda: read_floor(folder))
    return committed_events(place, segment, schema)


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """Where the bytes of a segment come from."""

    log: str
    is_valid: bool  # whether its path is one of a segment
    read: Callable[[], bytes | None]  # `None`: there is none
    floor: Callable[[], int]  # the first event that was not trimmed


def committed_events(place: SegmentPlace, segment: Segment, schema: pa.Schema) -> pa.Table:
    """Return the events of a segment, or raise `LogCorrupt` if its bytes are not those that were committed."""

    def refused(why: str) -> LogCorrupt:
        return LogCorrupt(path=place.log, part=f"segment {segment.path}", why=why)

    if not place.is_valid:
        raise refused("its path is not a valid segment path")
    data = place.read()
    if data is None:
        floor = place.floor()
        if segment.first < floor:
            raise LogTrimmed(path=place.log, sequence=segment.first, floor=floor)
        raise refused("its file is missing")
    if len(data) != segment.size or hashlib.sha256(data).digest() != segment.sha256:
        raise refused("its bytes are not those that were committed")
    try:
        table = from_parquet(data, schema)
    except ValueError as error:
        raise refused(str(error)) from error
    if table.num_rows != segment.count:
        raise refused(f"it contains {table.num_rows} events, but {segment.count} were committed")
    return table

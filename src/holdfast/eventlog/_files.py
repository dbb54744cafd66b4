"""The files of an event log: its record, its head, its index and its segments, each read with its checks.

Rules:
- Both slots of the head must be sound. A damaged one is an error, not a reason to believe the older: that would take
  committed events away.
- A segment is checked as a whole against the digest in the index before one event of it is given.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import Corrupt, LogCorrupt, LogMissing, StageBlank, StageCorrupt
from holdfast.eventlog.index import IndexHead, RangeDamaged, Segment
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
_SEGMENT = re.compile(rf"{SEGMENTS}/first=\d{{20}}/[^/\0]+")
_HEAD_NAME = "log-head"
_HEAD_TYPE = "Head"  # what the image calls its state: a part of the format, whatever the class is called
_HEAD_TRIES = 5
_HEAD_PAUSE_S = 0.002


class About(Record, frozen=True, kw_only=True):
    """Who a log is."""

    uid: str
    keep_clock: bool
    columns: str  # for people
    schema: str


def read_about(folder: Path) -> About:
    """Return who a log is, or raise `LogMissing`."""
    with files.failing_as("read", str(folder / ABOUT)):
        try:
            data = (folder / ABOUT).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            if has_records(folder):
                raise LogCorrupt(path=str(folder), part=ABOUT, why="it is missing, and the log has records") from None
            raise LogMissing(path=str(folder)) from None
    try:
        return About.unsealed(data, str(folder / ABOUT))
    except Corrupt as error:
        raise LogCorrupt(path=str(folder), part=ABOUT, why=error.summary) from error


def has_records(folder: Path) -> bool:
    """Whether a folder holds more of a log than a creation that was cut off leaves there."""
    index, segments = folder / INDEX, folder / SEGMENTS
    return (index.is_file() and index.stat().st_size > 0) or (segments.is_dir() and any(segments.iterdir()))


def sync_head(folder: Path) -> None:
    """Make the head durable. A reader does so before it believes a new one: its writer may not have come to it yet."""
    with files.failing_as("sync", str(folder / HEAD)):
        descriptor = os.open(folder / HEAD, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EINVAL):  # nobody writes there, so nothing is on its way
                raise
        finally:
            os.close(descriptor)


def read_index(folder: Path, start: int, end: int) -> bytes:
    """Return a part of the index, or less where it ends before."""
    with files.failing_as("read", str(folder / INDEX)):
        try:
            with (folder / INDEX).open("rb") as reader:
                reader.seek(start)
                return reader.read(end - start)
        except FileNotFoundError:
            raise RangeDamaged("it is missing") from None


def read_head(folder: Path) -> IndexHead:
    """Return the head. A writer at work may be caught between two bytes, so a damaged one is looked at again."""
    for _ in range(_HEAD_TRIES - 1):
        with contextlib.suppress(LogCorrupt):
            return _sound_head(folder)
        time.sleep(_HEAD_PAUSE_S)
    return _sound_head(folder)


def require_head(folder: Path) -> bytes:
    """Return the head's bytes, or raise `LogCorrupt` where its file is not there or has another size."""
    with files.failing_as("read", str(folder / HEAD)):
        try:
            data = (folder / HEAD).read_bytes()
        except FileNotFoundError:
            raise LogCorrupt(path=str(folder), part=HEAD, why="it is missing") from None
    if len(data) != HEAD_BLOCKS * BLOCK_SIZE:
        raise LogCorrupt(path=str(folder), part=HEAD, why=f"it has {len(data)} bytes")
    return data


def _sound_head(folder: Path) -> IndexHead:
    blocks = MemoryBlocks(HEAD_BLOCKS)
    blocks.data[:] = require_head(folder)
    found = find_head(blocks, folder)
    if found.fell_back:
        raise LogCorrupt(path=str(folder), part=HEAD, why="one of its two slots is damaged")
    return head_in(found, folder)


def find_head(blocks: BlockDevice, folder: Path) -> Found:
    """Return the newest sound slot of the head."""
    try:
        found = Device(blocks, _HEAD_NAME).find()
    except (StageCorrupt, StageBlank) as error:
        raise LogCorrupt(path=str(folder), part=HEAD, why=error.summary) from error
    if found.image.stage != _HEAD_NAME:
        raise LogCorrupt(path=str(folder), part=HEAD, why="it is the image of something else")
    return found


def head_in(found: Found, folder: Path) -> IndexHead:
    """Return the head that a slot holds."""
    try:
        return from_msgpack(found.image.payload, IndexHead)
    except Undecodable as error:
        raise LogCorrupt(path=str(folder), part=HEAD, why=str(error)) from error


def write_head(blocks: BlockDevice, head: IndexHead, over: Found | None) -> Found:
    """Write the head durably into the slot that `over` does not occupy."""
    generation = 1 + (over.highest if over else 0)
    image = Image(generation, _HEAD_NAME, _HEAD_TYPE, msgspec.msgpack.encode(head))
    return Device(blocks, _HEAD_NAME).write(image, over)


def read_schema(about: About, folder: Path) -> pa.Schema:
    """Return the columns of a log."""
    try:
        return schema_from_text(about.schema)
    except Exception as error:
        raise LogCorrupt(path=str(folder), part=ABOUT, why=f"its schema cannot be read: {error}") from error


def read_segment(folder: Path, segment: Segment, schema: pa.Schema) -> pa.Table:
    """Return a segment's events, or raise `LogCorrupt` where its file is not the one that was committed."""

    def refused(why: str) -> LogCorrupt:
        return LogCorrupt(path=str(folder), part=f"segment {segment.path}", why=why)

    if not _SEGMENT.fullmatch(segment.path):
        raise refused("its path is not one of a segment")
    with files.failing_as("read", str(folder / segment.path)):
        try:
            data = (folder / segment.path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise refused("its file is missing") from None
    if len(data) != segment.size or hashlib.sha256(data).digest() != segment.sha256:
        raise refused("its bytes are not those that were committed")
    try:
        table = from_parquet(data, schema)
    except ValueError as error:
        raise refused(str(error)) from error
    if table.num_rows != segment.count:
        raise refused(f"it holds {table.num_rows} events where {segment.count} were committed")
    return table

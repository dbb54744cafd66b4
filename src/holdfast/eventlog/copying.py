"""A copy of the beginning of an event log, for a pipeline that continues from there on its own.

Rules:
- The copy has the uid, the chain and the sequences of the original up to the cut, because the offsets of readers
  contain them. It has no owner: the next stream that appends to it becomes its owner.
- Segments are linked where possible: they are never changed.
- `log.json` is written last. Until then there is no log.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import LogCorrupt, LogDiverged
from holdfast.eventlog._files import (
    ABOUT,
    HEAD,
    HEAD_BLOCKS,
    INDEX,
    SEGMENTS,
    index_bytes,
    read_about,
    write_head,
)
from holdfast.eventlog.index import Committed, IndexHead, RangeDamaged, Segment, StoredHead, decode
from holdfast.eventlog.keeping import FLOOR, KEEP, read_floor
from holdfast.formats.blocks import MemoryBlocks
from holdfast.repository import files


def copy_log(source: Path, target: Path, tail: int) -> None:
    """Copy a log up to before the sequence `tail`, which must be the end of an append."""
    about = read_about(source)
    index, head, segments = _until(source, about.uid, tail)
    with files.failing_as("create", str(target)):
        files.make_folder(target / SEGMENTS)
    floor = read_floor(source)
    new: set[Path] = set()
    with files.failing_as("copy", str(source)):
        for segment in segments:
            if segment.first >= floor:
                new |= files.make_folders((target / segment.path).parent)
                files.link_or_copy(source / segment.path, target / segment.path)
                new.add(target / segment.path)
    with files.failing_as("sync", str(target), unknown=True):
        files.sync_all(sorted(new))
    blocks = MemoryBlocks(HEAD_BLOCKS)
    write_head(blocks, StoredHead.of(head), None)
    files.replace_durably(target / INDEX, index, INDEX)
    files.replace_durably(target / HEAD, blocks.data, HEAD)
    for name in (FLOOR, KEEP):
        if (source / name).exists():
            files.replace_durably(target / name, (source / name).read_bytes(), name)
    files.replace_durably(target / ABOUT, about.sealed(), ABOUT)


def _until(source: Path, uid: str, tail: int) -> tuple[bytes, IndexHead, list[Segment]]:
    """Return the index up to a sequence, its head, and the segments that it names."""
    data, head = index_bytes(source), IndexHead.first(uid)
    segments: list[Segment] = []
    try:
        for range_, after in decode(data, head) if tail else ():
            if after.tail > tail:
                break
            head = after
            segments += range_.segments if isinstance(range_, Committed) else ()
            if head.tail == tail:
                break
    except RangeDamaged as damage:
        raise LogCorrupt(path=str(source), part=INDEX, why=str(damage)) from damage
    if head.tail != tail:
        raise LogDiverged(path=str(source), sequence=tail, why="no append of the log ends there")
    return data[: head.length], head, segments

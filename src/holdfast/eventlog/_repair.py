"""The repair of an event log whose head is torn: one of its two slots is damaged."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from holdfast.errors import LogCorrupt
from holdfast.eventlog._files import (
    HEAD,
    INDEX,
    find_head,
    head_in,
    index_bytes,
    read_about,
    read_schema,
    read_segment,
    require_head,
    truncate_durably,
    write_head,
)
from holdfast.eventlog.index import Committed, IndexHead, RangeDamaged, StoredHead, decode
from holdfast.repository import FileBlocks, files
from holdfast.repository.files import local_path


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of `repair`."""

    records: int  # the number of records now
    regained: int  # how many of them the head had lost
    dropped_bytes: int  # bytes after the last complete record that were truncated


def repair(path: str | os.PathLike[str]) -> Repaired:
    """Rebuild a head with one damaged slot from the index, whose records verify themselves.

    Complete records that the intact slot does not count are regained: the damaged slot may have counted them. If the
    segment of such a record is damaged or missing, `LogCorrupt` names the segment. Bytes after the last complete record
    are truncated. If both slots are damaged, the number of committed records is unknown, and the log stays unreadable.
    """
    folder = local_path("event log", path)
    about = read_about(folder)
    schema = read_schema(about, folder)
    require_head(folder)
    with FileBlocks.open(folder / HEAD) as blocks:
        found = find_head(blocks, folder)
        counted = head_in(found, folder)
        data = index_bytes(folder)
        head = IndexHead.first(about.uid)
        with contextlib.suppress(RangeDamaged):
            for range_, after in decode(data, head):
                head = after
                if head.records > counted.records and isinstance(range_, Committed):
                    for segment in range_.segments:
                        read_segment(folder, segment, schema)
        if head.records < counted.records:
            why = f"only {head.records} of {counted.records} records are complete"
            raise LogCorrupt(path=str(folder), part=INDEX, why=why)
        repaired = StoredHead.of(head)
        write_head(blocks, repaired, write_head(blocks, repaired, found))
        with files.failing_as("repair", str(folder), unknown=True):
            truncate_durably(folder / INDEX, head.length)
    return Repaired(head.records, head.records - counted.records, len(data) - head.length)

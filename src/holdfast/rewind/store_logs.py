"""A copy of the beginning of an event log on an object store, for a fork.

Rules:
- Those of `eventlog.copying`: the copy has the uid, the chain and the sequences of the original up to the cut, and no
  owner. `log.json` is written last.
- Segments and records of the index are copied on the server's side, and compared afterwards (`transfer`).
- Segments that were trimmed are left out, and the floor is copied.
"""

from __future__ import annotations

import hashlib

from holdfast.errors import LogCorrupt, LogDiverged
from holdfast.eventlog._files import ABOUT
from holdfast.eventlog.index import RangeDamaged
from holdfast.eventlog.keeping import FLOOR
from holdfast.eventlog.store_home import StoreHome
from holdfast.eventlog.store_index import StoreIndex
from holdfast.eventlog.store_record import INDEX_FOLDER, IndexRecord, record_key
from holdfast.eventlog.store_segments import StoreFloor
from holdfast.repository import HeldFile
from holdfast.transfer import copy_all


def copy_store_log(source: str, target: str, tail: int) -> None:
    """Copy a log up to before the sequence `tail`, which must be the end of a record, to a place without objects."""
    old, new = StoreHome(source), StoreHome(target)
    about, floor = old.about(), old.floor()
    try:
        records = [each for each in StoreIndex(old.repository, about.uid).whole() if each.head.tail <= tail]
    except RangeDamaged as damage:
        raise LogCorrupt(path=source, part=INDEX_FOLDER, why=str(damage)) from damage
    if (records[-1].head.tail if records else 0) != tail:
        raise LogDiverged(path=source, sequence=tail, why="no append of the log ends there")
    copy_all(old.repository, _segments(records, floor) | _index(old, records), new.repository, "")
    if floor:
        new.repository.heads.rise(FLOOR, floor, StoreFloor(first=floor, since=floor).sealed())
    if (keep := old.keep()) is not None:
        new.set_keep(keep)
    new.repository.put_new(ABOUT, about.sealed())


def _segments(records: list[IndexRecord], floor: int) -> dict[str, HeldFile]:
    """Return the segments that the records name, as files to copy."""
    found = {}
    for record in records:
        at = record.first
        for each in record.segments:
            if at >= floor:
                found[each.path] = HeldFile(each.path, each.bytes, each.sha256)
            at += each.rows
    return found


def _index(log: StoreHome, records: list[IndexRecord]) -> dict[str, HeldFile]:
    """Return the records themselves, as files to copy."""
    found = {}
    for name, data in log.repository.read_all(record_key(each.first) for each in records).items():
        if data is None:
            raise LogCorrupt(path=log.address, part=name, why="it is missing")
        found[name] = HeldFile(name, len(data), hashlib.sha256(data).hexdigest())
    return found

"""An event log on an object store, such as S3: no other machine, disk or lock is shared.

    <log>/
      log.json                                uid and columns of the log; sealed
      index/<first sequence, 20 digits>.json  one record each, written once (see `store_record`)
      segments/<stream>/t<timeline>-<epoch>/<lease>.<attempt>/<partition>-<task attempt>.parquet
      segments/_/<token>.parquet              segments of a `LogWriter`
      heads/…                                 how long events are kept, and where the kept ones begin

Rules:
- Nothing is overwritten. Records of the index are never removed, and a segment only below the floor.
- An object is a segment if a record names it. Other objects below `segments/` were staged and are not committed.
- A client belongs to the process that made it, and credentials come from each machine's own environment: only the
  address travels to another process.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from holdfast._validation import checked_key
from holdfast.errors import AlreadyExists, BadName, Corrupt, LogCorrupt, LogMissing, NotFound
from holdfast.eventlog._files import (
    ABOUT,
    SEGMENTS,
    WITH_REWINDS,
    About,
    SegmentPlace,
    committed_events,
    read_schema,
)
from holdfast.eventlog.index import LiveIndex, RangeDamaged, Segment
from holdfast.eventlog.keeping import FLOOR, KEEP, LogFloor, LogKeep
from holdfast.eventlog.segment import schema_to_text
from holdfast.eventlog.store_index import StoreIndex
from holdfast.eventlog.store_record import INDEX_FOLDER
from holdfast.eventlog.store_segments import StoredSegments
from holdfast.eventlog.store_writer import StoreWriter
from holdfast.repository.objectstore import ObjectRepository

if TYPE_CHECKING:
    import pyarrow as pa

_POLL_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class StoreHome:
    """The place of a log in a bucket."""

    address: str

    @property
    def repository(self) -> ObjectRepository:
        """The objects of the log, by the client of this process."""
        return _opened(self.address, os.getpid())

    @property
    def poll_every(self) -> float:
        """Each look is a request."""
        return _POLL_EVERY_S

    @property
    def parquet(self) -> str | None:
        """Only the index shows which objects are segments, and where they begin."""
        return None

    def about(self) -> About:
        """Read `log.json`."""
        try:
            return About.unsealed(self.repository.read(ABOUT), f"{self.address}/{ABOUT}")
        except NotFound:
            if self.repository.page(INDEX_FOLDER):
                why = "it is missing, but the log has records"
                raise LogCorrupt(path=self.address, part=ABOUT, why=why) from None
            raise LogMissing(path=self.address) from None
        except Corrupt as error:
            raise LogCorrupt(path=self.address, part=ABOUT, why=error.summary) from error

    def create(self, schema: pa.Schema, *, keep_clock: bool) -> None:
        """Write `log.json`, which no other creation can win then. Records without it are not taken over."""
        if self.repository.page(INDEX_FOLDER):
            self.about()  # raises if it is missing
        about = About(
            version=WITH_REWINDS,
            uid=uuid.uuid4().hex,
            keep_clock=keep_clock,
            columns=", ".join(f"{each.name}: {each.type}" for each in schema),
            schema=schema_to_text(schema),
        )
        if not self.repository.put_if_absent(ABOUT, about.sealed()).won:
            raise AlreadyExists(what=f"an event log at {self.address}")

    def index(self, about: About, *, whole: bool) -> StoreIndex:
        """Return the index. Earlier records are always read when one of them is needed."""
        del whole
        return StoreIndex(self.repository, about.uid)

    def tail(self) -> int:
        """Look for the last record."""
        index = StoreIndex(self.repository, self.about().uid)
        try:
            index.refresh()
        except RangeDamaged as damage:
            raise LogCorrupt(path=self.address, part=INDEX_FOLDER, why=str(damage)) from damage
        return index.head.tail

    def segment(self, segment: Segment, schema: pa.Schema) -> pa.Table:
        """Read and check an object."""
        read = self.repository.read_all
        place = SegmentPlace(
            self.address, _is_segment(segment.path), lambda: read([segment.path])[segment.path], self.floor
        )
        return committed_events(place, segment, schema)

    def writer(self) -> StoreWriter:
        """Find the tail: one listing, and the last record. There is no lock, and several writers may append."""
        about = self.about()
        index = StoreIndex(self.repository, about.uid)
        writer = StoreWriter(self.address, self.repository, index, read_schema(about, self.address))
        writer.look()
        return writer

    def writer_of(self, index: LiveIndex, schema: pa.Schema) -> StoreWriter:
        """Return a writer that continues at the tail of an index, without a request."""
        if not isinstance(index, StoreIndex):
            raise TypeError(type(index))
        return StoreWriter(self.address, self.repository, index, schema)

    def floor(self) -> int:
        """Read the newest floor."""
        try:
            return LogFloor.unsealed(self.repository.heads.read(FLOOR), FLOOR).first
        except NotFound:
            return 0
        except Corrupt as error:
            raise LogCorrupt(path=self.address, part=FLOOR, why=error.summary) from error

    def keep(self) -> float | None:
        """Read the newest setting; a negative number stands for forever."""
        try:
            seconds = LogKeep.unsealed(self.repository.heads.read(KEEP), KEEP).seconds
        except NotFound:
            return None
        except Corrupt as error:
            raise LogCorrupt(path=self.address, part=KEEP, why=error.summary) from error
        return seconds if seconds >= 0 else None

    def set_keep(self, seconds: float | None) -> None:
        """Add a setting, unless it is the newest one already."""
        if self.keep() == seconds:
            return
        record = LogKeep(seconds=-1.0 if seconds is None else seconds).sealed()
        self.repository.heads.change(KEEP, lambda _: record)

    def old_segments(self, index: LiveIndex) -> StoredSegments:
        """Return the segments that the index names."""
        if not isinstance(index, StoreIndex):
            raise TypeError(type(index))
        return StoredSegments(self.repository, index)


@cache
def _opened(address: str, process: int) -> ObjectRepository:
    del process  # a forked child opens its own
    return ObjectRepository(address)


def _is_segment(path: str) -> bool:
    try:
        return checked_key(path).startswith(f"{SEGMENTS}/")
    except BadName:
        return False

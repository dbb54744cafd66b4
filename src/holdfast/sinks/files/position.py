"""The stamp of a FileSink's folder: `_holdfast/position.key`, written by a rewind before it moves any epoch."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import TimelineEnded
from holdfast.formats.sealed_json import Record
from holdfast.repository.files import replace_durably
from holdfast.sinks.base import EpochKey, EpochPlace, StreamIdentity
from holdfast.sinks.taking_back import refuse_outdated

POSITION_FILE = "position.key"


class PositionRecord(Record, frozen=True, kw_only=True):
    """The timeline that a rewind has begun, and the last epoch before it that it keeps."""

    pipeline: str
    uid: str
    stream: str
    timeline: int
    epoch: int


class PositionStamp:
    """The stamp in one folder. It keeps nothing in memory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / POSITION_FILE

    def read(self) -> EpochPlace:
        """Return the stamp; (0, 0) if there is none."""
        try:
            data = self._path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return 0, 0
        record = PositionRecord.unsealed(data, str(self._path))
        return record.timeline, record.epoch

    def covers(self, key: EpochKey) -> bool:
        """Whether an epoch is at or before the stamp in its own timeline; raise if its timeline has ended."""
        timeline, epoch = self.read()
        if timeline > key.timeline:
            raise TimelineEnded(stream=key.attempt.stream, timeline=key.timeline)
        return timeline == key.timeline and key.epoch <= epoch

    def write(self, owner: StreamIdentity, base: EpochPlace, into: int) -> None:
        """Write the stamp, unless it is there already; refuse a rewind that a later one has followed."""
        timeline, _ = self.read()
        refuse_outdated(owner, into, timeline)
        if timeline < into:
            record = PositionRecord(
                pipeline=owner.pipeline, uid=owner.uid, stream=owner.stream, timeline=into, epoch=base[1]
            )
            replace_durably(self._path, record.sealed(), str(self._path))

"""The lineage: which timelines make up the current history of a pipeline.

Rules:
- `timelines/<n>/lineage.json` begins timeline n. It is written once, with `put_if_absent`, and never changed. The
  highest one counts, so a process that was paused and resumes later cannot make an older timeline current again.
  Timeline 1 has no such record.
- Each record names its parent. The records from the highest one back to timeline 1 are the current lineage. All other
  timelines are abandoned branches.
- A stream's timeline is the highest one of the lineage that names the stream. A stream that none of them names is in
  timeline 1.
- A new timeline begins at a base: by stream, the last epoch of the parent that it keeps. Later epochs of the parent are
  abandoned, and so are the parent's checkpoints after the one that the bases come from. A timeline without such a
  checkpoint keeps everything of its parent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.errors import NotFound, RecordCorrupt
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository
from holdfast.repository.identity import Identity

FIRST = 1
_FOLDER = "timelines"
_NUMBER = re.compile(r"[1-9]\d{0,17}/")


class TimelineRecord(Record, frozen=True, kw_only=True):
    """The beginning of a timeline."""

    timeline: int  # its number
    parent: int  # the timeline that it continues
    bases: dict[str, int]  # by stream that it takes over: the last epoch of the parent that it keeps; 0: none
    checkpoint: int | None = None  # the checkpoint that the bases come from; None: the end of the parent
    who: str = ""  # the user and the machine
    why: str = ""  # as the user has given it
    at_ms: int = 0  # when it was written


@dataclass(frozen=True, slots=True)
class Lineage:
    """The current history of a pipeline. `later` has the records after timeline 1, oldest first."""

    identity: Identity
    later: tuple[TimelineRecord, ...] = ()

    @classmethod
    def load(cls, repository: Repository) -> Lineage:
        """Read the lineage of a repository, or raise `RepositoryMissing`."""
        identity = Identity.load(repository)
        for number in reversed(timelines(repository)):
            record = _read(repository, number)
            if record is not None:
                return cls(identity, tuple(reversed(list(_back_from(repository, record)))))
        return cls(identity)

    @property
    def current(self) -> int:
        """The number of the current timeline: new checkpoints are recorded in it."""
        return self.later[-1].timeline if self.later else FIRST

    @property
    def timelines(self) -> tuple[int, ...]:
        """The timelines of the lineage, oldest first."""
        return (FIRST, *(record.timeline for record in self.later))

    def timeline_of(self, stream: str) -> int:
        """Return the timeline that a stream writes to."""
        return self.places(stream)[-1][0]

    def places(self, stream: str) -> list[tuple[int, int | None]]:
        """Return the timelines of a stream, oldest first, each with the last epoch that belongs to the lineage.

        `None`: all of its epochs belong to it.
        """
        named = [record for record in self.later if stream in record.bases]
        found: list[tuple[int, int | None]] = []
        least: int | None = None
        for number, record in reversed([(FIRST, None), *((each.timeline, each) for each in named)]):
            found.append((number, least))
            if record is not None:
                base = record.bases[stream]
                least = base if least is None else min(base, least)
        return found[::-1]

    def holds_epoch(self, stream: str, timeline: int, epoch: int) -> bool:
        """Whether an epoch belongs to the lineage."""
        last = dict(self.places(stream)).get(timeline, 0)
        return last is None or epoch <= last

    def holds_checkpoint(self, timeline: int, checkpoint: int) -> bool:
        """Whether a checkpoint of a timeline belongs to the lineage: only such a checkpoint can be gone back to."""
        if timeline not in self.timelines:
            return False
        bounds = (each.checkpoint for each in self.later if each.timeline > timeline)
        return all(bound is None or checkpoint <= bound for bound in bounds)


def timelines(repository: Repository) -> list[int]:
    """Return the numbers of all timelines that have a folder, sorted."""
    folders = {_FOLDER, repository.heads.folder(_FOLDER)}
    names = {name for folder in folders for name in repository.list(folder)}
    return sorted(int(name[:-1]) for name in names if _NUMBER.fullmatch(name))


def lineage_key(repository: Repository, timeline: int) -> str:
    """Return the key of a timeline's record."""
    return f"{repository.heads.folder(_FOLDER)}/{timeline}/lineage.json"


def begin_timeline(repository: Repository, record: TimelineRecord) -> TimelineRecord:
    """Make a timeline current, and return its record: this one, or the one that was written first."""
    key = lineage_key(repository, record.timeline)
    return TimelineRecord.unsealed(repository.put_if_absent(key, record.sealed()).data, key)


def branches(repository: Repository) -> Mapping[int, TimelineRecord]:
    """Return the records of all timelines after the first one, including abandoned ones."""
    found = {number: _read(repository, number) for number in timelines(repository)}
    return {number: record for number, record in found.items() if record is not None}


def _back_from(repository: Repository, record: TimelineRecord) -> Iterator[TimelineRecord]:
    yield record
    while record.parent != FIRST:
        before = _read(repository, record.parent)
        if before is None:
            why = f"its parent, timeline {record.parent}, has no such record"
            raise RecordCorrupt(key=lineage_key(repository, record.timeline), why=why)
        record = before
        yield record


def _read(repository: Repository, number: int) -> TimelineRecord | None:
    key = lineage_key(repository, number)
    try:
        data = repository.read(key)
    except NotFound:
        return None
    record = TimelineRecord.unsealed(data, key)
    if record.timeline != number or not FIRST <= record.parent < number:
        raise RecordCorrupt(key=key, why=f"it describes timeline {record.timeline} after timeline {record.parent}")
    return record

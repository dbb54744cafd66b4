"""`timelines/<n>/rewind.json`: a rewind that was decided, with everything that is needed to finish it.

Rules:
- It is written once, with `put_if_absent`, before anything outside of its own folder is changed. From then on the
  rewind can only go forward.
- A rewind is unfinished while its timeline has no `lineage.json`. Only the highest one counts: a lower one lost its
  lease before it changed anything, and another rewind was decided since.
- `timelines/<n>/streams/<stream>/unfinished/<sink>.json` records that the last epoch of the old timeline could not be
  given to a sink. Such a rewind cannot be undone.
- `timelines/<n>/streams/<stream>/lost/<sink>.json` records that the user has declared the target of a sink lost, after
  the decision. The rewind is completed without that sink, and cannot be undone. `read_rewind` applies these records.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import NotFound, RecordCorrupt, RewindUnfinished
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository
from holdfast.repository.contracts import Put
from holdfast.repository.decisions import stream_folder
from holdfast.repository.lineage import Lineage, timelines


class SinkAim(msgspec.Struct, frozen=True, kw_only=True):
    """One sink of a rewind. The program that finishes the rewind must have the same one."""

    kind: str  # the class
    target: str | None  # where it writes to
    left: bool = False  # its rows stay where they are
    absent: bool = False  # the program that decided the rewind did not have it
    holds: int = 0  # the last epoch of the timeline that ends, when the rewind was decided
    rows: int = 0  # that it had to set aside, as the plan has counted them; 0: none, or not counted
    lost: bool = False  # its target was declared lost since; never true in the file itself


class StreamAim(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of a rewind: the timeline that ends, the base, and the facts of its base decision."""

    ends: int  # the timeline that the stream leaves
    timeline: int  # of the base
    epoch: int  # of the base; 0: the stream begins again
    facts: dict[str, Any] | None  # of the base decision, without sinks; None: there is none
    sinks: dict[str, SinkAim]

    @property
    def place(self) -> tuple[int, int]:
        """Timeline and epoch of the base."""
        return self.timeline, self.epoch


class RewindRecord(Record, frozen=True, kw_only=True):
    """A rewind that was decided."""

    timeline: int  # the new one
    parent: int  # the timeline that it continues
    leaves: int  # the timeline that was current
    streams: dict[str, StreamAim]
    to: str  # the base, as the user named it
    checkpoint: int | None = None  # the checkpoint that the bases come from; None: an undo
    undoes: int | None = None  # the timeline that it undoes
    plan: str = ""  # the id of the plan
    lease: int = 0  # of the process that decided it
    who: str = ""  # the user and the machine
    why: str = ""  # as the user has given it
    at_ms: int = 0

    @property
    def title(self) -> str:
        """The rewind, for errors."""
        return f"the undo of timeline {self.undoes}" if self.undoes else f"the rewind to {self.to}"


class LostSink(Record, frozen=True, kw_only=True):
    """A sink whose target was declared lost, so that an interrupted rewind can be completed without it."""

    stream: str
    sink: str
    who: str = ""  # the user and the machine
    at_ms: int = 0


class UnfinishedEpoch(Record, frozen=True, kw_only=True):
    """An epoch that was decided in the old timeline, and that one of its sinks never got."""

    stream: str
    sink: str
    epoch: int
    why: str


def rewind_key(timeline: int) -> str:
    """Return the key of a timeline's rewind."""
    return f"timelines/{timeline}/rewind.json"


def decide_rewind(repository: Repository, record: RewindRecord) -> Put:
    """Decide a rewind: the first record of a timeline is final."""
    return repository.put_if_absent(rewind_key(record.timeline), record.sealed())


def read_rewind(repository: Repository, timeline: int) -> RewindRecord | None:
    """Return the rewind that made a timeline, without the sinks that were declared lost since; or `None`."""
    key = rewind_key(timeline)
    try:
        data = repository.read(key)
    except NotFound:
        return None
    record = RewindRecord.unsealed(data, key)
    if record.timeline != timeline:
        raise RecordCorrupt(key=key, why=f"it describes timeline {record.timeline}")
    return without_lost(repository, record)


def without_lost(repository: Repository, record: RewindRecord) -> RewindRecord:
    """Return a rewind without the sinks that were declared lost: they are absent, and left as they are."""
    streams = {}
    for stream, aim in record.streams.items():
        lost = {key.removesuffix(".json") for key in repository.list(_lost(stream, record.timeline))}
        sinks = {
            name: msgspec.structs.replace(each, lost=True, left=True, absent=True) if name in lost else each
            for name, each in aim.sinks.items()
        }
        streams[stream] = msgspec.structs.replace(aim, sinks=sinks)
    return msgspec.structs.replace(record, streams=streams)


def record_lost(repository: Repository, timeline: int, sink: LostSink) -> None:
    """Record that the target of a sink is lost."""
    repository.put_if_absent(f"{_lost(sink.stream, timeline)}/{sink.sink}.json", sink.sealed())


def _lost(stream: str, timeline: int) -> str:
    return f"{stream_folder(stream, timeline)}/lost"


def unfinished_rewind(repository: Repository, lineage: Lineage) -> RewindRecord | None:
    """Return the rewind that was decided and did not finish, or `None`. Nothing is written."""
    for number in reversed(timelines(repository)):
        if number <= lineage.current:
            return None
        record = read_rewind(repository, number)
        if record is not None:
            return record
    return None


def record_unfinished(repository: Repository, timeline: int, epoch: UnfinishedEpoch) -> None:
    """Record an epoch that a sink never got."""
    repository.put_if_absent(f"{_unfinished(epoch.stream, timeline)}/{epoch.sink}.json", epoch.sealed())


def unfinished_epochs(repository: Repository, timeline: int, stream: str) -> list[UnfinishedEpoch]:
    """Return the epochs that sinks of a stream never got before a timeline began."""
    folder = _unfinished(stream, timeline)
    keys = [f"{folder}/{name}" for name in repository.list(folder)]
    return [UnfinishedEpoch.unsealed(repository.read(key), key) for key in keys]


def _unfinished(stream: str, timeline: int) -> str:
    return f"{stream_folder(stream, timeline)}/unfinished"


def require_finished(repository: Repository) -> None:
    """Refuse to change anything while a rewind is unfinished."""
    try:
        record = unfinished_rewind(repository, Lineage.load(repository))
    except NotFound:
        return
    if record is not None:
        raise RewindUnfinished(timeline=record.timeline, to=record.to, why="it was interrupted")

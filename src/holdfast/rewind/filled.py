"""Sinks that a backfill has filled, as a rewind finds them.

Rules:
- A backfill writes everything up to an epoch in one commit of that epoch. A rewind to an earlier base would take all of
  it back, and only the rows after the base are processed again. So it is refused.
- A record is not enough: the backfill may have died, or the sink may have been emptied since. The sink is asked whether
  it has anything between the base and the backfill. If it cannot say so, it counts as filled.
"""

from __future__ import annotations

from holdfast.epoch import Decision
from holdfast.errors import CheckpointMissing, Corrupt
from holdfast.repository import Checkpoints, Lineage, Repository
from holdfast.repository.backfills import BackfillRecord, Backfills
from holdfast.rewind.answering import asked
from holdfast.rewind.bases import on_lineage
from holdfast.sinks.base import EpochPlace, Sink, StreamIdentity, TakeBack


class FilledSinks:
    """The backfills of one stream."""

    def __init__(self, repository: Repository, lineage: Lineage, owner: StreamIdentity) -> None:
        self._repository = repository
        self._lineage = lineage
        self._owner = owner
        self._records = Backfills(repository)

    def decided(self, sink: str, decision: Decision | None) -> BackfillRecord | None:
        """Return the backfill that a start would complete: the one of the last decided epoch."""
        if decision is None:
            return None
        at = decision.attempt
        return self._records.find(at.stream, at.timeline, sink, at.epoch)

    def taken_back(self, sink: Sink, base: EpochPlace, answer: TakeBack) -> BackfillRecord | None:
        """Return the backfill whose rows a rewind would take out of a sink; `answer` is what it takes back in all."""
        for record in self._records.of_sink(self._owner.stream, self._lineage, sink.name):
            if record.place > base and self._holds(sink, record.place, answer):
                return record
        return None

    def first_checkpoint(self, record: BackfillRecord) -> int | str | None:
        """Return the oldest checkpoint of the lineage that is not before a backfill."""
        checkpoints, stream = Checkpoints(self._repository), self._owner.stream
        found: int | str | None = None
        for each in on_lineage(checkpoints, self._lineage):
            try:
                cut = checkpoints.read(each.name).streams.get(stream)
            except (Corrupt, CheckpointMissing):
                continue
            if cut is None or (cut.timeline, cut.epoch) < record.place:
                break
            found = each.name
        return found

    def _holds(self, sink: Sink, place: EpochPlace, answer: TakeBack) -> bool:
        """Whether a sink has something between the base and a place."""
        after = asked(sink, "be asked", lambda: sink.can_take_back(self._owner, place))
        return not isinstance(after, TakeBack) or after.epochs != answer.epochs

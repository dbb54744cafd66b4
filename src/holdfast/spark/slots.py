"""The decision slots of one stream: which attempt number an epoch uses, and what earlier attempts have left.

Rules:
- An attempt number is used once. After a restart or a failed attempt, the slot that may have been used is closed first.
- A slot that is closed with `end` ends the driver: a rewind continues the stream in another timeline.
- The staged output of aborted attempts is discarded before the next attempt begins, not when an attempt fails: after a
  kill there would be no chance to do so.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.epoch import Attempt, Decision, EpochProgress, Move, Verdict
from holdfast.errors import TimelineEnded
from holdfast.repository import Slots
from holdfast.sinks.base import EpochKey
from holdfast.spark.parts import StreamParts

_DISCARDED_AGAIN = 50  # aborted attempts at an epoch whose leftovers are looked for at each start


class AttemptSlots:
    """Opens the slots of one stream, under one lease."""

    def __init__(self, parts: StreamParts) -> None:
        self._parts = parts
        self._begun = False  # an epoch was begun under this lease
        self._clean = False  # the last epoch was completed here, so this driver has used no slot of the next one
        self._unused: Attempt | None = None  # its slot is open, and nothing was staged under its number

    def look(self, epoch: int) -> Slots:
        """Return the slots of an epoch as they are now."""
        return self._parts.decisions.look(self._parts.name, self._parts.timeline, epoch)

    def open(self, epoch: int, slots: Slots, progress: EpochProgress) -> Attempt | Decision:
        """Return the attempt to use, or the decision to commit that exists already; `slots` is what `look` found."""
        self._begun = True
        if decided := self._committed(slots.closed):
            return decided
        if slots.open == self._unused or (self._clean and not slots.closed):
            self._unused = None
            return slots.open
        return self.clear(epoch, progress)

    def clear(self, epoch: int, progress: EpochProgress) -> Attempt | Decision:
        """Close the slot that may have been used, and discard what aborted attempts staged.

        Return the next attempt or, if the epoch was decided after all, that decision. Of very many attempts, only the
        last ones are discarded again each time, and all of them now and then: a task that outlived its attempt may have
        left something after the attempt was discarded.
        """
        parts = self._parts
        parts.lease.check()
        slots = self.look(epoch)
        closed = [*slots.closed, *([] if _has_ended(slots.closed) else self._close(slots.open))]
        if decided := self._committed(closed):
            return decided
        self._unused = slots.open.next() if closed else slots.open
        if not closed:
            return self._unused
        progress.move(Move.ABORT)
        parts.reach("aborted")
        for decision in closed if len(closed) % _DISCARDED_AGAIN == 0 else closed[-_DISCARDED_AGAIN:]:
            for sink in parts.sinks:
                with progress.inside(sink.name):
                    sink.abort(EpochKey(parts.owner, decision.attempt, None))
        progress.move(Move.DISCARD)
        parts.reach("discarded")
        return self._unused

    def completed(self) -> None:
        """Record that an epoch is in every sink: the first slot of the next one is unused, unless it is closed."""
        self._clean = True

    def failed(self) -> None:
        """Record that an attempt failed: its slot may have been used."""
        self._clean, self._unused = False, None

    def _close(self, attempt: Attempt) -> list[Decision]:
        """Close an open slot with abort, unless it cannot have been used: the first slot, under the first lease."""
        lease = self._parts.lease.number
        if lease == 1 and attempt.attempt == 1 and not self._begun:
            return []
        return [self._parts.decisions.close(Decision(attempt=attempt, verdict=Verdict.ABORT, lease=lease))]

    def _committed(self, closed: Sequence[Decision]) -> Decision | None:
        """Return the decision to commit, if there is one; raise if the timeline has ended for this stream."""
        if _has_ended(closed):
            self._parts.lease.check()  # the rewind has taken the lease
            raise TimelineEnded(stream=self._parts.name, timeline=self._parts.timeline)
        return next((decision for decision in closed if decision.verdict is Verdict.COMMIT), None)


def _has_ended(closed: Sequence[Decision]) -> bool:
    return any(decision.verdict is Verdict.END for decision in closed)

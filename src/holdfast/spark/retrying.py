"""How often a stream is restarted, and when an epoch that keeps failing is quarantined.

Rules:
- Each kind of failure has its own restart budget. Waits between restarts grow until an epoch succeeds or the query is
  idle.
- Only an undecided epoch is quarantined, and only where Spark can continue without running the batch's plan, or the
  plan itself is sound: for stateless streams, and for failures of a sink.
- Two epochs in a row are quarantined only if the user accepts gaps. The second failure looks like an outage, which
  would cost all input that arrives while it lasts.
- A failure that a replaced driver has caused, by writing an entry of Spark's log first, is not this stream's: it is
  restarted at once, and its budget is not used.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from holdfast.epoch import is_decided
from holdfast.errors import SinkFailed, Storage
from holdfast.policy import RestartBudget
from holdfast.spark.failures import BUDGETED, Diagnosis, EpochFailure, Kind, Remedy, same
from holdfast.spark.parts import StreamParts

_COLLISIONS = 5  # with another driver in a row, before they count as failures


@dataclass(slots=True)
class _Repeats:
    """How often the same failure occurred in a row."""

    last: EpochFailure | None = None
    times: int = 0

    def count(self, failure: EpochFailure) -> int:
        self.times = self.times + 1 if self.last is not None and same(self.last, failure) else 1
        self.last = failure
        return self.times


class Retries:
    """The restart budgets of one stream, and the epoch that is quarantined next, if any."""

    def __init__(self, parts: StreamParts) -> None:
        self._parts = parts
        self._budgets = {kind: RestartBudget(parts.spec.restart[kind]) for kind in BUDGETED}
        self._repeats = _Repeats()
        self._in_a_row = 0
        self._poison: EpochFailure | None = None
        self._collisions = 0  # since the last epoch

    @property
    def poison(self) -> EpochFailure | None:
        """The failure whose epoch the next attempt quarantines."""
        return self._poison

    @property
    def pending(self) -> bool:
        """Whether the stream was restarted and has not yet been seen to work."""
        return self._in_a_row > 0

    def budget(self, found: Diagnosis) -> RestartBudget | None:
        """Return the restart budget for a failure; `None` if a restart cannot help."""
        return None if found.remedy is Remedy.NONE else self._budgets.get(found.kind)

    def spend(self, found: Diagnosis) -> bool:
        """Take a restart from the budget; return whether there was one left."""
        budget = self.budget(found)
        return budget is not None and budget.spend(self._parts.run.clock())

    def collide(self) -> bool:
        """Count a failure that another driver has caused; return whether the stream is restarted at once.

        A driver that was replaced stops at its next step, so this happens a few times at most.
        """
        self._collisions += 1
        return self._collisions <= _COLLISIONS

    def next_wait(self) -> float:
        """Return the seconds to wait before the next restart."""
        self._in_a_row += 1
        return self._parts.run.backoff.seconds(self._in_a_row, random.random())  # noqa: S311 - no secret

    def quarantine(self, failure: EpochFailure, kind: Kind, *, stateful: bool, after_quarantine: bool) -> bool:
        """Return whether the next attempt quarantines the epoch that failed."""
        times = self._repeats.count(failure)
        if times != self._parts.spec.quarantine_after or is_decided(failure.state):
            return False
        if kind not in BUDGETED or (stateful and kind is not Kind.SINK):
            return False
        if isinstance(failure.error, Storage) and not isinstance(failure.error, SinkFailed):
            return False  # a failure of the repository, not of the batch
        if after_quarantine and not self._parts.accepts("gaps"):
            return False
        self._poison = failure
        self._budgets[kind].give_back(times - 1)  # these restarts led to the quarantine that the user asked for
        return True

    def epoch_succeeded(self) -> None:
        """Start counting from the beginning: an epoch is in every sink."""
        self._in_a_row, self._repeats, self._poison, self._collisions = 0, _Repeats(), None, 0

    def query_idle(self) -> None:
        """Let the waits start from the shortest again: the query works and has no new input."""
        self._in_a_row = 0

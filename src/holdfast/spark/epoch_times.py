"""How long the phases of an epoch take."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from holdfast.epoch import CommitTimes, Move, PhaseTimes, State

_PHASES = {
    Move.OPEN: "open",
    Move.FIND: "open",
    Move.PREPARE: "prepare",
    Move.PREPARE_LAST: "prepare",
    Move.HARDEN: "harden",
    Move.DECIDE: "decide",
    Move.COMMIT: "commit",
    Move.COMMIT_LAST: "commit",
}
_BEFORE_DECISION = ("open", "prepare", "harden")
_SKIPPED = {State.PREPARED: "prepare", State.VISIBLE: "commit"}  # by the state that a skip led to


@dataclass(frozen=True, slots=True)
class EpochTimes:
    """How long an epoch took, from Spark's call to the last sink's commit."""

    epoch: int  # which one
    rows: int  # given to each sink
    ended_at_ms: int  # when it was in every sink
    seconds: float  # in all
    phases: dict[str, float]  # seconds of each phase: open, prepare, harden, decide, commit
    commits: dict[str, float] = field(default_factory=dict)  # by sink: its own part of the commit
    prepares: dict[str, float] = field(default_factory=dict)  # by sink: its own part of the preparation
    dead_rows: int = 0  # given to the dead letter, and to no other sink

    def commit_times(self) -> CommitTimes:
        """Return what the decision of the next epoch records."""
        decide, commit = self.phases.get("decide", 0.0), self.phases.get("commit", 0.0)
        return CommitTimes(
            epoch=self.epoch, decide=decide, commit=commit, sinks=self.commits, ended_at_ms=self.ended_at_ms
        )


@dataclass(slots=True)
class Laps:
    """Measures the phases of an epoch."""

    began: float = field(default_factory=time.monotonic)
    phases: dict[str, float] = field(default_factory=dict)
    commits: dict[str, float] = field(default_factory=dict)
    prepares: dict[str, float] = field(default_factory=dict)

    def committed(self, sink: str, seconds: float) -> None:
        """Note how long a sink took to commit."""
        self.commits[sink] = round(seconds, 6)

    def lap(self, move: Move, state: State) -> None:
        """End the phase that a move ends."""
        if phase := _SKIPPED.get(state) if move is Move.SKIP else _PHASES.get(move):
            self.phases[phase] = time.monotonic() - self.began - sum(self.phases.values()) + self.phases.get(phase, 0.0)

    def times(self, epoch: int, rows: int, dead_rows: int) -> EpochTimes:
        """Return the times of an epoch that is in every sink."""
        phases = {name: round(each, 6) for name, each in self.phases.items()}
        seconds = round(time.monotonic() - self.began, 6)
        return EpochTimes(epoch, rows, int(time.time() * 1000), seconds, phases, self.commits, self.prepares, dead_rows)

    def so_far(self, sinks: dict[str, float]) -> PhaseTimes:
        """Return what the decision records; `sinks` has the seconds that each one took to prepare."""
        self.prepares = sinks
        phases = {name: round(each, 6) for name, each in self.phases.items()}
        return PhaseTimes(**{name: phases.get(name, 0.0) for name in _BEFORE_DECISION}, sinks=sinks)

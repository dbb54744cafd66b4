"""Crash points: simulate a crash at a named point of the protocol.

`CrashAt` raises `Crashed`, which is not an `Exception`, so that no handler catches it: the driver stops as if it were
killed. To kill a real process, pass your own function as `reach`.
"""

from __future__ import annotations

import threading

from holdfast import coordinator, epoch, pruning
from holdfast.errors import BadValue
from holdfast.rewind import steps
from holdfast.sinks import taking_back
from holdfast.sinks.compaction import apply as compaction

POINTS = (
    *epoch.POINTS,
    *coordinator.POINTS,
    *pruning.POINTS,
    *compaction.POINTS,
    *taking_back.POINTS,
    *steps.POINTS,
)


class Crashed(BaseException):
    """The simulated death of the driver."""


class CrashAt:
    """Raises `Crashed` when a point is reached for the `hit`-th time, counted over all streams; not again later."""

    def __init__(self, point: str, hit: int = 1) -> None:
        if point not in POINTS:
            raise BadValue(what="point", value=point, expected=f"one of {', '.join(POINTS)}")
        self.point = point
        self.hit = hit
        self.reached: list[str] = []
        self._mutex = threading.Lock()

    @property
    def died(self) -> bool:
        """Whether it has raised `Crashed`."""
        return self.reached.count(self.point) >= self.hit

    def __call__(self, point: str) -> None:
        """Record that a point is reached, and raise `Crashed` if it is the chosen one."""
        with self._mutex:
            self.reached.append(point)
            dies = point == self.point and self.reached.count(point) == self.hit
        if dies:
            raise Crashed(f"{point}, hit {self.hit}")

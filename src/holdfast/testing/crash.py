"""Crash points: die at a named place of the protocol, as a test wants it.

`CrashAt` dies inside the process, as if it were killed: what it raises is no `Exception`, so that nobody handles it. To
kill a real process, pass a function of your own as `reach`.
"""

from __future__ import annotations

import threading

from holdfast import coordinator, epoch, pruning
from holdfast.errors import BadValue
from holdfast.sinks.compaction import apply as compaction

POINTS = (*epoch.POINTS, *coordinator.POINTS, *pruning.POINTS, *compaction.POINTS)


class Crashed(BaseException):
    """The driver died here, as the test wanted."""


class CrashAt:
    """Dies when a point is reached for the `hit`-th time, counted over all streams; later points pass."""

    def __init__(self, point: str, hit: int = 1) -> None:
        if point not in POINTS:
            raise BadValue(what="point", value=point, expected=f"one of {', '.join(POINTS)}")
        self.point = point
        self.hit = hit
        self.reached: list[str] = []
        self._mutex = threading.Lock()

    @property
    def died(self) -> bool:
        """Whether the point was reached often enough."""
        return self.reached.count(self.point) >= self.hit

    def __call__(self, point: str) -> None:
        """Reach a point."""
        with self._mutex:
            self.reached.append(point)
            dies = point == self.point and self.reached.count(point) == self.hit
        if dies:
            raise Crashed(f"{point}, time {self.hit}")

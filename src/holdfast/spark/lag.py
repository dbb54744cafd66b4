"""How fast a stream is, and how far behind its sources. The lag is determined only when a status is requested.

Event logs: their tail is read now. Kafka: as of Spark's last progress, which is old while an epoch takes long. Files
are counted separately (see `unread`). With any other source, no lag is reported for the stream.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast._offsets import leaves, log_position
from holdfast.eventlog.homes import home_of

_KAFKA = "Kafka"
_WINDOW_S = 60.0


class RowRate:
    """Rows per second over the last minute, or since this object was created if that is less."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._recent: deque[tuple[float, int]] = deque()
        self._mutex = threading.Lock()  # epochs add, and a status reads

    def add(self, rows: int) -> None:
        """Count the rows of an epoch that has just ended."""
        with self._mutex:
            self._recent.append((self._clock(), rows))
            self._forget()

    def per_second(self) -> float:
        """Return the rate now; 0 if no epoch has ended within the last minute."""
        with self._mutex:
            self._forget()
            rows = sum(each for _, each in self._recent)
            return round(rows / max(min(self._clock() - self._began, _WINDOW_S), 1.0), 1)

    def _forget(self) -> None:
        while self._recent and self._recent[0][0] <= self._clock() - _WINDOW_S:
            self._recent.popleft()


def behind_logs(logs: Sequence[str | os.PathLike[str]], ends: Sequence[str | None]) -> int:
    """Return how many sequences event logs have after the offsets at which the last epoch ended."""
    read = dict(filter(None, map(log_position, ends)))
    homes = [home_of(each) for each in logs]
    return sum(max(each.tail() - read.get(each.about().uid, 0), 0) for each in homes)


def behind_topics(progress: Mapping[str, Any], ends: Sequence[str | None]) -> int | None:
    """Return how many records Kafka has after the end of the last epoch; `None` if Spark does not report it."""
    sources = progress.get("sources", [])
    if not sources or len(sources) != len(ends):
        return None  # no epoch has ended yet
    if not all(str(each.get("description")).startswith(_KAFKA) for each in sources):
        return None
    distances = [_distance(end, each.get("latestOffset")) for end, each in zip(ends, sources, strict=True)]
    return None if None in distances else sum(filter(None, distances))


def _distance(end: str | None, latest: object) -> int | None:
    """Return the sum of the distances between the partitions of two offsets."""
    here, there = leaves(end), leaves(latest if isinstance(latest, str) else json.dumps(latest))
    try:
        return sum(max(int(value) - int(here[where]), 0) for where, value in there.items())
    except (KeyError, ValueError):
        return None  # a partition that is new, or an offset of another form

"""Outages of one stream: when one began, when the next try is made, and when waiting ends.

Rules:
- An outage begins with its first failure. It ends with the next epoch that reaches every sink, or when the query has
  completed a trigger and found no new input.
- Each kind of failure has a limit of its own. The last try is made when the limit is reached, not before.
- Waits grow as they do before restarts, but their count and the restart budget are independent of each other.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from holdfast.policy import Backoff
from holdfast.spark.failures import Kind


@dataclass(frozen=True, slots=True)
class Outage:
    """Something that a stream needs is unavailable, and the stream waits for it."""

    kind: str  # what is unavailable: source, sink, state, user code, repository, executors
    since_ms: int  # when it first failed, by the wall clock
    tries: int  # that have failed so far
    waited_s: float  # since the first failure
    next_try_s: float  # until the next try, counted from when this was reported
    limit_s: float  # after which the stream fails
    error: str  # of the last try


@dataclass(slots=True)
class _Since:
    clock: float
    wall_ms: int
    tries: int = 0


class Outages:
    """What one stream is waiting for."""

    def __init__(
        self, limits: Mapping[Kind, float | None], backoff: Backoff, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._backoff = backoff
        self._clock = clock
        self._open: dict[Kind, _Since] = {}
        self._ending = threading.Lock()  # the epoch's thread and the supervisor's may both see the end
        self.current: Outage | None = None

    def has_limit(self, kind: Kind) -> bool:
        """Whether outages of this kind are waited for; otherwise they are failures."""
        return self._limits.get(kind) is not None

    def failed(self, kind: Kind, error: str) -> Outage | None:
        """Record a failed try and return the outage with the wait before the next; `None` once the limit is reached."""
        now, limit = self._clock(), self._limits[kind] or 0.0
        since = self._open.setdefault(kind, _Since(now, int(time.time() * 1000)))
        since.tries += 1
        left = since.clock + limit - now
        wait = min(self._backoff.seconds(since.tries, random.random()), left)  # noqa: S311 - no secret
        self.current = Outage(str(kind), since.wall_ms, since.tries, now - since.clock, max(wait, 0.0), limit, error)
        return self.current if left > 0 else None

    def end(self) -> Outage | None:
        """Return the outage that is now over, if there was one."""
        with self._ending:
            ended, self.current = self.current, None
            if ended is None:
                return None
            since = self._open[Kind(ended.kind)]
            self._open.clear()
        return replace(ended, waited_s=self._clock() - since.clock, next_try_s=0.0)

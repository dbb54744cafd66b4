"""The activity of a run: counted in memory by the streams, written in the background by the thread of the checkpoints.

Rules:
- Counting an epoch takes no lock that a write holds, and writes nothing.
- A write that fails is logged and given up: activity is for people, and the pipeline must not depend on it.
- What is not written yet is lost in a kill: the events of the last moments, and the counts of the last minute.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from holdfast._error_text import one_line
from holdfast._redaction import redacted_text
from holdfast.errors import HoldfastError, readable
from holdfast.repository import Repository
from holdfast.repository.activity import Activity, ActivityEvent, Period, StreamActivity
from holdfast.spark.epoch_times import EpochTimes

_log = logging.getLogger(__name__)
_FIRST_S = 10.0  # the first period is short, so that a new run is seen soon
_PERIOD_S = 60.0
_TIDY_S = 600.0
_LONGEST = 4000  # characters of a text: errors of user code may be of any length
_MOST_EVENTS = 200  # that wait to be written; a run that fails faster than they are written loses the oldest ones


@dataclass(slots=True)
class _Count:
    """What one stream did since the last period."""

    epochs: int = 0
    rows: int = 0
    last_epoch: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    slowest_epoch: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    restarts: int = 0

    def add(self, times: EpochTimes) -> None:
        self.epochs += 1
        self.rows += times.rows
        self.last_epoch = times.epoch
        self.seconds += times.seconds
        if times.seconds >= self.slowest:
            self.slowest, self.slowest_epoch = times.seconds, times.epoch
        for phase, seconds in times.phases.items():
            self.phases[phase] = self.phases.get(phase, 0.0) + seconds


class ActivityTally:
    """Counts what the streams of one run do. Its methods are called from any thread, and only change memory."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: dict[str, _Count] = {}
        self._events: deque[ActivityEvent] = deque(maxlen=_MOST_EVENTS)
        self._checkpoints = self._failed = 0

    def epoch(self, stream: str, times: EpochTimes) -> None:
        """Count an epoch that is in every sink."""
        with self._guard:
            self._counts.setdefault(stream, _Count()).add(times)

    def restart(self, stream: str) -> None:
        """Count a restart after a failure."""
        with self._guard:
            self._counts.setdefault(stream, _Count()).restarts += 1

    def checkpoint(self, *, restorable: bool) -> None:
        """Count a checkpoint that was taken or given up."""
        with self._guard:
            self._checkpoints += restorable
            self._failed += not restorable

    def event(self, event: ActivityEvent) -> None:
        """Add an event, which is written soon."""
        self._events.append(event)

    def take_events(self) -> list[ActivityEvent]:
        """Return the events that are not written yet, and forget them."""
        found: list[ActivityEvent] = []
        while self._events:
            found.append(self._events.popleft())
        return found

    def take(self) -> tuple[dict[str, _Count], int, int]:
        """Return the counts of the streams and of the checkpoints since the last call, and begin again."""
        with self._guard:
            found = self._counts, self._checkpoints, self._failed
            self._counts, self._checkpoints, self._failed = {}, 0, 0
        return found


def noted(
    kind: str, lease: int, *, stream: str = "", error: BaseException | None = None, text: str = ""
) -> ActivityEvent:
    """Return an event that happens now. An error gives its text, its class and the next step."""
    if error is None:
        return ActivityEvent(at_ms=int(time.time() * 1000), lease=lease, kind=kind, stream=stream, text=text)
    next_step = error.next_step.format(e=error) if isinstance(error, HoldfastError) else ""
    summary = redacted_text(error.summary) if isinstance(error, HoldfastError) else one_line(error)
    return ActivityEvent(
        at_ms=int(time.time() * 1000),
        lease=lease,
        kind=kind,
        stream=stream,
        text=readable(text or summary)[:_LONGEST],  # lone surrogates cannot be written
        next=readable(redacted_text(next_step))[:_LONGEST],
        error=type(error).__name__,
    )


@dataclass(frozen=True, slots=True)
class Lag:
    """What a stream has not processed yet, and its state, at one moment."""

    state: str = ""
    behind: int | None = None
    unread_files: int | None = None
    unread_bytes: int | None = None
    behind_s: float | None = None


class ActivityWriter:
    """Writes the activity of one run. One thread calls it at a time: that of the checkpoints, and the one after it."""

    def __init__(self, repository: Repository, tally: ActivityTally, lease: int) -> None:
        self._activity = Activity(repository)
        self._tally = tally
        self._lease = lease
        self._restarts: Counter[str] = Counter()  # by stream, since the run began
        self._failed = 0  # checkpoints, since the run began
        self._began_ms = int(time.time() * 1000)
        self._due = time.monotonic() + _FIRST_S
        self._tidy_due = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the current period is over."""
        return time.monotonic() >= self._due

    def work(self, lags: Mapping[str, Lag] | None = None) -> None:
        """Write the events that wait, and the period if `lags` are given: those end it."""
        for event in self._tally.take_events():
            self._try(partial(self._activity.add_event, event), "event")
        if lags is not None:
            self._try(lambda: self._activity.add_period(self._period(lags)), "period")
            self._due = time.monotonic() + _PERIOD_S
        if time.monotonic() >= self._tidy_due and lags is not None:
            self._tidy_due = time.monotonic() + _TIDY_S
            self._try(lambda: self._activity.tidy(self._lease), "tidy")

    def _period(self, lags: Mapping[str, Lag]) -> Period:
        counts, taken, failed = self._tally.take()
        began, self._began_ms = self._began_ms, int(time.time() * 1000)
        self._restarts.update({name: each.restarts for name, each in counts.items()})
        self._failed += failed
        return Period(
            start_ms=began,
            end_ms=self._began_ms,
            lease=self._lease,
            streams={
                name: _activity_of(counts.get(name, _Count()), lags.get(name, Lag()), self._restarts[name])
                for name in {**lags, **counts}
            },
            checkpoints=taken,
            checkpoints_failed=failed,
            run_checkpoints_failed=self._failed,
        )

    def _try(self, write: Callable[[], object], what: str) -> None:
        try:
            write()
        except Exception as error:
            _log.warning("the activity of this run is not recorded (%s): %s", what, one_line(error))


def _activity_of(count: _Count, lag: Lag, run_restarts: int) -> StreamActivity:
    return StreamActivity(
        epochs=count.epochs,
        rows=count.rows,
        last_epoch=count.last_epoch,
        seconds=round(count.seconds, 6),
        slowest=round(count.slowest, 6),
        slowest_epoch=count.slowest_epoch,
        phases={name: round(each, 6) for name, each in count.phases.items()},
        restarts=count.restarts,
        run_restarts=run_restarts,
        state=lag.state,
        behind=lag.behind,
        unread_files=lag.unread_files,
        unread_bytes=lag.unread_bytes,
        behind_s=lag.behind_s,
    )

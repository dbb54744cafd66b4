"""The activity of a pipeline, for people: what its runs did, minute by minute, and what happened to them.

Rules:
- Nothing here is needed to recover. A record that is missing or damaged hides only itself.
- Every record has a key of its own and is never changed: `activity/periods/<start>.<lease>.json` for what one run did
  in about a minute, `activity/events/<time>.<lease>.<n>.json` for one event. Times are milliseconds in 15 digits.
- When an hour is over, its periods are merged into `activity/hours/<start>.<lease>.json`, and then deleted.
- It is bounded: hours are kept for `KEPT_DAYS` days, and the newest `KEPT_EVENTS` events.
- The lease holder writes in the background, never on the path of an epoch. Only the lease holder writes and deletes.
- Verdicts of verifications are not events, because many of them would displace the end of a run: see `verdicts.py`.
  Earlier versions wrote them as events with lease 0, which `verified` returns and `events` leaves out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository, checked_repository, now_ms, read_each

FOLDER = "activity"
KEPT_DAYS = 15
KEPT_EVENTS = 500
HOUR_MS = 3_600_000
_DAY_MS = 24 * HOUR_MS
_LATE_MS = 120_000  # an hour is merged this long after its end: its last period has been written by then
_PERIODS, _HOURS, _EVENTS = f"{FOLDER}/periods", f"{FOLDER}/hours", f"{FOLDER}/events"
_NAME = re.compile(r"(\d{15})\.(\d{8,})(?:\.(\d+))?\.json")

# The kinds of events.
STARTED = "started"  # a run has recovered all of its streams
START_FAILED = "start failed"  # a run ended before its first epoch
RECOVERED = "recovered"  # a stream was recovered: what was found, and how long each step took
RESTART = "restart"  # a stream failed and is started again
OUTAGE = "outage"  # a stream waits for a source or a sink
OUTAGE_OVER = "outage over"  # the wait is over
FAILED = "failed"  # a stream gave up
CHECKPOINT_FAILED = "checkpoint failed"  # a checkpoint was given up
VERIFIED = "verified"  # by earlier versions: a checkpoint was verified, and the verdict recorded
ENDED = "ended"  # the run has ended by itself


class StreamActivity(msgspec.Struct, frozen=True, kw_only=True):
    """What one stream did in a period."""

    epochs: int = 0  # epochs that reached every sink
    rows: int = 0  # given to each sink
    last_epoch: int = 0  # the last one of the period; 0: none
    seconds: float = 0.0  # all epochs together
    slowest: float = 0.0  # seconds of the slowest one
    slowest_epoch: int = 0  # its number
    phases: dict[str, float] = {}  # seconds of each phase, all epochs together
    restarts: int = 0  # after failures
    run_restarts: int = 0  # the same since the run began
    state: str = ""  # at the end of the period, as in `StreamStatus`
    behind: int | None = None  # at the end: events or records that are not processed yet; null: unknown
    unread_files: int | None = None  # at the end: the same in files
    unread_bytes: int | None = None  # their size
    behind_s: float | None = None  # at the end: the age of the oldest record that is not processed yet; 0: none


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """What one run did between two moments, usually a minute apart."""

    start_ms: int
    end_ms: int
    lease: int  # of the run
    streams: dict[str, StreamActivity] = {}  # by name
    checkpoints: int = 0  # taken
    checkpoints_failed: int = 0  # given up
    run_checkpoints_failed: int = 0  # the same since the run began


class PeriodRecord(Record, frozen=True, kw_only=True):
    """A period as it is stored."""

    period: Period


class HourRecord(Record, frozen=True, kw_only=True):
    """The periods of one hour."""

    start_ms: int
    periods: list[Period]


class ActivityEvent(Record, frozen=True, kw_only=True):
    """Something that happened to a run."""

    at_ms: int  # when
    lease: int  # of the run
    kind: str  # such as `recovered` or `failed`
    stream: str = ""  # its stream; empty: the whole pipeline
    text: str = ""  # what happened
    next: str = ""  # what to do about it; empty: nothing
    error: str = ""  # the class of the error
    seconds: float = 0.0  # how long it took
    steps: dict[str, float] = msgspec.field(default_factory=dict)  # how long each step took
    facts: dict[str, Any] = msgspec.field(default_factory=dict)  # further details, by name


class Activity:
    """The activity records of one pipeline."""

    def __init__(self, repository: Repository, clock: Callable[[], float] = time.time) -> None:
        self._repository = checked_repository(repository)
        self._clock = clock

    # --- writing ---

    def add_period(self, period: Period) -> None:
        """Record a period. A failure is raised; the caller may try again."""
        key = f"{_PERIODS}/{period.start_ms:015}.{period.lease:08}.json"
        self._repository.put_if_absent(key, PeriodRecord(period=period).sealed())

    def add_event(self, event: ActivityEvent) -> None:
        """Record an event. Two events of the same millisecond are both kept."""
        number = 0
        while not self._repository.put_if_absent(
            f"{_EVENTS}/{event.at_ms:015}.{event.lease:08}.{number}.json", event.sealed()
        ).won:
            number += 1

    def tidy(self, lease: int) -> None:
        """Merge the periods of hours that are over, and delete what is too old."""
        self._merge(lease)
        now = now_ms(self._clock)
        old = [
            f"{folder}/{name}"
            for folder in (_PERIODS, _HOURS)
            for name in self._repository.list(folder)
            if (at := _at_ms(name)) is not None and at < now - KEPT_DAYS * _DAY_MS
        ]
        for keys in self._event_keys():
            old += keys[:-KEPT_EVENTS]
        if old:
            self._repository.delete_all(old)

    def _merge(self, lease: int) -> None:
        """Merge the periods of each hour that is over. The merged record is durable before they are deleted."""
        by_hour: dict[int, list[str]] = {}
        until = now_ms(self._clock) - _LATE_MS
        for name in self._repository.list(_PERIODS):
            at = _at_ms(name)
            if at is not None and (at // HOUR_MS + 1) * HOUR_MS <= until:
                by_hour.setdefault(at // HOUR_MS * HOUR_MS, []).append(f"{_PERIODS}/{name}")
        for start, keys in by_hour.items():
            periods = self._read_periods(keys)[0]
            key = f"{_HOURS}/{start:015}.{lease:08}.json"
            record = HourRecord(start_ms=start, periods=periods).sealed()
            if self._repository.put_if_absent(key, record).data == record:
                self._repository.delete_all(keys)

    # --- reading ---

    def periods(self, since_ms: int = 0, until_ms: int | None = None) -> tuple[list[Period], list[HoldfastError]]:
        """Return the periods that begin in a span of time, oldest first, and an error for each damaged record."""
        last = until_ms if until_ms is not None else now_ms(self._clock) + _DAY_MS
        fresh, bad = self._read_periods(self._keys(_PERIODS, since_ms, last))  # first: a merge may move them now
        merged, bad_hours = read_each(self._read_hour, self._keys(_HOURS, since_ms - HOUR_MS, last))
        found = {(each.start_ms, each.lease): each for hour in merged for each in hour.periods}
        found |= {(each.start_ms, each.lease): each for each in fresh}
        chosen = sorted((key, each) for key, each in found.items() if since_ms <= each.start_ms <= last)
        return [each for _, each in chosen], [*bad_hours, *bad]

    def last_period(self, lease: int) -> Period | None:
        """Return the last readable period of a run, however old it is; `None` if there is none.

        Only a later run merges the last period of a run, so hours need not be read.
        """
        names = [name for name in self._repository.list(_PERIODS) if _lease(name) == lease]
        for name in reversed(names[-3:]):  # more than one only if the last one is damaged
            if found := self._read_periods([f"{_PERIODS}/{name}"])[0]:
                return found[0]
        return None

    def events(self, last: int = KEPT_EVENTS) -> tuple[list[ActivityEvent], list[HoldfastError]]:
        """Return the newest readable events, oldest first, and an error for each that cannot be read."""
        return read_each(self._read_event, self._event_keys()[0][-last:])

    def verified(self) -> dict[str, ActivityEvent]:
        """Return the readable verdicts that earlier versions recorded as events, by key, oldest first."""
        return dict(read_each(lambda key: (key, self._read_event(key)), self._event_keys()[1])[0])

    def _event_keys(self) -> tuple[list[str], list[str]]:
        """Return the keys of the events of runs, and those of the verdicts of earlier versions, each oldest first."""
        names = [name for name in self._repository.list(_EVENTS) if _NAME.fullmatch(name)]
        return [f"{_EVENTS}/{each}" for each in names if _lease(each)], [
            f"{_EVENTS}/{each}" for each in names if not _lease(each)
        ]

    def _keys(self, folder: str, since_ms: int, until_ms: int) -> list[str]:
        names = self._repository.list(folder)
        return [f"{folder}/{name}" for name in names if (at := _at_ms(name)) is not None and since_ms <= at <= until_ms]

    def _read_periods(self, keys: Iterable[str]) -> tuple[list[Period], list[HoldfastError]]:
        return read_each(lambda key: PeriodRecord.unsealed(self._repository.read(key), key).period, keys)

    def _read_hour(self, key: str) -> HourRecord:
        return HourRecord.unsealed(self._repository.read(key), key)

    def _read_event(self, key: str) -> ActivityEvent:
        return ActivityEvent.unsealed(self._repository.read(key), key)


def _at_ms(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def _lease(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[2]) if match else None

"""When a checkpoint is due, which checkpoints are kept, and how often work may be restarted. Pure: time is an argument.

Rules:
- Each stream has its own marks. A checkpoint is due when the stream reaches any of them.
- The next interval is counted from the position where the checkpoint was taken, not from the last mark.
- After a recovery, the marks are set from the recovered position: no checkpoint is due only because a process is new.
- The rules of a retention are additive: a checkpoint that any rule keeps is kept. The newest one is always kept.
- The window of a restart budget is rolling: a restart stops counting exactly `within` seconds after it happened.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast import _figures as figures
from holdfast._validation import checked_positive, checked_seconds, checked_u64
from holdfast.errors import BadValue

if TYPE_CHECKING:
    from datetime import timedelta  # a duration, not a clock

__all__ = ["Backoff", "CheckpointPolicy", "IntervalPolicy", "Progress", "RestartBudget", "RestartPolicy", "Retention"]

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
CHECKPOINT_EVERY = "1m"  # by default


@dataclass(frozen=True, slots=True)
class Progress:
    """The position of a stream: its sequence, its epoch, and the time of any monotonic clock in seconds."""

    sequence: int = 0
    epoch: int | None = 0  # None: not known after a recovery; the next reported epoch is the start
    now: float = 0.0


class IntervalPolicy:
    """Decides when a stream's next checkpoint is due: by sequences, by epochs, by seconds, or by any of them."""

    def __init__(
        self, *, sequences: int | None = None, epochs: int | None = None, seconds: float | timedelta | None = None
    ) -> None:
        if sequences is None and epochs is None and seconds is None:
            do = "pass sequences, epochs or seconds"
            raise BadValue(what="interval", value=None, expected="at least one length", do=do)
        self._sequences = None if sequences is None else checked_positive("interval in sequences", sequences)
        self._epochs = None if epochs is None else checked_positive("interval in epochs", epochs)
        self._seconds = None if seconds is None else checked_seconds("interval in seconds", seconds)
        self._last: dict[str, Progress] = {}

    def due(self, stream: str, progress: Progress) -> bool:
        """Whether `stream` has reached one of its marks. A new stream starts at sequence 0 and the current time."""
        last = self._last.setdefault(stream, Progress(now=progress.now))
        if last.epoch is None:
            last = self._last[stream] = replace(last, epoch=progress.epoch)
        return (
            (self._sequences is not None and progress.sequence >= last.sequence + self._sequences)
            or (self._epochs is not None and (progress.epoch or 0) >= (last.epoch or 0) + self._epochs)
            or (self._seconds is not None and progress.now >= last.now + self._seconds)
        )

    def taken(self, stream: str, progress: Progress) -> None:
        """Advance the stream's marks: a checkpoint was taken or recovered at `progress`."""
        self._last[stream] = progress


_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|)")
_DURATION = 'a duration such as "500ms", "30s", "5m", "1h" or "7d"; in Python also seconds or a timedelta'
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(what: str, span: object) -> float:
    """Return a duration in seconds, from a number of seconds, a `timedelta`, or text such as "500ms", "30s", "5m"."""
    if isinstance(span, str):
        found = _SPAN.fullmatch(span.strip().lower())
        if found is None:
            raise BadValue(what=what, value=span, expected=_DURATION)
        span = float(found[1]) * _UNITS[found[2]]
    if isinstance(span, bool) or not (isinstance(span, int | float) or hasattr(span, "total_seconds")):
        raise BadValue(what=what, value=span, expected=_DURATION)
    return checked_seconds(what, span)


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints are kept. The higher id is the newer checkpoint, regardless of clocks.

    Kept are the `last` N checkpoints, the newest one of each of the last `hourly` hours and `daily` days (UTC) that
    have a checkpoint, and all that are younger than `within` seconds.
    """

    last: int = 10
    hourly: int = 0
    daily: int = 0
    within: float | timedelta | None = None

    def __post_init__(self) -> None:
        for what in ("last", "hourly", "daily"):
            checked_u64(f"retention {what}", getattr(self, what))
        if self.within is not None:
            object.__setattr__(self, "within", checked_seconds("retention within", self.within))

    def keeps(self, times: Mapping[int, int], now_ms: int) -> dict[int, str]:
        """Return the kept ones of these checkpoints (id and time in milliseconds), each with the reason."""
        newest_first = sorted(times, reverse=True)
        young = [] if self.within is None else [id_ for id_ in times if now_ms - times[id_] < self._within_ms]
        rules = (
            ("the newest", newest_first[:1]),
            (f"one of the last {self.last}", newest_first[: self.last]),
            ("the newest of its hour", _newest_of_each(times, _HOUR_MS)[: self.hourly]),
            ("the newest of its day", _newest_of_each(times, _DAY_MS)[: self.daily]),
            (f"younger than {figures.duration(self._within_ms / 1000)}", young),
        )
        kept: dict[int, str] = {}
        for why, ids in rules:
            kept |= {id_: why for id_ in ids if id_ not in kept}
        return dict(sorted(kept.items()))

    def summary(self) -> str:
        """Return a one-line summary."""
        parts = [f"the last {max(self.last, 1)}"]
        parts += [f"one an hour for {self.hourly} hours"] * (self.hourly > 0)
        parts += [f"one a day for {self.daily} days"] * (self.daily > 0)
        parts += [f"all younger than {figures.duration(self._within_ms / 1000)}"] * (self.within is not None)
        return ", ".join(parts)

    @property
    def _within_ms(self) -> float:
        return 0.0 if self.within is None else checked_seconds("retention within", self.within) * 1000


DEFAULT_RETENTION = Retention()  # of a run, and of a prune without rules


def _newest_of_each(times: Mapping[int, int], span_ms: int) -> list[int]:
    """Return the newest checkpoint of each period that has one, the last period first."""
    newest: dict[int, int] = {}
    for id_ in sorted(times):
        newest[times[id_] // span_ms] = id_
    return [newest[span] for span in sorted(newest, reverse=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """When checkpoints of a pipeline are taken, how long one may take, and which ones are kept.

    `every` is a time interval, by default one minute. `rows` and `epochs` are intervals too, counted over all streams.
    The next checkpoint is taken when any interval is reached; a graceful stop takes a final one. With `every=None` and
    no other interval, checkpoints are taken only on request, and a stop takes none.

    By default, a checkpoint that fails is reported and the pipeline continues. With `tolerable_failures=2`, the third
    consecutive failure ends it. `retention` selects the checkpoints to keep; `None` keeps all. By default, the last ten
    are kept, the newest one of each of the last 24 hours, and of each of the last 7 days.
    """

    every: float | str | timedelta | None = CHECKPOINT_EVERY
    rows: int | None = None
    epochs: int | None = None
    timeout: float | str | timedelta = 600.0  # a checkpoint that still waits for a stream after this is aborted
    min_pause: float | str | timedelta = 0.0  # minimum time between the end of a checkpoint and the next one
    tolerable_failures: int | None = None
    retention: Retention | None = DEFAULT_RETENTION

    def __post_init__(self) -> None:
        most = self.tolerable_failures
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 0):
            raise BadValue(what="tolerable_failures", value=most, expected="an integer from 0 on, or None for no limit")
        if self.retention is not None and not isinstance(self.retention, Retention):
            do = "pass, for example, retention=hf.Retention(last=10), or None to keep all"
            raise BadValue(what="retention", value=self.retention, expected="a Retention", do=do)
        for what in ("rows", "epochs"):
            if getattr(self, what) is not None:
                checked_positive(f"checkpoint {what}", getattr(self, what))
        _ = (self.marks(), self.timeout_s, self.min_pause_s)  # each raises if its value is not a duration

    @property
    def timeout_s(self) -> float:
        """The timeout of a checkpoint in seconds."""
        return seconds_of("checkpoint timeout", self.timeout)

    @property
    def min_pause_s(self) -> float:
        """The minimum pause after a checkpoint in seconds."""
        return 0.0 if self.min_pause == 0 else seconds_of("checkpoint min_pause", self.min_pause)

    def at_least_every(self, epochs: int) -> CheckpointPolicy:
        """Return this policy, or one that takes a checkpoint after so many epochs if it has no interval."""
        return replace(self, epochs=epochs) if self.marks() is None else self

    def marks(self) -> IntervalPolicy | None:
        """Return the interval policy, or `None` if checkpoints are taken only on request."""
        if self.every is None and self.rows is None and self.epochs is None:
            return None
        every = None if self.every is None else seconds_of("checkpoint every", self.every)
        return IntervalPolicy(sequences=self.rows, epochs=self.epochs, seconds=every)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often failed work may be restarted. Create one with `never`, `once` or `bounded`."""

    max_restarts: int  # maximum number of restarts within the window
    within: float | None  # the window in seconds; None: the whole lifetime

    @classmethod
    def never(cls) -> RestartPolicy:
        """Fail at the first error."""
        return cls(0, None)

    @classmethod
    def once(cls) -> RestartPolicy:
        """Restart once in the whole lifetime."""
        return cls(1, None)

    @classmethod
    def bounded(cls, max_restarts: int, within: float | timedelta) -> RestartPolicy:
        """Restart at most `max_restarts` times within any window of `within` seconds."""
        return cls(checked_positive("max_restarts", max_restarts), checked_seconds("restart window", within))

    def __str__(self) -> str:
        if self.within is None:
            return {0: "never", 1: "once"}.get(self.max_restarts, f"{self.max_restarts} times")
        return f"at most {self.max_restarts} in {self.within:g} s"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a restart: exponential backoff with a maximum and jitter."""

    first: float = 1.0  # seconds before the first restart
    factor: float = 2.0  # ratio of each wait to the previous one
    longest: float = 60.0  # maximum wait in seconds
    jitter: float = 0.2  # fraction of the wait that is randomly added or subtracted

    def __post_init__(self) -> None:
        checked_seconds("first wait", self.first)
        checked_seconds("longest wait", self.longest)
        if not self.factor >= 1:
            raise BadValue(what="backoff factor", value=self.factor, expected="at least 1")
        if not 0 <= self.jitter <= 1:
            raise BadValue(what="jitter", value=self.jitter, expected="a fraction from 0 to 1")

    def seconds(self, failures: int, chance: float) -> float:
        """Return the wait after this many consecutive failures, from 1; `chance` is a random number from 0 to 1."""
        wait = min(self.first * self.factor ** min(failures - 1, 64), self.longest)
        return wait * (1 + self.jitter * (2 * chance - 1))


class RestartBudget:
    """The remaining restarts of a policy."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self.restarts = 0
        self._recent: deque[float] = deque()

    def spend(self, now: float) -> bool:
        """Use one restart and return true, or return false if the budget is used up at this time."""
        if self.policy.within is not None:
            while self._recent and now - self._recent[0] >= self.policy.within:
                self._recent.popleft()
        if len(self._recent) >= self.policy.max_restarts:
            return False
        self._recent.append(now)
        self.restarts += 1
        return True

    def give_back(self, count: int) -> None:
        """Refund the last `count` restarts: their failure was handled in another way."""
        for _ in range(min(count, len(self._recent))):
            self._recent.pop()

"""The epochs of a stream, with the duration of each phase, and what the stream did minute by minute."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from holdfast.epoch import Attempt, CommitTimes, Decision, PhaseTimes, Verdict
from holdfast.errors import HoldfastError, RecordCorrupt
from holdfast.formats.sealed_json import SealBroken, digest_of
from holdfast.repository import Lineage, Repository
from holdfast.repository.activity import Activity, Period, StreamActivity
from holdfast.repository.base import read_each
from holdfast.repository.decisions import LAST_SLOTS, newest_slots, slot_key, streams_of

PHASES = ("open", "prepare", "harden", "decide", "commit")
_REMEMBERED = 5_000  # decisions in memory, without their handles
_LONGEST_S = 1e9  # of a phase; more is damage, and would overflow in sums
_BUCKETS = 240  # points of a chart
_LOOKED_AT = 4  # epochs among which one with a recorded end is looked for


class EpochLine(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at an epoch."""

    epoch: int  # its number
    timeline: int  # its timeline
    attempt: int  # counted from 1; a higher one follows a failure
    verdict: Verdict  # commit or abort
    lease: int  # of the driver that decided
    rows: int = 0  # given to each sink
    decided_at_ms: int = 0  # by the driver's clock; 0: not recorded
    ended_at_ms: int | None = None  # when it was in every sink; null: not recorded
    seconds: float | None = None  # the recorded phases together; null: not recorded
    phases: dict[str, float] = {}  # seconds of each recorded phase: open, prepare, harden, decide, commit
    prepare: dict[str, float] = {}  # by sink: its own part of the preparation; sinks prepare at the same time
    commit: dict[str, float] = {}  # by sink: its own part of the commit
    quarantined: str | None = None  # why no sink was given the epoch
    dead_rows: int = 0  # given to the dead letter, and to no other sink


class ActivityPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream did in one or more periods."""

    start_ms: int  # its beginning
    end_ms: int  # its end
    epochs: int  # that reached every sink
    rows: int  # given to each sink
    seconds: float  # of all epochs together
    slowest: float  # seconds of the slowest epoch
    slowest_epoch: int  # its number
    phases: dict[str, float]  # seconds of each phase, all epochs together
    restarts: int  # after failures
    behind: int | None  # at the end: input that is not processed yet
    unread_files: int | None  # the same in files


class EpochsFound(msgspec.Struct, frozen=True, kw_only=True):
    """The epochs of one stream."""

    stream: str  # its name
    epochs: list[EpochLine]  # newest first
    activity: list[ActivityPoint] = []  # oldest first; long spans are summed up into at most 240 points
    damaged: list[str] = []  # what is wrong with records that could not be read


class _Facts(msgspec.Struct, frozen=True):
    """The displayed part of a decision's facts."""

    rows: int = 0
    total_rows: int = 0
    dead_rows: int = 0
    total_dead_rows: int = 0
    decided_at_ms: int = 0
    fresh_at_ms: int = 0
    watermark_ms: int = 0
    quarantined: str | None = None
    times: PhaseTimes | None = None
    last_commit: CommitTimes | None = None


class ReadDecision(msgspec.Struct, frozen=True):
    """A decision, and the part of its facts that is displayed."""

    decision: Decision
    facts: _Facts


class _Sealed:
    """A sealed text as the key of a cache: equal digests, which were checked, mean equal bytes."""

    __slots__ = ("data", "digest")

    def __init__(self, data: bytes, key: str) -> None:
        try:
            self.digest = digest_of(data)
        except SealBroken as broken:
            raise RecordCorrupt(key=key, why=str(broken)) from broken
        self.data: bytes | None = data

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Sealed) and other.digest == self.digest


@lru_cache(maxsize=_REMEMBERED)
def _remembered(sealed: _Sealed, key: str) -> ReadDecision:
    decision = Decision.unsealed(sealed.data or b"", key)
    sealed.data = None  # the cache keeps the key
    slim = msgspec.structs.replace(decision, facts={})  # the handles of sinks are not needed
    facts = decision.facts_as(_Facts) if decision.verdict is Verdict.COMMIT else _Facts()
    if not all(abs(each) < _LONGEST_S for each in _durations(facts)):
        raise RecordCorrupt(key=key, why="the duration of a phase is impossible")
    return ReadDecision(slim, facts)


def _durations(facts: _Facts) -> list[float]:
    times, end = facts.times, facts.last_commit
    found = [times.open, times.prepare, times.harden, *times.sinks.values()] if times else []
    return [*found, end.decide, end.commit, *end.sinks.values()] if end else found


def read_decision(repository: Repository, key: str) -> ReadDecision:
    """Read a decision for display."""
    return _remembered(_Sealed(repository.read(key), key), key)


def all_streams(repository: Repository, lineage: Lineage) -> list[str]:
    """Return the names of all streams of a lineage, sorted."""
    return sorted({name for timeline in lineage.timelines for name in streams_of(repository, timeline)})


def slot_keys(repository: Repository, lineage: Lineage, stream: str, most: int) -> list[tuple[int, int, str]]:
    """Return the slots of the newest epochs of a stream on its lineage: epoch, attempt and key, oldest first."""
    found: list[Attempt] = []
    for timeline, last in reversed(lineage.places(stream)):
        left = most - len({each.epoch for each in found})
        if left > 0 and last != 0:
            found = [*newest_slots(repository, stream, timeline, left, last), *found]
    return [(each.epoch, each.attempt, slot_key(each)) for each in found]


def last_slots(repository: Repository, lineage: Lineage, stream: str, most: int) -> list[tuple[int, str]]:
    """Return the last slots of each of the newest epochs of a stream: epoch and key, oldest first.

    A decision to commit is among them. The slots before it are aborts, of which an outage leaves many. If two drivers
    try the same epoch, an abort can follow it.
    """
    keys: dict[int, list[str]] = {}
    for epoch, _, key in slot_keys(repository, lineage, stream, most):
        keys.setdefault(epoch, []).append(key)
    return [(epoch, key) for epoch, found in keys.items() for key in found[-LAST_SLOTS:]]


def epochs_of(
    repository: Repository, stream: str, *, last: int = 100, since_ms: int | None = None, lineage: Lineage | None = None
) -> EpochsFound:
    """Return the newest epochs of a stream and, with `since_ms`, what it did since then."""
    lineage = lineage or Lineage.load(repository)
    keys = [key for _, _, key in slot_keys(repository, lineage, stream, last + 1)[-last - 1 :]]
    read, bad = read_each(lambda key: read_decision(repository, key), keys)
    lines = _epoch_lines([each for each in read if each.decision.verdict is not Verdict.END])
    periods, damaged = (Activity(repository).periods(since_ms)) if since_ms is not None else ([], [])
    return EpochsFound(
        stream=stream,
        epochs=lines[::-1][:last],
        activity=points(periods, stream),
        damaged=[error.summary for error in [*bad, *damaged]],
    )


def epoch_of(repository: Repository, stream: str, epoch: int) -> list[EpochLine]:
    """Return the attempts at one epoch on the current lineage, the newest first; none if its decision is not kept."""
    places = Lineage.load(repository).places(stream)
    timeline = next(number for number, last in places if last is None or epoch <= last)
    slots = [
        *newest_slots(repository, stream, timeline, 1, epoch),
        *newest_slots(repository, stream, timeline, 1, epoch + 1),
    ]
    keys = dict.fromkeys(slot_key(each) for each in slots if each.epoch in (epoch, epoch + 1))
    read, _ = read_each(lambda key: read_decision(repository, key), keys)
    lines = _epoch_lines([each for each in read if each.decision.verdict is not Verdict.END])
    return [each for each in reversed(lines) if each.epoch == epoch]


def measured_phases(repository: Repository, stream: str) -> dict[str, float]:
    """Return the phases of the last epoch whose end is recorded: usually, the one before the last decided one."""
    try:
        keys = [key for _, key in last_slots(repository, Lineage.load(repository), stream, _LOOKED_AT)]
        read, _ = read_each(lambda key: read_decision(repository, key), keys)
    except HoldfastError:
        return {}
    lines = _epoch_lines([each for each in read if each.decision.verdict is Verdict.COMMIT])
    return next((each.phases for each in reversed(lines) if "commit" in each.phases), {})


def slowest_first(lines: Iterable[EpochLine]) -> list[EpochLine]:
    """Return epochs in the order of their recorded durations, the slowest first."""
    return sorted(lines, key=lambda each: -(each.seconds or 0.0))


def _epoch_lines(read: list[ReadDecision]) -> list[EpochLine]:
    """Return the lines of decisions, oldest first. The end of an epoch is in the decision of the next one."""
    ends = {}
    for each in read:
        if each.facts.last_commit is not None:
            ends[each.decision.attempt.timeline, each.facts.last_commit.epoch] = each.facts.last_commit
    return [_line(each, ends.get((each.decision.attempt.timeline, each.decision.attempt.epoch))) for each in read]


def _line(read: ReadDecision, end: CommitTimes | None) -> EpochLine:
    decision, facts = read.decision, read.facts
    times, committed = facts.times, decision.verdict is Verdict.COMMIT
    phases: dict[str, float] = {}
    if times is not None:
        phases |= {"open": times.open, "prepare": times.prepare, "harden": times.harden}
    if end is not None and committed:
        phases |= {"decide": end.decide, "commit": end.commit}
    return EpochLine(
        epoch=decision.attempt.epoch,
        timeline=decision.attempt.timeline,
        attempt=decision.attempt.attempt,
        verdict=decision.verdict,
        lease=decision.lease,
        rows=facts.rows,
        decided_at_ms=facts.decided_at_ms,
        ended_at_ms=end.ended_at_ms if end is not None and committed else None,
        seconds=round(sum(phases.values()), 6) if phases else None,
        phases=phases,
        prepare=times.sinks if times else {},
        commit=end.sinks if end is not None and committed else {},
        quarantined=facts.quarantined,
        dead_rows=facts.dead_rows,
    )


def points(periods: list[Period], stream: str, most: int = _BUCKETS) -> list[ActivityPoint]:
    """Return the periods of a stream, summed up into at most `most` points of equal length."""
    own = [(each, each.streams[stream]) for each in periods if stream in each.streams]
    if not own:
        return []
    first, last = own[0][0].start_ms, max(each.end_ms for each, _ in own)
    width = max((last - first) / most, 1.0)
    buckets: dict[int, list[tuple[Period, StreamActivity]]] = {}
    for each in own:
        number = int((each[0].start_ms - first) / width) if len(own) > most else len(buckets)
        buckets.setdefault(number, []).append(each)
    return [_point(each) for each in buckets.values()]


def _point(parts: list[tuple[Period, StreamActivity]]) -> ActivityPoint:
    slowest = max((stream for _, stream in parts), key=lambda each: each.slowest)
    phases = {name: round(sum(each.phases.get(name, 0.0) for _, each in parts), 6) for name in PHASES}
    end = parts[-1][1]
    return ActivityPoint(
        start_ms=parts[0][0].start_ms,
        end_ms=parts[-1][0].end_ms,
        epochs=sum(each.epochs for _, each in parts),
        rows=sum(each.rows for _, each in parts),
        seconds=round(sum(each.seconds for _, each in parts), 6),
        slowest=slowest.slowest,
        slowest_epoch=slowest.slowest_epoch,
        phases={name: each for name, each in phases.items() if each},
        restarts=sum(each.restarts for _, each in parts),
        behind=end.behind,
        unread_files=end.unread_files,
    )

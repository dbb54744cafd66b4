"""The streams of a pipeline, from its repository alone: position, rate, lag, freshness, sources and sinks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from functools import partial

import msgspec

from holdfast.errors import NotFound
from holdfast.in_doubt import Doubt
from holdfast.program.description import SourceDescription
from holdfast.program.records import Programs
from holdfast.repository import Gaps, Lineage, Repository
from holdfast.repository import activity as kinds
from holdfast.repository.activity import Activity, ActivityEvent, Period, StreamActivity
from holdfast.repository.base import read_each
from holdfast.repository.targets import newest_targets
from holdfast.web.reading.epochs import ReadDecision, all_streams, last_slots, read_decision
from holdfast.web.reading.problems import Problems
from holdfast.web.reading.status_lines import RunState, SinkLine, SourceLine, StreamLine

_RATE_EPOCHS = 20  # over which a rate is measured
_QUIET_S = 60.0  # a stream without an epoch for this long has a rate of 0
_LAG_S = 15 * 60.0  # an older count of the lag is not shown
_NO_LIMIT = 1 << 62
_TROUBLED = ("restarting", "waiting", "failed")  # states of a stream
_LOGS = "logs/"  # the folder of the event logs between streams, relative to the repository


@dataclass(frozen=True, slots=True)
class RunSeen:
    """What is known of the last run."""

    state: RunState  # of the pipeline
    _: KW_ONLY
    is_held: bool  # a process is known to run it
    events: list[ActivityEvent]  # of this run, oldest first
    last_period: Period | None

    @property
    def stream_states(self) -> dict[str, str]:
        """What each stream does."""
        return stream_states(self.events, self.last_period)

    def state_of(self, stream_state: str) -> str:
        """Return the state of a stream, given the last one that the events show."""
        if self.is_held or stream_state == "failed":
            return stream_state
        if self.state is RunState.UNKNOWN:
            return ""
        return "killed" if self.state is RunState.KILLED else "ended"


class StreamReader:
    """Reads the streams of one pipeline."""

    def __init__(self, repository: Repository, lineage: Lineage, problems: Problems, now_s: float) -> None:
        self._repository = repository
        self._lineage = lineage
        self._problems = problems
        self._now = now_s

    def read(self, run: RunSeen, doubts: list[Doubt]) -> list[StreamLine]:
        """Return the streams, by name. One that cannot be read is reported and left out."""
        names = self._problems.guarded(lambda: all_streams(self._repository, self._lineage)) or []
        targets = self._problems.readable(lambda: newest_targets(self._repository)) or {}
        since = int((self._now - _LAG_S) * 1000)
        periods = self._problems.readable(lambda: Activity(self._repository).periods(since)) or []
        states = run.stream_states
        restarts = {name: _restarts(run, name) for name in names}
        doubtful = {each.stream: each.epoch for each in doubts}
        lines = []
        for name in names:
            read = partial(
                self._stream,
                name,
                state=run.state_of(states.get(name, "running")),
                targets=targets.get(name, {}),
                period=_last_period(periods, name),
                in_doubt=doubtful.get(name),
                restarts=restarts[name],
            )
            lines.append(self._problems.guarded(read))
        return [each for each in lines if each is not None]

    def _stream(
        self,
        name: str,
        *,
        state: str,
        targets: dict[str, str],
        period: Period | None,
        in_doubt: int | None,
        restarts: int,
    ) -> StreamLine:
        slots = last_slots(self._repository, self._lineage, name, _RATE_EPOCHS + 1)
        newest = self._newest(slots)
        facts = newest.facts if newest else None
        epoch = newest.decision.attempt.epoch if newest else 0
        lag = period.streams[name] if period else None
        fresh = self._fresh_at(slots, before=in_doubt)
        record = self._problems.guarded(lambda: Programs(self._repository).newest(name, self._lineage))
        sinks = {
            sink: SinkLine(kind=each.kind, target=each.target or targets.get(sink, ""))
            for sink, each in (record.description.sinks.items() if record else {}.items())
        } or {sink: SinkLine(target=target) for sink, target in targets.items()}
        done = epoch - 1 if in_doubt else epoch
        return StreamLine(
            stream=name,
            timeline=self._lineage.timeline_of(name),
            state=state,
            epoch=epoch,
            decided_at_ms=facts.decided_at_ms if facts else 0,
            rows=facts.total_rows if facts else 0,
            rows_per_s=self._rate(slots, newest),
            epoch_s=_seconds(newest),
            behind=lag.behind if lag else None,
            unread_files=lag.unread_files if lag else None,
            unread_bytes=lag.unread_bytes if lag else None,
            behind_s=lag.behind_s if lag else None,
            lag_at_ms=period.end_ms if period and lag and _has_lag(lag) else 0,
            watermark_ms=facts.watermark_ms if facts else 0,
            in_doubt=in_doubt,
            gaps=Gaps(self._repository).newest(name, self._lineage, _NO_LIMIT, 1)[0],
            restarts=restarts,
            fresh_at_ms=fresh,
            sinks={n: msgspec.structs.replace(each, epoch=done, fresh_at_ms=fresh) for n, each in sinks.items()},
            sources=[_source(each) for each in record.description.sources] if record else [],
            dead_rows=facts.total_dead_rows if facts else 0,
        )

    def _newest(self, slots: list[tuple[int, str]]) -> ReadDecision | None:
        for _, key in reversed(slots):
            with contextlib.suppress(NotFound):  # it was pruned just now
                found = read_decision(self._repository, key)
                if found.decision.verdict == "commit":
                    return found
        return None

    def _earlier(self, key: str) -> ReadDecision | None:
        """Return a decision that is not the newest; `None` if it is no commit or cannot be read, which is reported."""
        read = partial(read_decision, self._repository)
        found = self._problems.readable(lambda: read_each(read, [key])) or []
        return next((each for each in found if each.decision.verdict == "commit"), None)

    def _rate(self, slots: list[tuple[int, str]], newest: ReadDecision | None) -> float | None:
        """Return the rows per second over the last epochs; 0 if there was none for a while."""
        if newest is None or not newest.facts.decided_at_ms:
            return None
        now_ms = newest.facts.decided_at_ms
        if self._now * 1000 - now_ms > _QUIET_S * 1000:
            return 0.0
        for epoch, key in slots:
            before = self._earlier(key) if epoch < newest.decision.attempt.epoch else None
            if before is not None and before.facts.decided_at_ms < now_ms:
                rows = newest.facts.total_rows - before.facts.total_rows
                return round(max(rows, 0) / ((now_ms - before.facts.decided_at_ms) / 1000), 3)
        return None

    def _fresh_at(self, slots: list[tuple[int, str]], *, before: int | None) -> int:
        """Return when the last epoch with rows that every sink has began: its rows had arrived by then.

        Each decision records it. In those of earlier versions, it is looked for among the last epochs.
        """
        for epoch, key in reversed(slots):
            if before is not None and epoch >= before:
                continue
            found = self._earlier(key)
            if found is None:
                continue
            if found.facts.fresh_at_ms:
                return found.facts.fresh_at_ms
            if found.facts.rows and not found.facts.quarantined:
                times = found.facts.times
                spent = times.open + times.prepare + times.harden if times else 0.0
                return int(found.facts.decided_at_ms - spent * 1000)
        return 0


def stream_states(events: Iterable[ActivityEvent], last_period: Period | None) -> dict[str, str]:
    """Return what each stream does, as the last events of a run show it.

    The last period shows it for a stream that has no event among them: only the start of an outage is an event.
    """
    streams = last_period.streams if last_period else {}
    recorded = {name: each.state for name, each in streams.items() if each.state in _TROUBLED}
    words = {
        kinds.RECOVERED: "running",
        kinds.RESTART: "restarting",
        kinds.OUTAGE: "waiting",
        kinds.OUTAGE_OVER: "running",
        kinds.FAILED: "failed",
    }
    return recorded | {each.stream: words[each.kind] for each in events if each.stream and each.kind in words}


def _restarts(run: RunSeen, stream: str) -> int:
    """Return the restarts of a stream in a run. The last period counts them all, except those of the last minute."""
    last = run.last_period
    counted = last.streams[stream].run_restarts if last and stream in last.streams else 0
    return max(counted, sum(each.kind == kinds.RESTART and each.stream == stream for each in run.events))


def _last_period(periods: list[Period], stream: str) -> Period | None:
    return next((each for each in reversed(periods) if stream in each.streams), None)


def _has_lag(stream: StreamActivity) -> bool:
    return any(each is not None for each in (stream.behind, stream.behind_s, stream.unread_files))


def _seconds(newest: ReadDecision | None) -> float | None:
    times = newest.facts.times if newest else None
    return round(times.open + times.prepare + times.harden, 6) if times else None


def _source(each: SourceDescription) -> SourceLine:
    """Return a source. A log inside of the repository belongs to the stream of the same name."""
    inner = each.reads.startswith(_LOGS) and each.reads.removeprefix(_LOGS).partition("/")[0]
    return SourceLine(kind=each.kind, reads=each.reads, stream=inner or "")

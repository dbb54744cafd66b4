"""The status of a pipeline, from its repository alone: its state, its streams, its problems and what to do next.

Rules:
- A record that cannot be read is reported as a problem; it hides nothing else.
- Every problem names its next step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import partial
from typing import TypeVar

import msgspec

from holdfast.cli.holder import Holder, readable_holder
from holdfast.cli.timelines import unfinished_text
from holdfast.control.records import is_closed
from holdfast.errors import HoldfastError
from holdfast.errors.base import PROGRAM
from holdfast.in_doubt import Doubt, displayed_doubt
from holdfast.program.description import SourceDescription
from holdfast.program.records import Programs
from holdfast.repository import Checkpoints, Gaps, Lineage, Repository, Status, Summary
from holdfast.repository import activity as kinds
from holdfast.repository.activity import Activity, ActivityEvent, Period, StreamActivity
from holdfast.repository.lease import RUN, LeaseRecord, seen_leases
from holdfast.repository.rewinds import unfinished_rewind
from holdfast.repository.targets import newest_targets
from holdfast.web.reading.epochs import ReadDecision, all_streams, read_decision, slot_keys

T = TypeVar("T")
SETTLES_S = 10.0  # a running pipeline is still committing epochs that it decided this recently
_RATE_EPOCHS = 20  # over which a rate is measured
_QUIET_S = 60.0  # a stream without an epoch for this long has a rate of 0
_LAG_S = 15 * 60.0  # an older count of the lag is not shown
_NO_LIMIT = 1 << 62
_LOGS = "logs/"  # the folder of the event logs between streams, relative to the repository


class RunState(StrEnum):
    """What a pipeline is doing, as far as its repository shows it."""

    NEW = "new"  # no run has begun yet
    RUNNING = "running"
    TROUBLED = "troubled"  # it runs, and a stream restarts or waits for an outage to end
    STOPPING = "stopping"  # it was asked to stop, and has not ended
    STOPPED = "stopped"  # the last run has ended gracefully
    FAILED = "failed"  # the last run has ended with an error
    KILLED = "killed"  # the last run has ended without a trace: killed, or its machine went down
    UNKNOWN = "unknown"  # a shared pipeline on another machine, or a lease that cannot be read
    DAMAGED = "damaged"  # the identity of the repository cannot be read


class SinkLine(msgspec.Struct, frozen=True, kw_only=True):
    """One sink of a stream."""

    kind: str = ""  # its class
    target: str = ""  # where it writes
    epoch: int = 0  # the last epoch that is known to be committed to it; 0: none
    fresh_at_ms: int = 0  # when the last such epoch with rows began: its rows had arrived by then; 0: not known


class SourceLine(msgspec.Struct, frozen=True, kw_only=True):
    """One source of a stream."""

    kind: str  # such as kafka or FileSource
    reads: str = ""  # its path, topics or table
    stream: str = ""  # the stream of the same pipeline whose log it reads; empty: none


class StreamLine(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of a pipeline."""

    stream: str  # its name
    timeline: int  # the timeline that it writes to
    state: str  # running, restarting, waiting, failed, ended; empty: not known
    epoch: int  # the last decided one; 0: none
    decided_at_ms: int  # when; 0: not recorded
    rows: int  # given to each sink since the first epoch
    rows_per_s: float | None  # over the last epochs; null: not known
    epoch_s: float | None  # seconds of the last epoch whose phases are recorded
    behind: int | None  # input that is not processed yet, when the lag was counted last
    unread_files: int | None  # the same in files
    unread_bytes: int | None  # their size
    behind_s: float | None = None  # the age of the oldest record of Kafka that is not processed yet; 0: none
    lag_at_ms: int  # when the lag was counted; 0: never
    watermark_ms: int  # of event time; 0: none
    in_doubt: int | None  # an epoch that is decided, but perhaps not committed in every sink
    gaps: int  # in the ledger, of the current history
    restarts: int  # after failures, in the last run
    fresh_at_ms: int  # when the last epoch with rows that every sink has began; 0: not known
    sinks: dict[str, SinkLine] = {}  # by name
    sources: list[SourceLine] = []
    dead_rows: int = 0  # given to the dead letter since the first epoch, or since the last rewind


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that needs attention."""

    severity: str  # error: the pipeline does not do its work; warning: it does, or that is not known
    what: str  # what is wrong
    next: str  # what to do
    at_ms: int = 0  # since when; 0: not known
    stream: str = ""  # its stream; empty: the whole pipeline


class PipelineLine(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline."""

    pipeline: str  # its name
    where: str  # its repository
    state: RunState
    uid: str = ""  # distinguishes pipelines of the same name
    timeline: int = 0  # the current one
    since_ms: int = 0  # when the state began, as far as known; 0: not known
    holder: Holder | None = None  # the process that runs it; null: none on this machine
    streams: list[StreamLine] = []  # by name
    checkpoint: int | None = None  # the newest restorable one of the current history
    checkpoint_at_ms: int = 0  # when it was taken
    checkpoint_s: float | None = None  # how long it took
    checkpoint_bytes: int = 0  # size of the files that it needs
    checkpoints: int = 0  # those that the pipeline can go back to, with savepoints
    checkpoints_damaged: int = 0  # whose manifest cannot be read
    checkpoints_failed: int = 0  # in the last run
    doubts: list[Doubt] = []  # epochs in doubt
    gaps: int = 0  # in the ledger, on the current history
    restarts: int = 0  # of all streams after failures, in the last run
    problems: list[Problem] = []  # the most severe first


class StatusFound(msgspec.Struct, frozen=True):
    """The status of every pipeline that was found."""

    pipelines: list[PipelineLine]  # sorted by name


def status_of(
    repository: Repository,
    *,
    summaries: Callable[[], list[Summary]] | None = None,
    clock: Callable[[], float] = time.time,
) -> PipelineLine:
    """Return the status of a pipeline. Damage is part of the status, never an error.

    `summaries` returns all checkpoints, for callers that have read them already.
    """
    try:
        lineage = Lineage.load(repository)
    except HoldfastError as error:
        name = repository.where.rstrip("/").rpartition("/")[2]
        problem = Problem(severity="error", what=error.summary, next=_next_of(error))
        return PipelineLine(pipeline=name, where=repository.where, state=RunState.DAMAGED, problems=[problem])
    return _StatusReader(repository, lineage, summaries or Checkpoints(repository).all, clock).read()


class _StatusReader:
    """Reads one status, and collects problems while it does so."""

    def __init__(
        self,
        repository: Repository,
        lineage: Lineage,
        summaries: Callable[[], list[Summary]],
        clock: Callable[[], float],
    ) -> None:
        self._summaries = summaries
        self._repository = repository
        self._lineage = lineage
        self._now = clock()
        self._problems: list[Problem] = []

    def read(self) -> PipelineLine:
        repository, lineage = self._repository, self._lineage
        holder, unknown = readable_holder(repository)
        events, bad = Activity(repository).events(100)
        self._damaged(bad)
        leases = self._leases() if holder is None and unknown is None else []
        state, since = self._state(holder, unknown, events, leases)
        ended = [*(each.number for each in leases if each.why == RUN), *(each.lease for each in events)]
        lease = holder.lease if holder else max(ended, default=0)
        own = [each for each in events if each.lease == lease]
        run = self._guarded(lambda: Activity(repository).last_period(lease))
        doubts = self._doubts(holder, state)
        streams = self._streams(own, doubts, run, running=holder is not None)
        taken = self._guarded(self._summaries) or []
        newest = next((each for each in reversed(taken) if self._counts(each)), None)
        self._checkpoint_problems(taken)
        self._rewind_problem()
        self._event_problems(own, state)
        self._checkpoint_failure(own, newest.timestamp_ms if newest else 0)
        gaps = sum(each.gaps for each in streams)
        if gaps:
            text = (
                "1 gap: input that should have reached the sinks did not" if gaps == 1 else f"{gaps} gaps in the input"
            )
            self._add("warning", text, "read the ledger: holdfast gaps", at_ms=0)
        return PipelineLine(
            pipeline=lineage.identity.pipeline,
            where=repository.where,
            state=state,
            uid=lineage.identity.uid,
            timeline=lineage.current,
            since_ms=since,
            holder=holder,
            streams=streams,
            checkpoint=newest.checkpoint if newest else None,
            checkpoint_at_ms=newest.timestamp_ms if newest else 0,
            checkpoint_s=newest.seconds if newest else None,
            checkpoint_bytes=newest.file_bytes if newest else 0,
            checkpoints=sum(self._is_base(each) for each in taken),
            checkpoints_damaged=sum(each.status is Status.DAMAGED for each in taken),
            checkpoints_failed=max(
                run.run_checkpoints_failed if run else 0, sum(each.kind == kinds.CHECKPOINT_FAILED for each in own)
            ),
            doubts=doubts,
            gaps=gaps,
            restarts=sum(each.restarts for each in streams),
            problems=sorted(self._problems, key=lambda each: each.severity != "error"),
        )

    # --- the run ---

    def _leases(self) -> list[LeaseRecord]:
        found, bad = seen_leases(self._repository)
        self._damaged(bad)
        return found

    def _state(
        self, holder: Holder | None, unknown: str | None, events: list[ActivityEvent], leases: list[LeaseRecord]
    ) -> tuple[RunState, int]:
        """Return the state of the pipeline, and since when."""
        if unknown is not None:
            self._add("warning", f"it is not known whether the pipeline runs: {unknown}", "restore the lease record")
            return RunState.UNKNOWN, 0
        if holder is not None:
            return self._running_state(holder, events), holder.taken_at_ms
        runs = [each for each in leases if each.why == RUN]
        if not runs:
            return (RunState.STOPPED if leases else RunState.NEW), 0
        last = runs[-1]
        own = [each for each in events if each.lease == last.number]
        ended = [each for each in own if each.kind in (kinds.ENDED, kinds.START_FAILED)]
        if any(each.kind in (kinds.FAILED, kinds.START_FAILED) for each in own):
            return RunState.FAILED, own[-1].at_ms
        if ended or is_closed(self._repository, last.number):
            return RunState.STOPPED, ended[-1].at_ms if ended else 0
        self._add(
            "error",
            f"the last run ({last.holder}, lease {last.number}) ended without a trace: it was killed",
            f"start the pipeline again, it completes what was in flight: holdfast run {PROGRAM}",
            at_ms=last.taken_at_ms,
        )
        return RunState.KILLED, last.taken_at_ms

    def _running_state(self, holder: Holder, events: list[ActivityEvent]) -> RunState:
        if not holder.certain:
            return RunState.UNKNOWN
        if holder.stopping:
            return RunState.STOPPING
        own = [each for each in events if each.lease == holder.lease]
        troubled = any(state in ("restarting", "waiting", "failed") for state in _stream_states(own).values())
        return RunState.TROUBLED if troubled else RunState.RUNNING

    def _event_problems(self, events: list[ActivityEvent], state: RunState) -> None:
        """Report failures of the last run that nothing has ended since."""
        last: dict[tuple[str, str], ActivityEvent] = {}
        for each in events:
            last[each.stream, each.kind] = each
        for (stream, kind), each in last.items():
            if kind in (kinds.FAILED, kinds.START_FAILED):
                do = each.next or "fix the cause"
                if "holdfast " not in do:  # every problem names a command
                    do = f"{do}; then start the pipeline again: holdfast run {PROGRAM}"
                self._add("error", each.text, do, at_ms=each.at_ms, stream=stream)
        if state is not RunState.TROUBLED:
            return
        causes = {"restarting": kinds.RESTART, "waiting": kinds.OUTAGE}
        for stream, found in _stream_states(events).items():
            cause = last.get((stream, causes.get(found, "")))
            if cause is not None:
                what = f"stream {stream} is {found}: {cause.text}"
                do = f"wait, it tries again by itself; if that does not help: {cause.next or 'fix the cause'}"
                self._add("warning", what, do, at_ms=cause.at_ms, stream=stream)

    # --- streams ---

    def _streams(
        self, events: list[ActivityEvent], doubts: list[Doubt], run: Period | None, *, running: bool
    ) -> list[StreamLine]:
        names = self._guarded(lambda: all_streams(self._repository, self._lineage)) or []
        targets, bad = newest_targets(self._repository)
        self._damaged(bad)
        since = int((self._now - _LAG_S) * 1000)
        periods, bad_periods = Activity(self._repository).periods(since)
        self._damaged(bad_periods)
        states = _stream_states(events)
        restarts = {name: _restarts(events, run, name) for name in names}
        doubtful = {each.stream: each.epoch for each in doubts}
        lines = []
        for name in names:
            state = states.get(name, "running")
            read = partial(
                self._stream,
                name,
                state=state if running or state == "failed" else "ended",
                targets=targets.get(name, {}),
                period=_last_period(periods, name),
                in_doubt=doubtful.get(name),
                restarts=restarts[name],
            )
            lines.append(self._guarded(read))
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
        slots = slot_keys(self._repository, self._lineage, name, _RATE_EPOCHS + 1)
        newest = self._newest(slots)
        facts = newest.facts if newest else None
        epoch = newest.decision.attempt.epoch if newest else 0
        lag = period.streams[name] if period else None
        fresh = self._fresh_at(slots, before=in_doubt)
        record = self._guarded(lambda: Programs(self._repository).newest(name, self._lineage))
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

    def _newest(self, slots: list[tuple[int, int, str]]) -> ReadDecision | None:
        for _, _, key in reversed(slots):
            found = read_decision(self._repository, key)
            if found.decision.verdict == "commit":
                return found
        return None

    def _rate(self, slots: list[tuple[int, int, str]], newest: ReadDecision | None) -> float | None:
        """Return the rows per second over the last epochs; 0 if there was none for a while."""
        if newest is None or not newest.facts.decided_at_ms:
            return None
        now_ms = newest.facts.decided_at_ms
        if self._now * 1000 - now_ms > _QUIET_S * 1000:
            return 0.0
        for _, _, key in slots[-_RATE_EPOCHS - 1 : -1]:
            before = read_decision(self._repository, key)
            if before.decision.verdict == "commit" and before.facts.decided_at_ms < now_ms:
                rows = newest.facts.total_rows - before.facts.total_rows
                return round(max(rows, 0) / ((now_ms - before.facts.decided_at_ms) / 1000), 3)
        return None

    def _fresh_at(self, slots: list[tuple[int, int, str]], *, before: int | None) -> int:
        """Return when the last epoch with rows that every sink has began: its rows had arrived by then.

        Each decision records it. In those of earlier versions, it is looked for among the last epochs.
        """
        for epoch, _, key in reversed(slots[-_RATE_EPOCHS:]):
            if before is not None and epoch >= before:
                continue
            found = read_decision(self._repository, key)
            if found.decision.verdict != "commit":
                continue
            if found.facts.fresh_at_ms:
                return found.facts.fresh_at_ms
            if found.facts.rows and not found.facts.quarantined:
                times = found.facts.times
                spent = times.open + times.prepare + times.harden if times else 0.0
                return int(found.facts.decided_at_ms - spent * 1000)
        return 0

    # --- doubt, checkpoints, rewinds ---

    def _doubts(self, holder: Holder | None, state: RunState) -> list[Doubt]:
        repository, lineage = self._repository, self._lineage
        names = self._guarded(lambda: all_streams(repository, lineage)) or []
        seen = [self._guarded(partial(displayed_doubt, repository, name, lineage.timeline_of(name))) for name in names]
        running = holder is not None and holder.certain
        found = [
            each
            for each in seen
            if each is not None and not (running and self._now - each.decided_at_ms / 1000 < SETTLES_S)
        ]
        for each in found:
            what = f"epoch {each.epoch} of stream {each.stream} is in doubt: decided, perhaps not in every sink"
            do = f"start the pipeline, which completes it first: holdfast run {PROGRAM}"
            do = "check its sinks, and its log: holdfast runs" if running else do
            at_ms = each.decided_at_ms
            self._add("warning" if state is RunState.KILLED else "error", what, do, at_ms=at_ms, stream=each.stream)
        return found

    def _counts(self, each: Summary) -> bool:
        return each.savepoint is None and self._is_base(each)

    def _is_base(self, each: Summary) -> bool:
        """Whether the pipeline can go back to it: a checkpoint of an abandoned branch is no base."""
        restorable = each.status is Status.RESTORABLE
        return restorable and self._lineage.holds_checkpoint(each.timeline, each.checkpoint)

    def _checkpoint_problems(self, taken: list[Summary]) -> None:
        damaged = [each for each in taken if each.status is Status.DAMAGED]
        for each in damaged[-3:]:
            what = f"checkpoint {each.name or '?'} is damaged: {each.why}"
            self._add("error", what, "find a sound one: holdfast verify --all", at_ms=each.timestamp_ms)
        if len(damaged) > 3:
            self._add("error", f"{len(damaged) - 3} more checkpoints are damaged", "holdfast ls lists them")

    def _checkpoint_failure(self, events: list[ActivityEvent], newest_ms: int) -> None:
        """Report the last checkpoint that was given up, unless a later one succeeded."""
        failed = [each for each in events if each.kind == kinds.CHECKPOINT_FAILED and each.at_ms > newest_ms]
        if failed:
            last = failed[-1]
            do = last.next or "read why in the runs: holdfast runs"
            self._add("warning", f"the last checkpoint failed: {last.text}", do, at_ms=last.at_ms)

    def _rewind_problem(self) -> None:
        record = self._guarded(lambda: unfinished_rewind(self._repository, self._lineage))
        if record is not None:
            text = unfinished_text(record)
            what, _, do = text.partition(": ")
            self._add("error", what, do, at_ms=record.at_ms)

    # --- collecting ---

    def _guarded(self, read: Callable[[], T]) -> T | None:
        """Return what can be read; otherwise report why not, and return `None`."""
        try:
            return read()
        except HoldfastError as error:
            self._add("error", error.summary, _next_of(error))
            return None

    def _damaged(self, errors: Iterable[HoldfastError]) -> None:
        for error in errors:
            self._add("warning", error.summary, _next_of(error))

    def _add(self, severity: str, what: str, do: str, *, at_ms: int = 0, stream: str = "") -> None:
        problem = Problem(severity=severity, what=what, next=do, at_ms=at_ms, stream=stream)
        if all(each.what != what for each in self._problems):
            self._problems.append(problem)


def _next_of(error: HoldfastError) -> str:
    return error.next_step.format(e=error)


def _stream_states(events: Iterable[ActivityEvent]) -> dict[str, str]:
    """Return what each stream does, as the events of a run show it."""
    words = {
        kinds.RECOVERED: "running",
        kinds.RESTART: "restarting",
        kinds.OUTAGE: "waiting",
        kinds.OUTAGE_OVER: "running",
        kinds.FAILED: "failed",
    }
    return {each.stream: words[each.kind] for each in events if each.stream and each.kind in words}


def _restarts(events: list[ActivityEvent], run: Period | None, stream: str) -> int:
    """Return the restarts of a stream in a run. The last period counts them all, except those of the last minute."""
    counted = run.streams[stream].run_restarts if run and stream in run.streams else 0
    return max(counted, sum(each.kind == kinds.RESTART and each.stream == stream for each in events))


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

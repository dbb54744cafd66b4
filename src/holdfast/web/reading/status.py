"""The status of a pipeline, from its repository alone: its state, its streams, its problems and what to do next."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from holdfast import _figures as figures
from holdfast.cli.holder import Holder, check_elsewhere, readable_holder
from holdfast.cli.timelines import unfinished_text
from holdfast.control.records import is_closed
from holdfast.errors import HoldfastError
from holdfast.errors.base import PROGRAM
from holdfast.in_doubt import Doubt, displayed_doubt
from holdfast.repository import Checkpoints, Lineage, Repository, Status, Summary
from holdfast.repository import activity as kinds
from holdfast.repository.activity import Activity, ActivityEvent
from holdfast.repository.lease import RUN, LeaseRecord, seen_leases
from holdfast.repository.rewinds import unfinished_rewind
from holdfast.repository.verdicts import LastVerify, Verdicts
from holdfast.web.reading.epochs import all_streams
from holdfast.web.reading.problems import Problems
from holdfast.web.reading.status_lines import PipelineLine, Problem, RunState, StreamLine
from holdfast.web.reading.stream_lines import RunSeen, StreamReader, stream_states

SETTLES_S = 10.0  # a running pipeline is still committing epochs that it decided this recently
_MOST = 3  # damaged checkpoints that are reported one by one


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
        return _StatusReader(repository, lineage, summaries or Checkpoints(repository).all, clock).read()
    except HoldfastError as error:
        name = repository.where.rstrip("/").rpartition("/")[2]
        problem = Problem(severity="error", what=error.summary, next=error.what_next)
        return PipelineLine(pipeline=name, where=repository.where, state=RunState.DAMAGED, problems=[problem])


@dataclass(frozen=True, slots=True)
class _LastRun:
    """The last run: the one that is going on, or the one that was over last."""

    holder: Holder | None  # the process that runs the pipeline
    lease: int  # 0: there was no run
    record: LeaseRecord | None  # of that lease, if no process runs the pipeline
    seen: RunSeen
    since_ms: int  # when its state began


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
        self._problems = Problems(repository)
        self._verdicts: dict[str, LastVerify] = {}  # by checkpoint

    def read(self) -> PipelineLine:
        repository, lineage = self._repository, self._lineage
        found = readable_holder(repository)
        last = self._last_run(*found)
        if last.seen.state is RunState.KILLED and (again := readable_holder(repository)) != found:
            found, last = again, self._last_run(*again)  # the next driver took the lease meanwhile
        run, holder, since = last.seen, last.holder, last.since_ms
        state = run.state
        doubts = self._doubts(holder, state)
        streams = StreamReader(repository, lineage, self._problems, self._now).read(run, doubts)
        if state is RunState.KILLED:
            since = self._killed(last, streams)
        self._maintenance(found[0])
        self._verdicts = self._problems.readable(Verdicts(repository).all) or {}
        taken = self._problems.guarded(self._summaries) or []
        newest = next((each for each in reversed(taken) if self._counts(each)), None)
        self._event_problems(run)
        self._checkpoint_problems(taken)
        self._rewind_problem()
        self._checkpoint_failure(run.events, newest.timestamp_ms if newest else 0)
        gaps = sum(each.gaps for each in streams)
        if gaps:
            text = (
                "1 gap: input that should have reached the sinks did not" if gaps == 1 else f"{gaps} gaps in the input"
            )
            self._problems.add("warning", text, "read the ledger: holdfast gaps", at_ms=0)
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
            checkpoints_damaged=sum(self._is_damaged(each) for each in taken),
            checkpoints_failed=max(
                run.last_period.run_checkpoints_failed if run.last_period else 0,
                sum(each.kind == kinds.CHECKPOINT_FAILED for each in run.events),
            ),
            doubts=doubts,
            gaps=gaps,
            restarts=sum(each.restarts for each in streams),
            problems=self._problems.worst_first(),
        )

    # --- the run ---

    def _last_run(self, found: Holder | None, unknown: str | None) -> _LastRun:
        """Return the last run. A maintenance command that holds the lease runs nothing."""
        holder = found if found is not None and found.runs else None
        events = self._problems.readable(lambda: Activity(self._repository).events(100)) or []
        leases = self._leases() if holder is None and unknown is None else {}
        runs = [*(number for number, each in leases.items() if each.why == RUN), *(each.lease for each in events)]
        lease = holder.lease if holder else max(runs, default=0)
        own = [each for each in events if each.lease == lease]
        record = leases.get(lease)
        rewound = 0 if holder or unknown else self._rewound_at(own, record)
        period = self._problems.guarded(lambda: Activity(self._repository).last_period(lease))
        if rewound:
            state, since, own = RunState.STOPPED, rewound, []
        elif holder is not None:
            state, since = self._running_state(holder, stream_states(own, period)), holder.taken_at_ms
        else:
            state, since = self._state(unknown, lease, own, leases)
        seen = RunSeen(state, is_held=holder is not None and holder.certain, events=own, last_period=period)
        return _LastRun(holder, lease, record, seen, since)

    def _leases(self) -> dict[int, LeaseRecord]:
        found = self._problems.readable(lambda: seen_leases(self._repository)) or []
        return {each.number: each for each in found}

    def _rewound_at(self, events: list[ActivityEvent], record: LeaseRecord | None) -> int:
        """Return when all streams were taken back after the last run, which is over then; 0: they were not."""
        begun = self._lineage.later[-1] if self._lineage.later else None
        names = self._problems.guarded(lambda: all_streams(self._repository, self._lineage)) or []
        last_ms = max([record.taken_at_ms if record else 0, *(each.at_ms for each in events)])
        taken_back = begun is not None and begun.at_ms > last_ms and begun.bases.keys() >= set(names)
        return begun.at_ms if begun is not None and taken_back else 0

    def _state(
        self, unknown: str | None, lease: int, events: list[ActivityEvent], leases: dict[int, LeaseRecord]
    ) -> tuple[RunState, int]:
        """Return the state of a pipeline that is not known to run, and since when.

        `lease` and `events` are those of the last run.
        """
        if unknown is not None:
            self._problems.add(
                "warning", f"it is not known whether the pipeline runs: {unknown}", "restore the lease record"
            )
            return RunState.UNKNOWN, 0
        if not lease:
            return (RunState.STOPPED if leases else RunState.NEW), 0
        ended = [each for each in events if each.kind in (kinds.ENDED, kinds.START_FAILED)]
        if any(each.kind in (kinds.FAILED, kinds.START_FAILED) for each in events):
            return RunState.FAILED, events[-1].at_ms
        closed = bool(ended) or self._problems.guarded(lambda: is_closed(self._repository, lease))
        if closed is None:
            return RunState.UNKNOWN, 0
        if closed:
            return RunState.STOPPED, ended[-1].at_ms if ended else 0
        return RunState.KILLED, leases[lease].taken_at_ms if lease in leases else events[0].at_ms

    def _killed(self, last: _LastRun, streams: list[StreamLine]) -> int:
        """Report a run that was killed. Return its last sign of life."""
        run = last.seen
        who = f"{last.record.holder}, lease {last.lease}" if last.record else f"lease {last.lease}"
        signs = [last.since_ms, *(each.at_ms for each in run.events), *(each.decided_at_ms for each in streams)]
        last_ms = max([*signs, run.last_period.end_ms] if run.last_period else signs)
        self._problems.add(
            "error",
            f"the last run ({who}) ended without a trace: it was killed",
            f"start the pipeline again, it completes what was in flight: holdfast run {PROGRAM}",
            at_ms=last_ms,
        )
        return last_ms

    def _maintenance(self, holder: Holder | None) -> None:
        """Report a command that holds the lease and does not run the pipeline."""
        if holder is None or holder.runs:
            return
        who, at_ms = f"process {holder.pid} on {holder.host}", holder.taken_at_ms
        if holder.certain:
            what = f"{who} holds the lease for a maintenance command, so the pipeline cannot start: {holder.why}"
            do = "wait until the command has ended, and look again: holdfast status"
        else:
            what = f"{who} took the lease for a maintenance command, which may not have ended: {holder.why}"
            do = f"{check_elsewhere(holder, 'takes the lease')}: holdfast run {PROGRAM}"
        self._problems.add("warning", what, do, at_ms=at_ms)

    def _running_state(self, holder: Holder, states: dict[str, str]) -> RunState:
        if not holder.certain:
            return RunState.UNKNOWN
        if holder.stopping:
            return RunState.STOPPING
        troubled = any(state in ("restarting", "waiting", "failed") for state in states.values())
        return RunState.TROUBLED if troubled else RunState.RUNNING

    def _event_problems(self, run: RunSeen) -> None:
        """Report failures of the last run that nothing has ended since."""
        last: dict[tuple[str, str], ActivityEvent] = {}
        for each in run.events:
            last[each.stream, each.kind] = each
        for (stream, kind), each in last.items():
            if kind in (kinds.FAILED, kinds.START_FAILED):
                do = each.next or "fix the cause"
                if "holdfast " not in do:  # every problem names a command
                    do = f"{do}; then start the pipeline again: holdfast run {PROGRAM}"
                self._problems.add("error", each.text, do, at_ms=each.at_ms, stream=stream)
        if run.state is not RunState.TROUBLED:
            return
        causes = {"restarting": kinds.RESTART, "waiting": kinds.OUTAGE}
        for stream, found in run.stream_states.items():
            if found not in causes:
                continue
            what, do, at_ms = f"stream {stream} is {found}", "read why: holdfast runs", 0
            cause = last.get((stream, causes[found]))  # `None`: its event is not among the last ones
            if cause is not None:
                what, do, at_ms = f"{what}: {cause.text}", cause.next or "fix the cause", cause.at_ms
            do = f"wait, it tries again by itself; if that does not help: {do}"
            self._problems.add("warning", what, do, at_ms=at_ms, stream=stream)

    # --- doubt, checkpoints, rewinds ---

    def _doubts(self, holder: Holder | None, state: RunState) -> list[Doubt]:
        repository, lineage = self._repository, self._lineage
        names = self._problems.guarded(lambda: all_streams(repository, lineage)) or []
        seen = [
            self._problems.guarded(partial(displayed_doubt, repository, name, lineage.timeline_of(name)))
            for name in names
        ]
        found = [
            each
            for each in seen
            if each is not None and not (holder is not None and self._now - each.decided_at_ms / 1000 < SETTLES_S)
        ]
        for each in found:
            what = f"epoch {each.epoch} of stream {each.stream} is in doubt: decided, perhaps not in every sink"
            severity = "warning" if state in (RunState.KILLED, RunState.FAILED) else "error"
            if holder is None:
                do = f"start the pipeline, which completes it first: holdfast run {PROGRAM}"
            elif holder.certain:
                do = "check its sinks, and its log: holdfast runs"
            else:  # a second driver would stop a healthy one
                severity = "warning"
                do = f"{check_elsewhere(holder, 'completes it first')}: holdfast run {PROGRAM}"
            self._problems.add(severity, what, do, at_ms=each.decided_at_ms, stream=each.stream)
        return found

    def _counts(self, each: Summary) -> bool:
        return each.savepoint is None and self._is_base(each)

    def _is_base(self, each: Summary) -> bool:
        """Whether the pipeline can go back to it: a checkpoint of an abandoned branch is no base."""
        restorable = each.status is Status.RESTORABLE and self._unsound(each) is None
        return restorable and self._lineage.holds_checkpoint(each.timeline, each.checkpoint)

    def _is_damaged(self, each: Summary) -> bool:
        return each.status is Status.DAMAGED or self._unsound(each) is not None

    def _unsound(self, each: Summary) -> LastVerify | None:
        """Return the last recorded verdict of a checkpoint of the current history that cannot be restored."""
        found = self._failed(each)
        return found if found is not None and found.is_unsound else None

    def _failed(self, each: Summary) -> LastVerify | None:
        """Return the last recorded verdict of a checkpoint of the current history if it has an error."""
        found = self._verdicts.get(str(each.name))
        if found is None or found.ok or not self._lineage.holds_checkpoint(each.timeline, each.checkpoint):
            return None
        return found

    def _is_sound(self, each: Summary) -> bool:
        found = self._verdicts.get(str(each.name))
        return found is not None and found.ok and self._is_base(each)

    def _checkpoint_problems(self, taken: list[Summary]) -> None:
        damaged = [each for each in taken if self._is_damaged(each)]
        sound = next((each.name for each in reversed(taken) if self._is_sound(each)), None)
        other = (
            "find a sound one: holdfast verify --all --record"
            if sound is None
            else f"use a sound one: holdfast show {sound}"
        )
        for each in damaged[-_MOST:]:
            verdict = self._unsound(each)
            if each.status is Status.DAMAGED or verdict is None:
                what = f"checkpoint {each.name or '?'} is damaged: {each.why}"
                self._problems.add("error", what, other, at_ms=each.timestamp_ms)
                continue
            what = f"checkpoint {each.name} was verified and is unsound: {verdict.finding}"
            do = f"restore its files from a copy, then: {verdict.command}; or {other}"
            self._problems.add("error", what, do, at_ms=verdict.at_ms)
        if len(damaged) > _MOST:
            self._problems.add(
                "error",
                f"damaged too: {figures.counted(len(damaged) - _MOST, 'earlier checkpoint')}",
                "list them: holdfast ls --all",
            )

        verdicts = [self._failed(each) for each in taken if each.status is Status.RESTORABLE]
        for verdict in [each for each in verdicts if each is not None and not each.is_unsound][-_MOST:]:
            what = f"checkpoint {verdict.checkpoint} was verified, but it is not known whether it can be restored"
            do = f"verify it again: {verdict.command}; or {other}"
            self._problems.add("warning", f"{what}: {verdict.finding}", do, at_ms=verdict.at_ms)

    def _checkpoint_failure(self, events: list[ActivityEvent], newest_ms: int) -> None:
        """Report the last checkpoint that was given up, unless a later one succeeded."""
        failed = [each for each in events if each.kind == kinds.CHECKPOINT_FAILED and each.at_ms > newest_ms]
        if failed:
            last = failed[-1]
            do = last.next or "read why in the runs: holdfast runs"
            self._problems.add("warning", f"the last checkpoint failed: {last.text}", do, at_ms=last.at_ms)

    def _rewind_problem(self) -> None:
        record = self._problems.guarded(lambda: unfinished_rewind(self._repository, self._lineage))
        if record is not None:
            text = unfinished_text(record)
            what, _, do = text.partition(": ")
            self._problems.add("error", what, do, at_ms=record.at_ms)

"""The status of a pipeline, from its repository alone: its state, its streams, its problems and what to do next."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from holdfast import _figures as figures
from holdfast.cli.holder import Holder, readable_holder
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
    except HoldfastError as error:
        name = repository.where.rstrip("/").rpartition("/")[2]
        problem = Problem(severity="error", what=error.summary, next=error.what_next)
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
        self._problems = Problems(repository)
        self._verdicts: dict[str, LastVerify] = {}  # by checkpoint

    def read(self) -> PipelineLine:
        repository, lineage = self._repository, self._lineage
        holder, unknown = readable_holder(repository)
        events = self._problems.readable(lambda: Activity(repository).events(100)) or []
        leases = self._leases() if holder is None and unknown is None else {}
        runs = [*(number for number, each in leases.items() if each.why == RUN), *(each.lease for each in events)]
        lease = holder.lease if holder else max(runs, default=0)
        own = [each for each in events if each.lease == lease]
        rewound = 0 if holder or unknown else self._rewound_at(own, leases.get(lease))
        own = [] if rewound else own
        state, since = (RunState.STOPPED, rewound) if rewound else self._state(holder, unknown, lease, own, leases)
        run = RunSeen(
            state, holder is not None, own, self._problems.guarded(lambda: Activity(repository).last_period(lease))
        )
        doubts = self._doubts(holder, state)
        streams = StreamReader(repository, lineage, self._problems, self._now).read(run, doubts)
        if state is RunState.KILLED:
            since = self._killed(run, streams, since, leases.get(lease), lease)
        self._verdicts = self._problems.readable(Verdicts(repository).all) or {}
        taken = self._problems.guarded(self._summaries) or []
        newest = next((each for each in reversed(taken) if self._counts(each)), None)
        self._event_problems(own, state)
        self._checkpoint_problems(taken)
        self._rewind_problem()
        self._checkpoint_failure(own, newest.timestamp_ms if newest else 0)
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
                sum(each.kind == kinds.CHECKPOINT_FAILED for each in own),
            ),
            doubts=doubts,
            gaps=gaps,
            restarts=sum(each.restarts for each in streams),
            problems=self._problems.worst_first(),
        )

    # --- the run ---

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
        self,
        holder: Holder | None,
        unknown: str | None,
        lease: int,
        events: list[ActivityEvent],
        leases: dict[int, LeaseRecord],
    ) -> tuple[RunState, int]:
        """Return the state of the pipeline, and since when. `lease` and `events` are those of the last run."""
        if unknown is not None:
            self._problems.add(
                "warning", f"it is not known whether the pipeline runs: {unknown}", "restore the lease record"
            )
            return RunState.UNKNOWN, 0
        if holder is not None:
            return self._running_state(holder, events), holder.taken_at_ms
        if not lease:
            return (RunState.STOPPED if leases else RunState.NEW), 0
        ended = [each for each in events if each.kind in (kinds.ENDED, kinds.START_FAILED)]
        if any(each.kind in (kinds.FAILED, kinds.START_FAILED) for each in events):
            return RunState.FAILED, events[-1].at_ms
        if ended or is_closed(self._repository, lease):
            return RunState.STOPPED, ended[-1].at_ms if ended else 0
        return RunState.KILLED, leases[lease].taken_at_ms if lease in leases else events[0].at_ms

    def _killed(
        self, run: RunSeen, streams: list[StreamLine], began_ms: int, record: LeaseRecord | None, lease: int
    ) -> int:
        """Report a run that was killed. Return its last sign of life."""
        who = f"{record.holder}, lease {lease}" if record else f"lease {lease}"
        signs = [began_ms, *(each.at_ms for each in run.events), *(each.decided_at_ms for each in streams)]
        last_ms = max([*signs, run.last_period.end_ms] if run.last_period else signs)
        self._problems.add(
            "error",
            f"the last run ({who}) ended without a trace: it was killed",
            f"start the pipeline again, it completes what was in flight: holdfast run {PROGRAM}",
            at_ms=last_ms,
        )
        return last_ms

    def _running_state(self, holder: Holder, events: list[ActivityEvent]) -> RunState:
        if not holder.certain:
            return RunState.UNKNOWN
        if holder.stopping:
            return RunState.STOPPING
        troubled = any(state in ("restarting", "waiting", "failed") for state in stream_states(events).values())
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
                self._problems.add("error", each.text, do, at_ms=each.at_ms, stream=stream)
        if state is not RunState.TROUBLED:
            return
        causes = {"restarting": kinds.RESTART, "waiting": kinds.OUTAGE}
        for stream, found in stream_states(events).items():
            cause = last.get((stream, causes.get(found, "")))
            if cause is not None:
                what = f"stream {stream} is {found}: {cause.text}"
                do = f"wait, it tries again by itself; if that does not help: {cause.next or 'fix the cause'}"
                self._problems.add("warning", what, do, at_ms=cause.at_ms, stream=stream)

    # --- doubt, checkpoints, rewinds ---

    def _doubts(self, holder: Holder | None, state: RunState) -> list[Doubt]:
        repository, lineage = self._repository, self._lineage
        names = self._problems.guarded(lambda: all_streams(repository, lineage)) or []
        seen = [
            self._problems.guarded(partial(displayed_doubt, repository, name, lineage.timeline_of(name)))
            for name in names
        ]
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
            self._problems.add(
                "warning" if state in (RunState.KILLED, RunState.FAILED) else "error",
                what,
                do,
                at_ms=at_ms,
                stream=each.stream,
            )
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

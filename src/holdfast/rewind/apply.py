"""Apply the plan of a rewind.

1. Take the lease. Finish an unfinished rewind first. Compute the plan again, and compare the ids.
2. Build the folders of the new timeline. Until it is decided, they are garbage.
3. Decide: write `rewind.json`. From here on, the rewind can only be completed.
4. The steps of `finishing`: end the old timeline, take the sinks back, write the base decisions, begin the timeline.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast._validation import checked_type
from holdfast.epoch import Reach, unwatched
from holdfast.errors import Fenced, LeaseTaken, NotSupported, PlanOutdated, RewindRefused, RewindUnfinished
from holdfast.repository import Identity, Lease, ObjectRepository
from holdfast.repository.base import now_ms
from holdfast.repository.history import current_user
from holdfast.repository.probe import probe
from holdfast.repository.rewinds import RewindRecord, decide_rewind
from holdfast.rewind.bases import TO_ANOTHER
from holdfast.rewind.building import built_rewind, built_undo, claimed_timeline, next_after_undo
from holdfast.rewind.finishing import REWIND, RewindFinisher, finish_unfinished
from holdfast.rewind.plan import RewindDone, RewindPlan
from holdfast.rewind.planning import planned
from holdfast.rewind.program import Program, Rewindable
from holdfast.rewind.undo import planned_undo


def apply_rewind(
    pipeline: Rewindable,
    plan: RewindPlan,
    *,
    accept_input: bool = False,
    take_over: bool = False,
    why: str = "",
    reach: Reach = unwatched,
) -> RewindDone:
    """Apply the plan of a rewind or of an undo. The pipeline must be stopped.

    - `accept_input`: go back even if it is not known whether a source still has the input after the base.
    - `take_over`: the driver of a `shared` pipeline, or of one on an object store, is gone. If it is not, it is fenced.
    - `why`: recorded in the history.
    - `reach`: called at each point, for tests.

    Raises `PlanOutdated` if anything has changed since the plan was made, `RewindRefused` if the plan has problems, and
    `Locked` if the pipeline is running. Nothing is changed then. After a crash at any later point, the next start or
    rewind of a program with the same sinks completes the rewind. So it does after `RewindUnfinished`, which is raised
    if a driver took the lease at the moment of the decision.
    """
    checked_type("plan", plan, RewindPlan)
    program = pipeline.program
    with taken_lease(program, take_over=take_over) as lease:
        if finish_unfinished(program, lease, reach) is not None:
            raise PlanOutdated(why="an unfinished rewind was finished first", command=REWIND)
        record = _built(program, plan, lease, accept_input=accept_input, reach=reach)
        made = msgspec.structs.replace(record, lease=lease.number, who=current_user(), why=why, at_ms=now_ms())
        lease.check()
        Identity.load(program.repository).with_several_timelines(program.repository)
        put = decide_rewind(program.repository, made)
        try:
            lease.check()  # from here on a newer holder of the lease finds the record, and finishes it
        except Fenced as fenced:
            if not put.won:
                raise
            why = f"{fenced.summary}, which may not know of it and continue without it: stop that process"
            raise RewindUnfinished(timeline=made.timeline, to=made.to, why=why) from fenced
        if not put.won:
            raise LeaseTaken(number=lease.number, holder="another rewind, which was decided at the same moment")
        reach("rewind decided")
        RewindFinisher(program, made, lease, reach).finish()
    return _done(made)


def finish_rewind(
    pipeline: Rewindable, *, lost: Sequence[str] = (), take_over: bool = False, reach: Reach = unwatched
) -> RewindDone | None:
    """Finish a rewind that was interrupted, as a start of the pipeline does; return it, or `None` if there was none.

    `lost` names sinks whose targets are lost for good: the rewind is completed without them, and cannot be undone. The
    program must no longer write to these targets. Raises `BadValue` if it does, or if there is no such sink.
    """
    program = pipeline.program
    with taken_lease(program, take_over=take_over) as lease:
        record = finish_unfinished(program, lease, reach, lost)
    return None if record is None else _done(record)


def _done(record: RewindRecord) -> RewindDone:
    epochs = {name: aim.epoch for name, aim in record.streams.items()}
    return RewindDone(timeline=record.timeline, base=record.to, epochs=epochs, undoes=record.undoes)


def _built(program: Program, plan: RewindPlan, lease: Lease, *, accept_input: bool, reach: Reach) -> RewindRecord:
    """Make the plan again, compare it, and build the folders of the new timeline."""
    if plan.undoes is not None:
        undo = planned_undo(program)
        _require_same(plan, undo.plan, accept_input=True)
        reach("rewind planned")
        record = built_undo(program, undo, next_after_undo(program.repository))
    else:
        found = planned(program, plan.to, plan.only, plan.leave)
        _require_same(plan, found.plan, accept_input=accept_input)
        reach("rewind planned")
        record = built_rewind(program, found, claimed_timeline(program.repository, lease.number))
    reach("rewind built")
    return record


def _require_same(plan: RewindPlan, now: RewindPlan, *, accept_input: bool) -> None:
    if plan.id != now.id:
        why = f"the pipeline or a sink has changed since plan {plan.id} was made; the plan is now {now.id}"
        raise PlanOutdated(why=why, command=REWIND)
    require_possible(now, accept_input=accept_input)


def require_possible(plan: RewindPlan, *, accept_input: bool = False) -> None:
    """Raise `RewindRefused` with everything that prevents a rewind."""
    unaccepted = () if accept_input else tuple(f"{each} (--accept-input)" for each in plan.unknown_input)
    if plan.problems and plan.undoes is not None:
        raise RewindRefused(to=plan.base, problems=plan.problems, do=TO_ANOTHER)
    if plan.problems or unaccepted:
        raise RewindRefused(to=plan.base, problems=(*plan.problems, *unaccepted))


def taken_lease(program: Program, *, take_over: bool) -> Lease:
    """Take the lease of a stopped pipeline; `take_over` confirms that the driver of a shared one is gone."""
    if isinstance(program.repository, ObjectRepository):
        probe(program.repository)
    if not program.shared:
        return Lease.take(program.repository, take_over=take_over, why=REWIND)
    if not take_over:
        raise NotSupported(
            what=f"rewinding the shared pipeline {program.name!r}",
            why="it has no OS lock, so it is not known whether its driver has ended",
            do="stop it (holdfast stop), then pass --take-over (take_over=True)",
        )
    return Lease.take(program.repository, locker=lambda: None, shared=True, why=REWIND)

"""Prune a pipeline that may be running in another process.

Rules:
- If the lease is free, the requesting process takes it, prunes and releases it. A `shared` lease has no lock, so taking
  it would fence a running pipeline: the request is then sent and waits, unless the caller states that the pipeline has
  ended.
- The lease holder prunes between checkpoints, never during one.
"""

from __future__ import annotations

import time

from holdfast._validation import checked_seconds, checked_type
from holdfast.control.asking import POLL_S, TIMEOUT_S, Asking, withdrawn_at_exit
from holdfast.control.channel import ControlChannel
from holdfast.control.protocol import RequestState
from holdfast.control.records import ControlAnswer, ControlRequest, RequestKind, read_state
from holdfast.control.results import result_of
from holdfast.epoch import Reach, unwatched
from holdfast.errors import (
    BadValue,
    Closed,
    Fenced,
    HoldfastError,
    LeaseHeld,
    Locked,
    NotRunning,
    RequestLost,
    RequestUnanswered,
)
from holdfast.policy import Retention
from holdfast.pruning import Pruned, PrunePlan, apply_prune, plan_prune
from holdfast.repository import Identity, Lease, ObjectRepository, Repository
from holdfast.repository.history import current_user
from holdfast.repository.lease import newest_lease
from holdfast.repository.probe import probe


def request_prune(
    repository: Repository,
    retention: Retention,
    *,
    dry_run: bool = False,
    timeout_s: float = TIMEOUT_S,
    poll_s: float = POLL_S,
    take_over: bool = False,
    abandoned: bool = False,
) -> PrunePlan | Pruned:
    """Prune a pipeline that may be running in another process.

    1. A dry run only returns the plan.  2. If the lease is free, take it and prune.  3. Otherwise send a request to the
    lease holder and wait for the answer; if the holder ends in the meantime, prune here.  `take_over` states that the
    holder of a `shared` lease has ended; if it has not, it is fenced. `abandoned` deletes abandoned branches too.
    """
    checked_seconds("timeout_s", timeout_s)
    checked_seconds("poll_s", poll_s)
    checked_type("retention", retention, Retention)
    Identity.load(repository)  # raises before anything is written into a folder that is not a repository
    if dry_run:
        return plan_prune(repository, retention, abandoned=abandoned)  # 1
    arguments = _arguments(retention, abandoned=abandoned)
    asking = Asking(repository=repository, kind=RequestKind.PRUNE, arguments=arguments, timeout_s=timeout_s)
    shared = not take_over and _is_shared(repository)
    with withdrawn_at_exit(asking):
        while True:
            lease = None if shared else _try_lease(repository, take_over=take_over)
            if lease is not None:
                with lease:
                    return _prune_here(asking, retention, lease, abandoned=abandoned)  # 2
            answer = _look(asking, shared=shared)  # 3
            if answer is not None:
                return result_of(Pruned, answer.result, asking.request_id)
            time.sleep(poll_s)


def answer_requests(
    repository: Repository, lease: Lease, *, now_ms: int | None = None, reach: Reach = unwatched
) -> int:
    """Carry out the prune requests of other processes, as the lease holder between two checkpoints; return how many.

    For a program that holds the lease itself; a running pipeline does this on its own. A request that fails is answered
    with the reason. If the lease is lost, raise `Fenced` or `Closed` without an answer.
    """
    clock = time.time if now_ms is None else lambda: now_ms / 1000
    channel = ControlChannel(repository, lease, [RequestKind.PRUNE], clock=clock)
    channel.open()
    found = channel.look()
    answered = [carry_out_prune(repository, lease, channel, request, reach) for request in found]
    channel.forget()
    return sum(answered)


def carry_out_prune(  # noqa: PLR0917 - of which driver, and what
    repository: Repository,
    lease: Lease,
    channel: ControlChannel,
    request: ControlRequest,
    reach: Reach = unwatched,
    retain: int | None = None,
) -> bool:
    """Take a prune request, prune, and answer it; return whether it was carried out. `retain`: see `plan_prune`."""
    if not channel.take(request):
        return False
    at_ms = channel.now_ms()
    try:
        abandoned = request.arguments.get("abandoned") is True
        plan = plan_prune(repository, _retention(request), now_ms=at_ms, abandoned=abandoned, retain=retain)
        pruned = apply_prune(repository, plan, lease, why=f"requested by {request.who}", reach=reach)
        answer = ControlAnswer(at_ms=at_ms, result=pruned.to_dict())
    except (Fenced, Closed):
        raise
    except HoldfastError as error:
        answer = ControlAnswer.of_error(at_ms, error)
    channel.answer(request, answer)
    return True


# --- internal --------------------------------------------------------------------------------------------------------


def _look(asking: Asking, *, shared: bool) -> ControlAnswer | None:
    try:
        return asking.look()
    except RequestLost:
        asking.sent_to = None  # a prune can be repeated; the lease is free now, or another process holds it
    except NotRunning:
        if asking.timed_out:
            newest = newest_lease(asking.repository)
            holder = newest.holder if newest else "no process"
            raise RequestUnanswered(
                request=asking.request_id, holder=holder, seconds=asking.timeout_s, shared=shared
            ) from None
    return None


def _prune_here(asking: Asking, retention: Retention, lease: Lease, *, abandoned: bool) -> Pruned:
    """Prune as the lease holder, unless the previous holder has done it already."""
    if asking.sent_to is not None and not asking.withdraw():
        state, answer = read_state(asking.repository, asking.sent_to.number, asking.request_id)
        if state is RequestState.ANSWERED and answer is not None and answer.result is not None:
            return result_of(Pruned, answer.result, asking.request_id)
    plan = plan_prune(asking.repository, retention, abandoned=abandoned)
    return apply_prune(asking.repository, plan, lease, why=f"requested by {current_user()}")


def _arguments(retention: Retention, *, abandoned: bool) -> dict[str, int | float | None]:
    within = None if retention.within is None else checked_seconds("within", retention.within)
    found = {"last": retention.last, "hourly": retention.hourly, "daily": retention.daily, "within": within}
    return found | ({"abandoned": True} if abandoned else {})  # earlier versions do not know it, and refuse it


def _retention(request: ControlRequest) -> Retention:
    """Return the requested retention; invalid values raise `BadValue`."""
    try:
        return Retention(**{name: value for name, value in request.arguments.items() if name != "abandoned"})
    except TypeError as error:
        raise BadValue(what="retention", value=request.arguments, why=str(error)) from error


def _is_shared(repository: Repository) -> bool:
    newest = newest_lease(repository)
    return newest is not None and newest.shared


def _try_lease(repository: Repository, *, take_over: bool) -> Lease | None:
    """Take the lease if it is free. On an object store it counts as held while its holder shows signs of life."""
    if isinstance(repository, ObjectRepository):
        if not take_over and repository.guard.holder() is not None:
            return None
        probe(repository)
    try:
        return Lease.take(repository, take_over=take_over, why="prune")
    except (Locked, LeaseHeld):
        return None

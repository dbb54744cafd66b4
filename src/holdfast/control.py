"""Requests of other processes to the lease holder, and its answers. The only request so far is prune.

    requests/<32 hex>.json         the request; the lease holder deletes it after answering
    requests/<32 hex>.done.json    the answer; the lease holder deletes it a day later

Rules:
- If the lease is free, the requesting process takes it, prunes and releases it. A `shared` lease has no lock, so taking
  it would fence a running pipeline: the request is then written and waits, unless the caller states that the pipeline
  has ended.
- The lease holder answers between checkpoints, never during one. It answers every request, even if the request failed
  or cannot be read.
- The answer is written before the request is deleted: after a crash in between, the request is not carried out again.
- A request has a deadline. After that it is not carried out, because the requesting process no longer waits for it.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast._validation import checked_seconds, checked_type
from holdfast.epoch import Reach, unwatched
from holdfast.errors import (
    Closed,
    Fenced,
    HoldfastError,
    Locked,
    NotFound,
    RecordCorrupt,
    RequestFailed,
    RequestUnanswered,
    UnsupportedVersion,
    describe_error,
)
from holdfast.formats.decoding import Undecodable, converted
from holdfast.formats.sealed_json import Record
from holdfast.policy import Retention
from holdfast.pruning import Pruned, PrunePlan, apply_prune, plan_prune
from holdfast.repository import Identity, Lease, Repository
from holdfast.repository.base import now_ms as clock_ms
from holdfast.repository.history import current_user
from holdfast.repository.lease import newest_lease

__all__ = ["answer_requests", "request_prune"]

FOLDER = "requests"
ANSWERS_KEPT_MS = 24 * 3600 * 1000
_NAME = re.compile(r"([0-9a-f]{32})(\.done)?\.json")


class PruneRequest(Record, frozen=True, kw_only=True):
    """A request to prune: the retention, the requesting user and the deadline."""

    who: str
    asked_at_ms: int
    until_ms: int
    last: int
    hourly: int
    daily: int
    within: float | None

    @property
    def retention(self) -> Retention:
        """The requested retention; invalid values raise `BadValue`."""
        return Retention(self.last, self.hourly, self.daily, self.within)


class ControlAnswer(Record, frozen=True, kw_only=True):
    """The answer to a request: a result, or the reason why it failed."""

    at_ms: int
    result: dict[str, Any] | None = None
    failed: str | None = None


def request_prune(
    repository: Repository,
    retention: Retention,
    *,
    dry_run: bool = False,
    timeout_s: float = 300.0,
    poll_s: float = 0.2,
    take_over: bool = False,
) -> PrunePlan | Pruned:
    """Prune a pipeline that may be running in another process.

    1. A dry run only returns the plan.  2. If the lease is free, take it and prune.  3. Otherwise send a request to the
    lease holder and wait for the answer; if the holder ends in the meantime, prune here.  `take_over` states that the
    holder of a `shared` lease has ended; if it has not, it is fenced.
    """
    checked_seconds("timeout_s", timeout_s)
    checked_seconds("poll_s", poll_s)
    checked_type("retention", retention, Retention)
    Identity.load(repository)  # raises before anything is written into a folder that is not a repository
    if dry_run:
        return plan_prune(repository, retention)  # 1
    pending = _PendingPrune(repository, retention, timeout_s)
    shared = not take_over and _is_shared(repository)
    while True:
        lease = None if shared else _try_lease(repository)
        if lease is not None:
            with lease:
                return pending.run(lease)  # 2
        answer = pending.answer()  # 3
        if answer is not None:
            return answer
        if time.monotonic() > pending.deadline:
            holder = newest_lease(repository)
            name = holder.holder if holder else "no process"
            raise RequestUnanswered(request=pending.name, holder=name, seconds=timeout_s, shared=shared)
        time.sleep(poll_s)


def is_asked(names: Iterable[str]) -> bool:
    """Whether the names in the folder of requests include a request; answers stay there for a day."""
    return any(match and not match[2] for match in map(_NAME.fullmatch, names))


def answer_requests(
    repository: Repository, lease: Lease, *, now_ms: int | None = None, reach: Reach = unwatched
) -> int:
    """Carry out the requests of other processes, as the lease holder between two checkpoints; return their number.

    A request that fails is answered with the reason. If the lease is lost, raise `Fenced` or `Closed` without an
    answer.
    """
    now = clock_ms() if now_ms is None else now_ms
    names = [match for name in repository.list(FOLDER) if (match := _NAME.fullmatch(name))]
    answers = {match[1] for match in names if match[2]}
    answered = 0
    for name in sorted(match[1] for match in names if not match[2]):
        if name not in answers:
            answer = _carry_out(repository, lease, name, now, reach)
            repository.put_if_absent(_answer_key(name), answer.sealed())
            answered += 1
        repository.delete(_request_key(name))
    for name in sorted(answers):
        _forget(repository, name, now)
    return answered


# --- the requesting process ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _PendingPrune:
    """A prune that this process wants. It becomes a request when another process holds the lease."""

    repository: Repository
    retention: Retention
    timeout_s: float
    name: str = ""
    deadline: float = 0.0

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.timeout_s

    def run(self, lease: Lease) -> Pruned:
        """Prune as the lease holder, unless the previous holder has done it already."""
        done = self.answer() if self.name else None
        if done is not None:
            return done
        plan = plan_prune(self.repository, self.retention)
        pruned = apply_prune(self.repository, plan, lease, why=f"requested by {current_user()}")
        if self.name:
            self.repository.delete(_request_key(self.name))
        return pruned

    def answer(self) -> Pruned | None:
        """Write the request if that was not done yet; return its answer, if there is one, or raise its error."""
        if not self.name:
            self._send()
        try:
            data = self.repository.read(_answer_key(self.name))
        except NotFound:
            return None
        found = ControlAnswer.unsealed(data, _answer_key(self.name))
        if found.result is None:
            raise RequestFailed(request=self.name, why=found.failed or "the answer contains no reason")
        try:
            return converted(found.result, Pruned)
        except Undecodable as error:
            raise RecordCorrupt(key=_answer_key(self.name), why=f"its result: {error}") from error

    def _send(self) -> None:
        now = clock_ms()
        within = self.retention.within
        request = PruneRequest(
            who=current_user(),
            asked_at_ms=now,
            until_ms=now + int(self.timeout_s * 1000),
            last=self.retention.last,
            hourly=self.retention.hourly,
            daily=self.retention.daily,
            within=None if within is None else checked_seconds("within", within),
        )
        name = uuid.uuid4().hex
        self.repository.put_if_absent(_request_key(name), request.sealed())
        self.name = name


def _is_shared(repository: Repository) -> bool:
    newest = newest_lease(repository)
    return newest is not None and newest.shared


def _try_lease(repository: Repository) -> Lease | None:
    try:
        return Lease.take(repository, why="prune")
    except Locked:
        return None


# --- the lease holder ------------------------------------------------------------------------------------------------


def _carry_out(repository: Repository, lease: Lease, name: str, now_ms: int, reach: Reach) -> ControlAnswer:
    try:
        request = PruneRequest.unsealed(repository.read(_request_key(name)), _request_key(name))
        if request.until_ms < now_ms:
            return ControlAnswer(at_ms=now_ms, failed="its deadline has passed")
        plan = plan_prune(repository, request.retention, now_ms=now_ms)
        pruned = apply_prune(repository, plan, lease, why=f"requested by {request.who}", reach=reach)
    except (Fenced, Closed):
        raise
    except HoldfastError as error:
        return ControlAnswer(at_ms=now_ms, failed=describe_error(error))
    return ControlAnswer(at_ms=now_ms, result=pruned.to_dict())


def _forget(repository: Repository, name: str, now_ms: int) -> None:
    key = _answer_key(name)
    try:
        if now_ms - ControlAnswer.unsealed(repository.read(key), key).at_ms < ANSWERS_KEPT_MS:
            return
    except (NotFound, RecordCorrupt, UnsupportedVersion):
        pass  # it is of no use
    repository.delete(key)


def _request_key(name: str) -> str:
    return f"{FOLDER}/{name}.json"


def _answer_key(name: str) -> str:
    return f"{FOLDER}/{name}.done.json"

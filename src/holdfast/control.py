"""What another process asks of the holder of the lease, and its answers. So far: prune.

    requests/<32 hex>.json         what is asked; the holder removes it once it is answered
    requests/<32 hex>.done.json    the answer; the holder removes it a day later

Rules:
- Where nobody holds the lease, whoever asks takes it, does it and lets go. A pipeline that is `shared` is kept by no
  lock, and would be fenced by that: there the request is written and waits, unless the asker says that it has ended.
- The holder answers between checkpoints, never during one. It answers always, also that it failed or could not read
  the request.
- First the answer is written, then the request removed: after a crash in between it is not done again.
- A request says until when somebody waits for it. After that it is passed over: nobody shall be surprised by it.
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
    in_words,
)
from holdfast.formats.decoding import Undecodable, converted
from holdfast.formats.sealed_json import Record
from holdfast.policy import Retention
from holdfast.pruning import Pruned, PrunePlan, apply_prune, plan_prune
from holdfast.repository import Identity, Lease, Repository, newest_lease
from holdfast.repository.history import current_user

FOLDER = "requests"
ANSWERS_KEPT_MS = 24 * 3600 * 1000
_NAME = re.compile(r"([0-9a-f]{32})(\.done)?\.json")


class PruneRequest(Record, frozen=True, kw_only=True):
    """What is asked, by whom, and until when it matters."""

    who: str
    asked_at_ms: int
    until_ms: int
    last: int
    hourly: int
    daily: int
    within: float | None

    @property
    def retention(self) -> Retention:
        """The retention that is asked for; `BadValue` where it makes no sense."""
        return Retention(self.last, self.hourly, self.daily, self.within)


class ControlAnswer(Record, frozen=True, kw_only=True):
    """What came of a request: a result, or what went wrong."""

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

    1. A dry run plans, and that is all.  2. Where the lease is free, take it and do it.  3. Else ask its holder and
    wait for the answer; where it ends meanwhile, do it after all.  `take_over` says that the holder of a `shared`
    lease has ended; one that has not is fenced.
    """
    checked_seconds("timeout_s", timeout_s)
    checked_seconds("poll_s", poll_s)
    checked_type("retention", retention, Retention)
    Identity.load(repository)  # before anything is written into a folder that is none
    if dry_run:
        return plan_prune(repository, retention)  # 1
    asked = _PruneAsked(repository, retention, timeout_s)
    shared = not take_over and _is_shared(repository)
    while True:
        lease = None if shared else _taken(repository)
        if lease is not None:
            with lease:
                return asked.carried_out(lease)  # 2
        answer = asked.answer()  # 3
        if answer is not None:
            return answer
        if time.monotonic() > asked.deadline:
            holder = newest_lease(repository)
            name = holder.holder if holder else "nobody"
            raise RequestUnanswered(request=asked.name, holder=name, seconds=timeout_s, shared=shared)
        time.sleep(poll_s)


def is_asked(names: Iterable[str]) -> bool:
    """Whether there is a request among the names in the folder of requests, where answers lie for a day."""
    return any(match and not match[2] for match in map(_NAME.fullmatch, names))


def answer_requests(
    repository: Repository, lease: Lease, *, now_ms: int | None = None, reach: Reach = unwatched
) -> int:
    """Do what other processes ask, as the holder of the lease, between two checkpoints. Returns how many were answered.

    A request that fails is answered with the reason; a lease that is lost is raised, and nothing is answered.
    """
    now = _now_ms() if now_ms is None else now_ms
    names = [match for name in repository.list(FOLDER) if (match := _NAME.fullmatch(name))]
    answers = {match[1] for match in names if match[2]}
    answered = 0
    for name in sorted(match[1] for match in names if not match[2]):
        if name not in answers:
            answer = _answered(repository, lease, name, now, reach)
            repository.put_if_absent(_answer_key(name), answer.sealed())
            answered += 1
        repository.delete(_request_key(name))
    for name in sorted(answers):
        _forget(repository, name, now)
    return answered


# --- the asker -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _PruneAsked:
    """A prune that this process wants: written down as a request once it is clear that another must do it."""

    repository: Repository
    retention: Retention
    timeout_s: float
    name: str = ""
    deadline: float = 0.0

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.timeout_s

    def carried_out(self, lease: Lease) -> Pruned:
        """Do it as the holder of the lease, unless the one before has done it."""
        done = self.answer() if self.name else None
        if done is not None:
            return done
        found = apply_prune(
            self.repository, plan_prune(self.repository, self.retention), lease, why=f"asked by {current_user()}"
        )
        if self.name:
            self.repository.delete(_request_key(self.name))
        return found

    def answer(self) -> Pruned | None:
        """Ask, if that is not done yet; return the answer, if there is one, or raise what it says."""
        if not self.name:
            self._ask()
        try:
            data = self.repository.read(_answer_key(self.name))
        except NotFound:
            return None
        found = ControlAnswer.unsealed(data, _answer_key(self.name))
        if found.result is None:
            raise RequestFailed(request=self.name, why=found.failed or "it does not say why")
        try:
            return converted(found.result, Pruned)
        except Undecodable as error:
            raise RecordCorrupt(key=_answer_key(self.name), why=f"its result: {error}") from error

    def _ask(self) -> None:
        now = _now_ms()
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


def _taken(repository: Repository) -> Lease | None:
    try:
        return Lease.take(repository, why="prune")
    except Locked:
        return None


# --- the holder ------------------------------------------------------------------------------------------------------


def _answered(repository: Repository, lease: Lease, name: str, now_ms: int, reach: Reach) -> ControlAnswer:
    try:
        request = PruneRequest.unsealed(repository.read(_request_key(name)), _request_key(name))
        if request.until_ms < now_ms:
            return ControlAnswer(at_ms=now_ms, failed="nobody waits for it any more")
        plan = plan_prune(repository, request.retention, now_ms=now_ms)
        pruned = apply_prune(repository, plan, lease, why=f"asked by {request.who}", reach=reach)
    except (Fenced, Closed):
        raise
    except HoldfastError as error:
        return ControlAnswer(at_ms=now_ms, failed=in_words(error))
    return ControlAnswer(at_ms=now_ms, result=pruned.to_dict())


def _forget(repository: Repository, name: str, now_ms: int) -> None:
    key = _answer_key(name)
    try:
        if now_ms - ControlAnswer.unsealed(repository.read(key), key).at_ms < ANSWERS_KEPT_MS:
            return
    except (NotFound, RecordCorrupt, UnsupportedVersion):
        pass  # it tells nobody anything
    repository.delete(key)


def _request_key(name: str) -> str:
    return f"{FOLDER}/{name}.json"


def _answer_key(name: str) -> str:
    return f"{FOLDER}/{name}.done.json"


def _now_ms() -> int:
    return int(time.time() * 1000)

"""The asker's side of the control channel: send one request to the driver of a pipeline and wait for its answer.

Rules:
- A request is addressed to the lease that the driver holds. If that driver ends before it takes the request, the asker
  withdraws it, and asks the next driver, if there is one.
- When the asker stops waiting (a timeout, Ctrl-C), it withdraws the request. If the driver has already taken the
  request, the driver continues.
- An asker that is killed leaves a request that expires at its deadline.
- A request id is used for one request: the same id with other arguments is refused. With the same arguments, the asker
  waits for the answer of the first one.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from holdfast._validation import checked_seconds
from holdfast.control.observing import running_driver
from holdfast.control.protocol import AskerStep, RequestState, asker_step
from holdfast.control.records import (
    MAX_WHY,
    ControlAnswer,
    ControlRequest,
    RequestClaim,
    RequestKind,
    claim_key,
    read_channel,
    read_state,
    request_key,
)
from holdfast.errors import (
    AlreadyExists,
    BadValue,
    HoldfastError,
    NotRunning,
    NotSupported,
    RecordCorrupt,
    RequestFailed,
    RequestLost,
    RequestUnanswered,
    StorageFailed,
    UnsupportedVersion,
)
from holdfast.repository import Identity, LeaseRecord, Repository
from holdfast.repository.base import now_ms
from holdfast.repository.history import current_user

POLL_S = 0.2
TIMEOUT_S = 300.0
_ID = re.compile(r"[0-9a-f]{32}")


class AskPhase(StrEnum):
    """How far a request is, for a progress display."""

    STARTING = "starting"  # the driver does not listen yet
    PENDING = "pending"  # it was sent
    TAKEN = "taken"  # the driver carries it out
    ENDING = "ending"  # the driver has answered and is about to end
    WITHDRAWN = "withdrawn"  # the asker closed it before the driver took it


@dataclass(frozen=True, slots=True)
class AskProgress:
    """The progress of a request: passed to `watch` at every look."""

    request: str
    phase: AskPhase
    holder: str  # the driver, for display


Watch = Callable[[AskProgress], object]


def unwatched_request(progress: AskProgress) -> None:
    """Ignore the progress of a request."""
    del progress


def new_request_id() -> str:
    """Return a new id for a request: 32 hexadecimal digits."""
    return uuid.uuid4().hex


@dataclass(slots=True, kw_only=True)
class Asking:
    """One request, from its first sending to its answer. `look` advances it; it never waits."""

    repository: Repository
    kind: RequestKind
    arguments: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    timeout_s: float = TIMEOUT_S
    request_id: str = field(default_factory=new_request_id)
    watch: Watch = unwatched_request
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sent_to: LeaseRecord | None = None
    _deadline: float = 0.0
    _token: str = field(default_factory=new_request_id)

    def __post_init__(self) -> None:
        checked_seconds("timeout", self.timeout_s)
        if not isinstance(self.why, str) or len(self.why) > MAX_WHY:
            raise BadValue(what="why", value=self.why, expected=f"a text of at most {MAX_WHY} characters")
        if not isinstance(self.request_id, str) or not _ID.fullmatch(self.request_id):
            raise BadValue(what="request id", value=self.request_id, expected="32 hexadecimal digits, in lower case")
        self._deadline = self.monotonic() + self.timeout_s

    @property
    def timed_out(self) -> bool:
        """Whether the asker waits no longer."""
        return self.monotonic() > self._deadline

    def driver_ended(self) -> bool:
        """Whether the driver that the request was sent to has ended: its lock is free, or there is a newer lease."""
        driver = running_driver(self.repository)
        return self.sent_to is None or driver is None or driver.number != self.sent_to.number

    def look(self) -> ControlAnswer | None:
        """Return the answer, or `None` while there is none; raise if there will be none.

        1. Send the request if it was not sent.  2. See whether the driver has ended.  3. Read the claim and the answer.
        4. Do what the protocol says.
        """
        if self.sent_to is None:
            self._send()  # 1
            if self.sent_to is None:
                return None
        ended = self.driver_ended()  # 2
        state, answer = read_state(self.repository, self.sent_to.number, self.request_id)  # 3
        step = asker_step(state, driver_ended=ended, timed_out=self.timed_out)  # 4
        if step is AskerStep.RETURN and answer is not None:
            return self._checked(answer)
        if step is AskerStep.WAIT:
            self.report(AskPhase.TAKEN if state is RequestState.TAKEN else AskPhase.PENDING)
        elif step is AskerStep.WITHDRAW:
            self._give_up(ended=ended)
        elif step is AskerStep.LEAVE:
            raise self._unanswered(taken=True)
        elif step is AskerStep.LOST:
            raise RequestLost(request=self.request_id, kind=self.kind, holder=self.sent_to.holder)
        elif step is AskerStep.DEAD:
            raise self._dead(state)
        return None

    def withdraw(self) -> bool:
        """Close the request unless the driver has taken it; return whether it is certain that it is not carried out.

        If the claim cannot be written (a full disk), the request itself is deleted: the driver cannot find it later.
        """
        if self.sent_to is None:
            return True
        number = self.sent_to.number
        who = f"{current_user()} (process {os.getpid()})"
        claim = RequestClaim(
            verdict=RequestState.WITHDRAWN, who=who, token=self._token, at_ms=now_ms(self.clock)
        ).sealed()
        try:
            won = self.repository.put_if_absent(claim_key(number, self.request_id), claim).won
        except StorageFailed:
            self.repository.delete(request_key(number, self.request_id))
            raise
        return won or read_state(self.repository, number, self.request_id)[0] in (
            RequestState.WITHDRAWN,
            RequestState.EXPIRED,
        )

    def report(self, phase: AskPhase, driver: LeaseRecord | None = None) -> None:
        """Pass the progress to the caller."""
        holder = driver or self.sent_to
        self.watch(AskProgress(self.request_id, phase, holder.holder if holder else "no process"))

    # --- internal ---

    def _send(self) -> None:
        """Write the request for the driver that runs now, once that driver listens."""
        driver = running_driver(self.repository)
        if driver is None:
            pipeline = Identity.load(self.repository).pipeline
            raise NotRunning(pipeline=pipeline, where=self.repository.where, kind=self.kind)
        channel = read_channel(self.repository, driver.number)
        if channel is None:
            self.report(AskPhase.STARTING, driver)
            if self.timed_out:
                raise self._unanswered(taken=False, driver=driver)
            return
        if channel.kinds and self.kind not in channel.kinds:
            why = f"{driver.holder} carries out only: {', '.join(channel.kinds)}"
            raise NotSupported(what=f"a {self.kind} request", why=why, do="wait until it has ended, or update it")
        now = now_ms(self.clock)
        request = ControlRequest(
            id=self.request_id,
            kind=self.kind,
            lease=driver.number,
            who=current_user(),
            pid=os.getpid(),
            asked_at_ms=now,
            until_ms=now + int(max(self._deadline - self.monotonic(), 0) * 1000),
            why=self.why,
            arguments=dict(self.arguments),
        )
        key = request_key(driver.number, self.request_id)
        self.sent_to = driver  # first: an interrupt during the write withdraws the request
        put = self.repository.put_if_absent(key, request.sealed())
        if not put.won and not _is_same(put.data, request, key):
            self.sent_to = None  # the other request must not be withdrawn
            do = "omit the id, or use a new one: an id identifies one request"
            raise AlreadyExists(what=f"another request with id {self.request_id}", do=do)
        self.report(AskPhase.PENDING)  # even if the answer is there at the first look

    def _give_up(self, *, ended: bool) -> None:
        """Withdraw. If the driver has taken the request meanwhile, the next look sees that."""
        if not self.withdraw():
            return
        self.report(AskPhase.WITHDRAWN)
        if self.timed_out or not ended:
            raise self._unanswered(taken=False)
        self.sent_to = None  # ask the next driver, if there is one

    def _unanswered(self, *, taken: bool, driver: LeaseRecord | None = None) -> RequestUnanswered:
        holder = driver or self.sent_to
        return RequestUnanswered(
            request=self.request_id,
            holder=holder.holder if holder else "no process",
            seconds=self.timeout_s,
            kind=self.kind,
            shared=bool(holder and holder.shared),
            taken=taken,
        )

    def _dead(self, state: RequestState) -> HoldfastError:
        if state is RequestState.WITHDRAWN:
            why, do = "it was withdrawn by another process that used the same id", "repeat it with a new id"
        else:
            why = "its time was over by the clock of the driver's machine"
            do = "compare the clocks of the two machines, then repeat it with a longer --timeout"
        return RequestFailed(request=self.request_id, why=why, error=str(state), do=do)

    def _checked(self, answer: ControlAnswer) -> ControlAnswer:
        if answer.result is not None:
            return answer
        if answer.error == NotSupported.__name__:
            why = answer.failed or "the answer contains no reason"
            raise NotSupported(what=f"a {self.kind} request", why=why, do=answer.do or "update the driver")
        raise RequestFailed(
            request=self.request_id,
            why=answer.failed or "the answer contains no reason",
            error=answer.error or "",
            do=answer.do or RequestFailed.do,
        )


def _is_same(data: bytes, request: ControlRequest, key: str) -> bool:
    """Whether a stored request asks for the same; one that cannot be read does not."""
    try:
        stored = ControlRequest.unsealed(data, key)
    except (RecordCorrupt, UnsupportedVersion):
        return False
    return (stored.kind, stored.arguments) == (request.kind, request.arguments)


def wait_for(asking: Asking, poll_s: float = POLL_S) -> ControlAnswer:
    """Wait for the answer. If the wait is interrupted, the request is withdrawn unless the driver has taken it."""
    checked_seconds("poll", poll_s)
    with withdrawn_at_exit(asking):
        while True:
            answer = asking.look()
            if answer is not None:
                return answer
            time.sleep(poll_s)


@contextlib.contextmanager
def withdrawn_at_exit(asking: Asking) -> Iterator[None]:
    """Withdraw a request if the block ends with an error that leaves it open, for example Ctrl-C."""
    try:
        yield
    except (RequestFailed, RequestLost, RequestUnanswered, NotSupported, NotRunning):
        raise  # it is closed already
    except BaseException as error:
        if asking.sent_to is not None:
            try:
                asking.report(AskPhase.WITHDRAWN if asking.withdraw() else AskPhase.TAKEN)
            except HoldfastError as trouble:
                error.add_note(f"the request could not be withdrawn ({trouble.summary}); it expires at its deadline")
        raise

"""The protocol of one request between two processes, the asker and the driver. Pure: no clock, no file.

Rules:
- A request has one slot, its claim, which is closed once, by a conditional write: the driver takes the request or finds
  it expired, or the asker withdraws it. The loser of this race acts on what the winner wrote.
- Only a request that the driver took is carried out, and it gets exactly one answer, unless the driver dies first. No
  other driver ever carries it out: a request is addressed to the lease of one driver.
- The asker looks first whether the driver has ended, and then at the claim and the answer. A driver answers before it
  ends, so a taken request without an answer is lost, not late.

`REQUEST_MOVES` is the whole protocol. A move that is not in it is a bug and raises; nothing is changed.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast._transitions import drawn, moved


class RequestState(StrEnum):
    """The state of a request."""

    PENDING = "pending"  # it is written; neither side has closed its claim
    TAKEN = "taken"  # the driver carries it out
    ANSWERED = "answered"  # the driver has written the result, or the reason why there is none
    WITHDRAWN = "withdrawn"  # the asker closed the claim first: it is never carried out
    EXPIRED = "expired"  # the driver found it too late: it is never carried out


class RequestMove(StrEnum):
    """A change of a request."""

    TAKE = "take"  # the driver closes the claim, and begins
    EXPIRE = "expire"  # the driver closes the claim of a request whose time is over
    WITHDRAW = "withdraw"  # the asker closes the claim: on a timeout, on Ctrl-C, or when the driver has ended
    ANSWER = "answer"  # the driver writes the answer


REQUEST_MOVES: dict[tuple[RequestState, RequestMove], RequestState] = {
    (RequestState.PENDING, RequestMove.TAKE): RequestState.TAKEN,
    (RequestState.TAKEN, RequestMove.ANSWER): RequestState.ANSWERED,
    (RequestState.PENDING, RequestMove.WITHDRAW): RequestState.WITHDRAWN,
    (RequestState.PENDING, RequestMove.EXPIRE): RequestState.EXPIRED,
}
_ENDS = (RequestState.ANSWERED, RequestState.WITHDRAWN, RequestState.EXPIRED)


class AskerStep(StrEnum):
    """What the asker does next."""

    WAIT = "wait"  # look again later
    RETURN = "return"  # there is an answer
    WITHDRAW = "withdraw"  # it will not be carried out: try to close the claim, then look again
    LEAVE = "leave"  # the driver carries it out, and the asker waits no longer
    LOST = "lost"  # the driver took it and ended without an answer
    DEAD = "dead"  # it was withdrawn, or found expired


def after(state: RequestState, move: RequestMove) -> RequestState:
    """Return the state that a move leads to, or raise: a move that is not in the table is a bug."""
    return moved(REQUEST_MOVES, "a request", state, move)


def diagram() -> str:
    """Return the table as a Mermaid state diagram; the docs show this text."""
    return drawn(REQUEST_MOVES, RequestState.PENDING, _ENDS)


def asker_step(state: RequestState, *, driver_ended: bool, timed_out: bool) -> AskerStep:
    """Return what the asker does. `driver_ended` must be older than `state`: it is looked up first."""
    if state is RequestState.ANSWERED:
        return AskerStep.RETURN
    if state in _ENDS:
        return AskerStep.DEAD
    if state is RequestState.TAKEN:
        return AskerStep.LOST if driver_ended else AskerStep.LEAVE if timed_out else AskerStep.WAIT
    return AskerStep.WITHDRAW if driver_ended or timed_out else AskerStep.WAIT


def driver_move(*, now_ms: int, until_ms: int, known_s: float, valid_s: float) -> RequestMove:
    """Return how the driver closes the claim of a pending request.

    A request expires by the driver's clock, and in any case after its own span from the moment when the driver first
    saw it. If the clocks of the two machines differ, it may expire too early; it is never carried out much too late.
    """
    return RequestMove.EXPIRE if now_ms > until_ms or known_s > valid_s else RequestMove.TAKE

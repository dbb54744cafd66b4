"""Epochs, their decisions, and the protocol that takes an epoch to every sink: as a table, without any I/O.

An epoch has numbered attempts; each attempt has one slot, and a slot is closed once, with `commit` or `abort`. What
closed it stands for everybody. Epochs and attempts count from 1; 0 is never valid.

`MOVES` is the whole protocol. A move that is not in it is a bug and raises; nothing is changed. `HOLDS` says what is
prepared and what is visible in each state, for tests and for people; `POINTS` names the places where a driver may die.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

import msgspec

from holdfast._transitions import drawn, moved
from holdfast._validation import checked_name, checked_positive
from holdfast.errors import BadValue, RecordCorrupt
from holdfast.formats.decoding import Undecodable, converted
from holdfast.formats.sealed_json import Record

T = TypeVar("T")


class State(StrEnum):
    """How far one epoch has come."""

    UNTRIED = "untried"  # Spark has written its offsets; nobody has begun
    OPEN = "open"  # an attempt has its number; its slot is open
    STAGED = "staged"  # some sinks have prepared
    PREPARED = "prepared"  # all have
    DURABLE = "durable"  # whatever the decision will name survives the loss of power
    DECIDED = "decided"  # the slot is closed with commit: only forward
    VISIBLE = "visible"  # every sink shows it
    DONE = "done"  # Spark has written its own commit
    ABORTED = "aborted"  # the slot is closed with abort; what was staged is still there
    FENCED = "fenced"  # somebody else closed the slot: this driver drops what it staged, and stops


class Move(StrEnum):
    """What takes an epoch from one state to the next."""

    OPEN = "open"  # take the next number of an attempt
    PREPARE = "prepare"  # one of several sinks stages its output: nothing is visible
    PREPARE_LAST = "prepare the last"  # or the only one
    HARDEN = "harden"  # flush whatever the sinks have staged
    DECIDE = "decide"  # close the slot with commit, by a write that only one can win
    LOSE = "lose"  # find that somebody else has closed it
    COMMIT = "commit"  # one of several sinks shows what it staged
    COMMIT_LAST = "commit the last"  # or the only one
    FINISH = "finish"  # let Spark write its own commit
    FIND = "find decided"  # a restarted driver looks at the slots, or loses its abort to a commit
    ABORT = "abort"  # close the slot with abort
    DISCARD = "discard"  # have every sink drop what that attempt staged


MOVES: dict[tuple[State, Move], State] = {
    (State.UNTRIED, Move.OPEN): State.OPEN,
    (State.OPEN, Move.PREPARE): State.STAGED,
    (State.OPEN, Move.PREPARE_LAST): State.PREPARED,
    (State.STAGED, Move.PREPARE): State.STAGED,
    (State.STAGED, Move.PREPARE_LAST): State.PREPARED,
    (State.PREPARED, Move.HARDEN): State.DURABLE,
    (State.DURABLE, Move.DECIDE): State.DECIDED,
    (State.DURABLE, Move.LOSE): State.FENCED,
    (State.DECIDED, Move.COMMIT): State.DECIDED,
    (State.DECIDED, Move.COMMIT_LAST): State.VISIBLE,
    (State.VISIBLE, Move.FINISH): State.DONE,
    # what the next driver does, or this one after a failed try
    (State.UNTRIED, Move.FIND): State.DECIDED,
    (State.UNTRIED, Move.ABORT): State.ABORTED,
    (State.OPEN, Move.ABORT): State.ABORTED,
    (State.STAGED, Move.ABORT): State.ABORTED,
    (State.PREPARED, Move.ABORT): State.ABORTED,
    (State.DURABLE, Move.ABORT): State.ABORTED,
    (State.ABORTED, Move.DISCARD): State.UNTRIED,
}


class Extent(StrEnum):
    """How many of an epoch's sinks hold something."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


HOLDS: dict[State, tuple[Extent, Extent]] = {
    # what is prepared, what is visible
    State.UNTRIED: (Extent.NONE, Extent.NONE),
    State.OPEN: (Extent.NONE, Extent.NONE),
    State.STAGED: (Extent.SOME, Extent.NONE),
    State.PREPARED: (Extent.ALL, Extent.NONE),
    State.DURABLE: (Extent.ALL, Extent.NONE),
    State.DECIDED: (Extent.ALL, Extent.SOME),  # between none and all, as commits go on
    State.VISIBLE: (Extent.ALL, Extent.ALL),
    State.DONE: (Extent.ALL, Extent.ALL),
    State.ABORTED: (Extent.SOME, Extent.NONE),
    State.FENCED: (Extent.SOME, Extent.NONE),
}

POINTS: dict[str, State] = {
    # where a driver may die, in the order of the protocol, and the state that it leaves behind
    "opening": State.UNTRIED,  # before anything is written
    "opened": State.OPEN,  # the attempt has its number
    "staging": State.OPEN,  # inside a sink: its output is written, its handle not yet returned
    "prepared": State.STAGED,  # after each sink
    "all prepared": State.PREPARED,  # nothing is flushed yet
    "durable": State.DURABLE,  # just before the decision
    "decided": State.DECIDED,  # just after it: no sink has been told
    "committing": State.DECIDED,  # inside a sink: halfway
    "committed": State.DECIDED,  # after each sink
    "all committed": State.VISIBLE,  # Spark has not been told
    "aborted": State.ABORTED,  # after a failed try: the slot is closed, what was staged is still there
    "discarded": State.UNTRIED,  # what was staged is gone; the next attempt may begin
}

Reach: TypeAlias = Callable[[str], None]
"""Called with the name of each point as it is reached; a test's may never return."""


def unwatched(point: str) -> None:
    """Reach a point in production: nothing happens."""
    del point


def after(state: State, move: Move) -> State:
    """Return the state that a move leads to, or raise: a move that is not in the table is a bug."""
    return moved(MOVES, "an epoch", state, move)


def diagram() -> str:
    """Return the table as a Mermaid state diagram; the docs show this text."""
    return drawn(MOVES, State.UNTRIED, (State.DONE, State.FENCED))


class Verdict(StrEnum):
    """How an attempt ended. After a commit there is only forward."""

    COMMIT = "commit"  # every sink will show it
    ABORT = "abort"  # no sink will


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try at one epoch of one stream in one timeline: the address of a slot."""

    stream: str  # its name
    timeline: int  # counted from 1; a rewind begins a new one
    epoch: int  # counted from 1
    attempt: int  # counted from 1

    def __post_init__(self) -> None:
        checked_name("stream", self.stream)
        for what in ("timeline", "epoch", "attempt"):
            checked_positive(what, getattr(self, what))

    def next(self) -> Attempt:
        """The attempt after this one."""
        return msgspec.structs.replace(self, attempt=self.attempt + 1)

    def __str__(self) -> str:
        return f"{self.stream} timeline {self.timeline} epoch {self.epoch} attempt {self.attempt}"


class Decision(Record, frozen=True, kw_only=True):
    """The durable record that closes an attempt, with the facts that a replay needs."""

    attempt: Attempt  # what it closes
    verdict: Verdict  # how it ended
    lease: int  # of the driver that decided
    facts: dict[str, Any] = msgspec.field(default_factory=dict)  # of a commit: offsets, and what each sink was given

    def __post_init__(self) -> None:
        if isinstance(self.lease, bool) or not isinstance(self.lease, int) or self.lease < 1:
            raise BadValue(what="lease", value=self.lease, why="leases count from 1")

    def facts_as(self, kind: type[T]) -> T:
        """Return the facts as a value of this type, or raise `RecordCorrupt`."""
        try:
            return converted(self.facts, kind)
        except Undecodable as error:
            raise RecordCorrupt(key=f"decision of {self.attempt}", why=f"its facts: {error}") from error


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One sink's part of a decided epoch.

    `stands` is the epoch that the sink must own up to once this one is committed: this one, or, where an epoch without
    rows leaves no trace, the last that left one; 0 is none. `before` is the same for the epoch before, and
    `before_handle` the digest of the handle that committed it.
    """

    handle: dict[str, Any]
    rows: int
    stands: int
    before: int
    before_handle: str | None = None  # None: there was none, or it is not known


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision to commit says: where the epoch began and ended, and what each sink was given."""

    start: list[str | None]  # by source, verbatim from Spark's offset log; None before the first
    end: list[str | None]
    offsets_digest: str
    source_log: dict[str, int]  # by source: the last entry of its log
    source_entries: dict[str, str]  # digests of the entries that are new in this epoch
    sinks: dict[str, Share]
    rows: int
    watermark_ms: int = 0
    row_digest: str | None = None  # of a stateful stream: order-free, of what it gave its sinks
    quarantined: str | None = None  # why no sink was given this epoch
    total_rows: int = 0  # given to each sink since the first epoch
    stage: dict[str, Any] | None = None  # its new state: inline, or where it is; with its digest
    decided_at_ms: int = 0  # for people: by the clock of the driver

    def plain(self) -> dict[str, Any]:
        """Return them as a decision keeps them."""
        return dict(msgspec.to_builtins(self))

    @classmethod
    def of(cls, decision: Decision) -> Facts:
        """Return the facts of a decision to commit."""
        return decision.facts_as(cls)

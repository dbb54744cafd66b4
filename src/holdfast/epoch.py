"""Epochs, their decisions, and the two-phase commit protocol as a table, without any I/O.

An epoch has numbered attempts. Each attempt has one slot, which is closed once, with `commit`, `abort` or `end`. The
decision that closed it is final for every driver. Epochs and attempts count from 1; 0 is never valid.

Rules:
- `MOVES` is the whole protocol. A move that is not in it is a bug: it raises and changes nothing.
- Every state change goes through `EpochProgress.move`. There is one such object for each try at an epoch, at run time
  and in recovery. A new try begins as *untried*, because it does not know what an earlier one has left.
- `HOLDS` lists what is prepared and what is visible in each state. `POINTS` names the places where a driver may die.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

import msgspec

from holdfast._transitions import drawn, moved
from holdfast._validation import checked_name, checked_positive
from holdfast.errors import BadValue, RecordCorrupt
from holdfast.formats.decoding import Undecodable, converted
from holdfast.formats.sealed_json import Record

__all__ = ["Attempt", "Decision", "Facts", "Share", "Verdict"]

T = TypeVar("T")


class State(StrEnum):
    """How far one try at an epoch has come."""

    UNTRIED = "untried"  # Spark has written its offsets; this try has not begun
    OPEN = "open"  # the attempt has its number; its slot is open
    STAGED = "staged"  # some sinks have prepared
    PREPARED = "prepared"  # every sink has prepared
    DURABLE = "durable"  # everything that the decision refers to survives a power loss
    DECIDED = "decided"  # the slot is closed with commit: the epoch can only be rolled forward
    VISIBLE = "visible"  # every sink shows the epoch
    DONE = "done"  # the epoch was returned to Spark, which writes its own commit, or has written it
    ABORTED = "aborted"  # the slot is closed with abort; the staged output still exists
    FENCED = "fenced"  # another driver closed the slot: this one discards what it staged, and stops


class Move(StrEnum):
    """A step that takes an epoch from one state to the next."""

    OPEN = "open"  # take the next attempt number
    PREPARE = "prepare"  # one of several sinks stages its output; nothing is visible
    PREPARE_LAST = "prepare the last"  # the last sink, or the only one, stages its output
    SKIP = "skip"  # give the epoch to no sink: it is quarantined
    HARDEN = "harden"  # flush Spark's log files and everything that the sinks have staged
    DECIDE = "decide"  # close the slot with commit, by a write that only one driver can win
    LOSE = "lose"  # find that another driver has closed the slot
    COMMIT = "commit"  # one of several sinks makes its staged output visible
    COMMIT_LAST = "commit the last"  # the last sink that lacks the epoch, or the only one, makes it visible
    FINISH = "finish"  # return to Spark for its own commit, or find in recovery that Spark has committed
    FIND = "find decided"  # find a commit in the slots, or lose an abort to one
    ABORT = "abort"  # close the open slot with abort, or find it closed so
    DISCARD = "discard"  # have every sink drop what the aborted attempts staged


MOVES: dict[tuple[State, Move], State] = {
    (State.UNTRIED, Move.OPEN): State.OPEN,
    (State.OPEN, Move.PREPARE): State.STAGED,
    (State.OPEN, Move.PREPARE_LAST): State.PREPARED,
    (State.OPEN, Move.SKIP): State.PREPARED,
    (State.STAGED, Move.PREPARE): State.STAGED,
    (State.STAGED, Move.PREPARE_LAST): State.PREPARED,
    (State.PREPARED, Move.HARDEN): State.DURABLE,
    (State.DURABLE, Move.DECIDE): State.DECIDED,
    (State.DURABLE, Move.LOSE): State.FENCED,
    (State.DECIDED, Move.COMMIT): State.DECIDED,
    (State.DECIDED, Move.COMMIT_LAST): State.VISIBLE,
    (State.DECIDED, Move.SKIP): State.VISIBLE,
    (State.VISIBLE, Move.FINISH): State.DONE,
    # after a restart or a failed attempt: the slots say what earlier tries have left
    (State.UNTRIED, Move.FIND): State.DECIDED,
    (State.UNTRIED, Move.ABORT): State.ABORTED,
    (State.ABORTED, Move.DISCARD): State.UNTRIED,
}

_DECIDED = frozenset({State.DECIDED, State.VISIBLE, State.DONE})


class Extent(StrEnum):
    """How many of an epoch's sinks hold something."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


HOLDS: dict[State, tuple[Extent, Extent]] = {
    # what is prepared, what is visible; of a quarantined epoch, no sink has anything to hold
    State.UNTRIED: (Extent.NONE, Extent.NONE),
    State.OPEN: (Extent.NONE, Extent.NONE),
    State.STAGED: (Extent.SOME, Extent.NONE),
    State.PREPARED: (Extent.ALL, Extent.NONE),
    State.DURABLE: (Extent.ALL, Extent.NONE),
    State.DECIDED: (Extent.ALL, Extent.SOME),  # from none to all, as the commits proceed
    State.VISIBLE: (Extent.ALL, Extent.ALL),
    State.DONE: (Extent.ALL, Extent.ALL),
    State.ABORTED: (Extent.SOME, Extent.NONE),
    State.FENCED: (Extent.SOME, Extent.NONE),
}

POINTS: dict[str, State] = {
    # where a driver may die, in the order of the protocol, and the state that it leaves the epoch in
    "opening": State.UNTRIED,  # before anything is written
    "opened": State.OPEN,  # the attempt has its number
    "staging": State.OPEN,  # inside a sink: its output is written, its handle not yet returned
    "prepared": State.STAGED,  # after each sink
    "all prepared": State.PREPARED,  # nothing is flushed yet
    "durable": State.DURABLE,  # just before the decision
    "decided": State.DECIDED,  # just after the decision: no sink has committed yet
    "committing": State.DECIDED,  # inside a sink: halfway
    "committed": State.DECIDED,  # after each sink
    "all committed": State.VISIBLE,  # not yet returned to Spark
    "aborted": State.ABORTED,  # after a failed attempt: the slot is closed, the staged output still exists
    "discarded": State.UNTRIED,  # the staged output is gone; the next attempt may begin
}

Reach: TypeAlias = Callable[[str], None]
"""Called with the name of each point when it is reached. In a test, the call may never return."""


def unwatched(point: str) -> None:
    """Do nothing at a point: the default in production."""
    del point


def after(state: State, move: Move) -> State:
    """Return the state that a move leads to, or raise: a move that is not in the table is a bug."""
    return moved(MOVES, "an epoch", state, move)


def is_decided(state: State) -> bool:
    """Whether an epoch in this state can only be rolled forward."""
    return state in _DECIDED


def diagram() -> str:
    """Return the table as a Mermaid state diagram; the docs show this text."""
    return drawn(MOVES, State.UNTRIED, (State.DONE, State.FENCED))


class EpochProgress:
    """The state of one try at an epoch. Only `move` changes it.

    `sink` is the sink that is at work, or the one that failed; `None` outside of all sinks. `on_move` is called with
    each move and the state that it led to.
    """

    def __init__(self, on_move: Callable[[Move, State], None] = lambda *_: None) -> None:
        self._state = State.UNTRIED
        self._sink: str | None = None
        self._on_move = on_move

    @property
    def state(self) -> State:
        """The current state."""
        return self._state

    @property
    def sink(self) -> str | None:
        """The sink that is at work or has failed."""
        return self._sink

    def move(self, move: Move) -> None:
        """Make a move of the table, or raise and stay."""
        self._state = after(self._state, move)
        self._on_move(move, self._state)

    @contextlib.contextmanager
    def inside(self, sink: str) -> Iterator[None]:
        """Mark a sink as being at work. If it raises, it stays marked: the failure is in this sink."""
        self._sink = sink
        yield
        self._sink = None

    def blame(self, sink: str) -> None:
        """Mark a sink as the one that failed, after others have had their turn."""
        self._sink = sink


class Verdict(StrEnum):
    """How a slot was closed. After a commit, the epoch can only be rolled forward."""

    COMMIT = "commit"  # every sink will show the epoch
    ABORT = "abort"  # no sink will show anything of this attempt
    END = "end"  # the stream decides nothing more in this timeline: a rewind continues it in another one


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
        """Return the attempt after this one."""
        return msgspec.structs.replace(self, attempt=self.attempt + 1)

    def __str__(self) -> str:
        return f"{self.stream} timeline {self.timeline} epoch {self.epoch} attempt {self.attempt}"


class Decision(Record, frozen=True, kw_only=True):
    """The durable record that closes an attempt, with the facts that a replay needs."""

    attempt: Attempt  # the attempt that it closes
    verdict: Verdict  # how it ended
    lease: int  # of the driver that decided
    facts: dict[str, Any] = msgspec.field(default_factory=dict)  # of a commit: offsets, and each sink's handle

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

    `stands` is the epoch that the sink must report as its last one once this epoch is committed. That is this epoch or,
    where an epoch without rows leaves no trace, the last one that left a trace; 0 is none. `before` is the same for the
    epoch before this one, and `before_handle` is the digest of the handle that committed it. A sink that is not `given`
    the epoch already had its rows: they were written by a plain Spark query that was adopted.
    """

    handle: dict[str, Any]
    rows: int
    stands: int
    before: int
    before_handle: str | None = None  # None: there was none, or it is not known
    given: bool = True


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long an epoch took up to its decision, in seconds."""

    open: float = 0.0  # from Spark's call to the attempt's number
    prepare: float = 0.0  # until every sink has staged its output
    harden: float = 0.0  # until everything is durable
    sinks: dict[str, float] = {}  # by sink: its own part of `prepare`; sinks prepare at the same time


class CommitTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long the end of an epoch took, in seconds. The decision of the next epoch contains it."""

    epoch: int  # which one
    decide: float = 0.0  # until the decision is durable
    commit: float = 0.0  # until every sink shows the epoch
    sinks: dict[str, float] = {}  # by sink: its own part of `commit`
    ended_at_ms: int = 0  # when it was in every sink


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a decision to commit: where the epoch began and ended, and what each sink has prepared."""

    start: list[str | None]  # by source, verbatim from Spark's offset log; None before the first
    end: list[str | None]
    offsets_digest: str
    source_log: dict[str, int]  # by source: the last entry of its log
    source_entries: dict[str, str]  # digests of the entries that are new in this epoch
    sinks: dict[str, Share]
    rows: int
    watermark_ms: int = 0
    row_digest: str | None = None  # of a stateful stream: order-independent, of the rows that its sinks were given
    quarantined: str | None = None  # why the epoch was given to no sink
    total_rows: int = 0  # given to each sink since the first epoch
    dead_rows: int = 0  # given to the dead letter, and to no other sink
    total_dead_rows: int = 0  # the same since the first epoch, or since the last rewind
    stage: dict[str, Any] | None = None  # the new state of the stage, inline or by reference, with its digest
    decided_at_ms: int = 0  # for people: by the clock of the driver
    fresh_at_ms: int = 0  # for people: when the last epoch with rows began, this one or an earlier one; 0: not known
    times: PhaseTimes | None = None  # for people: how long its phases took so far
    last_commit: CommitTimes | None = None  # for people: of the epoch before, if the same run has committed it

    def plain(self) -> dict[str, Any]:
        """Return the facts as a decision stores them."""
        return dict(msgspec.to_builtins(self))

    @classmethod
    def of(cls, decision: Decision) -> Facts:
        """Return the facts of a decision to commit."""
        return decision.facts_as(cls)

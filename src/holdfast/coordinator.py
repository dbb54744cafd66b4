"""The checkpoint protocol: barriers out, acknowledgements in; decided here, from facts alone. Others do it.

Rules:
- **Downstream first.** A stream is sent the barrier only after every stream that reads from it has acknowledged. What
  lies between the two cuts is in the durable channel between them, so the cut is consistent: no stream holds what its
  upstream has not. Sent the other way round, rows that the upstream had not cut yet could be in its reader's cut.
- A stream whose last epoch is decided and not yet in every sink cannot be acknowledged for: its reader may have it.
- One attempt at a time. What was asked for meanwhile waits; a savepoint or a drain is never superseded.
- An attempt ends restorable or aborted. Its id is burnt either way; an acknowledgement of another id changes nothing.
- No stream waits for another, nor for what is written after it has acknowledged.

`MOVES` is the whole protocol of one attempt. A move that is not in it is a bug and raises; nothing is changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Any

from holdfast._transitions import drawn, moved
from holdfast.barriers import BarrierFlags
from holdfast.errors import BadValue
from holdfast.policy import CheckpointPolicy, IntervalPolicy, Progress

# --- the protocol ----------------------------------------------------------------------------------------------------


class Phase(StrEnum):
    """How far one attempt at a checkpoint has come."""

    ALIGNING = "aligning"  # its id is taken; barriers go out, acknowledgements come in
    ALIGNED = "aligned"  # every stream has acknowledged
    HELD = "held"  # every file that the cut needs is kept
    RESTORABLE = "restorable"  # the manifest is written
    ABORTED = "aborted"  # it was given up: its id is burnt, and nothing else has changed


class Step(StrEnum):
    """What takes an attempt from one phase to the next."""

    TRIGGER = "trigger"  # send a stream the barrier
    ACKNOWLEDGE = "acknowledge"  # one of several streams says where it stood when the barrier passed
    ACKNOWLEDGE_LAST = "acknowledge the last"  # or the only one
    HOLD = "hold"  # keep the files of one of several streams, so that Spark may delete them
    HOLD_LAST = "hold the last"  # or the only one
    WRITE = "write the manifest"  # by a write that only one can win
    GIVE_UP = "give up"  # it took too long, or something failed


MOVES: dict[tuple[Phase, Step], Phase] = {
    (Phase.ALIGNING, Step.TRIGGER): Phase.ALIGNING,
    (Phase.ALIGNING, Step.ACKNOWLEDGE): Phase.ALIGNING,
    (Phase.ALIGNING, Step.HOLD): Phase.ALIGNING,
    (Phase.ALIGNING, Step.ACKNOWLEDGE_LAST): Phase.ALIGNED,
    (Phase.ALIGNED, Step.HOLD): Phase.ALIGNED,
    (Phase.ALIGNED, Step.HOLD_LAST): Phase.HELD,
    (Phase.HELD, Step.WRITE): Phase.RESTORABLE,
    (Phase.ALIGNING, Step.GIVE_UP): Phase.ABORTED,
    (Phase.ALIGNED, Step.GIVE_UP): Phase.ABORTED,
    (Phase.HELD, Step.GIVE_UP): Phase.ABORTED,
}

POINTS: dict[str, Phase] = {
    # where a driver may die, in the order of the protocol, and the phase that it leaves behind
    "checkpoint claimed": Phase.ALIGNING,  # its id is taken
    "barrier sent": Phase.ALIGNING,  # to each stream
    "acknowledged": Phase.ALIGNING,  # by each stream
    "aligned": Phase.ALIGNED,  # the streams run on
    "files held": Phase.ALIGNING,  # of each stream, aligned or not
    "all held": Phase.HELD,  # just before the manifest
    "manifest written": Phase.RESTORABLE,  # nobody has been told
    "checkpoint aborted": Phase.ABORTED,  # nobody has been told
}


def after(phase: Phase, step: Step) -> Phase:
    """Return the phase that a step leads to, or raise: a step that is not in the table is a bug."""
    return moved(MOVES, "a checkpoint", phase, step)


def diagram() -> str:
    """Return the table as a Mermaid state diagram; the docs show this text."""
    return drawn(MOVES, Phase.ALIGNING, (Phase.RESTORABLE, Phase.ABORTED))


# --- who reads from whom ---------------------------------------------------------------------------------------------


class Topology:
    """The streams of a pipeline and who reads from whom; a cycle is refused."""

    def __init__(self, reads: Mapping[str, Iterable[str]]) -> None:
        self.reads = {stream: tuple(dict.fromkeys(above)) for stream, above in reads.items()}
        for stream, above in self.reads.items():
            for each in above:
                if each not in self.reads:
                    why = f"the pipeline has no such stream; it has {', '.join(sorted(self.reads))}"
                    raise BadValue(what=f"reads of stream {stream!r}", value=each, why=why)
        try:
            self.upstream_first = tuple(TopologicalSorter(self.reads).static_order())
        except CycleError as error:
            way = " reads from ".join(reversed(error.args[1]))
            why = "a cut would need each of them before the other"
            raise BadValue(what="streams", value=way, why=why, do="break the cycle") from None
        self.readers = {stream: {each for each in self.reads if stream in self.reads[each]} for stream in self.reads}


# --- one acknowledgement ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """Where one stream stood when the barrier passed: what its acknowledgement says."""

    stream: str  # its name
    epoch: int  # the last one that every sink has; 0 before the first
    offsets: tuple[str | None, ...] = ()  # the end of that epoch by source, verbatim from Spark's offset log
    sinks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by sink: its epoch, and its own marks
    watermark_ms: int = 0
    rows: int = 0  # given to each sink since the first epoch
    stage: bytes | None = None  # the state of its stage, where it has one


# --- one attempt -----------------------------------------------------------------------------------------------------


class CheckpointAttempt:
    """One attempt at a checkpoint of all streams."""

    def __init__(self, checkpoint: int, flags: BarrierFlags, topology: Topology, begun: float, timeout: float) -> None:
        self.checkpoint = checkpoint
        self.flags = flags
        self.phase = Phase.ALIGNING
        self.begun = begun
        self.positions: dict[str, StreamPosition] = {}
        self.why: str | None = None  # it was given up
        self._deadline = begun + timeout
        self._timeout = timeout
        self._topology = topology
        self._triggered: set[str] = set()
        self._held: set[str] = set()

    def due(self) -> list[str]:
        """Return the streams to be sent the barrier now: those whose readers have all acknowledged."""
        if self.phase is not Phase.ALIGNING:
            return []
        return [
            stream
            for stream in reversed(self._topology.upstream_first)
            if stream not in self._triggered and self._topology.readers[stream] <= self.positions.keys()
        ]

    def trigger(self, stream: str) -> None:
        """Note that a stream was sent the barrier."""
        if stream not in self.due():
            raise BadValue(what="stream", value=stream, why="a stream that reads from it has not acknowledged")
        self.phase = after(self.phase, Step.TRIGGER)
        self._triggered.add(stream)

    @property
    def awaited(self) -> tuple[str, ...]:
        """The streams that were sent the barrier and have not acknowledged."""
        return tuple(each for each in self._topology.upstream_first if each in self._triggered - self.positions.keys())

    def acknowledge(self, checkpoint: int, position: StreamPosition) -> bool:
        """Take a stream's acknowledgement; return whether it counts. One for another attempt, or too late, does not."""
        stream = position.stream
        if checkpoint != self.checkpoint or self.phase is not Phase.ALIGNING or stream not in self.awaited:
            return False
        last = len(self.positions) + 1 == len(self._topology.reads)
        self.phase = after(self.phase, Step.ACKNOWLEDGE_LAST if last else Step.ACKNOWLEDGE)
        self.positions[stream] = position
        return True

    @property
    def to_hold(self) -> tuple[str, ...]:
        """The streams that have acknowledged and whose files are not kept yet."""
        if self.phase not in (Phase.ALIGNING, Phase.ALIGNED):
            return ()
        return tuple(each for each in self.positions if each not in self._held)

    def hold(self, stream: str) -> None:
        """Note that a stream's files are kept."""
        last = self.phase is Phase.ALIGNED and self.to_hold == (stream,)
        self.phase = after(self.phase, Step.HOLD_LAST if last else Step.HOLD)
        self._held.add(stream)

    def write(self) -> None:
        """Note that the manifest is written: it is restorable."""
        self.phase = after(self.phase, Step.WRITE)

    def give_up(self, why: str) -> tuple[str, ...]:
        """Note that it is given up; return the streams whose barrier is to be cancelled."""
        pending = self.awaited
        self.phase = after(self.phase, Step.GIVE_UP)
        self.why = why
        return pending

    @property
    def late(self) -> tuple[str, ...]:
        """Whom it waits for: for an acknowledgement, or for Spark's commit of it."""
        return self.awaited or self.to_hold

    def overdue(self, now: float) -> str | None:
        """Return why it must be given up now, or `None`."""
        if now < self._deadline or self.phase in (Phase.RESTORABLE, Phase.ABORTED):
            return None
        if self.awaited:
            return f"{', '.join(self.awaited)} did not acknowledge within {self._timeout:g} s"
        if self.to_hold:
            return f"Spark did not commit the epoch of {', '.join(self.to_hold)} within {self._timeout:g} s"
        return f"it was not written within {self._timeout:g} s"


# --- when ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """A checkpoint that somebody asked for, or that is due."""

    flags: BarrierFlags = BarrierFlags.NONE
    savepoint: str | None = None
    ticket: Any = field(default=None, compare=False)  # of whoever asked for it


@dataclass(slots=True)
class Schedule:
    """Says what to begin next: what was asked for, in its order, then what is due; and counts failures in a row."""

    policy: CheckpointPolicy
    failures: int = 0
    _asked: deque[Wanted] = field(default_factory=deque)
    _marks: IntervalPolicy | None = None
    _ended: float | None = None

    def __post_init__(self) -> None:
        self._marks = self.policy.marks()

    def ask(self, wanted: Wanted) -> None:
        """Let a checkpoint be taken as soon as the one that is under way has ended."""
        self._asked.append(wanted)

    def begin_with(self, progress: Progress) -> None:
        """Count intervals from here."""
        if self._marks is not None:
            self._marks.taken(_ALL, progress)

    def next(self, progress: Progress) -> Wanted | None:
        """Return what to begin now, or `None`. What was asked for waits for no pause.

        Intervals count from one beginning to the next, however long each takes.
        """
        rested = self._ended is None or progress.now >= self._ended + self.policy.min_pause_s
        due = self._marks is not None and rested and self._marks.due(_ALL, progress)
        if not self._asked and not due:
            return None
        self.begin_with(progress)
        return self._asked.popleft() if self._asked else Wanted()

    def ended(self, progress: Progress, *, restorable: bool, counts: bool = True) -> bool:
        """Note an end; return whether so many failures in a row that count are still tolerable."""
        self.failures = 0 if restorable else self.failures + counts
        self._ended = progress.now
        most = self.policy.tolerable_failures
        return most is None or not counts or self.failures <= most


_ALL = "all streams"

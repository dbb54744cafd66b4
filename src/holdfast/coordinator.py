"""The checkpoint protocol: barriers out, acknowledgements in. This module decides from facts alone and does no I/O.

Rules:
- **Downstream first.** A stream is sent the barrier only after every stream that reads from it has acknowledged. The
  rows between the two positions are in the durable channel between the streams, so the cut is consistent: no stream has
  rows that its upstream has not. In the opposite order, rows that are after the upstream's position could be before its
  reader's position.
- A stream whose last epoch is decided and not yet in every sink cannot be acknowledged: its reader may have that epoch.
- One attempt at a time. Requests that arrive meanwhile wait; a savepoint or a drain is never superseded.
- An attempt ends restorable or aborted. Its id is never used again; an acknowledgement of another id changes nothing.
- No stream waits for another stream, nor for the files that are written after its acknowledgement.

`MOVES` is the whole protocol of one attempt. A move that is not in it is a bug and raises; nothing is changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Any

from holdfast._transitions import drawn, moved
from holdfast.barriers import BarrierFlags
from holdfast.errors import AlreadyExists, BadValue
from holdfast.formats.manifest import Manifest
from holdfast.policy import CheckpointPolicy, IntervalPolicy, Progress

# --- the protocol ----------------------------------------------------------------------------------------------------


class Phase(StrEnum):
    """The phase of one attempt at a checkpoint."""

    ALIGNING = "aligning"  # its id is claimed; barriers are sent, acknowledgements arrive
    ALIGNED = "aligned"  # every stream has acknowledged
    HELD = "held"  # every file that the cut needs is kept
    RESTORABLE = "restorable"  # the manifest is written
    ABORTED = "aborted"  # it has ended without a manifest: its id is never used again, and nothing else has changed


class Step(StrEnum):
    """A step that takes an attempt from one phase to the next."""

    TRIGGER = "trigger"  # send a stream the barrier
    ACKNOWLEDGE = "acknowledge"  # one of several streams returns its position at the barrier
    ACKNOWLEDGE_LAST = "acknowledge the last"  # or the only one
    HOLD = "hold"  # keep the files of one of several streams; Spark may delete its own then
    HOLD_LAST = "hold the last"  # or the only one
    WRITE = "write the manifest"  # by a conditional write that only one driver can win
    ABORT = "abort"  # on a timeout, a cancellation or a failure


MOVES: dict[tuple[Phase, Step], Phase] = {
    (Phase.ALIGNING, Step.TRIGGER): Phase.ALIGNING,
    (Phase.ALIGNING, Step.ACKNOWLEDGE): Phase.ALIGNING,
    (Phase.ALIGNING, Step.HOLD): Phase.ALIGNING,
    (Phase.ALIGNING, Step.ACKNOWLEDGE_LAST): Phase.ALIGNED,
    (Phase.ALIGNED, Step.HOLD): Phase.ALIGNED,
    (Phase.ALIGNED, Step.HOLD_LAST): Phase.HELD,
    (Phase.HELD, Step.WRITE): Phase.RESTORABLE,
    (Phase.ALIGNING, Step.ABORT): Phase.ABORTED,
    (Phase.ALIGNED, Step.ABORT): Phase.ABORTED,
    (Phase.HELD, Step.ABORT): Phase.ABORTED,
}

POINTS: dict[str, Phase] = {
    # points at which a driver may die, in the order of the protocol, and the phase that it leaves
    "checkpoint claimed": Phase.ALIGNING,  # its id is claimed
    "barrier sent": Phase.ALIGNING,  # to each stream
    "acknowledged": Phase.ALIGNING,  # by each stream
    "aligned": Phase.ALIGNED,  # the streams continue
    "files held": Phase.ALIGNING,  # of each stream, before or after the alignment
    "all held": Phase.HELD,  # just before the manifest is written
    "manifest written": Phase.RESTORABLE,  # the caller has no answer yet
    "checkpoint aborted": Phase.ABORTED,  # the caller has no answer yet
}


def after(phase: Phase, step: Step) -> Phase:
    """Return the phase that a step leads to, or raise: a step that is not in the table is a bug."""
    return moved(MOVES, "a checkpoint", phase, step)


def diagram() -> str:
    """Return the table as a Mermaid state diagram; the docs show this text."""
    return drawn(MOVES, Phase.ALIGNING, (Phase.RESTORABLE, Phase.ABORTED))


# --- the order of the streams ----------------------------------------------------------------------------------------


class Topology:
    """The streams of a pipeline and which stream reads from which; a cycle is refused."""

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
            cycle = " reads from ".join(reversed(error.args[1]))
            why = "in a cycle, each stream would have to be checkpointed before the other"
            raise BadValue(what="streams", value=cycle, why=why, do="break the cycle") from None
        self.readers = {stream: {each for each in self.reads if stream in self.reads[each]} for stream in self.reads}


# --- one acknowledgement ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """The position of one stream at the barrier: the content of its acknowledgement."""

    stream: str  # its name
    epoch: int  # the last epoch that every sink has; 0 before the first
    offsets: tuple[str | None, ...] = ()  # the end of that epoch by source, verbatim from Spark's offset log
    sinks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by sink: its epoch and its own marks
    watermark_ms: int = 0
    rows: int = 0  # written to each sink since the first epoch
    stage: bytes | None = None  # the state of its stage, if it has one


# --- one attempt -----------------------------------------------------------------------------------------------------


class CheckpointAttempt:
    """One attempt at a checkpoint of all streams."""

    def __init__(self, checkpoint: int, flags: BarrierFlags, topology: Topology, begun: float, timeout: float) -> None:
        self.checkpoint = checkpoint
        self.flags = flags
        self.phase = Phase.ALIGNING
        self.begun = begun
        self.positions: dict[str, StreamPosition] = {}
        self.why: str | None = None  # why it was aborted
        self._deadline = begun + timeout
        self._timeout = timeout
        self._topology = topology
        self._triggered: set[str] = set()
        self._held: set[str] = set()

    def due(self) -> list[str]:
        """Return the streams to send the barrier to now: those whose readers have all acknowledged."""
        if self.phase is not Phase.ALIGNING:
            return []
        return [
            stream
            for stream in reversed(self._topology.upstream_first)
            if stream not in self._triggered and self._topology.readers[stream] <= self.positions.keys()
        ]

    def trigger(self, stream: str) -> None:
        """Record that a stream was sent the barrier."""
        if stream not in self.due():
            raise BadValue(what="stream", value=stream, why="a stream that reads from it has not acknowledged")
        self.phase = after(self.phase, Step.TRIGGER)
        self._triggered.add(stream)

    @property
    def awaited(self) -> tuple[str, ...]:
        """The streams that were sent the barrier and have not acknowledged."""
        return tuple(each for each in self._topology.upstream_first if each in self._triggered - self.positions.keys())

    def acknowledge(self, checkpoint: int, position: StreamPosition) -> bool:
        """Record an acknowledgement; return whether it counts. One of another attempt, or a late one, does not."""
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
        """Record that a stream's files are kept."""
        last = self.phase is Phase.ALIGNED and self.to_hold == (stream,)
        self.phase = after(self.phase, Step.HOLD_LAST if last else Step.HOLD)
        self._held.add(stream)

    def write(self) -> None:
        """Record that the manifest is written: the checkpoint is restorable."""
        self.phase = after(self.phase, Step.WRITE)

    def abort(self, why: str) -> tuple[str, ...]:
        """Record that the attempt is aborted; return the streams whose barrier must be cancelled."""
        pending = self.awaited
        self.phase = after(self.phase, Step.ABORT)
        self.why = why
        return pending

    @property
    def late(self) -> tuple[str, ...]:
        """The streams that the attempt waits for: for an acknowledgement, or for Spark's commit of the epoch."""
        return self.awaited or self.to_hold

    def overdue(self, now: float) -> str | None:
        """Return why the attempt must be aborted now, or `None`."""
        if now < self._deadline or self.phase in (Phase.RESTORABLE, Phase.ABORTED):
            return None
        if self.awaited:
            return f"{', '.join(self.awaited)} did not acknowledge within {self._timeout:g} s"
        if self.to_hold:
            return f"Spark did not commit the epoch of {', '.join(self.to_hold)} within {self._timeout:g} s"
        return f"it was not written within {self._timeout:g} s"


# --- the schedule ----------------------------------------------------------------------------------------------------


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A checkpoint to take: requested by a caller, or due by the policy."""

    flags: BarrierFlags = BarrierFlags.NONE
    savepoint: str | None = None
    ticket: Future[Manifest] | None = field(default=None, compare=False)  # the caller waits for it; `None` if due
    request: str | None = None  # the id of the request of another process; the manifest records it
    admit: Callable[[], bool] = field(default=_always, compare=False)  # called when it is to begin: whether it may


@dataclass(slots=True)
class Schedule:
    """Decides which checkpoint to begin next: requests in their order, then due ones. Counts failures in a row."""

    policy: CheckpointPolicy
    failures: int = 0
    _requests: deque[CheckpointRequest] = field(default_factory=deque)
    _marks: IntervalPolicy | None = None
    _ended: float | None = None

    def __post_init__(self) -> None:
        self._marks = self.policy.marks()

    @property
    def is_periodic(self) -> bool:
        """Whether the policy takes checkpoints without a request."""
        return self._marks is not None

    def add(self, request: CheckpointRequest) -> None:
        """Add a request: it begins as soon as the current attempt has ended."""
        self._requests.append(request)

    def begin_with(self, progress: Progress) -> None:
        """Count intervals from this point."""
        if self._marks is not None:
            self._marks.taken(_ALL, progress)

    def next(self, progress: Progress) -> CheckpointRequest | None:
        """Return the checkpoint to begin now, or `None`. A request does not wait for the minimum pause.

        Intervals count from one beginning to the next, however long each checkpoint takes.
        """
        rested = self._ended is None or progress.now >= self._ended + self.policy.min_pause_s
        due = self._marks is not None and rested and self._marks.due(_ALL, progress)
        if not self._requests and not due:
            return None
        self.begin_with(progress)
        return self._requests.popleft() if self._requests else CheckpointRequest()

    def ended(self, progress: Progress, *, restorable: bool, counts: bool = True) -> bool:
        """Record the end of an attempt; return whether the number of failures in a row is still tolerable."""
        self.failures = 0 if restorable else self.failures + counts
        self._ended = progress.now
        most = self.policy.tolerable_failures
        return most is None or not counts or self.failures <= most


@dataclass(slots=True)
class FinalCheckpoint:
    """The checkpoint to take when every stream has ended: the one that a drain requested, or one per graceful stop."""

    _request: CheckpointRequest | None = None
    _tried: bool = False

    def add(self, request: CheckpointRequest) -> None:
        """Add the request of a drain; there can be only one."""
        if self._request is not None:
            raise AlreadyExists(what="a request for the last checkpoint", do="wait for the drain under way")
        self._request = request

    def mark_tried(self) -> None:
        """Record that an attempt failed after the streams had ended: nothing has changed, so another would fail too."""
        self._tried = True

    def next(self, *, wanted: bool) -> CheckpointRequest | None:
        """Return the checkpoint to begin now that every stream has ended, once; `wanted` without a drain."""
        tried, self._tried = self._tried, True
        if self._request is None:  # not cleared: a drain may add its request at this moment
            return CheckpointRequest() if wanted and not tried else None
        request, self._request = self._request, None
        return request


_ALL = "all streams"

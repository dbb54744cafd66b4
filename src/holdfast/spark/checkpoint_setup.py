"""What all checkpoints of one run share: the streams, the policy, the repository, and the control of the loop."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.coordinator import CheckpointRequest, StreamPosition, Topology
from holdfast.policy import CheckpointPolicy, Progress
from holdfast.repository import Checkpoints
from holdfast.spark.context import RunContext
from holdfast.spark.stream import StreamRun
from holdfast.stages import FlushObserver, flushing

Inbox: TypeAlias = queue.SimpleQueue[tuple[int, StreamPosition | Exception]]
"""Acknowledgements from the streams: the checkpoint's id, and the position or the error that prevented it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSetup:
    """The facts that all checkpoints of one run share."""

    run: RunContext
    streams: Mapping[str, StreamRun]
    topology: Topology
    policy: CheckpointPolicy
    checkpoints: Checkpoints
    program: int  # the hash of the pipeline's definition
    observers: tuple[FlushObserver, ...] = ()

    @property
    def timeline(self) -> int:
        """The timeline in which checkpoints are recorded."""
        return self.run.lineage.current

    @property
    def progress(self) -> Progress:
        """How far all streams together have advanced, for the schedule."""
        rows, epochs = zip(*(stream.progress for stream in self.streams.values()), strict=True)
        return Progress(sequence=sum(rows), epoch=sum(epochs), now=self.run.clock())

    @contextlib.contextmanager
    def flush(self) -> Iterator[None]:
        """Notify the observers before and after a durable write."""
        with flushing(self.observers, self.run.lease.number):
            yield

    def claim(self, request: CheckpointRequest) -> int:
        """Claim the id of a new attempt."""
        self.run.lease.check()
        if request.savepoint is not None:
            self.checkpoints.require_free(request.savepoint)  # another savepoint may have taken the name meanwhile
        with self.flush():
            return self.checkpoints.claim(self.timeline, self.run.lease.number, int(request.flags))


class LoopControl:
    """The events of the checkpoint loop: there is work to do at once, and the end has begun."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self._ending = threading.Event()
        self._end_by: float | None = None

    @property
    def is_ending(self) -> bool:
        """Whether every stream has ended, or the pipeline was killed."""
        return self._ending.is_set()

    @property
    def time_is_up(self) -> bool:
        """Whether the loop must end now, even if a checkpoint is under way."""
        return self._ending.is_set() and time.monotonic() > (self._end_by or 0)

    def end_within(self, seconds: float) -> None:
        """Let the loop end when it has nothing left to do, and at the latest after this time."""
        if self._end_by is None:
            self._end_by = time.monotonic() + seconds
        self._ending.set()
        self.wake.set()

    def end_now(self) -> None:
        """Let the loop end at once."""
        self._end_by = 0.0
        self._ending.set()
        self.wake.set()

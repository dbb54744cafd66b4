"""The attempt at a checkpoint that is under way: send barriers, collect acknowledgements, keep files, write.

Rules:
- No stream waits for an attempt. A busy stream acknowledges at the end of its epoch, inside its own callback; for a
  stream that is between two epochs, or has ended, the attempt acknowledges under the stream's mutex.
- A stream's files are linked as soon as it has acknowledged and Spark has committed the epoch, before or after the
  alignment. Then they are read and kept, a part at a time. The timeout applies to acknowledgements and commits; reading
  continues to its end.
- Any failure aborts the attempt: its id is never used again, and nothing else changes. Only an error that is not an
  `Exception`, such as a crash in a test, passes through.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from holdfast._error_text import one_line
from holdfast.barriers import BarrierFlags
from holdfast.coordinator import CheckpointAttempt, CheckpointRequest, Phase
from holdfast.errors import CheckpointFailed, Fenced, HoldfastError
from holdfast.formats.manifest import Manifest
from holdfast.formats.manifest_parts import CheckpointTimes, GapNotes, StreamCut, StreamTimes
from holdfast.formats.sidecar import pack_states
from holdfast.repository import GapRecord, Gaps
from holdfast.spark.checkpoint_setup import CheckpointSetup, Inbox, LoopControl
from holdfast.spark.manifests import (
    NOTED_GAPS,
    CheckpointFacts,
    StreamFacts,
    gap_notes,
    manifest_of,
    stage_states,
    stream_cut,
)
from holdfast.spark.pins import Pin, SparkCut

_log = logging.getLogger(__name__)
CANCELLED = "it was cancelled"


@dataclass(frozen=True, slots=True)
class Restorable:
    """The outcome of an attempt that succeeded."""

    manifest: Manifest
    digest: str


@dataclass(slots=True)
class _Steps:
    """When each stream reached each step, in seconds since the attempt began."""

    began: float = field(default_factory=time.monotonic)
    reached: dict[str, dict[str, float]] = field(default_factory=dict)  # by stream, by step

    def note(self, stream: str, step: str) -> None:
        self.reached.setdefault(stream, {}).setdefault(step, self.now())

    def now(self) -> float:
        return round(time.monotonic() - self.began, 6)

    def times(self, kept: Mapping[str, SparkCut]) -> CheckpointTimes:
        streams = {
            name: StreamTimes(
                barrier=steps.get("barrier", 0.0),
                acknowledged=steps.get("acknowledged", 0.0),
                linked=steps.get("linked", 0.0),
                held=steps.get("held", 0.0),
                new_files=kept[name].new_files if name in kept else 0,
                new_bytes=kept[name].new_bytes if name in kept else 0,
            )
            for name, steps in self.reached.items()
        }
        return CheckpointTimes(seconds=self.now(), streams=streams)


class RunningAttempt:
    """One attempt, from its claimed id to its outcome."""

    def __init__(
        self,
        setup: CheckpointSetup,
        request: CheckpointRequest,
        number: int,
        *,
        parent: str | None,
        inbox: Inbox,
        loop: LoopControl,
    ) -> None:
        self.request = request
        self.cancelled = threading.Event()
        self.outcome: Future[Restorable | CheckpointFailed] = Future()  # cancelled if a crash leaves none
        self.protocol = CheckpointAttempt(
            number, request.flags, setup.topology, setup.run.clock(), setup.policy.timeout_s
        )
        self._setup = setup
        self._parent = parent
        self._inbox = inbox
        self._loop = loop
        self._place = setup.checkpoints.place(setup.timeline, number, request.savepoint)
        self._pinned: dict[str, Pin] = {}
        self._kept: dict[str, SparkCut] = {}
        self._look_at: dict[str, float] = {}  # by stream: when to look for Spark's commit again
        self._began_ms = int(time.time() * 1000)
        self._steps = _Steps()

    @property
    def number(self) -> int:
        """The id of the checkpoint."""
        return self.protocol.checkpoint

    def release(self) -> None:
        """Remove the links to Spark's files."""
        for each in self._pinned.values():
            each.release()

    def advance(self) -> Restorable | CheckpointFailed | None:
        """Advance as far as possible now; return the outcome, or `None` while there is none.

        1. Send the barrier to the streams that are ready for it, and acknowledge for idle ones.  2. Take
        acknowledgements.  3. Link the files of committed epochs, and keep some.  4. When all are kept, write the
        manifest.  5. Abort on a cancellation, a failed stream or a timeout.
        """
        try:
            self._send()  # 1
            self._take_acknowledgements()  # 2
            self._pin_committed()  # 3
            self._keep_part()
            if self.protocol.phase is Phase.HELD:
                self._setup.run.reach("all held")
                return self._write()  # 4
            why = self._reason_to_abort()  # 5
        except Fenced:
            raise
        except Exception as error:  # of the storage or of a user's sink: the streams continue
            _log.debug("checkpoint %d", self.number, exc_info=True)
            why = one_line(error)
        return None if why is None else self.abort(why)

    def abort(self, why: str) -> CheckpointFailed:
        """Abort the attempt; return the error that reports it."""
        late = () if self._loop.is_ending else self.protocol.late  # a stream that has ended cannot be late
        self.release()
        for stream in self.protocol.abort(why):
            self._setup.streams[stream].injector.trigger(self.number, BarrierFlags.CANCEL)
        checkpoints, lease = self._setup.checkpoints, self._setup.run.lease
        try:
            lease.check()
            with self._setup.flush():
                if self.request.savepoint is not None:  # first: on a full disk this frees space for the record
                    checkpoints.drop_unfinished(self.request.savepoint, self.number)
                checkpoints.abort(self._setup.timeline, self.number, lease.number, why, late)
        except Fenced:
            raise
        except HoldfastError as trouble:  # the next driver aborts it
            _log.warning("checkpoint %d could not be recorded as aborted: %s", self.number, trouble.summary)
        self._setup.run.reach("checkpoint aborted")
        return CheckpointFailed(checkpoint=self.number, why=why, late=late)

    # --- barriers and acknowledgements ---

    def _send(self) -> None:
        streams = self._setup.streams
        for stream in self.protocol.due():
            streams[stream].injector.trigger(self.number, self.protocol.flags)
            self.protocol.trigger(stream)
            self._steps.note(stream, "barrier")
            self._setup.run.reach("barrier sent")
        for stream in self.protocol.awaited:
            streams[stream].acknowledge_idle()

    def _take_acknowledgements(self) -> None:
        reach = self._setup.run.reach
        with contextlib.suppress(queue.Empty):
            while True:
                checkpoint, state = self._inbox.get_nowait()
                if isinstance(state, Exception):
                    if checkpoint == self.number:
                        raise state
                elif self.protocol.acknowledge(checkpoint, state):
                    self._steps.note(state.stream, "acknowledged")
                    self._loop.wake.set()  # other streams may be ready for the barrier now
                    reach("acknowledged")
                    if self.protocol.phase is Phase.ALIGNED:
                        reach("aligned")

    # --- files ---

    def _pin_committed(self) -> None:
        """Link the files of each stream whose epoch Spark has committed: it may delete them while others are read."""
        copy = bool(self.protocol.flags & BarrierFlags.FULL_SNAPSHOT)
        for name in self.protocol.to_hold:
            epoch = self.protocol.positions[name].epoch
            stream = self._setup.streams[name]
            if not epoch:
                self._note_held(name)  # it has no files
            elif name not in self._pinned and self._is_time_to_look(name) and stream.is_committed(epoch):
                self._pinned[name] = stream.snapshots.pin(epoch - 1, self._place, copy=copy)
                self._steps.note(name, "linked")

    def _is_time_to_look(self, stream: str) -> bool:
        """Whether to look for Spark's commit now. On an object store each look is a request."""
        now = time.monotonic()
        if not self._loop.is_ending and now < self._look_at.get(stream, now):
            return False
        self._look_at[stream] = now + self._setup.streams[stream].commit_poll_s
        return True

    def _keep_part(self) -> None:
        """Keep some files of one stream: not all, so that no barrier waits long."""
        for name in self.protocol.to_hold:
            if name in self._pinned:
                with self._setup.flush():
                    kept = self._setup.streams[name].snapshots.keep(self._pinned[name])
                if kept is not None:
                    self._pinned[name].release()
                    self._kept[name] = kept
                    self._note_held(name)
                self._loop.wake.set()
                return

    def _note_held(self, stream: str) -> None:
        self.protocol.hold(stream)
        self._steps.note(stream, "held")
        self._setup.run.reach("files held")
        self._loop.wake.set()

    # --- reasons to abort ---

    def _reason_to_abort(self) -> str | None:
        if self.cancelled.is_set():
            return CANCELLED
        failed = [name for name, stream in self._setup.streams.items() if stream.failed is not None]
        if failed:
            return f"stream {', '.join(failed)} failed"
        if self._loop.is_ending and (stuck := self._endless_wait()):
            return stuck
        return None if self._all_pinned else self.protocol.overdue(self._setup.run.clock())

    def _endless_wait(self) -> str | None:
        """Return an event that cannot happen once every stream has ended: a stop must not wait for it."""
        streams, positions = self._setup.streams, self.protocol.positions
        for name in self.protocol.awaited:
            if not streams[name].can_acknowledge:
                return f"stream {name} ended with an epoch that is not in every sink"
        for name in self.protocol.to_hold:
            if name not in self._pinned and not streams[name].is_committed(positions[name].epoch):
                return f"the query of stream {name} ended before Spark committed epoch {positions[name].epoch}"
        return None

    @property
    def _all_pinned(self) -> bool:
        """Whether the attempt waits for no stream: the remaining work is to read the linked files."""
        return self.protocol.phase is Phase.ALIGNED and self._pinned.keys() >= set(self.protocol.to_hold)

    # --- the manifest ---

    def _write(self) -> Restorable:
        """Write file lists, sidecar and manifest: the checkpoint is restorable from then on."""
        setup = self._setup
        setup.run.lease.check()
        with setup.flush():
            lineage = setup.run.lineage
            cuts = {name: stream_cut(lineage.timeline_of(name), self._stream_facts(name)) for name in setup.streams}
            states = pack_states(stage_states(self.protocol.positions.values()))
            manifest = manifest_of(self._facts(), cuts, states, self._gaps(cuts))
            digest = setup.checkpoints.put(manifest, states.sidecar)
        self.protocol.write()
        setup.run.reach("manifest written")
        return Restorable(manifest, digest)

    def _stream_facts(self, name: str) -> StreamFacts:
        stream, kept = self._setup.streams[name], self._kept.get(name)
        return StreamFacts(
            position=self.protocol.positions[name],
            output_mode=stream.spec.output_mode,
            reads=self._setup.topology.reads[name],
            sources=stream.sources,
            kept=kept,
            file_list=kept.stored(self._setup.checkpoints, self._place) if kept else None,
        )

    def _facts(self) -> CheckpointFacts:
        run = self._setup.run
        return CheckpointFacts(
            checkpoint=self.number,
            began_ms=self._began_ms,
            barriers=max(stream.injector.epoch for stream in self._setup.streams.values()),
            program=self._setup.program,
            identity=run.identity,
            timeline=self._setup.timeline,
            lease=run.lease.number,
            savepoint=self.request.savepoint,
            parent=self._parent,
            request=self.request.request,
            times=self._steps.times(self._kept),
        )

    def _gaps(self, cuts: Mapping[str, StreamCut]) -> GapNotes:
        """Read the gaps of all streams up to the cut."""
        ledger, total = Gaps(self._setup.run.repository), 0
        found: list[GapRecord] = []
        for name, cut in cuts.items():
            count, records = ledger.newest(name, self._setup.run.lineage, cut.epoch, NOTED_GAPS)
            if len(records) < min(count, NOTED_GAPS):
                _log.warning("stream %s: a gap record cannot be read. Next: list them: holdfast gaps", name)
            total, found = total + count, found + records
        return gap_notes(total, found)

"""Checkpoints of a running pipeline: one thread sends barriers, takes acknowledgements, keeps files, writes manifests.

Rules:
- No stream waits for this thread. A busy one acknowledges at the end of its epoch, inside its own callback; for one
  that is between two epochs, or has ended, it is done here, under the stream's mutex.
- A stream's files are linked as soon as it has acknowledged and Spark has committed the epoch, aligned or not. Then
  they are read and kept, a part at a time. The timeout is for what is waited for: reading goes on to its end.
- Whatever fails gives the attempt up: its id is burnt, nothing else changes. Only what kills a process kills this.
- Nothing is deleted while a checkpoint is being taken, because both are done here, one after the other.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from holdfast._error_text import one_line
from holdfast.barriers import BarrierFlags
from holdfast.control import FOLDER as REQUESTS
from holdfast.control import answer_requests, is_asked
from holdfast.coordinator import CheckpointAttempt, Phase, Schedule, StreamPosition, Topology, Wanted
from holdfast.errors import (
    AlreadyExists,
    CheckpointFailed,
    CheckpointMissing,
    CheckpointsFailed,
    Closed,
    Corrupt,
    Fenced,
    HoldfastError,
    NotSupported,
)
from holdfast.formats.manifest import ConnectorCheckpoint, GapNote, GapNotes, Manifest, SinkStatus, StreamCut
from holdfast.formats.sealed_json import digest_of
from holdfast.formats.sidecar import pack_states
from holdfast.policy import CheckpointPolicy, Progress
from holdfast.pruning import apply_prune, plan_prune
from holdfast.repository import CheckpointPlace, Checkpoints, GapRecord, Gaps, place_of
from holdfast.spark.pins import Pinned, SparkCut
from holdfast.spark.stream import RunContext, StreamRun
from holdfast.stages import FlushObserver, flushing

Inbox: TypeAlias = queue.SimpleQueue[tuple[int, StreamPosition | Exception]]
"""Acknowledgements on their way from the streams: of which checkpoint, and the position, or why there is none."""
STAGE = "stage"  # after the name of its stream: the name of a stage's state in a manifest
_log = logging.getLogger(__name__)
_ALIGNING_S = 0.005  # between two looks while one is taken
_RESTING_S = 0.05  # between two looks while none is
_PRUNE_S = 10.0  # at least between two clean-ups after a checkpoint
_ASKED_S = 1.0  # between two looks at what other processes ask for
_FORGET_S = 3600.0  # between two looks at answers that may be old
NOTED_GAPS = 20  # of all streams, that a manifest lists; the others are only counted
_NOTED_FACTS = 2000  # characters of one gap's facts; longer ones are in the ledger alone
_UNDER_WAY_S = 10.0  # for a checkpoint that is under way when the streams have ended, and that nobody waits for


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """How checkpoints are doing."""

    last: int | None = None  # the newest restorable one
    last_at_ms: int | None = None  # when it was taken
    taken: int = 0  # in this run
    failed: int = 0  # in this run
    under_way: int | None = None  # the id of the one that is being taken
    last_error: str | None = None  # why the last one that failed was given up


@dataclass(slots=True)
class _Attempt:
    """The attempt that is under way: its cut, where it is kept, what was kept so far, and who waits for it."""

    cut: CheckpointAttempt
    wanted: Wanted
    place: CheckpointPlace
    pinned: dict[str, Pinned] = field(default_factory=dict)
    kept: dict[str, SparkCut] = field(default_factory=dict)
    began_ms: int = 0

    @property
    def all_pinned(self) -> bool:
        """Whether nothing is waited for any more: what is left is to read what was linked."""
        return self.cut.phase is Phase.ALIGNED and self.pinned.keys() >= set(self.cut.to_hold)

    def release(self) -> None:
        """Remove the links."""
        for each in self.pinned.values():
            each.release()


class Checkpointing:
    """Takes the checkpoints of one run."""

    def __init__(
        self,
        run: RunContext,
        streams: Sequence[StreamRun],
        topology: Topology,
        policy: CheckpointPolicy,
        *,
        inbox: Inbox,
        program: int,
        observers: Sequence[FlushObserver] = (),
    ) -> None:
        self.error: BaseException | None = None
        self.intolerable: Callable[[BaseException], object] = lambda _: None  # called when the pipeline must end
        self._run = run
        self._streams = {stream.name: stream for stream in streams}
        self._topology = topology
        self._policy = policy
        self._program = program
        self._observers = tuple(observers)
        self._checkpoints = Checkpoints(run.repository)
        self._timeline = run.identity.timeline
        self._schedule = Schedule(policy)
        self._inbox = inbox
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._cancelled = threading.Event()
        self._asked = threading.Lock()
        self._tickets: list[Future[Manifest]] = []
        self._tried_last = False  # whether the checkpoint of a graceful stop was tried
        self._last_wish: Wanted | None = None  # to be taken when every stream has ended
        self._closed = False  # nobody will look at a ticket any more
        self._attempt: _Attempt | None = None
        self._parent: str | None = None
        self._last: Manifest | None = None
        self._taken = self._failed = 0
        self._dirty = False  # there is more than when it was last cleaned up
        self._blocked: str | None = None  # why the last clean-up collected nothing
        self._last_error: str | None = None
        self._end_by: float | None = None
        self._pruned_at = self._looked_at = self._heeded_at = float("-inf")
        self._thread = threading.Thread(target=self._live, name="holdfast-checkpoints", daemon=True)

    # --- the outside ---

    def prepare(self) -> None:
        """Find out what there is. What a driver before this one left open is given up."""
        left = self._checkpoints.close_open(self._timeline, self._run.lease.number)
        for each in left:
            _log.warning("checkpoint %d was begun by a driver that has ended; it was given up", each)
        for stream in self._streams.values():
            stream.snapshots.release_all()
        self._find_last()
        self._note_oldest()
        self._schedule.begin_with(self._progress())

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def ask(self, wanted: Wanted) -> Future[Manifest]:
        """Let a checkpoint be taken as soon as possible; the future gives its manifest, or `CheckpointFailed`."""
        with self._asking(wanted) as ticket:
            self._schedule.ask(Wanted(wanted.flags, wanted.savepoint, ticket))
        self._wake.set()
        return ticket

    def ask_at_end(self, wanted: Wanted) -> Future[Manifest]:
        """Let a checkpoint be taken when every stream has ended, as the last thing of all."""
        with self._asking(wanted) as ticket:
            if self._last_wish is not None:
                raise AlreadyExists(what="a last checkpoint that was asked for", do="wait for the drain under way")
            self._last_wish = Wanted(wanted.flags, wanted.savepoint, ticket)
        return ticket

    @contextlib.contextmanager
    def _asking(self, wanted: Wanted) -> Iterator[Future[Manifest]]:
        """Refuse what can never be given; else give a ticket that will be answered, whatever happens."""
        self.require_outside()
        if wanted.savepoint is not None:
            self._checkpoints.require_free(wanted.savepoint)
        ticket: Future[Manifest] = Future()
        with self._asked:
            if self._closed:
                raise self._over()
            yield ticket
            self._tickets.append(ticket)

    def _over(self) -> Closed:
        return Closed(what=f"pipeline {self._run.identity.pipeline!r}", do="start it again: it has ended")

    @property
    def is_inside(self) -> bool:
        """Whether the caller is in the thread that takes checkpoints, as a callback is."""
        return self._thread is threading.current_thread()

    def require_outside(self) -> None:
        """Refuse to wait for a checkpoint where the waiting itself would keep it from being taken."""
        if self.is_inside or any(each.is_inside for each in self._streams.values()):
            why = "it waits for the very thread that asks for it"
            do = "ask from a thread of your own: callbacks run in threads of the stream or of the checkpoints"
            raise NotSupported(what="waiting for a checkpoint inside a callback", why=why, do=do)

    def cancel(self) -> None:
        """Give up the checkpoint that is under way, if there is one."""
        if self._attempt is not None:
            self._cancelled.set()
            self._wake.set()

    def finish(self) -> None:
        """Complete the checkpoint that is under way and take a last one, now that every stream has ended."""
        if self._end_by is None:
            waits = bool(self._tickets) or self._is_on
            self._end_by = time.monotonic() + _UNDER_WAY_S + (self._policy.timeout_s if waits else 0.0)
        self._ending.set()
        self._wake.set()
        self._thread.join()

    def cut_off(self) -> None:
        """End at once: as safe as a kill."""
        self._end_by = 0.0
        self._ending.set()
        self._wake.set()

    def status(self) -> CheckpointStatus:
        """Tell how checkpoints are doing."""
        attempt, last = self._attempt, self._last
        return CheckpointStatus(
            last=last.checkpoint_id if last else None,
            last_at_ms=last.timestamp_ms if last else None,
            taken=self._taken,
            failed=self._failed,
            under_way=attempt.cut.checkpoint if attempt else None,
            last_error=self._last_error,
        )

    # --- the thread ---

    def _live(self) -> None:
        try:
            while self._turn():
                self._wake.wait(_ALIGNING_S if self._attempt else _RESTING_S)
                self._wake.clear()
        except Fenced as fenced:
            _log.warning("no more checkpoints: %s", fenced.summary)  # the streams find out by themselves
        except BaseException as error:
            self.error = error
            self.intolerable(error)
        finally:
            if self._attempt is not None:
                self._attempt.release()
            with self._asked:
                self._closed = True
                left = [ticket for ticket in self._tickets if not ticket.done()]
            for ticket in left:
                ticket.set_exception(self._over())

    def _turn(self) -> bool:
        """Do what can be done now; return whether there will be more."""
        if self._time_is_up:
            if self._attempt is not None:
                self._give_up(self._attempt, "the pipeline was ended")
            return False
        if self._attempt is not None:
            self._advance(self._attempt)
            return True
        self._take_care()  # before the next one, which may be due at once, again and again
        wanted = self._schedule.next(self._progress()) or self._the_last_one()
        if wanted is not None and (wanted.ticket is not None or self._is_news()):
            self._begin(wanted)  # else it would be the last one once more, and push an older one out
            return True
        return not self._ending.is_set()

    @property
    def _time_is_up(self) -> bool:
        return self._ending.is_set() and time.monotonic() > (self._end_by or 0)

    @property
    def _ends_anyway(self) -> bool:
        """Whether a checkpoint that fails now is not to blame for the end: a stream has given up, or was stopped."""
        return self._time_is_up or any(stream.failed is not None for stream in self._streams.values())

    def _take_care(self) -> None:
        """Between two checkpoints: clean up by the retention, and do what other processes ask for."""
        now = self._run.clock()
        try:
            if self._dirty and (now - self._pruned_at >= _PRUNE_S or self._ending.is_set()):
                self._pruned_at, self._dirty = now, False
                self._prune()
            if now - self._looked_at >= _ASKED_S:
                self._looked_at = now
                self._heed_requests(now)
        except Fenced:
            raise
        except Exception as error:  # what could not be removed is found again
            _log.warning("pipeline %s: could not clean up: %s", self._run.identity.pipeline, one_line(error))

    def _heed_requests(self, now: float) -> None:
        """Do what other processes ask for; let old answers go, now and then."""
        names = self._run.repository.list(REQUESTS)
        if not is_asked(names) and (not names or now - self._heeded_at < _FORGET_S):
            return
        self._heeded_at = now
        with self._durably():
            answered = answer_requests(self._run.repository, self._run.lease, reach=self._run.reach)
        if answered:
            self._note_oldest()

    def _prune(self) -> None:
        dropped = False
        if self._policy.retention is not None:
            found = plan_prune(self._run.repository, self._policy.retention)
            self._tell_blocked(found.blocked)
            spared = {key for stream in self._streams.values() for key in stream.snapshots.kept}
            plan = replace(found, garbage=tuple(key for key in found.garbage if key not in spared))
            dropped = bool(plan.drops)
            if not plan.empty:
                with self._durably():
                    apply_prune(self._run.repository, plan, self._run.lease, why=None, reach=self._run.reach)
        if dropped or any(stream.oldest_kept is None for stream in self._streams.values()):
            self._note_oldest()

    def _tell_blocked(self, why: str | None) -> None:
        """Say once what holds up the clean-up: until it is mended the repository grows."""
        if why is not None and why != self._blocked:
            do = "restore its files from a copy (holdfast verify --all), or give it up: delete its manifest.json"
            _log.warning("pipeline %s: no objects are collected: %s. Next: %s", self._run.identity.pipeline, why, do)
        self._blocked = why

    def _note_oldest(self) -> None:
        """Tell each stream which is the first epoch that a checkpoint needs: decisions from there on are kept."""
        kept = self._checkpoints.restorable(self._timeline)
        for name, stream in self._streams.items():
            stream.oldest_kept = min((each.epochs.get(name, 0) for each in kept if each.epochs), default=None)

    def _the_last_one(self) -> Wanted | None:
        """Return the checkpoint to take when every stream has ended: the one a drain asked for, or one per stop."""
        if not self._ending.is_set():
            return None
        tried, self._tried_last = self._tried_last, True
        if self._last_wish is not None:
            wish, self._last_wish = self._last_wish, None
            return wish
        failed = any(stream.failed for stream in self._streams.values())
        return Wanted() if self._is_on and not tried and not failed else None

    @property
    def _is_on(self) -> bool:
        """Whether checkpoints are taken without being asked for."""
        return self._policy.marks() is not None

    def _is_news(self) -> bool:
        """Whether any stream has gone on since the last checkpoint."""
        last = self._last.streams if self._last else {}
        there = {name: last[name].epoch if name in last else 0 for name in self._streams}
        return {name: stream.progress[1] for name, stream in self._streams.items()} != there

    def _begin(self, wanted: Wanted) -> None:
        try:
            self._run.lease.check()
            if wanted.savepoint is not None:
                self._checkpoints.require_free(wanted.savepoint)  # another may have been given the name meanwhile
            with self._durably():
                number = self._checkpoints.claim(self._timeline, self._run.lease.number, int(wanted.flags))
        except Fenced:
            raise
        except Exception as error:  # a name that is taken, or the storage's: the streams go on
            self._failed_with(wanted, CheckpointFailed(checkpoint=0, why=one_line(error)))
            return
        cut = CheckpointAttempt(number, wanted.flags, self._topology, self._run.clock(), self._policy.timeout_s)
        place = place_of(self._timeline, number, wanted.savepoint)
        self._attempt = _Attempt(cut, wanted, place, began_ms=int(time.time() * 1000))
        self._cancelled.clear()
        self._run.reach("checkpoint claimed")
        self._advance(self._attempt)

    def _advance(self, attempt: _Attempt) -> None:
        """Bring an attempt on, as far as it goes now.

        1. Send the barrier to whoever is due, and acknowledge for those that are idle.  2. Take acknowledgements.
        3. Link the files that Spark has committed, keep some.  4. When all are kept, write.  5. Give up what is
        cancelled, failed or overdue.
        """
        cut = attempt.cut
        try:
            self._send(cut)  # 1
            self._take_acknowledgements(cut)  # 2
            self._pin_committed(attempt)  # 3
            self._keep_part(attempt)
            if cut.phase is Phase.HELD:
                self._run.reach("all held")
                self._write(attempt)  # 4
                return
            why = self._spoiled(attempt)  # 5
        except Fenced:
            raise
        except Exception as error:  # the storage's, or a sink's of the user's: the streams go on
            _log.debug("checkpoint %d", cut.checkpoint, exc_info=True)
            why = one_line(error)
        if why is not None:
            self._give_up(attempt, why)

    def _send(self, cut: CheckpointAttempt) -> None:
        for stream in cut.due():
            self._streams[stream].injector.trigger(cut.checkpoint, cut.flags)
            cut.trigger(stream)
            self._run.reach("barrier sent")
        for stream in cut.awaited:
            self._streams[stream].acknowledge_idle()

    def _take_acknowledgements(self, cut: CheckpointAttempt) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                checkpoint, state = self._inbox.get_nowait()
                if isinstance(state, Exception):
                    if checkpoint == cut.checkpoint:
                        raise state
                elif cut.acknowledge(checkpoint, state):
                    self._wake.set()  # others may be due now
                    self._run.reach("acknowledged")
                    if cut.phase is Phase.ALIGNED:
                        self._run.reach("aligned")

    def _pin_committed(self, attempt: _Attempt) -> None:
        """Link the files of each stream whose epoch Spark has committed: it may forget them while others are read."""
        cut = attempt.cut
        for stream in cut.to_hold:
            epoch = cut.positions[stream].epoch
            if not epoch:
                self._held(attempt, stream)  # it has none
            elif stream not in attempt.pinned and self._streams[stream].is_committed(epoch):
                snapshots = self._streams[stream].snapshots
                attempt.pinned[stream] = snapshots.pin(epoch - 1, attempt.place, copy=_is_full(cut))

    def _keep_part(self, attempt: _Attempt) -> None:
        """Keep some files of one stream: not all, so that nobody's barrier waits long."""
        for stream in attempt.cut.to_hold:
            if stream in attempt.pinned:
                with self._durably():
                    kept = self._streams[stream].snapshots.keep(attempt.pinned[stream])
                if kept is not None:
                    attempt.pinned[stream].release()
                    attempt.kept[stream] = kept
                    self._held(attempt, stream)
                self._wake.set()
                return

    def _held(self, attempt: _Attempt, stream: str) -> None:
        attempt.cut.hold(stream)
        self._run.reach("files held")
        self._wake.set()

    def _spoiled(self, attempt: _Attempt) -> str | None:
        if self._cancelled.is_set():
            return "it was cancelled"
        failed = [name for name, stream in self._streams.items() if stream.failed is not None]
        if failed:
            return f"stream {', '.join(failed)} failed"
        if self._ending.is_set() and (stuck := self._stuck(attempt)):
            return stuck
        return None if attempt.all_pinned else attempt.cut.overdue(self._run.clock())

    def _stuck(self, attempt: _Attempt) -> str | None:
        """Return what the attempt would wait for forever, now that every stream has ended: a stop must not hang."""
        cut = attempt.cut
        for name in cut.awaited:
            if not self._streams[name].can_acknowledge:
                return f"stream {name} ended with an epoch that is not in every sink"
        for name in cut.to_hold:
            if name not in attempt.pinned and not self._streams[name].is_committed(cut.positions[name].epoch):
                return f"the query of stream {name} ended before Spark committed epoch {cut.positions[name].epoch}"
        return None

    def _give_up(self, attempt: _Attempt, why: str) -> None:
        cut = attempt.cut
        late = () if self._ending.is_set() else cut.late  # a stream that has ended cannot be late
        attempt.release()
        for stream in cut.give_up(why):
            self._streams[stream].injector.trigger(cut.checkpoint, BarrierFlags.CANCEL)
        error = CheckpointFailed(checkpoint=cut.checkpoint, why=why, late=late)
        try:
            self._run.lease.check()
            with self._durably():
                if attempt.wanted.savepoint is not None:  # first: on a full disk this makes room for the record
                    self._checkpoints.drop_unfinished(attempt.wanted.savepoint)
                self._checkpoints.abort(self._timeline, cut.checkpoint, self._run.lease.number, why, late)
        except Fenced:
            raise
        except HoldfastError as trouble:  # the next driver gives it up
            _log.warning("checkpoint %d could not be marked as given up: %s", cut.checkpoint, trouble.summary)
        self._run.reach("checkpoint aborted")
        self._attempt, self._dirty = None, True
        self._failed_with(attempt.wanted, error)

    def _failed_with(self, wanted: Wanted, error: CheckpointFailed) -> None:
        self._failed += 1
        self._last_error = error.summary
        _log.warning("%s", error)
        stopped = self._ending.is_set() and not self._run.available_now
        self._tried_last = self._tried_last or self._ending.is_set()  # nothing has changed: another would fail too
        waits = any(stream.waits for stream in self._streams.values())  # an outage is not a failure
        counts = not (self._ends_anyway or self._cancelled.is_set() or stopped or waits)
        tolerable = self._schedule.ended(self._progress(), restorable=False, counts=counts)
        self._answer(wanted, error)
        self._tell(self._run.callbacks.on_checkpoint_failed, error)
        if not tolerable:
            name, many = self._run.identity.pipeline, self._schedule.failures
            self.error = CheckpointsFailed(pipeline=name, failures=many, why=error.why)
            self.intolerable(self.error)

    def _succeeded_with(self, wanted: Wanted, manifest: Manifest) -> None:
        self._taken += 1
        _log.info("checkpoint %d is restorable: %s", manifest.checkpoint_id, _words(manifest))
        self._schedule.ended(self._progress(), restorable=True)
        self._answer(wanted, manifest)
        self._tell(self._run.callbacks.on_checkpoint, manifest)

    def _answer(self, wanted: Wanted, outcome: Manifest | CheckpointFailed) -> None:
        ticket: Future[Manifest] | None = wanted.ticket
        if ticket is None:
            return
        with self._asked:
            self._tickets.remove(ticket)
        if isinstance(outcome, Manifest):
            ticket.set_result(outcome)
        else:
            ticket.set_exception(outcome)

    def _tell(self, callback: Callable[[str, Any], object], fact: Manifest | CheckpointFailed) -> None:
        try:
            callback(self._run.identity.pipeline, fact)
        except Exception:
            _log.exception("a callback of pipeline %s failed; it goes on", self._run.identity.pipeline)

    # --- the manifest ---

    def _write(self, attempt: _Attempt) -> None:
        """Write file lists, sidecar and manifest: with that it is restorable."""
        self._run.lease.check()
        with self._durably():
            cuts = {name: self._stream_cut(name, attempt) for name in self._streams}
            states = {
                f"{name}/{STAGE}": position.stage
                for name, position in attempt.cut.positions.items()
                if position.stage is not None
            }
            packed = pack_states(states)
            manifest = self._manifest(attempt, cuts, packed.entries, packed.checksum)
            digest = self._checkpoints.put(manifest, packed.sidecar)
        attempt.cut.write()
        self._run.reach("manifest written")
        if manifest.savepoint is None:
            self._parent, self._last, self._dirty = digest, manifest, True
        self._attempt = None
        self._succeeded_with(attempt.wanted, manifest)

    def _manifest(
        self, attempt: _Attempt, cuts: Mapping[str, StreamCut], states: Mapping[str, Any], checksum: str | None
    ) -> Manifest:
        sources = {
            f"{name}/{number}": ConnectorCheckpoint({"offset": offset}, cut.epoch)
            for name, cut in cuts.items()
            for number, offset in enumerate(cut.offsets)
            if offset is not None
        }
        sinks = {f"{name}/{sink}": int(note["epoch"]) for name, cut in cuts.items() for sink, note in cut.sinks.items()}
        return Manifest(
            checkpoint_id=attempt.cut.checkpoint,
            epoch=max(stream.injector.epoch for stream in self._streams.values()),
            timestamp_ms=attempt.began_ms,
            source_offsets=sources,
            sink_epochs=sinks,
            sink_commit_statuses=dict.fromkeys(sinks, SinkStatus.committed()),
            operator_states=states,
            state_checksum=checksum,
            watermark=min((cut.watermark_ms for cut in cuts.values() if cut.watermark_ms), default=None),
            source_names=tuple(sources),
            sink_names=tuple(sinks),
            pipeline_hash=self._program,
            pipeline=self._run.identity.pipeline,
            uid=self._run.identity.uid,
            timeline=self._timeline,
            lease=self._run.lease.number,
            savepoint=attempt.wanted.savepoint,
            parent=self._parent,
            streams=cuts,
            gaps=self._gap_notes(cuts),
        )

    def _gap_notes(self, cuts: Mapping[str, StreamCut]) -> GapNotes:
        """Return the gaps of all streams up to the cut: all of them counted, the newest in full."""
        ledger, total = Gaps(self._run.repository), 0
        found: list[GapRecord] = []
        for name, cut in cuts.items():
            count, records = ledger.newest(name, cut.timeline, cut.epoch, NOTED_GAPS)
            if len(records) < min(count, NOTED_GAPS):
                _log.warning("stream %s: a gap record cannot be read. Next: list them: holdfast gaps", name)
            total, found = total + count, found + records
        newest = sorted(found, key=lambda each: each.at_ms)[-NOTED_GAPS:]
        return GapNotes(total=total, newest=tuple(_noted(each) for each in newest))

    def _stream_cut(self, name: str, attempt: _Attempt) -> StreamCut:
        position, kept = attempt.cut.positions[name], attempt.kept.get(name)
        spec = self._streams[name].spec
        digest = self._checkpoints.put_files(attempt.place, kept.files)[0] if kept else None
        return StreamCut(
            timeline=self._timeline,
            epoch=position.epoch,
            offsets=position.offsets,
            watermark_ms=position.watermark_ms,
            rows=position.rows,
            output_mode=spec.output_mode,
            reads=self._topology.reads[name],
            sources=self._streams[name].sources,
            state_format=kept.state_format if kept else None,
            confs=kept.confs if kept else {},
            sinks=position.sinks,
            files=digest,
            file_count=len(kept.files) if kept else 0,
            file_bytes=sum(each.size for each in kept.files) if kept else 0,
        )

    # --- what there is ---

    def _find_last(self) -> None:
        try:
            self._last = self._checkpoints.latest(self._timeline)
            self._parent = digest_of(
                self._run.repository.read(place_of(self._timeline, self._last.checkpoint_id).manifest)
            )
        except CheckpointMissing:
            pass
        except Corrupt as error:
            _log.warning("the newest checkpoint cannot be the parent of the next: %s", error.summary)

    def _progress(self) -> Progress:
        rows, epochs = zip(*(stream.progress for stream in self._streams.values()), strict=True)
        return Progress(sequence=sum(rows), epoch=sum(epochs), now=self._run.clock())

    @contextlib.contextmanager
    def _durably(self) -> Iterator[None]:
        with flushing(self._observers, self._run.lease.number):
            yield


def _is_full(cut: CheckpointAttempt) -> bool:
    return bool(cut.flags & BarrierFlags.FULL_SNAPSHOT)


def _noted(gap: GapRecord) -> GapNote:
    facts = gap.facts if len(json.dumps(gap.facts)) <= _NOTED_FACTS else {}
    return GapNote(
        stream=gap.stream,
        timeline=gap.timeline,
        epoch=gap.epoch,
        kind=gap.kind,
        why=gap.why,
        at_ms=gap.at_ms,
        facts=facts,
    )


def _words(manifest: Manifest) -> str:
    return ", ".join(f"{name} at epoch {cut.epoch}" for name, cut in manifest.streams.items())

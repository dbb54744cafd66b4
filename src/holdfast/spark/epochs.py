"""The epoch protocol at work: what happens inside `foreachBatch`, from Spark's offsets to the last sink's commit.

Rules:
- One durable decision an epoch. Before it, nothing is visible and everything can be dropped; after it, only forward.
- An attempt number is used once. After a restart or a failed try, the slot that may have been used is closed first.
- Nothing is cleaned up on the way out of a failure: it could not be on a kill either. The next try does that.
- What a decided epoch gave its sinks is never computed again: a replay commits the handles of the decision.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast._error_text import one_line
from holdfast._offsets import differences
from holdfast.barriers import BarrierHandle, BarrierInjector
from holdfast.coordinator import StreamPosition
from holdfast.epoch import Attempt, Decision, EpochProgress, Facts, Move, Reach, Share, State, Verdict, unwatched
from holdfast.errors import (
    BadValue,
    Fenced,
    OffsetsDiverged,
    OffsetsGap,
    ReplayDiverged,
    SinkFailed,
    Storage,
    StorageFailed,
)
from holdfast.repository import Decisions, GapRecord, Gaps, Lease
from holdfast.repository.gaps import OFFSETS, QUARANTINED, REPLAY
from holdfast.sinks.base import EpochKey, Sink, Staged, StreamIdentity, checked_staged, handle_digest
from holdfast.sinks.rows import RowDigest, is_comparable
from holdfast.spark import adapter
from holdfast.spark.delivery import commit_to_sinks
from holdfast.spark.sparklog import Offsets, SparkLog, last_entries
from holdfast.spark.stages import Sealed, StageKeeper, refuse_lost_stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PRUNE_EVERY = 50
_DROPPED_AGAIN = 50  # aborted attempts at an epoch whose leftovers are looked for at each start
OnEpoch = Callable[["DataFrame", Any], "DataFrame"]
"""Makes of an epoch's rows, and of the `StageView` of its stage, what the sinks get."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class EpochBase:
    """What the last decided epoch left for the next one to start from."""

    epoch: int = 0
    ends: Sequence[str | None] = ()
    source_log: dict[str, int] = field(default_factory=dict)
    stands: dict[str, int] = field(default_factory=dict)
    handles: dict[str, str | None] = field(default_factory=dict)  # by sink: digest of the handle of that epoch
    watermark_ms: int = 0
    rows: int = 0  # given to each sink since the first epoch
    stage: Sealed | None = None
    quarantined: bool = False  # it was passed over


_PHASES = {
    Move.OPEN: "open",
    Move.FIND: "open",
    Move.PREPARE: "prepare",
    Move.PREPARE_LAST: "prepare",
    Move.HARDEN: "harden",
    Move.DECIDE: "decide",
    Move.COMMIT: "commit",
    Move.COMMIT_LAST: "commit",
}


@dataclass(frozen=True, slots=True)
class EpochTimes:
    """How long an epoch took, from Spark's call to the last sink's commit."""

    epoch: int  # which one
    rows: int  # given to each sink
    ended_at_ms: int  # when it was in every sink
    seconds: float  # in all
    phases: dict[str, float]  # seconds of each phase: open, prepare, harden, decide, commit


@dataclass(slots=True)
class _Laps:
    """Measures the phases of an epoch."""

    began: float = field(default_factory=time.monotonic)
    phases: dict[str, float] = field(default_factory=dict)

    def lap(self, move: Move) -> None:
        if phase := _PHASES.get(move):
            self.phases[phase] = time.monotonic() - self.began - sum(self.phases.values()) + self.phases.get(phase, 0.0)

    def times(self, epoch: int, rows: int) -> EpochTimes:
        phases = {name: round(each, 6) for name, each in self.phases.items()}
        return EpochTimes(epoch, rows, int(time.time() * 1000), round(time.monotonic() - self.began, 6), phases)


@dataclass(frozen=True, slots=True)
class EpochFailure:
    """Where an epoch failed."""

    error: BaseException
    epoch: int
    state: State
    sink: str | None


class Stopping(Exception):
    """A batch arrived after the stream was stopped. Nothing of it was begun."""


class EpochInterrupted(Exception):
    """Something ended the epoch that is no ordinary error."""


class EpochRunner:
    """Takes the batches of one stream through the protocol, one at a time."""

    def __init__(
        self,
        owner: StreamIdentity,
        timeline: int,
        sinks: Sequence[Sink],
        *,
        decisions: Decisions,
        gaps: Gaps,
        lease: Lease,
        log: SparkLog,
        retain: int,
        accept: frozenset[str] = frozenset(),
        reach: Reach = unwatched,
        barrier: BarrierHandle | None = None,
        stage: StageKeeper | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> None:
        self.owner = owner
        self.timeline = timeline
        self.sinks = {sink.name: sink for sink in sinks}
        self.mutex = threading.Lock()  # held while an epoch is under way
        self.course = EpochBase()
        self.failure: EpochFailure | None = None
        self.rows = 0
        self.last_epoch: EpochTimes | None = None  # of this run
        self._laps = _Laps()
        self.stopping = threading.Event()
        self.thread = 0  # that an epoch is under way in
        self._gate = threading.Lock()
        self._busy = False  # an epoch is under way
        self._shut = False  # no more may begin
        self.returned: int | None = None  # the last batch that was given back to Spark, for it to commit
        self.poison: EpochFailure | None = None  # the next try at this epoch is to be quarantined instead
        self.at_end: Callable[[], None] = lambda: None  # called at the end of an epoch, once stopping was asked for
        self.decided: Callable[[int, int], None] = lambda *_: None
        self.quarantined: Callable[[GapRecord], None] = lambda *_: None
        self.acknowledge: Callable[[int, StreamPosition | Exception], None] = lambda *_: None
        self.drained: Callable[[], None] = lambda: None  # called when the barrier says that this was the last epoch
        self.oldest_kept: Callable[[], int | None] = lambda: None  # the first epoch that a checkpoint needs
        self.unfinished = False  # an epoch is decided and not in every sink: nobody may acknowledge for this stream
        self._barrier = barrier or BarrierInjector().handle()
        self._stage = stage
        self._on_epoch = on_epoch
        self._decisions = decisions
        self._gaps = gaps
        self._lease = lease
        self._log = log
        self.stateful = False  # whether the query as it is built now keeps a state
        self._retain = retain
        self._accept = accept
        self._reach = reach
        self._fresh = True  # nothing is known yet of what others may have begun
        self._begun = False  # an epoch was begun by this runner
        self._unused: Attempt | None = None  # its slot is open and nobody has staged anything under it
        self._progress = EpochProgress()
        self._digest: RowDigest | None = None  # made of a query's first batch: all have its columns

    def __call__(self, df: DataFrame, batch: int) -> None:
        """Take one batch through; what goes wrong is kept for the supervisor and raised to Spark."""
        with self._gate:
            if self._shut:
                raise Stopping
            self._busy = True
        self.thread = threading.get_ident()
        try:
            self._guarded(df, batch)
        finally:
            self._busy, self.thread = False, 0

    def shut(self) -> bool:
        """Let no epoch begin any more; return whether none is under way."""
        with self._gate:
            self._shut = self._shut or not self._busy
            return self._shut

    @property
    def busy(self) -> bool:
        """Whether an epoch is under way."""
        return self._busy

    @property
    def was_shut(self) -> bool:
        """Whether no epoch may begin any more."""
        return self._shut

    def _guarded(self, df: DataFrame, batch: int) -> None:
        with self.mutex:
            if self._shut:
                raise Stopping  # it was the last one when this one was about to begin
            self._laps = _Laps()
            self._progress = EpochProgress(self._laps.lap)
            try:
                self._epoch(df, batch)
            except BaseException as error:
                self._fresh, self._unused = True, None
                found = self.cause(error)
                self.failure = EpochFailure(found, batch + 1, self._progress.state, self._progress.sink)
                if isinstance(found, Exception):
                    raise found from found.__cause__
                raise EpochInterrupted from error  # py4j would not answer the JVM
            self._progress.move(Move.FINISH)
            self.failure, self.returned = None, batch
            if self.stopping.is_set():
                self.at_end()  # it was asked for: the epoch at hand was the last one

    def cause(self, error: BaseException) -> BaseException:
        """Return why something failed: a driver that was replaced may find anything gone or changed; that is why."""
        try:
            self._lease.check()
        except Fenced as fenced:
            if fenced is not error and not isinstance(error, Fenced):
                fenced.__cause__ = error
                return fenced
        except Exception:
            _log.debug("the lease cannot be checked", exc_info=True)  # the failure at hand tells more
        return error

    # --- the protocol ---

    def _epoch(self, df: DataFrame, batch: int) -> None:
        """Carry an epoch through two-phase commit.

        1. Open: is the lease ours, what do the slots say?  2. Prepare every sink.  3. Make replay possible.
        4. Decide.  5. Commit every sink.  6. Or replay: the epoch is decided, and Spark has not committed it.
        """
        epoch = batch + 1
        self._begun = True
        self._reach("opening")
        self._lease.check()  # 1
        offsets = self._log.offsets(batch)
        attempt, decided = self._open(epoch)
        if decided is not None:
            self._replay(df, batch, offsets, decided)  # 6
            return
        self._check_start(batch)
        self._progress.move(Move.OPEN)
        self._reach("opened")
        start = list(self.course.ends) or [None] * len(offsets.ends)
        poison = self.poison if self.poison and self.poison.epoch == epoch else None
        staged, digest, stage = self._set_aside(df) if poison else self._prepare(df, attempt)  # 2
        entries = self._log.source_entries(self.course.source_log)  # 3
        self._log.harden(batch, entries, [path for each in staged.values() for path in each.paths])
        self._progress.move(Move.HARDEN)
        self._reach("durable")
        facts = Facts(  # 4
            start=start,
            end=list(offsets.ends),
            offsets_digest=offsets.digest,
            source_log=last_entries(entries, self.course.source_log),
            source_entries=entries,
            sinks={name: self._share(name, each, epoch) for name, each in staged.items()},
            rows=max((each.rows for each in staged.values()), default=0),
            watermark_ms=offsets.watermark_ms,
            row_digest=digest,
            quarantined=one_line(poison.error) if poison else None,
            total_rows=self.course.rows + max((each.rows for each in staged.values()), default=0),
            stage=stage.record if stage else None,
            decided_at_ms=int(time.time() * 1000),
        )
        decision = self._decide(attempt, facts)
        self._reach("decided")
        self._commit(decision, facts)  # 5
        self._finish(attempt, facts, stage)

    def _open(self, epoch: int) -> tuple[Attempt, Decision | None]:
        """Return the attempt to use, or the decision that stands."""
        slots = self._decisions.look(self.owner.stream, self.timeline, epoch)
        for decision in slots.closed:
            if decision.verdict is Verdict.COMMIT:
                return decision.attempt, decision
        attempt = slots.open
        if attempt == self._unused or (not self._fresh and not slots.closed):
            self._unused = None
            return attempt, None
        return self.clear(epoch, self._progress)

    def clear(self, epoch: int, progress: EpochProgress) -> tuple[Attempt, Decision | None]:
        """Close the slot that somebody may have used, and drop what aborted attempts staged.

        Of very many attempts only the last ones each time, and all of them now and then: a task that outlived its
        attempt may have left something after it was dropped.

        Losing the race for the slot means that the epoch was decided after all; then that decision is returned.
        """
        self._lease.check()
        slots = self._decisions.look(self.owner.stream, self.timeline, epoch)
        closed = [*slots.closed, *self._closed(slots.open)]
        for decision in closed:
            if decision.verdict is Verdict.COMMIT:
                return decision.attempt, decision
        self._unused = slots.open.next() if closed else slots.open
        if not closed:
            return self._unused, None
        progress.move(Move.ABORT)
        self._reach("aborted")
        for decision in closed if len(closed) % _DROPPED_AGAIN == 0 else closed[-_DROPPED_AGAIN:]:
            for sink in self.sinks.values():
                with progress.inside(sink.name):
                    sink.abort(EpochKey(self.owner, decision.attempt, None))
        progress.move(Move.DISCARD)
        self._reach("discarded")
        return self._unused, None

    def _closed(self, attempt: Attempt) -> list[Decision]:
        """Close an open slot, unless nobody can ever have used it: the first slot, under the first lease of all."""
        if self._lease.number == 1 and attempt.attempt == 1 and not self._begun:
            return []
        return [
            self._decisions.close(Decision(attempt=attempt, verdict=Verdict.ABORT, lease=self._lease.number)),
        ]

    def _prepare(self, df: DataFrame, attempt: Attempt) -> tuple[dict[str, Staged], str | None, Sealed | None]:
        """Let every sink write. With several, or one that may ask twice, the rows are frozen: they must be the same.

        A stage is given frozen rows too: what it made of them must be what the sinks are given.
        """
        tell, stage = None, self.course.stage
        if self.stateful:
            df, tell = self._digested(df)
        staged: dict[str, Staged] = {}
        key = EpochKey(self.owner, attempt, self._lease.number)
        freeze = len(self.sinks) > 1 or not all(sink.one_action for sink in self.sinks.values())
        with contextlib.ExitStack() as frozen:
            if self._on_epoch is not None:
                df, stage = self._staged_epoch(frozen.enter_context(adapter.frozen(df)))
            rows = frozen.enter_context(adapter.frozen(df)) if freeze else df
            for number, sink in enumerate(self.sinks.values(), 1):
                with self._progress.inside(sink.name):
                    staged[sink.name] = checked_staged(sink, sink.prepare(rows, key))
                self._progress.move(Move.PREPARE_LAST if number == len(self.sinks) else Move.PREPARE)
                self._reach("prepared")
        counts = {name: each.rows for name, each in staged.items()}
        if len(set(counts.values())) > 1:
            raise SinkFailed(sink=min(counts, key=lambda name: counts[name]), action="prepare", why=_uneven(counts))
        self._reach("all prepared")
        return staged, tell() if tell else None, stage

    def _digested(self, df: DataFrame) -> tuple[DataFrame, Callable[[], str]]:
        """Watch the rows that come out of the query: a replay must give the same."""
        if self._digest is None:
            self._digest = RowDigest(df)
        return self._digest.observed(df)

    def _staged_epoch(self, rows: DataFrame) -> tuple[DataFrame, Sealed | None]:
        """Let the user's function work on the rows and on the stage, set back to its last decided state."""
        if self._stage is None or self._on_epoch is None or self.course.stage is None:
            return rows, self.course.stage
        view = self._stage.view(self.course.stage)
        try:
            made = self._on_epoch(rows, view)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            error.add_note(f"on_epoch of stream {self.owner.stream!r}, {frame.filename}:{frame.lineno}")
            raise
        if getattr(made, "isStreaming", True):
            do = "let on_epoch(df, stage) return a DataFrame made from the one that it is given"
            raise BadValue(what=f"what on_epoch of stream {self.owner.stream!r} returned,", value=made, why=_DUE, do=do)
        return made, self._stage.seal(view, self.course.stage)

    def _set_aside(self, df: DataFrame) -> tuple[dict[str, Staged], str | None, Sealed | None]:
        """Give no sink this epoch: it has failed again and again, and the user allowed it to be passed over."""
        if self.stateful:
            adapter.run_for_nothing(df)  # the state goes on; only sinks that refuse are passed over here
        self._progress.move(Move.SKIP)
        return {name: Staged({}, 0, trace=False) for name in self.sinks}, None, self.course.stage

    def _share(self, name: str, staged: Staged, epoch: int) -> Share:
        before = self.course.stands.get(name, 0)
        return Share(
            handle=staged.handle,
            rows=staged.rows,
            stands=epoch if staged.trace else before,
            before=before,
            before_handle=self.course.handles.get(name),
        )

    def _decide(self, attempt: Attempt, facts: Facts) -> Decision:
        """Close the slot with commit and return the decision. A driver that loses discards what it staged.

        Either a newer driver has replaced this one, which stops; or an older driver, paused while it cleaned up, closed
        the slot at this moment: then the next try uses the next slot.
        """
        ours = Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=self._lease.number, facts=facts.plain())
        self.unfinished = True  # before: a failure may leave it unknown whether it was decided
        stands = self._decisions.close(ours)
        if stands != ours:
            self._progress.move(Move.LOSE)
            for sink in self.sinks.values():
                sink.abort(EpochKey(self.owner, attempt, self._lease.number))
            self._lease.check()
            why = f"lease {stands.lease} closed it with {stands.verdict} at the same moment"
            raise StorageFailed(action="decide", key=str(attempt), why=why)
        self._progress.move(Move.DECIDE)
        return ours

    def _commit(self, decision: Decision, facts: Facts) -> None:
        """Make every sink's handle visible; a quarantined epoch is given to none, and recorded as a gap."""
        if facts.quarantined:
            self._record_quarantine(decision.attempt, facts)
        sinks = [] if facts.quarantined else [sink for sink in self.sinks.values() if sink.name in facts.sinks]
        commit_to_sinks(self.owner, sinks, decision, facts, progress=self._progress, reach=self._reach)

    def _finish(self, attempt: Attempt, facts: Facts, stage: Sealed | None) -> None:
        self._lease.check()  # a driver that was paused here must not go on
        self.course = _course_after(attempt.epoch, facts, stage)
        self._fresh, self.poison, self.unfinished = False, None, False
        self.rows += facts.rows
        self._heed_barrier(attempt.epoch)
        self._clean_up(attempt.epoch, stage)
        self.last_epoch = self._laps.times(attempt.epoch, facts.rows)
        _log.info("stream %s: epoch %d is in every sink, %d rows", self.owner.stream, attempt.epoch, facts.rows)
        self.decided(attempt.epoch, facts.rows)

    def _clean_up(self, epoch: int, stage: Sealed | None) -> None:
        """Remove what nobody will ask for again. What cannot be removed now is by a later epoch: this one is done."""
        with self._telling(epoch):
            if self._stage is not None and stage is not None:
                self._stage.settle(stage)
        if epoch % PRUNE_EVERY:
            return
        with self._telling(epoch):
            oldest = self.oldest_kept()
            before = min(epoch - self._retain, epoch if oldest is None else oldest)
            self._decisions.prune(self.owner.stream, self.timeline, before)

    @contextlib.contextmanager
    def _telling(self, epoch: int) -> Iterator[None]:
        try:
            yield
        except Storage as error:
            _log.warning("stream %s: cleaning up after epoch %d: %s", self.owner.stream, epoch, one_line(error))

    # --- barriers ---

    def _heed_barrier(self, epoch: int) -> None:
        """Acknowledge a pending barrier: the cut is here, behind this epoch."""
        barrier = self._barrier.poll(epoch)
        if barrier is None or barrier.is_cancel:
            return
        self._acknowledge(barrier.checkpoint_id)
        if barrier.is_drain:
            self.drained()

    def _acknowledge(self, checkpoint: int) -> None:
        """Say what this stream is now. What fails here fails the checkpoint, never the epoch."""
        try:
            found: StreamPosition | Exception = self.capture()
        except Exception as error:  # a sink of the user's may raise anything
            found = error
        self.acknowledge(checkpoint, found)

    def acknowledge_idle(self) -> bool:
        """Acknowledge for a stream that is between two epochs, or has ended; return whether it was to be done.

        Not while an epoch is under way: it does so itself. Nor while one is decided and not in every sink: those who
        read from this stream may have it already, so the cut must be behind it. Nor after a failure, until the stream
        has recovered or given up.
        """
        if not self.mutex.acquire(blocking=False):
            return False
        try:
            if self.unfinished or self.failure is not None:
                return False
            barrier = self._barrier.poll(self.course.epoch)
            if barrier is None or barrier.is_cancel:
                return False
            self._acknowledge(barrier.checkpoint_id)
            self._shut = self._shut or barrier.is_drain  # none may begin behind the last cut
        finally:
            self.mutex.release()
        if barrier.is_drain:
            self.drained()
        return True

    def capture(self) -> StreamPosition:
        """Return the position of this stream after its last epoch."""
        course = self.course
        return StreamPosition(
            stream=self.owner.stream,
            epoch=course.epoch,
            offsets=tuple(course.ends),
            sinks={name: {"epoch": course.stands.get(name, 0), **sink.mark()} for name, sink in self.sinks.items()},
            watermark_ms=max(course.watermark_ms, 0),
            rows=course.rows,
            stage=None if course.stage is None else course.stage.data,
        )

    def recovered(self, decision: Decision | None, stands: dict[str, int]) -> None:
        """Go on after the last decision; every sink has it. `unfinished` stays: the next one may be decided already."""
        facts = Facts.of(decision) if decision is not None else None
        stage = None
        if self._stage is not None:
            stage = self._stage.load(facts.stage if facts else None)
        elif facts is not None:
            refuse_lost_stage(self.owner.stream, facts.stage)
        course = _course_after(decision.attempt.epoch, facts, stage) if decision and facts else EpochBase(stage=stage)
        course.stands = stands
        self.course = course
        self._digest = None  # the query was built anew, and may have other columns

    # --- replay ---

    def _replay(self, df: DataFrame, batch: int, offsets: Offsets, decision: Decision) -> None:
        """Bring a decided epoch to its end: check that it is the same one, commit its handles, rebuild the state."""
        facts = Facts.of(decision)
        self._check_same(batch, offsets, facts)
        self._progress.move(Move.FIND)
        self._commit(decision, facts)
        if self.stateful or self._log.has_state():
            observed, tell = self._digested(df)
            adapter.run_for_nothing(observed)
            if facts.row_digest is not None:
                self._compare(batch + 1, facts.row_digest, tell())
        self._finish(decision.attempt, facts, self._stage.load(facts.stage) if self._stage else None)

    def _check_same(self, batch: int, offsets: Offsets, facts: Facts) -> None:
        what = None
        if offsets.digest != facts.offsets_digest:
            what = f"end than it was decided with ({list(offsets.ends)}, not {facts.end})"
        for entry, digest in facts.source_entries.items():
            if self._log.entry_digest(entry) != digest:
                what = f"entry {entry} in its source's log"
        if what:
            raise OffsetsDiverged(stream=self.owner.stream, epoch=batch + 1, what=what)

    def _compare(self, epoch: int, decided: str, found: str) -> None:
        if found == decided:
            return
        if not is_comparable(found, decided):
            _log.warning("epoch %s was decided by an earlier version, whose digest of rows cannot be compared", epoch)
            return
        error = ReplayDiverged(stream=self.owner.stream, epoch=epoch, decided=decided, found=found)
        if "replay" not in self._accept:
            raise error
        facts = {"decided": decided, "found": found}
        self._gaps.add(self.owner.stream, self.timeline, epoch, kind=REPLAY, why=error.summary, facts=facts)
        _log.warning("%s; accepted and recorded", error.summary)

    # --- gaps ---

    def _check_start(self, batch: int) -> None:
        """Every epoch begins where the last one ended, source by source and partition by partition."""
        if not batch or not self.course.epoch:
            return
        begins = self._log.offsets(batch - 1).ends
        found: list[dict[str, Any]] = []
        for source in range(max(len(begins), len(self.course.ends))):
            ended = self.course.ends[source] if source < len(self.course.ends) else None
            begin = begins[source] if source < len(begins) else None
            found += [
                {"source": source, "partition": partition, "ended": old, "begins": new}
                for partition, old, new in differences(ended, begin)
            ]
        if found:
            self._gap(batch + 1, found)

    def _gap(self, epoch: int, found: list[dict[str, Any]]) -> None:
        """Refuse to begin elsewhere or, where that is accepted, record every difference: one record an epoch."""
        error = OffsetsGap(stream=self.owner.stream, epoch=epoch, **found[0])
        if "gaps" not in self._accept:
            raise error
        why = error.summary + (f"; and {len(found) - 1} more" if found[1:] else "")
        facts = {**found[0], "differences": found}
        self._gaps.add(self.owner.stream, self.timeline, epoch, kind=OFFSETS, why=why, facts=facts)
        _log.warning("%s; accepted and recorded", why)

    def _record_quarantine(self, attempt: Attempt, facts: Facts) -> None:
        record = {"start": facts.start, "end": facts.end}
        why = facts.quarantined or ""
        gap = self._gaps.add(self.owner.stream, self.timeline, attempt.epoch, kind=QUARANTINED, why=why, facts=record)
        self.quarantined(gap)
        _log.warning("stream %s: epoch %d is quarantined: %s", self.owner.stream, attempt.epoch, why)


_DUE = "a DataFrame of this epoch is due"


def _course_after(epoch: int, facts: Facts, stage: Sealed | None) -> EpochBase:
    """Return what a decided epoch leaves for the next one."""
    stands = {name: share.stands for name, share in facts.sinks.items()}
    handles = {
        name: handle_digest(share.handle) if share.stands == epoch else share.before_handle
        for name, share in facts.sinks.items()
    }
    return EpochBase(
        epoch,
        facts.end,
        facts.source_log,
        stands,
        handles,
        facts.watermark_ms,
        facts.total_rows,
        stage,
        quarantined=facts.quarantined is not None,
    )


def _uneven(counts: dict[str, int]) -> str:
    return "the sinks counted different rows of one epoch: " + ", ".join(f"{name} {n}" for name, n in counts.items())

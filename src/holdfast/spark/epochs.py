"""The epoch protocol inside `foreachBatch`, from Spark's offsets to the last sink's commit.

Rules:
- There is one durable decision per epoch. Before it, nothing is visible and everything can be discarded; after it, the
  epoch can only be rolled forward.
- Nothing is cleaned up when an attempt fails, because after a kill there would be no chance to. The next try does that.
- The output of a decided epoch is never computed again: a replay commits the handles of the decision.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast._error_text import one_line
from holdfast.epoch import Attempt, CommitTimes, Decision, EpochProgress, Facts, Move, PhaseTimes, Verdict
from holdfast.errors import Storage, StorageFailed, TimelineEnded
from holdfast.plainspark.records import AdoptedRecord
from holdfast.repository import GapRecord, Slots
from holdfast.repository.gaps import QUARANTINED
from holdfast.sinks.base import EpochKey
from holdfast.spark import adapter
from holdfast.spark.acknowledging import Acknowledger
from holdfast.spark.continuity import Continuity
from holdfast.spark.delivery import commit_to_sinks
from holdfast.spark.epoch_times import EpochTimes, Laps
from holdfast.spark.failures import EpochFailure, or_fenced
from holdfast.spark.gate import EpochGate
from holdfast.spark.last_decided import LastDecided
from holdfast.spark.parts import StreamParts
from holdfast.spark.preparing import Prepared, Preparer
from holdfast.spark.slots import AttemptSlots
from holdfast.spark.sources import ComparedSources
from holdfast.spark.sparklog import Offsets, last_entries
from holdfast.spark.stages import Sealed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PRUNE_EVERY = 50
_log = logging.getLogger(__name__)


class EpochInterrupted(Exception):
    """Something other than an ordinary error ended the epoch."""


@dataclass(frozen=True, slots=True)
class EpochListener:
    """Functions that are called in the thread of an epoch."""

    ended: Callable[[EpochTimes], None]  # the epoch is in every sink
    quarantined: Callable[[GapRecord], None]  # the epoch was given to no sink, and recorded as a gap
    stop_query: Callable[[], None]  # the last epoch before a graceful stop is being returned to Spark
    oldest_kept: Callable[[], int | None]  # returns the first epoch that a checkpoint needs


@dataclass(frozen=True, slots=True)
class _EpochTry:
    """One batch of the query, and how far the try at its epoch has come."""

    df: DataFrame
    number: int
    progress: EpochProgress
    laps: Laps

    @property
    def epoch(self) -> int:
        return self.number + 1


class EpochRunner:
    """Takes the batches of one query through the protocol, one at a time."""

    def __init__(
        self,
        parts: StreamParts,
        *,
        gate: EpochGate,
        slots: AttemptSlots,
        acknowledger: Acknowledger,
        listener: EpochListener,
        stateful: bool,
        poison: EpochFailure | None = None,
        adopted: AdoptedRecord | None = None,
        sources: ComparedSources | None = None,
    ) -> None:
        self._parts = parts
        self._sources = sources
        self._gate = gate
        self._slots = slots
        self._acknowledger = acknowledger
        self._listener = listener
        self._preparer = Preparer(parts, stateful=stateful, working=gate.working)
        self._continuity = Continuity(parts)
        self._poison = poison  # the epoch that failed so is quarantined
        self._adopted = adopted  # one epoch may be in some of the sinks already
        self._failure: EpochFailure | None = None
        self._returned: int | None = None
        self._last_commit: CommitTimes | None = None  # of the last epoch of this query

    @property
    def failure(self) -> EpochFailure | None:
        """Where the last epoch failed, if it did."""
        return self._failure

    @property
    def returned(self) -> int | None:
        """The last batch that was returned to Spark for its own commit."""
        return self._returned

    def close(self) -> None:
        """End the threads of the sinks; called when the query has ended."""
        self._preparer.close()

    def __call__(self, df: DataFrame, number: int) -> None:
        """Process one batch. A failure is kept for the supervisor and raised to Spark."""
        with self._gate.epoch():
            laps = Laps()
            batch = _EpochTry(df, number, EpochProgress(laps.lap), laps)
            try:
                self._epoch(batch)
            except BaseException as error:
                self._slots.failed()
                self._acknowledger.fail()
                found = or_fenced(self._parts.lease, error)
                self._failure = EpochFailure(found, batch.epoch, batch.progress.state, batch.progress.sink)
                if isinstance(found, Exception):
                    raise found from found.__cause__
                raise EpochInterrupted from error  # py4j would not answer the JVM
            batch.progress.move(Move.FINISH)
            self._failure, self._returned = None, number
            if self._gate.stopping.is_set():
                self._listener.stop_query()

    # --- the protocol ---

    def _epoch(self, batch: _EpochTry) -> None:
        """Take an epoch through two-phase commit.

        1. Open: check the lease and the slots.  2. Prepare every sink.  3. Make replay possible.  4. Decide.
        5. Commit every sink.  6. Or replay: the epoch is decided, and Spark has not committed it.
        """
        parts, progress = self._parts, batch.progress
        parts.reach("opening")
        offsets, slots = self._look(batch)  # 1
        found = self._slots.open(batch.epoch, slots, progress)
        if isinstance(found, Decision):
            self._replay(batch, offsets, found)  # 6
            return
        last = self._acknowledger.last
        self._continuity.check_start(batch.number, last)
        progress.move(Move.OPEN)
        parts.reach("opened")
        poison = self._poison if self._poison and self._poison.epoch == batch.epoch else None
        held = self._held_already(batch, offsets)
        with parts.run.meanwhile(lambda: parts.log.source_entries(last.source_log, offsets.ends)) as read_entries:
            with contextlib.nullcontext(self._preparer) if not held else self._preparer.without(held) as preparer:  # 2
                if poison or not preparer.sinks:
                    prepared = preparer.skip(batch.df, last.stage, progress)
                else:
                    prepared = preparer.prepare(batch.df, found, last.stage, progress)
            if self._sources is not None:
                self._sources.check_again(last)
            entries = read_entries()  # 3
        parts.log.harden(batch.number, entries, prepared.paths)
        progress.move(Move.HARDEN)
        parts.reach("durable")
        facts = _facts(  # 4
            batch.epoch,
            last,
            offsets,
            entries,
            prepared,
            poison=poison,
            held=held,
            times=batch.laps.so_far(prepared.seconds),
            last_commit=self._last_commit,
        )
        decision = self._decide(found, facts, progress)
        parts.reach("decided")
        self._commit(decision, facts, batch)  # 5
        self._complete(batch, facts, prepared.stage)

    def _look(self, batch: _EpochTry) -> tuple[Offsets, Slots]:
        """Check the lease; return the offsets and the slots of an epoch. On a store, all are requested at once."""
        parts = self._parts

        def offsets() -> Offsets:
            parts.log.expect(batch.number)
            return parts.log.offsets(batch.number)

        _, found, slots = parts.run.together(parts.lease.check, offsets, lambda: self._slots.look(batch.epoch))
        return found, slots

    def _held_already(self, batch: _EpochTry, offsets: Offsets) -> frozenset[str]:
        """Return the sinks that must not be given an epoch: a plain Spark query has written its rows there."""
        record = self._adopted
        if record is None or record.pending != batch.epoch:
            return frozenset()
        self._continuity.check_adopted(batch.number, offsets, record.offsets_digest)
        return record.written & {sink.name for sink in self._parts.sinks}

    def _decide(self, attempt: Attempt, facts: Facts, progress: EpochProgress) -> Decision:
        """Close the slot with commit and return the decision. A driver that loses discards what it staged.

        Either a newer driver has replaced this one, or a rewind has ended the timeline: then this driver stops. Or an
        older driver, paused while it cleaned up, closed the slot at this moment: then the next try uses the next slot.
        """
        parts, lease = self._parts, self._parts.lease
        ours = Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=lease.number, facts=facts.plain())
        self._acknowledger.begin_decision()
        stands = parts.decisions.close(ours, lease)
        if stands != ours:
            progress.move(Move.LOSE)
            for sink in parts.sinks:
                sink.abort(EpochKey(parts.owner, attempt, lease.number))
            lease.check()
            if stands.verdict is Verdict.END:
                raise TimelineEnded(stream=parts.name, timeline=parts.timeline)
            why = f"lease {stands.lease} closed it with {stands.verdict} at the same moment"
            raise StorageFailed(action="decide", key=str(attempt), why=why)
        progress.move(Move.DECIDE)
        return ours

    def _commit(self, decision: Decision, facts: Facts, batch: _EpochTry) -> None:
        """Commit a decided epoch to its sinks. A quarantined epoch is recorded as a gap, and given to no sink."""
        parts = self._parts
        if facts.quarantined:
            self._record_quarantine(decision.attempt.epoch, facts)
        given = set() if facts.quarantined else {name for name, share in facts.sinks.items() if share.given}
        sinks = [sink for sink in parts.sinks if sink.name in given]
        commit_to_sinks(
            parts.owner,
            sinks,
            decision,
            facts,
            progress=batch.progress,
            reach=parts.reach,
            took=batch.laps.committed,
        )

    def _replay(self, batch: _EpochTry, offsets: Offsets, decision: Decision) -> None:
        """Complete a decided epoch: require that it is the same one, commit its handles, rebuild Spark's state."""
        facts, stage = Facts.of(decision), self._parts.stage
        self._continuity.check_same(batch.number, offsets, facts)
        batch.progress.move(Move.FIND)
        self._commit(decision, facts, batch)
        if self._preparer.stateful or self._parts.log.has_state():
            observed, read_digest = self._preparer.observed(batch.df)
            adapter.run_for_nothing(observed)
            self._parts.log.harden(batch.number, (), ())  # the state was written again, and Spark commits it next
            if facts.row_digest is not None:
                self._continuity.check_rows(batch.epoch, facts.row_digest, read_digest())
        self._complete(batch, facts, stage.load(facts.stage) if stage else None)

    def _complete(self, batch: _EpochTry, facts: Facts, stage: Sealed | None) -> None:
        """Advance the stream by an epoch that every sink has, and acknowledge a pending barrier."""
        self._parts.lease.check_again()  # a driver that was paused here must not continue
        self._slots.completed()
        stands = self._acknowledger.last.stands
        self._acknowledger.advance(LastDecided.after(batch.epoch, facts, stage, stands))
        self._clean_up(batch.epoch, stage)
        _log.info("stream %s: epoch %d is in every sink, %d rows", self._parts.name, batch.epoch, facts.rows)
        if facts.dead_rows:
            _log.warning("stream %s: epoch %d has %d dead letters", self._parts.name, batch.epoch, facts.dead_rows)
        times = batch.laps.times(batch.epoch, facts.rows, facts.dead_rows)
        self._last_commit = times.commit_times()
        self._listener.ended(times)

    def _clean_up(self, epoch: int, stage: Sealed | None) -> None:
        """Remove records that are no longer needed. A failure is logged; a later epoch tries again."""
        parts = self._parts
        with self._logged(epoch):
            if parts.stage is not None and stage is not None:
                parts.stage.settle(stage)
        if epoch % PRUNE_EVERY:
            return
        with self._logged(epoch):
            oldest = self._listener.oldest_kept()
            before = min(epoch - parts.run.retain, epoch if oldest is None else oldest)
            parts.lease.check()
            parts.decisions.prune(parts.name, parts.timeline, before)

    @contextlib.contextmanager
    def _logged(self, epoch: int) -> Iterator[None]:
        try:
            yield
        except Storage as error:
            _log.warning("stream %s: clean-up after epoch %d failed: %s", self._parts.name, epoch, one_line(error))

    def _record_quarantine(self, epoch: int, facts: Facts) -> None:
        parts, why = self._parts, facts.quarantined or ""
        record = {"start": facts.start, "end": facts.end}
        gap = parts.gaps.add(parts.name, parts.timeline, epoch, kind=QUARANTINED, why=why, facts=record)
        self._listener.quarantined(gap)
        _log.warning("stream %s: epoch %d is quarantined: %s", parts.name, epoch, why)


def _facts(
    epoch: int,
    last: LastDecided,
    offsets: Offsets,
    entries: dict[str, str],
    prepared: Prepared,
    *,
    poison: EpochFailure | None,
    held: frozenset[str],
    times: PhaseTimes,
    last_commit: CommitTimes | None,
) -> Facts:
    now = time.time()
    began = now - times.open - times.prepare - times.harden
    return Facts(
        start=list(last.ends) or [None] * len(offsets.ends),
        end=list(offsets.ends),
        offsets_digest=offsets.digest,
        source_log=last_entries(entries, last.source_log),
        source_entries=entries,
        sinks={name: last.share(name, each, epoch) for name, each in prepared.staged.items()}
        | {name: last.share_not_given(name) for name in held},
        rows=prepared.rows,
        watermark_ms=offsets.watermark_ms,
        row_digest=prepared.row_digest,
        quarantined=one_line(poison.error) if poison else None,
        total_rows=last.rows + prepared.rows,
        dead_rows=prepared.dead_rows,
        total_dead_rows=last.dead_rows + prepared.dead_rows,
        stage=prepared.stage.record if prepared.stage else None,
        decided_at_ms=int(now * 1000),
        fresh_at_ms=int(began * 1000) if prepared.rows else last.fresh_at_ms,
        times=times,
        last_commit=last_commit,
    )

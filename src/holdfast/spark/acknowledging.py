"""Where a stream is between two epochs, and its answers to checkpoint barriers.

Rules:
- A busy stream acknowledges at the end of its epoch, in the epoch's thread. For a stream that is idle or has ended, the
  checkpoint thread acknowledges by `acknowledge_idle`, and keeps an epoch from beginning meanwhile.
- A cut may not be made while an epoch is decided and not in every sink: streams that read from this one may have it
  already. Nor may it be made during a recovery, which commits to sinks, nor after a failure, until the stream has
  recovered, or was stopped and no epoch was decided.
- A failure here fails the checkpoint, never the epoch.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.barriers import BarrierHandle
from holdfast.coordinator import StreamPosition
from holdfast.recovery import RecoveryPlan
from holdfast.spark.gate import EpochGate
from holdfast.spark.last_decided import LastDecided
from holdfast.spark.parts import StreamParts


class Acknowledger:
    """Keeps the position of one stream, and acknowledges barriers with it."""

    def __init__(
        self, parts: StreamParts, gate: EpochGate, barrier: BarrierHandle, drained: Callable[[], None]
    ) -> None:
        self._parts = parts
        self._gate = gate
        self._barrier = barrier
        self._drained = drained  # called when a barrier has ended the stream
        self._last = LastDecided()
        self._at_cut = False  # a checkpoint may cut here
        self._undecided = False  # no epoch was decided after the last one

    @property
    def last(self) -> LastDecided:
        """The last epoch that every sink has."""
        return self._last

    @property
    def at_cut(self) -> bool:
        """Whether a checkpoint may cut after the last epoch, if no epoch is in progress."""
        return self._at_cut

    # --- the position ---

    def begin_recovery(self) -> None:
        """Allow no cut until `recovered`: sinks may be given an epoch, and an older driver may decide one."""
        self._at_cut = False

    def planned(self, plan: RecoveryPlan) -> None:
        """Note whether a recovery, which may fail halfway, found an epoch that was decided meanwhile."""
        self._undecided = self._undecided and not plan.finish and plan.decided == self._last.epoch

    def recovered(self, last: LastDecided) -> None:
        """Continue after this epoch: every sink has it."""
        self._last, self._at_cut, self._undecided = last, True, True

    def begin_decision(self) -> None:
        """Allow no cut until `advance`. Called before the decision: a failure may leave its outcome unknown."""
        self._at_cut = self._undecided = False

    def advance(self, last: LastDecided) -> None:
        """Continue after an epoch that every sink has, and acknowledge a pending barrier: the cut is here."""
        self._last, self._at_cut, self._undecided = last, True, True
        barrier = self._barrier.poll(last.epoch)
        if barrier is None or barrier.is_cancel:
            return
        self._acknowledge(barrier.checkpoint_id)
        if barrier.is_drain:
            self._gate.shut_here()  # no epoch may begin after the last cut
            self._drained()

    def fail(self) -> None:
        """Allow no cut until the stream has recovered: an epoch failed."""
        self._at_cut = False

    def stop_after_failure(self) -> None:
        """Allow a last cut if no epoch was decided after the last one: the failed attempt left nothing visible."""
        self._at_cut = self._at_cut or self._undecided

    # --- barriers ---

    def acknowledge_idle(self) -> bool:
        """Acknowledge a pending barrier if the stream is at a cut between two epochs; return whether it did."""
        with self._gate.between_epochs() as idle:
            if not idle or not self._at_cut:
                return False
            barrier = self._barrier.poll(self._last.epoch)
            if barrier is None or barrier.is_cancel:
                return False
            self._acknowledge(barrier.checkpoint_id)
            if barrier.is_drain:
                self._gate.shut_here()  # no epoch may begin after the last cut
        if barrier.is_drain:
            self._drained()
        return True

    def _acknowledge(self, checkpoint: int) -> None:
        try:
            found: StreamPosition | Exception = self.position()
        except Exception as error:  # a user-defined sink may raise anything
            found = error
        self._parts.run.acknowledge(checkpoint, found)

    def position(self) -> StreamPosition:
        """Return the position of the stream after its last epoch."""
        last = self._last
        return StreamPosition(
            stream=self._parts.name,
            epoch=last.epoch,
            offsets=tuple(last.ends),
            sinks={sink.name: {"epoch": last.stands.get(sink.name, 0), **sink.mark()} for sink in self._parts.sinks},
            watermark_ms=max(last.watermark_ms, 0),
            rows=last.rows,
            stage=None if last.stage is None else last.stage.data,
        )

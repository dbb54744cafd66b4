"""What the last decided epoch leaves for the next one to start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.epoch import Facts, Share
from holdfast.sinks.base import Staged, handle_digest
from holdfast.spark.stages import Sealed


@dataclass(frozen=True, slots=True)
class LastDecided:
    """The last decided epoch of a stream, in every sink; epoch 0 before the first."""

    epoch: int = 0
    ends: Sequence[str | None] = ()  # by source: where it ended
    source_log: Mapping[str, int] = field(default_factory=dict)  # by source: the last entry of its log
    stands: Mapping[str, int] = field(default_factory=dict)  # by sink: the epoch that it reports as its last one
    handles: Mapping[str, str | None] = field(default_factory=dict)  # by sink: digest of the handle of that epoch
    watermark_ms: int = 0
    rows: int = 0  # given to each sink since the first epoch
    dead_rows: int = 0  # given to the dead letter, as `Facts.total_dead_rows`
    fresh_at_ms: int = 0  # when the last epoch with rows began; 0: not known
    stage: Sealed | None = None
    quarantined: bool = False  # the epoch was given to no sink

    @classmethod
    def after(cls, epoch: int, facts: Facts, stage: Sealed | None, stands: Mapping[str, int]) -> LastDecided:
        """Return what a decided epoch leaves.

        `stands` has the positions of sinks that are not in the decision: they were added since, or added again.
        """
        decided = {name: share.stands for name, share in facts.sinks.items()}
        handles = {
            name: handle_digest(share.handle) if share.before < share.stands == epoch else share.before_handle
            for name, share in facts.sinks.items()
        }  # a base decision, whose epoch is in the sinks already, knows no handle
        return cls(
            epoch=epoch,
            ends=facts.end,
            source_log=facts.source_log,
            stands={**stands, **decided},
            handles=handles,
            watermark_ms=facts.watermark_ms,
            rows=facts.total_rows,
            dead_rows=facts.total_dead_rows,
            fresh_at_ms=facts.fresh_at_ms,
            stage=stage,
            quarantined=facts.quarantined is not None,
        )

    def share_not_given(self, sink: str) -> Share:
        """Return the part of a sink that is not given the next epoch: it has the rows already."""
        before = self.stands.get(sink, 0)
        handle = self.handles.get(sink)
        return Share(handle={}, rows=0, stands=before, before=before, before_handle=handle, given=False)

    def share(self, sink: str, staged: Staged, epoch: int) -> Share:
        """Return a sink's part of the next epoch."""
        before = self.stands.get(sink, 0)
        return Share(
            handle=staged.handle,
            rows=staged.rows,
            stands=epoch if staged.trace else before,
            before=before,
            before_handle=self.handles.get(sink),
        )

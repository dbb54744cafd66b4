"""Epochs in doubt: decided, but not yet known to be committed in every sink.

Between a decision and Spark's commit, the epoch is being committed to the sinks. In a running pipeline this takes a
moment. If the driver died there, it lasts until the next start, which completes the epoch first. A decided epoch is
never rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.epoch import Decision
from holdfast.errors import NotFound
from holdfast.formats.sealed_json import plain
from holdfast.repository import Decisions, Repository
from holdfast.repository.decisions import stream_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """An epoch in doubt."""

    stream: str  # name of the stream
    timeline: int  # its timeline
    epoch: int  # the decided epoch
    attempt: int  # the committed attempt
    lease: int  # the lease under which it was decided
    sinks: dict[str, int]  # by sink: the rows of the epoch, which the sink may have committed already
    decided_at_ms: int  # by the driver's clock; 0: not recorded

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return plain(self)


class _Share(msgspec.Struct):
    rows: int = 0


class _SinkShares(msgspec.Struct):
    """The displayed part of a decision's facts: less than a replay needs, so that more decisions can be read."""

    sinks: dict[str, _Share] = {}
    decided_at_ms: int = 0


def in_doubt(repository: Repository, stream: str, timeline: int) -> Doubt | None:
    """Return the epoch of a stream that is in doubt, or `None`. Only the last one can be. Nothing is written.

    If Spark's folder is damaged or gone, the last decided epoch is in doubt: only its sinks know whether they have it.
    Not guaranteed: that it is still in doubt when this returns, if the pipeline is running.
    """
    return _doubt(repository, stream, timeline, Decisions(repository).seen)


def displayed_doubt(repository: Repository, stream: str, timeline: int) -> Doubt | None:
    """Return what `in_doubt` returns, without a list of all decisions where that can be avoided. Only for display."""
    return _doubt(repository, stream, timeline, Decisions(repository).displayed)


def _doubt(
    repository: Repository, stream: str, timeline: int, last: Callable[[str, int], Decision | None]
) -> Doubt | None:
    try:
        decision = last(stream, timeline)
    except NotFound:
        return None  # pruned at this moment: later epochs have been decided since
    if decision is None:
        return None
    attempt = decision.attempt
    if str(attempt.epoch - 1) in repository.list(f"{stream_folder(stream, timeline)}/spark/commits"):
        return None
    facts = decision.facts_as(_SinkShares)
    return Doubt(
        stream=stream,
        timeline=timeline,
        epoch=attempt.epoch,
        attempt=attempt.attempt,
        lease=decision.lease,
        sinks={name: share.rows for name, share in facts.sinks.items()},
        decided_at_ms=facts.decided_at_ms,
    )

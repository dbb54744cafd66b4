"""In doubt: an epoch that is decided, and not yet known to be in every sink.

Between a decision and Spark's own commit the sinks are being given what was decided. That lasts a moment in a pipeline
that runs, and as long as it is down in one that died there: its next start finishes the epoch first, always forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.errors import NotFound
from holdfast.formats.sealed_json import plain
from holdfast.repository import Decisions, Repository
from holdfast.repository.decisions import stream_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """An epoch in doubt."""

    stream: str  # the stream that it is of
    timeline: int  # the timeline that it is in
    epoch: int  # the epoch that was decided
    attempt: int  # which try at it
    lease: int  # the lease under which it was decided
    sinks: dict[str, int]  # by sink: the rows that it was to get, and may hold already
    decided_at_ms: int  # by the clock of the driver; 0: not recorded

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return plain(self)


class _Share(msgspec.Struct):
    rows: int = 0


class _SinkShares(msgspec.Struct):
    """What whoever only looks needs of a decision's facts: less than a replay, so that more can be looked at."""

    sinks: dict[str, _Share] = {}
    decided_at_ms: int = 0


def in_doubt(repository: Repository, stream: str, timeline: int) -> Doubt | None:
    """Return the epoch of a stream that is in doubt, or `None`. Only the last one can be. Nothing is written.

    Not promised: that it still is by now, where the pipeline runs.
    """
    folder = stream_folder(stream, timeline)
    try:
        decision = Decisions(repository).seen(stream, timeline)
    except NotFound:
        return None  # pruned at this moment: others have been decided since
    if decision is None or not repository.list(f"{folder}/spark"):
        return None
    tried = decision.attempt
    if str(tried.epoch - 1) in repository.list(f"{folder}/spark/commits"):
        return None
    facts = decision.facts_as(_SinkShares)
    return Doubt(
        stream=stream,
        timeline=timeline,
        epoch=tried.epoch,
        attempt=tried.attempt,
        lease=decision.lease,
        sinks={name: share.rows for name, share in facts.sinks.items()},
        decided_at_ms=facts.decided_at_ms,
    )

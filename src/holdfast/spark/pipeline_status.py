"""The status of a running pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.spark.status import StreamStatus, as_data


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """The status of a pipeline's checkpoints."""

    last: int | None = None  # the newest restorable one
    last_at_ms: int | None = None  # when it was taken
    taken: int = 0  # in this run
    failed: int = 0  # in this run
    under_way: int | None = None  # the id of the one that is being taken
    last_error: str | None = None  # why the last one that failed was aborted


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The status of a pipeline."""

    pipeline: str
    uid: str  # its repository's
    timeline: int  # the current one
    lease: int  # the number of the one that this run holds
    streams: dict[str, StreamStatus]  # by name
    checkpoints: CheckpointStatus

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return dict(as_data(self))

"""The status of a running pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast import _figures as figures
from holdfast._html import h, table
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

    def _repr_html_(self) -> str:
        """Return a table of the streams, for notebooks."""
        rows = [
            (
                each.stream,
                each.state,
                each.epoch,
                figures.number(each.rows),
                f"{each.rows_per_s:,.1f}",
                "-" if each.behind is None else figures.number(each.behind),
                each.restarts,
                each.last_error or "",
            )
            for each in self.streams.values()
        ]
        head = ("stream", "state", "epoch", "rows", "rows/s", "behind", "restarts", "last error")
        last = self.checkpoints.last
        title = f"{self.pipeline}: timeline {self.timeline}, checkpoint {'none yet' if last is None else last}"
        return h("<p><b>{}</b></p>{}", title, table(head, rows))

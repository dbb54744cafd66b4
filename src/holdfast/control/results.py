"""The results of requests, as the driver writes them into its answers and the asker returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.errors import RecordCorrupt
from holdfast.formats.decoding import Undecodable, converted
from holdfast.formats.manifest import Manifest
from holdfast.formats.sealed_json import plain

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTaken:
    """A checkpoint or savepoint that a request has produced."""

    request: str | None  # the id of the request
    checkpoint: int  # its id
    savepoint: str | None  # its name, for a savepoint
    timeline: int
    timestamp_ms: int  # when it was started
    epochs: Mapping[str, int] = field(default_factory=dict)  # by stream: the last epoch that it includes
    rows: int = 0  # rows written to each sink up to this point, over all streams

    @classmethod
    def of(cls, manifest: Manifest) -> CheckpointTaken:
        """Return the result for a manifest."""
        return cls(
            request=manifest.request,
            checkpoint=manifest.checkpoint_id,
            savepoint=manifest.savepoint,
            timeline=manifest.timeline,
            timestamp_ms=manifest.timestamp_ms,
            epochs={name: cut.epoch for name, cut in manifest.streams.items()},
            rows=sum(cut.rows for cut in manifest.streams.values()),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return plain(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCancelled:
    """The result of a request to cancel the checkpoint that is being taken."""

    checkpoint: int | None  # its id; `None`: no checkpoint was being taken
    cancelled: bool  # false: none was being taken, or it was completed first

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return plain(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStopped:
    """The result of a request to stop a pipeline."""

    epochs: Mapping[str, int] = field(default_factory=dict)  # by stream: the last epoch that every sink has
    last_checkpoint: int | None = None  # the newest restorable checkpoint
    taken: CheckpointTaken | None = None  # the checkpoint that the request asked for: of a drain, or a savepoint
    error: str | None = None  # why the run failed while it was being stopped
    answered: bool = True  # false: the driver ended without an answer, as if it were killed

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return plain(self)


def result_of(kind: type[T], result: dict[str, Any] | None, request: str) -> T:
    """Return the result that an answer contains."""
    try:
        return converted(result, kind)
    except Undecodable as error:
        raise RecordCorrupt(key=f"the answer to request {request}", why=f"its result: {error}") from error

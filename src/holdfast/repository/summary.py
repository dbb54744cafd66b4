"""A checkpoint in a list: the part of its manifest that can be read without decoding all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from holdfast import _figures as figures
from holdfast.formats.sealed_json import plain


class Status(StrEnum):
    """The status of a checkpoint."""

    RESTORABLE = "restorable"  # it has a manifest
    OPEN = "open"  # in progress, or left by a driver that died
    ABORTED = "aborted"  # aborted or deleted; its id is not used again
    DAMAGED = "damaged"  # its manifest cannot be read


@dataclass(frozen=True, slots=True)
class Summary:
    """A checkpoint in a list."""

    checkpoint: int  # its id; 0 for a damaged savepoint, whose id is not known
    timeline: int  # the timeline in which it was taken
    status: Status
    timestamp_ms: int = 0  # when it started; 0 if that is not known
    epochs: Mapping[str, int] | None = None  # by stream: the last epoch in the cut
    rows: int = 0  # rows written to each sink up to the cut, summed over all streams
    file_count: int = 0  # number of files needed to restore it
    file_bytes: int = 0  # total size of those files
    digest: str | None = None  # SHA-256 of its manifest
    parent: str | None = None  # digest of the previous checkpoint's manifest
    savepoint: str | None = None  # the name, if it is a savepoint
    why: str | None = None  # why it is aborted or damaged
    aborted_at_ms: int | None = None  # when it was aborted or deleted
    lists: tuple[str, ...] = ()  # the digests of its file lists
    timelines: Mapping[str, int] | None = None  # by stream: the timeline of its last epoch in the cut
    seconds: float | None = None  # how long it took; None: not recorded
    phases: Mapping[str, float] | None = None  # when all streams had reached each step, in seconds since the start
    acknowledged: Mapping[str, float] | None = None  # by stream: when it had acknowledged, in seconds since the start
    new_files: int | None = None  # files that no earlier checkpoint of the same run had kept
    new_bytes: int | None = None  # their total size

    @property
    def name(self) -> int | str:
        """The name of a savepoint, otherwise the id: the argument of commands."""
        return self.savepoint or self.checkpoint

    def summary(self) -> str:
        """Return a one-line summary."""
        text = f"{self.savepoint or ''} ".lstrip() + f"{self.checkpoint}  timeline {self.timeline}  {self.status}"
        if self.status is Status.RESTORABLE:
            epochs = ", ".join(f"{stream} {epoch}" for stream, epoch in (self.epochs or {}).items())
            files = f"{figures.number(self.file_count)} files, {figures.size(self.file_bytes)}"
            text += f"  {utc(self.timestamp_ms)}  {files}  epochs: {epochs}"
        return f"{text}  {self.why}" if self.why else text

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return plain(self)


class CutHead(msgspec.Struct):
    """The part of a stream's cut that lists show."""

    epoch: int
    timeline: int = 0
    files: str | None = None
    rows: int = 0
    file_count: int = 0
    file_bytes: int = 0


class StepsHead(msgspec.Struct):
    """When one stream reached the steps of a checkpoint, and how much of it is new."""

    barrier: float = 0.0
    acknowledged: float = 0.0
    linked: float = 0.0
    held: float = 0.0
    new_files: int = 0
    new_bytes: int = 0


class TimesHead(msgspec.Struct):
    """How long a checkpoint took."""

    seconds: float
    streams: dict[str, StepsHead] = {}

    def phases(self) -> dict[str, float]:
        """Return when all streams had reached each step, in seconds since the start."""
        steps = ("barrier", "acknowledged", "linked", "held")
        return {step: max((getattr(each, step) for each in self.streams.values()), default=0.0) for step in steps}


class ManifestHead(msgspec.Struct):
    """The part of a manifest that lists show; the rest is not decoded."""

    digest: str
    version: int
    checkpoint_id: int
    timestamp_ms: int
    timeline: int = 0
    parent: str | None = None
    savepoint: str | None = None
    streams: dict[str, CutHead] = {}
    times: TimesHead | None = None


def utc(timestamp_ms: int) -> str:
    """Return a timestamp as text, in UTC."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"

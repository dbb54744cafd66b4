"""A checkpoint in a list: what can be told of it without reading the whole of its manifest."""

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
    """What a checkpoint is."""

    RESTORABLE = "restorable"  # it has a manifest
    OPEN = "open"  # being taken, or left by a driver that died
    ABORTED = "aborted"  # it was given up; its id is burnt
    DAMAGED = "damaged"  # its manifest cannot be read


@dataclass(frozen=True, slots=True)
class Summary:
    """A checkpoint in a list."""

    checkpoint: int  # its id; 0 where a damaged savepoint does not tell
    timeline: int  # the timeline that it was taken in
    status: Status
    timestamp_ms: int = 0  # when it was begun; 0 if that is not known
    epochs: Mapping[str, int] | None = None  # by stream: the last epoch in it
    rows: int = 0  # given to each sink up to it, of all streams
    file_count: int = 0  # files that it needs to be restored
    file_bytes: int = 0  # their size
    digest: str | None = None  # SHA-256 of its manifest
    parent: str | None = None  # the digest of the checkpoint before it
    savepoint: str | None = None  # its name, of a savepoint alone
    why: str | None = None  # why it is aborted or damaged
    aborted_at_ms: int | None = None  # when it was given up or dropped
    lists: tuple[str, ...] = ()  # the digests of its file lists

    @property
    def name(self) -> int | str:
        """What to ask for: the name of a savepoint, else the id."""
        return self.savepoint or self.checkpoint

    def summary(self) -> str:
        """Say it in a line."""
        text = f"{self.savepoint or ''} ".lstrip() + f"{self.checkpoint}  timeline {self.timeline}  {self.status}"
        if self.status is Status.RESTORABLE:
            epochs = ", ".join(f"{stream} {epoch}" for stream, epoch in (self.epochs or {}).items())
            files = f"{figures.number(self.file_count)} files, {figures.size(self.file_bytes)}"
            text += f"  {utc(self.timestamp_ms)}  {files}  epochs: {epochs}"
        return f"{text}  {self.why}" if self.why else text

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return plain(self)


class CutHead(msgspec.Struct):
    """What a list shows of one stream's cut."""

    epoch: int
    files: str | None = None
    rows: int = 0
    file_count: int = 0
    file_bytes: int = 0


class ManifestHead(msgspec.Struct):
    """What a list shows of a manifest; the rest is not decoded."""

    digest: str
    version: int
    checkpoint_id: int
    timestamp_ms: int
    timeline: int = 0
    parent: str | None = None
    savepoint: str | None = None
    streams: dict[str, CutHead] = {}


def utc(timestamp_ms: int) -> str:
    """Return a point in time, for people."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"

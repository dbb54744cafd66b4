"""The owner of a folder: a sealed record in it, linked into place, so that only one of several claims succeeds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from holdfast.formats.sealed_json import Record
from holdfast.repository.files import sync_folder, temporary
from holdfast.sinks.base import SinkPosition, StreamIdentity

OWNER_FILE = "owner.key"


class OwnerRecord(Record, frozen=True, kw_only=True):
    """The stream that owns a folder."""

    pipeline: str
    uid: str
    stream: str
    shape: str  # layout, format and partitioning: they must not change, because readers depend on them

    @property
    def owner(self) -> StreamIdentity:
        """The stream."""
        return StreamIdentity(self.pipeline, self.uid, self.stream)


def claim(folder: Path, owner: StreamIdentity, shape: str) -> OwnerRecord:
    """Record the owner of a folder that has none; return the record that the folder has now.

    A folder that has an owner is not modified: its modification time may have a meaning.
    """
    record = OwnerRecord(pipeline=owner.pipeline, uid=owner.uid, stream=owner.stream, shape=shape)
    if owner_of(folder) is None:
        with temporary(folder, record.sealed()) as temp, contextlib.suppress(FileExistsError):
            os.link(temp, folder / OWNER_FILE)
    sync_folder(folder)  # also if it was found: the driver that linked it may have died before it synced
    return owner_of(folder) or record


def owner_of(folder: Path) -> OwnerRecord | None:
    """Return the owner's record of a folder, or `None` if it has no owner."""
    path = folder / OWNER_FILE
    try:
        return OwnerRecord.unsealed(path.read_bytes(), str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def position_in(folder: Path, owner: StreamIdentity, last: Callable[[], int]) -> SinkPosition:
    """Return a stream's position in a folder: the epoch that `last` returns if the stream owns the folder."""
    found = owner_of(folder)
    if found is None:
        return SinkPosition()
    return SinkPosition(last()) if found.owner == owner else SinkPosition(foreign=found.owner.summary)

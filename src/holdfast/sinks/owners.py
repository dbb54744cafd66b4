"""Whose a folder is: a sealed record in it, linked into place, so that of several who come at once one is the owner."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from holdfast.formats.sealed_json import Record
from holdfast.repository.files import sync_folder, temporary
from holdfast.sinks.base import StreamIdentity

OWNER_FILE = "owner.key"


class OwnerRecord(Record, frozen=True, kw_only=True):
    """Whose a folder is."""

    pipeline: str
    uid: str
    stream: str
    shape: str  # what readers could not bear a change of: layout, format, partitioning

    def is_of(self, owner: StreamIdentity) -> bool:
        """Whether it names this owner."""
        return (self.pipeline, self.uid, self.stream) == (owner.pipeline, owner.uid, owner.stream)

    @property
    def summary(self) -> str:
        """The owner, for people."""
        return f"stream {self.stream!r} of pipeline {self.pipeline!r} with the uid {self.uid}"


def claim(folder: Path, owner: StreamIdentity, shape: str) -> OwnerRecord:
    """Write the owner into the folder if it has none, and return whose it is now."""
    record = OwnerRecord(pipeline=owner.pipeline, uid=owner.uid, stream=owner.stream, shape=shape)
    with temporary(folder, record.sealed()) as temp, contextlib.suppress(FileExistsError):
        os.link(temp, folder / OWNER_FILE)
    sync_folder(folder)
    return owner_of(folder) or record


def owner_of(folder: Path) -> OwnerRecord | None:
    """Return whose a folder is, or `None` where nobody has claimed it."""
    path = folder / OWNER_FILE
    try:
        return OwnerRecord.unsealed(path.read_bytes(), str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None

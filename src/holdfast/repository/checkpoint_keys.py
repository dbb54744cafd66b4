"""Where checkpoints and savepoints are stored, and the records of an attempt at one.

timelines/<t>/checkpoints/<id>/attempt.json    reserves the id forever; written before anything else
timelines/<t>/checkpoints/<id>/state.bin       stage states, where they are large
timelines/<t>/checkpoints/<id>/manifest.json   written last: it makes the checkpoint restorable
timelines/<t>/checkpoints/aborted/<id>.json    the abort and its reason: an aborted id is never restorable
savepoints/<name>/                             manifest.json, state.bin and files/: everything the savepoint needs
objects/<ab>/<sha256>                          shared by checkpoints: Spark's files, and the lists of them

On an object store nothing is shared under a name that its content determines: a clean-up that was paused could delete
an object that a new checkpoint has just found present. A checkpoint names Spark's files in place, and has these
instead:

timelines/<t>/checkpoints/<id>/files/<ab>/<sha256>     lists of files
timelines/<t>/checkpoints/<id>/spark/<stream>/<path>   copies of entries of Spark's logs
savepoints/<name>/spark/<id>/<stream>/<path>           copies of all of Spark's files
savepoints/<name>/<id>/state.bin                       stage states, where they are large

Copies and stage states of a savepoint are under its id, because a name may be used again: after a driver was replaced
that took a savepoint, its successor may take one of the same name, and the old driver may still write, or delete.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from holdfast._validation import checked_name
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import held_key
from holdfast.repository.filelist import FileList, HeldFile

OBJECTS = "objects"
SAVEPOINTS = "savepoints"
MANIFEST = "manifest.json"
SIDECAR = "state.bin"
_ATTEMPT = "attempt.json"
_ABORTED = "aborted"
_OWN_FILES = "files"
_COPIES = "spark"
_OF_SAVEPOINT = re.compile(rf"{SAVEPOINTS}/[^/]+/(?:{_COPIES}/)?(\d+)/")


class AttemptRecord(Record, frozen=True, kw_only=True):
    """The record that reserves a checkpoint id, and the lease that reserved it."""

    checkpoint_id: int
    lease: int
    begun_at_ms: int
    flags: int = 0


class AbortRecord(Record, frozen=True, kw_only=True):
    """Why a checkpoint was aborted, and which streams had not acknowledged."""

    checkpoint_id: int
    lease: int
    at_ms: int
    begun_at_ms: int = 0  # 0: not known
    why: str
    late: list[str] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """The location of a checkpoint's own files, and of the files that it refers to."""

    folder: str
    objects: str
    copied: str  # on an object store: where new copies of Spark's files go, by stream
    sidecar: str  # its key

    @property
    def manifest(self) -> str:
        """The key of the manifest."""
        return f"{self.folder}/{MANIFEST}"

    def object(self, sha256: str) -> str:
        """Return the key of a file by its digest."""
        return held_key(self.objects, sha256)

    def copies(self, stream: str) -> str:
        """Return the folder for the copies of a stream's files, on an object store. A file list names its folder."""
        return f"{self.copied}/{stream}"

    def key(self, listed: FileList, file: HeldFile) -> str:
        """Return the key of a file of a cut."""
        return listed.placed_key(file) if listed.is_placed else self.object(file.sha256)


def place_of(timeline: int, checkpoint: int, savepoint: str | None = None, *, shared: bool = True) -> CheckpointPlace:
    """Return the location of a checkpoint, or of the savepoint with this name. `shared`: not on an object store.

    With id 0, the sidecar of a savepoint is where earlier versions have put it on an object store.
    """
    folder = checkpoint_folder(timeline, checkpoint) if savepoint is None else savepoint_folder(savepoint)
    objects = OBJECTS if shared and savepoint is None else f"{folder}/{_OWN_FILES}"
    copied = f"{folder}/{_COPIES}" if savepoint is None else f"{folder}/{_COPIES}/{checkpoint}"
    own = folder if shared or savepoint is None or not checkpoint else f"{folder}/{checkpoint}"
    return CheckpointPlace(folder, objects, copied, f"{own}/{SIDECAR}")


def checkpoint_folder(timeline: int, checkpoint: int) -> str:
    """Return the folder of one checkpoint id."""
    return f"timelines/{timeline}/checkpoints/{checkpoint}"


def savepoint_folder(name: str) -> str:
    """Return the folder of a savepoint."""
    return f"{SAVEPOINTS}/{checked_name('savepoint', name)}"


def id_of_savepoint_file(key: str) -> int | None:
    """Return the id of the attempt that wrote a file of a savepoint on an object store; `None` if its key has none."""
    match = _OF_SAVEPOINT.match(key)
    return int(match[1]) if match else None


def attempt_key(timeline: int, checkpoint: int) -> str:
    """Return the key of an attempt's record."""
    return f"{checkpoint_folder(timeline, checkpoint)}/{_ATTEMPT}"


def aborts_folder(timeline: int) -> str:
    """Return the folder of a timeline's abort records."""
    return f"timelines/{timeline}/checkpoints/{_ABORTED}"


def abort_key(timeline: int, checkpoint: int) -> str:
    """Return the key of an abort record."""
    return f"{aborts_folder(timeline)}/{checkpoint}.json"

"""Reading checkpoint records one by one: ids, aborts, summaries, manifests, file lists.

Rules:
- Listing tolerates damage: a damaged record is listed as damaged and does not hide any other. An object store that
  cannot be reached is not damage: `StoreUnreachable` is raised.
- A manifest that is present and not aborted is restorable, as far as that is known without reading its files.
- Nothing is written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace

from holdfast._validation import is_name
from holdfast.errors import HoldfastError, NotFound, RecordCorrupt, StorageFailed, StoreUnreachable, UnsupportedVersion
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.formats.manifest import VERSION, Manifest
from holdfast.formats.sealed_json import SealBroken, digest_of
from holdfast.repository.base import Repository
from holdfast.repository.checkpoint_keys import (
    SAVEPOINTS,
    AbortRecord,
    AttemptRecord,
    CheckpointPlace,
    abort_key,
    aborts_folder,
    attempt_key,
    place_of,
)
from holdfast.repository.filelist import DIGEST, FileList
from holdfast.repository.objectstore import ObjectRepository
from holdfast.repository.summary import ManifestHead, Status, Summary

_ID = re.compile(r"[1-9][0-9]{0,18}")
ABORTED_BEFORE_FINISH = "it was aborted before it was finished"


class CheckpointRecords:
    """The stored records of the checkpoints and savepoints of one pipeline."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._shared = not isinstance(repository, ObjectRepository)

    def place(self, timeline: int, number: int, savepoint: str | None = None) -> CheckpointPlace:
        """Return the location of a checkpoint, or of the savepoint with this name."""
        return place_of(timeline, number, savepoint, shared=self._shared)

    # --- names ---

    def timelines(self) -> list[int]:
        """Return the numbers of the existing timelines, sorted."""
        return sorted(int(name) for name in self._folders("timelines") if _ID.fullmatch(name))

    def ids(self, timeline: int) -> set[int]:
        """Return the ids that have a folder in a timeline."""
        return {int(name) for name in self._folders(f"timelines/{timeline}/checkpoints") if _ID.fullmatch(name)}

    def aborts(self, timeline: int) -> set[int]:
        """Return the ids that were aborted in a timeline."""
        names = self._repository.list(aborts_folder(timeline))
        stems = (name.removesuffix("/").removesuffix(".json") for name in names)
        return {int(stem) for stem in stems if _ID.fullmatch(stem)}

    def reserved(self, timeline: int) -> set[int]:
        """Return the ids that are in use or were aborted in a timeline."""
        return self.ids(timeline) | self.aborts(timeline)

    def live(self, timeline: int) -> set[int]:
        """Return the ids of a timeline that were not aborted."""
        return self.ids(timeline) - self.aborts(timeline)

    def savepoint_names(self) -> list[str]:
        """Return the names of the savepoint folders, finished or not."""
        return [name for name in self._folders(SAVEPOINTS) if is_name(name)]

    def finished_savepoints(self) -> list[str]:
        """Return the names of the savepoints that have a manifest."""
        names = self.savepoint_names()
        found = self.exist([self.place(0, 0, name).manifest for name in names])
        return [name for name, exists in zip(names, found.values(), strict=True) if exists]

    def exist(self, keys: Sequence[str]) -> dict[str, bool]:
        """Return whether each key exists. A key that cannot be checked counts as existing: reading it reports why."""
        try:
            return {key: size is not None for key, size in self._repository.sizes(keys).items()}
        except StoreUnreachable:
            raise
        except StorageFailed:
            return {key: self._exists(key) for key in keys}

    # --- records ---

    def attempt(self, timeline: int, number: int) -> AttemptRecord:
        """Return the record of an attempt; where it is missing or unreadable, one with lease 0."""
        key = attempt_key(timeline, number)
        try:
            return AttemptRecord.unsealed(self._repository.read(key), key)
        except StoreUnreachable:
            raise
        except (NotFound, RecordCorrupt, UnsupportedVersion, StorageFailed):
            return AttemptRecord(checkpoint_id=number, lease=0, begun_at_ms=0)

    def checkpoint(self, timeline: int, number: int) -> Summary:
        """Summarise a checkpoint that was not aborted."""
        return self._from_manifest(self.place(timeline, number), number, timeline)

    def aborted(self, timeline: int, number: int) -> Summary:
        """Summarise an aborted checkpoint."""
        key = abort_key(timeline, number)
        try:
            record = AbortRecord.unsealed(self._repository.read(key), key)
        except HoldfastError as error:
            return Summary(number, timeline, Status.ABORTED, why=error.summary)
        begun, ended = record.begun_at_ms, record.at_ms
        return Summary(number, timeline, Status.ABORTED, begun, why=record.why, aborted_at_ms=ended)

    def savepoint(self, name: str) -> Summary:
        """Summarise a savepoint. The id of a damaged one is not known: 0."""
        found = self._from_manifest(self.place(0, 0, name), 0, 0, name)
        if found.checkpoint in self.aborts(found.timeline):  # written late, by a driver that had been replaced
            return replace(found, status=Status.ABORTED, why=ABORTED_BEFORE_FINISH)
        return found

    def file_list(self, place: CheckpointPlace, digest: str) -> FileList | str:
        """Return a file list by its digest, or a description of what is wrong with it."""
        try:
            return self.read_file_list(place, digest)
        except StoreUnreachable:
            raise
        except StorageFailed as error:
            return f"its file list: {error.summary}"

    def read_file_list(self, place: CheckpointPlace, digest: str) -> FileList | str:
        """Do the same, but raise `StorageFailed` if the storage failed: it is not known whether the list is damaged."""
        if not DIGEST.fullmatch(digest):
            return f"its file list is named {digest!r}, which is not a digest"
        key = place.object(digest)
        try:
            data = self._repository.read(key)
        except NotFound:
            return f"its file list {key} is missing"
        if hashlib.sha256(data).hexdigest() != digest:
            return f"its file list {key} does not match its digest"
        try:
            found = FileList.from_bytes(data)
        except Undecodable as error:
            return f"its file list {key} cannot be read: {error}"
        wrong = found.unsound()
        return found if wrong is None else f"its file list {key} is refused: {wrong}"

    def _from_manifest(
        self, place: CheckpointPlace, number: int, timeline: int, savepoint: str | None = None
    ) -> Summary:
        try:
            data = self._repository.read(place.manifest)
        except NotFound:
            begun = self.attempt(timeline, number).begun_at_ms if number else 0
            return Summary(number, timeline, Status.OPEN, begun, savepoint=savepoint)
        except StoreUnreachable:
            raise
        except StorageFailed as error:
            return Summary(number, timeline, Status.DAMAGED, savepoint=savepoint, why=f"its manifest: {error.summary}")
        try:
            digest_of(data)
            head = from_json(data, ManifestHead)
        except (SealBroken, Undecodable) as error:
            return Summary(number, timeline, Status.DAMAGED, savepoint=savepoint, why=f"its manifest: {error}")
        wrong = misplaced(head, savepoint or number, timeline)
        if head.version > VERSION:
            wrong = f"its manifest has version {head.version}, written by a newer Holdfast"
        if wrong:
            return Summary(number, timeline, Status.DAMAGED, savepoint=savepoint, why=wrong)
        return _restorable(head)

    def _exists(self, key: str) -> bool:
        try:
            return self._repository.sizes([key])[key] is not None
        except StorageFailed:
            return True

    def _folders(self, folder: str) -> list[str]:
        return [name.removesuffix("/") for name in self._repository.list(folder) if name.endswith("/")]


def misplaced(found: Manifest | ManifestHead, checkpoint: int | str, timeline: int) -> str | None:
    """Return which checkpoint a manifest belongs to, if it is stored in the place of another."""
    if isinstance(checkpoint, str):
        return None if found.savepoint == checkpoint else f"its manifest is that of savepoint {found.savepoint!r}"
    if found.savepoint is None and timeline and found.timeline != timeline:
        return f"its manifest is that of timeline {found.timeline}"
    return None if found.checkpoint_id == checkpoint else f"its manifest is that of checkpoint {found.checkpoint_id}"


def _restorable(head: ManifestHead) -> Summary:
    cuts, times = head.streams, head.times
    return Summary(
        head.checkpoint_id,
        head.timeline,
        Status.RESTORABLE,
        head.timestamp_ms,
        {name: cut.epoch for name, cut in cuts.items()},
        sum(cut.rows for cut in cuts.values()),
        sum(cut.file_count for cut in cuts.values()),
        sum(cut.file_bytes for cut in cuts.values()),
        head.digest,
        head.parent,
        head.savepoint,
        lists=tuple(dict.fromkeys(cut.files for cut in cuts.values() if cut.files is not None)),
        timelines={name: cut.timeline or head.timeline for name, cut in cuts.items()},
        seconds=times.seconds if times else None,
        phases=times.phases() if times else None,
        acknowledged={name: each.acknowledged for name, each in times.streams.items()} if times else None,
        new_files=sum(each.new_files for each in times.streams.values()) if times else None,
        new_bytes=sum(each.new_bytes for each in times.streams.values()) if times else None,
    )

"""Checkpoints and savepoints as a repository keeps them.

    timelines/<t>/checkpoints/<id>/attempt.json    the id is taken, for ever; written before anything else
    timelines/<t>/checkpoints/<id>/state.bin       stage states, where they are large
    timelines/<t>/checkpoints/<id>/manifest.json   written last: with it the checkpoint is restorable
    timelines/<t>/checkpoints/aborted/<id>.json    given up, and why: such an id never counts, whatever else is there
    savepoints/<name>/                             manifest.json, state.bin and files/, which hold all that it needs
    objects/<ab>/<sha256>                          what checkpoints share: Spark's files, and the lists of them

Rules:
- An id is never used twice, in whatever timeline. The highest one that was ever taken is never forgotten.
- The newest checkpoint is found by looking; no file points to it.
- A manifest that is there and not aborted is restorable, as far as it can be known without reading what it names.
- What a driver that was replaced writes later does not count: whoever takes over aborts its open attempts first.
- Looking survives damage: a damaged record is shown as such, and hides nothing else.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from holdfast._validation import checked_name, checked_positive, is_name
from holdfast.barriers import BarrierFlags
from holdfast.errors import (
    AlreadyExists,
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointMissing,
    HoldfastError,
    ManifestCorrupt,
    NotFound,
    RecordCorrupt,
    StorageFailed,
    UnsupportedVersion,
)
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.formats.manifest import VERSION, Manifest, StreamCut
from holdfast.formats.sealed_json import Record, SealBroken, digest_of
from holdfast.repository.base import Repository, checked_repository, held_key
from holdfast.repository.filelist import DIGEST, FileList, HeldFile
from holdfast.repository.summary import ManifestHead, Status, Summary

OBJECTS = "objects"
SAVEPOINTS = "savepoints"
MANIFEST = "manifest.json"
SIDECAR = "state.bin"
_ATTEMPT = "attempt.json"
_ABORTED = "aborted"
_KEPT_ABORTS = 100  # older ones tell nobody anything, once a newer checkpoint stands
_ID = re.compile(r"[1-9][0-9]{0,18}")


class AttemptRecord(Record, frozen=True, kw_only=True):
    """Whose an id is."""

    checkpoint_id: int
    lease: int
    begun_at_ms: int
    flags: int = 0


class AbortRecord(Record, frozen=True, kw_only=True):
    """Why a checkpoint was given up, and which streams were late."""

    checkpoint_id: int
    lease: int
    at_ms: int
    begun_at_ms: int = 0  # 0 if it is not known
    why: str
    late: list[str] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """Where a checkpoint's own files are, and the files that it names."""

    folder: str
    objects: str

    @property
    def manifest(self) -> str:
        """The key of the manifest."""
        return f"{self.folder}/{MANIFEST}"

    @property
    def sidecar(self) -> str:
        """The key of the sidecar."""
        return f"{self.folder}/{SIDECAR}"

    def object(self, sha256: str) -> str:
        """Return the key of a file by its digest."""
        return held_key(self.objects, sha256)


def place_of(timeline: int, checkpoint: int, savepoint: str | None = None) -> CheckpointPlace:
    """Return where a checkpoint, or a savepoint of this name, is kept."""
    if savepoint is None:
        return CheckpointPlace(_folder(timeline, checkpoint), OBJECTS)
    folder = f"{SAVEPOINTS}/{checked_name('savepoint', savepoint)}"
    return CheckpointPlace(folder, f"{folder}/files")


class Checkpoints:
    """The checkpoints and savepoints of one pipeline. Looking needs no lease; changing is for the holder of it."""

    def __init__(self, repository: Repository, clock: Callable[[], float] = time.time) -> None:
        self.repository = checked_repository(repository)
        self._clock = clock

    def __repr__(self) -> str:
        try:
            taken = {number for t in self.timelines() for number in self._ids(t) - self._aborts(t).keys()}
            savepoints = self._finished()
        except HoldfastError as error:
            return f"<Checkpoints of {self.repository.where!r}: {error.summary}>"
        newest = f", the newest is {max(taken)}" if taken else ""
        return f"<Checkpoints of {self.repository.where!r}: {len(taken)}{newest}; savepoints: {savepoints}>"

    # --- looking ---

    def all(self) -> list[Summary]:
        """Return all checkpoints and savepoints by their ids, oldest first, damaged and aborted ones too."""
        savepoints = self.savepoints()
        taken = {each.checkpoint for each in savepoints}
        found = [
            self._summary(timeline, number, aborted)
            for timeline in self.timelines()
            for aborted in [self._aborts(timeline)]
            for number in sorted(self._ids(timeline) | aborted.keys())
            if number not in taken
        ]
        return sorted([*found, *savepoints], key=lambda each: each.checkpoint)

    def standing(self) -> list[Summary]:
        """Return all that were not given up, by their ids, oldest first; the records of those that were stay unread."""
        savepoints = [each for each in self.savepoints() if each.status is not Status.ABORTED]
        taken = {each.checkpoint for each in savepoints}
        found = [
            self._summary(timeline, number, {})
            for timeline in self.timelines()
            for number in sorted(self._ids(timeline) - self._aborts(timeline).keys() - taken)
        ]
        return sorted([*found, *savepoints], key=lambda each: each.checkpoint)

    def savepoints(self) -> list[Summary]:
        """Return the savepoints by their names. The id of a damaged one is not known: 0."""
        return [self._savepoint(name) for name in self._finished()]

    def newest(self, timeline: int) -> Summary | None:
        """Return the newest checkpoint of a timeline that has a manifest, sound or not, or `None`."""
        return next(self._sound(timeline), None)

    def restorable(self, timeline: int) -> list[Summary]:
        """Return the checkpoints of a timeline that can be restored, oldest first, without savepoints."""
        return [each for each in self._sound(timeline, reverse=False) if each.status is Status.RESTORABLE]

    def read(self, checkpoint: int | str) -> Manifest:
        """Return the manifest of a checkpoint by its id, or of a savepoint by its name, checked."""
        place, timeline = self.find(checkpoint)
        return self._read(place, checkpoint, timeline)

    def find(self, checkpoint: int | str) -> tuple[CheckpointPlace, int]:
        """Return where a checkpoint is and in which timeline (0 for a savepoint), or raise `CheckpointMissing`."""
        why = ""
        if isinstance(checkpoint, str):
            if checkpoint in self._finished():
                return place_of(0, 0, checkpoint), 0
        else:
            checked_positive("checkpoint", checkpoint)
            for timeline in reversed(self.timelines()):
                place, aborted = place_of(timeline, checkpoint), _abort_key(timeline, checkpoint)
                there = self._there([place.manifest, aborted])
                if there[place.manifest] and not there[aborted]:
                    return place, timeline
                if there[aborted]:
                    why = self._summary(timeline, checkpoint, {checkpoint: ""}).why or ""
            for each in self.savepoints():
                if each.checkpoint == checkpoint:
                    return place_of(0, 0, each.savepoint), 0
        raise CheckpointMissing(checkpoint=checkpoint, where=self.repository.where, why=why)

    def latest(self, timeline: int) -> Manifest:
        """Return the newest restorable checkpoint's manifest.

        A damaged one is refused by its id, and the one before it is named, never taken silently.
        """
        for found in self._sound(timeline):
            if found.status is Status.RESTORABLE:
                return self._read(place_of(timeline, found.checkpoint), found.checkpoint, timeline)
            raise CheckpointDamaged(
                checkpoint=found.checkpoint,
                why=found.why or "",
                offered=self.before(timeline, found.checkpoint),
            )
        raise CheckpointMissing(checkpoint=0, where=self.repository.where)

    def before(self, timeline: int, checkpoint: int) -> int | None:
        """Return the id of the newest checkpoint before one whose manifest is sound, or `None`."""
        for found in self._sound(timeline):
            if found.checkpoint < checkpoint and found.status is Status.RESTORABLE:
                return found.checkpoint
        return None

    def files(self, place: CheckpointPlace, cut: StreamCut, checkpoint: int | str) -> FileList:
        """Return the list of the files that one stream's cut needs, proven by its digest."""
        if cut.files is None:
            return FileList([])
        found = self.file_list(place, cut.files)
        if isinstance(found, str):
            raise self.damaged(checkpoint, found)
        return found

    def file_list(self, place: CheckpointPlace, digest: str) -> FileList | str:
        """Return a list of files by its digest, or say what is wrong with it."""
        if not DIGEST.fullmatch(digest):
            return f"its file list is named {digest!r}, which is no digest"
        key = place.object(digest)
        try:
            data = self.repository.read(key)
        except NotFound:
            return f"its file list {key} is missing"
        except StorageFailed as error:
            return f"its file list: {error.summary}"
        if hashlib.sha256(data).hexdigest() != digest:
            return f"its file list {key} does not match its digest"
        try:
            found = FileList.from_bytes(data)
        except Undecodable as error:
            return f"its file list {key} cannot be read: {error}"
        wrong = found.unsound()
        return found if wrong is None else f"its file list {key} is refused: {wrong}"

    def sidecar(self, place: CheckpointPlace, manifest: Manifest) -> bytes | None:
        """Return the sidecar where the manifest names one; `None` where it names none or it is gone."""
        if manifest.state_checksum is None:
            return None
        try:
            return self.repository.read(place.sidecar)
        except NotFound:
            return None

    def open_attempts(self, timeline: int) -> list[AttemptRecord]:
        """Return the attempts that were begun and neither finished nor given up. Lease 0: its record is damaged."""
        savepoints = self.savepoints()
        taken = {each.checkpoint for each in savepoints}
        unknown = any(each.status is Status.DAMAGED for each in savepoints)
        open_ids = sorted(self._ids(timeline) - self._aborts(timeline).keys() - taken)
        there = self._there([place_of(timeline, number).manifest for number in open_ids])
        found = [
            self._attempt(timeline, n) for n, is_there in zip(open_ids, there.values(), strict=True) if not is_there
        ]
        # One of them may be the id of a savepoint whose manifest is damaged: that is not given up.
        return [each for each in found if not (unknown and each.flags & BarrierFlags.FULL_SNAPSHOT)]

    def highest(self) -> int:
        """Return the highest id that was ever taken; 0 is none."""
        found = [number for t in self.timelines() for number in self._ids(t) | self._aborts(t).keys()]
        return max([*found, *(each.checkpoint for each in self.savepoints())], default=0)

    def timelines(self) -> list[int]:
        """Return the timelines that there are."""
        return sorted(int(name) for name in self._folders("timelines") if _ID.fullmatch(name))

    # --- changing ---

    def claim(self, timeline: int, lease: int, flags: int = 0) -> int:
        """Take the next id, durably: whatever happens, nobody will be given it again.

        1. Write the next id into this timeline, or try the one after it.  2. Look into the others: a driver that was
        replaced may still be at work there, and have taken it at the same moment. Then nobody uses it.
        """
        number = self.highest()
        while True:
            number += 1
            record = AttemptRecord(checkpoint_id=number, lease=lease, begun_at_ms=self._now(), flags=flags)
            if not self.repository.put_if_absent(f"{_folder(timeline, number)}/{_ATTEMPT}", record.sealed()).won:  # 1
                continue
            others = (t for t in self.timelines() if t != timeline)
            if not any(number in self._ids(t) | self._aborts(t).keys() for t in others):  # 2
                return number
            self.abort(timeline, number, lease, "it was taken in another timeline at the same moment")

    def abort(self, timeline: int, checkpoint: int, lease: int, why: str, late: Sequence[str] = ()) -> AbortRecord:
        """Give an attempt up, durably, and remove what it wrote beside its objects."""
        begun = self._attempt(timeline, checkpoint).begun_at_ms  # that record is removed below
        record = AbortRecord(
            checkpoint_id=checkpoint, lease=lease, at_ms=self._now(), begun_at_ms=begun, why=why, late=list(late)
        )
        key = _abort_key(timeline, checkpoint)
        stands = AbortRecord.unsealed(self.repository.put_if_absent(key, record.sealed()).data, key)
        self.repository.clear(_folder(timeline, checkpoint))
        self._forget_aborts(timeline)
        return stands

    def close_open(self, timeline: int, lease: int) -> list[int]:
        """Give up what a driver that is gone has left open. What it may still write will not count."""
        left = self.open_attempts(timeline)
        for each in left:
            whose = f"lease {each.lease}" if each.lease else "a lease that its damaged record does not tell"
            self.abort(timeline, each.checkpoint_id, lease, f"it was left unfinished under {whose}")
        self._drop_unfinished_savepoints()
        return [each.checkpoint_id for each in left]

    def put(self, manifest: Manifest, sidecar: Sequence[memoryview] = ()) -> str:
        """Make a checkpoint restorable; return its manifest's digest.

        1. Refuse a place that is taken: its sidecar stays as it is.  2. Write the sidecar.  3. Write the manifest.
        4. Look whether it was given up meanwhile: then it does not count, whatever was written.
        """
        place = place_of(manifest.timeline, manifest.checkpoint_id, manifest.savepoint)
        data = manifest.to_bytes()
        if self.repository.sizes([place.manifest])[place.manifest] is not None:  # 1
            raise AlreadyExists(what=place.manifest)
        if sidecar:
            self.repository.put(place.sidecar, sidecar)  # 2
        if not self.repository.put_if_absent(place.manifest, data).won:  # 3
            raise AlreadyExists(what=place.manifest)
        if manifest.checkpoint_id in self._aborts(manifest.timeline):  # 4
            raise CheckpointFailed(checkpoint=manifest.checkpoint_id, why="it was given up before it was finished")
        return digest_of(data)

    def put_files(self, place: CheckpointPlace, files: Iterable[HeldFile]) -> tuple[str, FileList]:
        """Keep a list of files as an object; return its digest."""
        listed = FileList(sorted(files, key=lambda each: each.path))
        data = listed.to_bytes()
        digest = hashlib.sha256(data).hexdigest()
        self.repository.put_if_absent(place.object(digest), data)
        return digest, listed

    def require_free(self, savepoint: str) -> None:
        """Refuse the name of a savepoint that is there."""
        checked_name("savepoint", savepoint)
        if savepoint in self._finished():
            raise AlreadyExists(what=f"savepoint {savepoint!r}", do="choose another name, or delete that one")

    def drop(self, timeline: int, checkpoint: int) -> None:
        """Remove a checkpoint: first its manifest, so that what is left if this is cut off does not count."""
        self.repository.delete(place_of(timeline, checkpoint).manifest)
        self._burn(timeline, checkpoint)

    def drop_savepoint(self, name: str) -> None:
        """Remove a savepoint with all that it holds: first its manifest."""
        place, _ = self.find(checked_name("savepoint", name))
        found = self._savepoint(name)
        self.repository.delete(place.manifest)
        self.repository.clear(place.folder)
        if found.checkpoint:
            self._burn(found.timeline, found.checkpoint)

    def drop_unfinished(self, savepoint: str) -> None:
        """Remove what was copied for a savepoint that is given up; one that has a manifest is left as it is."""
        if savepoint not in self._finished():
            self.repository.clear(f"{SAVEPOINTS}/{checked_name('savepoint', savepoint)}")

    # --- inside ---

    def _burn(self, timeline: int, checkpoint: int) -> None:
        """Remove the folder of an id. The highest one leaves a record behind: it must not be taken again."""
        if checkpoint == self.highest():
            self.abort(timeline, checkpoint, 0, "it was dropped")
        self.repository.clear(_folder(timeline, checkpoint))

    def _forget_aborts(self, timeline: int) -> None:
        newest = self.newest(timeline)
        aborted = sorted(self._aborts(timeline))
        for number in aborted[:-_KEPT_ABORTS] if newest else []:
            if number < (newest.checkpoint if newest else 0):
                self.repository.clear(_folder(timeline, number))
                self.repository.delete(_abort_key(timeline, number))

    def _attempt(self, timeline: int, number: int) -> AttemptRecord:
        key = f"{_folder(timeline, number)}/{_ATTEMPT}"
        try:
            return AttemptRecord.unsealed(self.repository.read(key), key)
        except (NotFound, RecordCorrupt, UnsupportedVersion, StorageFailed):
            return AttemptRecord(checkpoint_id=number, lease=0, begun_at_ms=0)

    def _drop_unfinished_savepoints(self) -> None:
        aborted = {each.savepoint for each in self.savepoints() if each.status is Status.ABORTED}
        for name in sorted(set(self._savepoint_names()) - (set(self._finished()) - aborted)):
            self.repository.clear(f"{SAVEPOINTS}/{name}")

    def _sound(self, timeline: int, *, reverse: bool = True) -> Iterator[Summary]:
        """Give what has a manifest and is not aborted: restorable or damaged; newest first."""
        aborted = self._aborts(timeline)
        for number in sorted(self._ids(timeline) - aborted.keys(), reverse=reverse):
            found = self._summary(timeline, number, {})
            if found.status is not Status.OPEN:
                yield found

    def _summary(self, timeline: int, number: int, aborted: Mapping[int, str]) -> Summary:
        if number in aborted:
            key = _abort_key(timeline, number)
            try:
                record = AbortRecord.unsealed(self.repository.read(key), key)
            except HoldfastError as error:
                return Summary(number, timeline, Status.ABORTED, why=error.summary)
            begun, ended = record.begun_at_ms, record.at_ms
            return Summary(number, timeline, Status.ABORTED, begun, why=record.why, aborted_at_ms=ended)
        return self._headed(place_of(timeline, number), number, timeline)

    def _savepoint(self, name: str) -> Summary:
        found = self._headed(place_of(0, 0, name), 0, 0, name)
        if found.checkpoint in self._aborts(found.timeline):  # the late manifest of a driver that was replaced
            return replace(found, status=Status.ABORTED, why="it was given up before it was finished")
        return found

    def _headed(self, place: CheckpointPlace, number: int, timeline: int, savepoint: str | None = None) -> Summary:
        try:
            data = self.repository.read(place.manifest)
        except NotFound:
            begun = self._attempt(timeline, number).begun_at_ms if number else 0
            return Summary(number, timeline, Status.OPEN, begun, savepoint=savepoint)
        except StorageFailed as error:
            return Summary(number, timeline, Status.DAMAGED, savepoint=savepoint, why=f"its manifest: {error.summary}")
        try:
            digest_of(data)
            head = from_json(data, ManifestHead)
        except (SealBroken, Undecodable) as error:
            return Summary(number, timeline, Status.DAMAGED, savepoint=savepoint, why=f"its manifest: {error}")
        wrong = _misplaced(head, savepoint or number, timeline)
        if head.version > VERSION:
            wrong = f"its manifest is of version {head.version}, written by a newer Holdfast"
        if wrong:
            return Summary(number, timeline, Status.DAMAGED, savepoint=savepoint, why=wrong)
        return Summary(
            head.checkpoint_id,
            head.timeline,
            Status.RESTORABLE,
            head.timestamp_ms,
            {name: cut.epoch for name, cut in head.streams.items()},
            sum(cut.rows for cut in head.streams.values()),
            sum(cut.file_count for cut in head.streams.values()),
            sum(cut.file_bytes for cut in head.streams.values()),
            head.digest,
            head.parent,
            head.savepoint,
            lists=tuple(dict.fromkeys(cut.files for cut in head.streams.values() if cut.files is not None)),
        )

    def _read(self, place: CheckpointPlace, checkpoint: int | str, timeline: int) -> Manifest:
        try:
            manifest = Manifest.from_bytes(self.repository.read(place.manifest))
        except NotFound:
            raise CheckpointMissing(checkpoint=checkpoint, where=self.repository.where) from None
        except ManifestCorrupt as error:
            raise self.damaged(checkpoint, error.summary) from error
        except UnsupportedVersion as newer:
            newer.what = f"manifest {place.manifest!r}"
            raise
        wrong = _misplaced(manifest, checkpoint, timeline)
        if wrong:
            raise self.damaged(checkpoint, wrong)
        return manifest

    def damaged(self, checkpoint: int | str, why: str) -> CheckpointDamaged:
        """Return the error that refuses a checkpoint, and offers the one before it."""
        offered = None
        if isinstance(checkpoint, int):
            offered = next((b for t in reversed(self.timelines()) if (b := self.before(t, checkpoint))), None)
        return CheckpointDamaged(checkpoint=checkpoint, why=why, offered=offered)

    def _ids(self, timeline: int) -> set[int]:
        return {int(name) for name in self._folders(f"timelines/{timeline}/checkpoints") if _ID.fullmatch(name)}

    def _aborts(self, timeline: int) -> dict[int, str]:
        names = self.repository.list(f"timelines/{timeline}/checkpoints/{_ABORTED}")
        stems = {name.removesuffix("/").removesuffix(".json"): name for name in names}
        return {int(stem): name for stem, name in stems.items() if _ID.fullmatch(stem)}

    def _finished(self) -> list[str]:
        """Return the names of the savepoints that have a manifest."""
        names = self._savepoint_names()
        there = self._there([f"{SAVEPOINTS}/{name}/{MANIFEST}" for name in names])
        return [name for name, is_there in zip(names, there.values(), strict=True) if is_there]

    def _there(self, keys: Sequence[str]) -> dict[str, bool]:
        """Return whether each key exists. One that cannot be checked counts as existing: reading it reports why."""
        try:
            return {key: size is not None for key, size in self.repository.sizes(keys).items()}
        except StorageFailed:
            return {key: self._is_there(key) for key in keys}

    def _is_there(self, key: str) -> bool:
        try:
            return self.repository.sizes([key])[key] is not None
        except StorageFailed:
            return True

    def _savepoint_names(self) -> list[str]:
        return [name for name in self._folders(SAVEPOINTS) if is_name(name)]

    def _folders(self, folder: str) -> list[str]:
        return [name.removesuffix("/") for name in self.repository.list(folder) if name.endswith("/")]

    def _now(self) -> int:
        return int(self._clock() * 1000)


def _folder(timeline: int, checkpoint: int) -> str:
    return f"timelines/{timeline}/checkpoints/{checkpoint}"


def _abort_key(timeline: int, checkpoint: int) -> str:
    return f"timelines/{timeline}/checkpoints/{_ABORTED}/{checkpoint}.json"


def _misplaced(found: Manifest | ManifestHead, checkpoint: int | str, timeline: int) -> str | None:
    """Say whose a manifest is that does not stand where it belongs."""
    if isinstance(checkpoint, str):
        return None if found.savepoint == checkpoint else f"its manifest is that of savepoint {found.savepoint!r}"
    if found.savepoint is None and timeline and found.timeline != timeline:
        return f"its manifest is that of timeline {found.timeline}"
    return None if found.checkpoint_id == checkpoint else f"its manifest is that of checkpoint {found.checkpoint_id}"

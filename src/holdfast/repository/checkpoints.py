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
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from holdfast.checked import checked_name
from holdfast.errors import AlreadyExists, CheckpointDamaged, CheckpointMissing, HoldfastError, NotFound
from holdfast.manifest import Manifest, StreamCut
from holdfast.repository.base import Held, Repository, checked_repository, held_key
from holdfast.seal import Record, SealBroken, digest_of

OBJECTS = "objects"
SAVEPOINTS = "savepoints"
MANIFEST = "manifest.json"
SIDECAR = "state.bin"
_ATTEMPT = "attempt.json"
_ABORTED = "aborted"
_KEPT_ABORTS = 100  # older ones tell nobody anything


class AttemptRecord(Record, frozen=True, kw_only=True):
    """Whose an id is."""

    checkpoint_id: int
    lease: int
    begun_at_ms: int
    flags: int = 0


class AbortRecord(Record, frozen=True, kw_only=True):
    """Why a checkpoint was given up, and who was late."""

    checkpoint_id: int
    lease: int
    at_ms: int
    why: str
    late: list[str] = msgspec.field(default_factory=list)


class HeldFile(msgspec.Struct, frozen=True, array_like=True):
    """One of Spark's files at a cut: its path in the stream's checkpoint folder, its size and its SHA-256."""

    path: str
    size: int
    sha256: str


class FileList(msgspec.Struct, frozen=True):
    """The files that one stream's cut needs, sorted by path. Kept as an object that is named by its own digest."""

    files: list[HeldFile]

    def to_bytes(self) -> bytes:
        """Return the list as JSON, a file a line."""
        lines = b",\n".join(msgspec.json.encode(each) for each in sorted(self.files, key=lambda each: each.path))
        return b'{"files":[\n' + lines + b"\n]}\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> FileList:
        """Read it back; `msgspec.MsgspecError` where it is none."""
        return msgspec.json.decode(data, type=cls)


class Status(StrEnum):
    """What a checkpoint is."""

    RESTORABLE = "restorable"
    OPEN = "open"  # being taken, or left by a driver that died
    ABORTED = "aborted"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Summary:
    """A checkpoint in a list."""

    checkpoint: int
    timeline: int
    status: Status
    timestamp_ms: int = 0
    epochs: Mapping[str, int] | None = None  # by stream
    rows: int = 0
    file_count: int = 0
    file_bytes: int = 0
    digest: str | None = None
    parent: str | None = None
    savepoint: str | None = None
    why: str | None = None  # aborted or damaged


class _Cut(msgspec.Struct):
    epoch: int
    rows: int = 0
    file_count: int = 0
    file_bytes: int = 0


class _Head(msgspec.Struct):
    """What a list shows of a manifest; the rest is not decoded."""

    digest: str
    version: int
    checkpoint_id: int
    timestamp_ms: int
    timeline: int = 0
    parent: str | None = None
    savepoint: str | None = None
    streams: dict[str, _Cut] = {}


@dataclass(frozen=True, slots=True)
class Place:
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


def place_of(timeline: int, checkpoint: int, savepoint: str | None = None) -> Place:
    """Return where a checkpoint, or a savepoint of this name, is kept."""
    if savepoint is None:
        return Place(_folder(timeline, checkpoint), OBJECTS)
    folder = f"{SAVEPOINTS}/{checked_name('savepoint', savepoint)}"
    return Place(folder, f"{folder}/files")


class Checkpoints:
    """The checkpoints and savepoints of one pipeline. Looking needs no lease; changing is for the holder of it."""

    def __init__(self, repository: Repository, clock: Callable[[], float] = time.time) -> None:
        self.repository = checked_repository(repository)
        self._clock = clock

    # --- looking ---

    def all(self) -> list[Summary]:
        """Return all checkpoints and savepoints by their ids, oldest first, damaged and aborted ones too."""
        savepoints = [self._savepoint(name) for name in self._names(SAVEPOINTS)]
        taken = {each.checkpoint for each in savepoints}
        found = [
            self._summary(timeline, number, aborted)
            for timeline in self.timelines()
            for aborted in [self._aborts(timeline)]
            for number in sorted(self._ids(timeline) | aborted.keys())
            if number not in taken
        ]
        return sorted([*found, *savepoints], key=lambda each: each.checkpoint)

    def restorable(self, timeline: int) -> list[Summary]:
        """Return the checkpoints of a timeline that can be restored, oldest first, without savepoints."""
        return [each for each in self._sound(timeline, reverse=False) if each.status is Status.RESTORABLE]

    def read(self, checkpoint: int | str) -> Manifest:
        """Return the manifest of a checkpoint by its id, or of a savepoint by its name, checked."""
        place, _ = self.find(checkpoint)
        return self._read(place, checkpoint)

    def find(self, checkpoint: int | str) -> tuple[Place, int]:
        """Return where a checkpoint is and in which timeline (0 for a savepoint), or raise `CheckpointMissing`."""
        if isinstance(checkpoint, str):
            if checkpoint in self._names(SAVEPOINTS):
                return place_of(0, 0, checkpoint), 0
        else:
            for timeline in reversed(self.timelines()):
                place = place_of(timeline, checkpoint)
                there = self.repository.sizes([place.manifest, _abort_key(timeline, checkpoint)])
                if list(there.values())[1] is None and there[place.manifest] is not None:
                    return place, timeline
            for name in self._names(SAVEPOINTS):
                if self._savepoint(name).checkpoint == checkpoint:
                    return place_of(0, 0, name), 0
        raise CheckpointMissing(checkpoint=checkpoint, where=self.repository.where)

    def latest(self, timeline: int) -> Manifest:
        """Return the newest restorable checkpoint's manifest.

        A damaged one is refused by its id, and the one before it is named, never taken silently.
        """
        for found in self._sound(timeline):
            if found.status is Status.RESTORABLE:
                return self._read(place_of(timeline, found.checkpoint), found.checkpoint)
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

    def files(self, place: Place, cut: StreamCut, checkpoint: int | str) -> FileList:
        """Return the list of the files that one stream's cut needs, proven by its digest."""
        if cut.files is None:
            return FileList([])
        key = place.object(cut.files)
        try:
            data = self.repository.read(key)
            found = FileList.from_bytes(data)
        except NotFound:
            raise self._damaged(checkpoint, f"its file list {key} is missing") from None
        except msgspec.MsgspecError as error:
            raise self._damaged(checkpoint, f"its file list {key} cannot be read: {error}") from None
        if self.repository.digest(key) != cut.files:
            raise self._damaged(checkpoint, f"its file list {key} does not match its digest")
        return found

    def sidecar(self, place: Place, manifest: Manifest) -> bytes | None:
        """Return the sidecar where the manifest names one; `None` where it names none or it is gone."""
        if manifest.state_checksum is None:
            return None
        try:
            return self.repository.read(place.sidecar)
        except NotFound:
            return None

    def open_attempts(self, timeline: int) -> list[AttemptRecord]:
        """Return the attempts that were begun and neither finished nor given up."""
        done = self._aborts(timeline).keys() | {self._savepoint(name).checkpoint for name in self._names(SAVEPOINTS)}
        found: list[AttemptRecord] = []
        for number in sorted(self._ids(timeline) - done):
            key = f"{_folder(timeline, number)}/{_ATTEMPT}"
            there = self.repository.sizes([place_of(timeline, number).manifest, key])
            if list(there.values()) == [None, there[key]] and there[key] is not None:
                found.append(AttemptRecord.unsealed(self.repository.read(key), key))
        return found

    def timelines(self) -> list[int]:
        """Return the timelines that there are."""
        return sorted(int(name) for name in self._names("timelines") if name.isdigit())

    # --- changing ---

    def claim(self, timeline: int, lease: int, flags: int = 0) -> int:
        """Take the next id, durably: whatever happens, nobody will be given it again."""
        number = self._highest()
        while True:
            number += 1
            record = AttemptRecord(checkpoint_id=number, lease=lease, begun_at_ms=self._now(), flags=flags)
            if self.repository.put_if_absent(f"{_folder(timeline, number)}/{_ATTEMPT}", record.sealed()).won:
                return number

    def abort(self, timeline: int, checkpoint: int, lease: int, why: str, late: Sequence[str] = ()) -> AbortRecord:
        """Give an attempt up, durably, and remove what it wrote beside its objects."""
        record = AbortRecord(checkpoint_id=checkpoint, lease=lease, at_ms=self._now(), why=why, late=list(late))
        key = _abort_key(timeline, checkpoint)
        stands = AbortRecord.unsealed(self.repository.put_if_absent(key, record.sealed()).data, key)
        self.repository.clear(_folder(timeline, checkpoint))
        for number in sorted(self._aborts(timeline))[:-_KEPT_ABORTS]:
            self.repository.clear(_folder(timeline, number))
            self.repository.delete(_abort_key(timeline, number))
        return stands

    def close_open(self, timeline: int, lease: int) -> list[int]:
        """Give up what a driver that is gone has left open. What it may still write will not count."""
        left = self.open_attempts(timeline)
        for each in left:
            self.abort(timeline, each.checkpoint_id, lease, f"its driver, lease {each.lease}, ended before it did")
        self._drop_unfinished_savepoints()
        return [each.checkpoint_id for each in left]

    def put(self, manifest: Manifest, sidecar: Sequence[memoryview] = ()) -> str:
        """Write sidecar, then manifest: with it the checkpoint is restorable. Returns the manifest's digest."""
        place = place_of(manifest.timeline, manifest.checkpoint_id, manifest.savepoint)
        data = manifest.to_bytes()
        if sidecar:
            self.repository.put(place.sidecar, sidecar)
        if not self.repository.put_if_absent(place.manifest, data).won:
            raise AlreadyExists(what=place.manifest)
        return digest_of(data)

    def put_files(self, place: Place, files: Iterable[HeldFile]) -> tuple[str, FileList]:
        """Keep a list of files as an object; return its digest."""
        listed = FileList(sorted(files, key=lambda each: each.path))
        data = listed.to_bytes()
        digest = hashlib.sha256(data).hexdigest()
        self.repository.put_if_absent(place.object(digest), data)
        return digest, listed

    def require_free(self, savepoint: str) -> None:
        """Refuse the name of a savepoint that is there."""
        checked_name("savepoint", savepoint)
        if savepoint in self._names(SAVEPOINTS):
            raise AlreadyExists(what=f"savepoint {savepoint!r}", do="choose another name, or delete that one")

    def drop(self, timeline: int, checkpoint: int) -> None:
        """Remove a checkpoint: first its manifest, so that what is left if this is cut off does not count."""
        self.repository.delete(place_of(timeline, checkpoint).manifest)
        if checkpoint != self._highest():
            self.repository.clear(_folder(timeline, checkpoint))

    def drop_savepoint(self, name: str) -> None:
        """Remove a savepoint with all that it holds: first its manifest."""
        place, _ = self.find(checked_name("savepoint", name))
        self.repository.delete(place.manifest)
        self.repository.clear(place.folder)

    # --- inside ---

    def _drop_unfinished_savepoints(self) -> None:
        finished = set(self._names(SAVEPOINTS))
        for name in self.repository.list(SAVEPOINTS):
            if name.endswith("/") and name.removesuffix("/") not in finished:
                self.repository.clear(f"{SAVEPOINTS}/{name.removesuffix('/')}")

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
            return Summary(number, timeline, Status.ABORTED, record.at_ms, why=record.why)
        return self._headed(place_of(timeline, number), number, timeline)

    def _savepoint(self, name: str) -> Summary:
        return self._headed(place_of(0, 0, name), 0, 0, name)

    def _headed(self, place: Place, number: int, timeline: int, savepoint: str | None = None) -> Summary:
        try:
            data = self.repository.read(place.manifest)
        except NotFound:
            return Summary(number, timeline, Status.OPEN, savepoint=savepoint)
        try:
            digest_of(data)
            head = msgspec.json.decode(data, type=_Head)
        except (SealBroken, msgspec.MsgspecError) as error:
            return Summary(number, timeline, Status.DAMAGED, savepoint=savepoint, why=f"its manifest: {error}")
        if savepoint is None and head.checkpoint_id != number:
            why = f"its manifest is that of checkpoint {head.checkpoint_id}"
            return Summary(number, timeline, Status.DAMAGED, why=why)
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
        )

    def _read(self, place: Place, checkpoint: int | str) -> Manifest:
        try:
            manifest = Manifest.from_bytes(self.repository.read(place.manifest))
        except NotFound:
            raise CheckpointMissing(checkpoint=checkpoint, where=self.repository.where) from None
        except HoldfastError as error:
            raise self._damaged(checkpoint, error.summary) from error
        if isinstance(checkpoint, int) and manifest.checkpoint_id != checkpoint:
            raise self._damaged(checkpoint, f"its manifest is that of checkpoint {manifest.checkpoint_id}")
        return manifest

    def _damaged(self, checkpoint: int | str, why: str) -> CheckpointDamaged:
        offered = None
        if isinstance(checkpoint, int):
            offered = next((b for t in reversed(self.timelines()) if (b := self.before(t, checkpoint))), None)
        return CheckpointDamaged(checkpoint=checkpoint, why=why, offered=offered)

    def _highest(self) -> int:
        """Return the highest id that was ever taken."""
        found = [number for t in self.timelines() for number in self._ids(t) | self._aborts(t).keys()]
        return max([*found, *(self._savepoint(name).checkpoint for name in self._names(SAVEPOINTS))], default=0)

    def _ids(self, timeline: int) -> set[int]:
        return {int(name) for name in self._names(f"timelines/{timeline}/checkpoints") if name.isdigit()}

    def _aborts(self, timeline: int) -> dict[int, str]:
        names = self.repository.list(f"timelines/{timeline}/checkpoints/{_ABORTED}")
        stems = {name.removesuffix(".json"): name for name in names}
        return {int(stem): name for stem, name in stems.items() if stem.isdigit()}

    def _names(self, folder: str) -> list[str]:
        """Return the folders inside a folder; of savepoints those that are finished."""
        names = [name.removesuffix("/") for name in self.repository.list(folder) if name.endswith("/")]
        if folder != SAVEPOINTS:
            return names
        there = self.repository.sizes(f"{SAVEPOINTS}/{name}/{MANIFEST}" for name in names)
        return [name for name, size in zip(names, there.values(), strict=True) if size is not None]

    def _now(self) -> int:
        return int(self._clock() * 1000)


def held_file(path: str, held: Held) -> HeldFile:
    """Return a kept file as it stands in a list."""
    return HeldFile(path, held.size, held.sha256)


def _folder(timeline: int, checkpoint: int) -> str:
    return f"timelines/{timeline}/checkpoints/{checkpoint}"


def _abort_key(timeline: int, checkpoint: int) -> str:
    return f"timelines/{timeline}/checkpoints/{_ABORTED}/{checkpoint}.json"

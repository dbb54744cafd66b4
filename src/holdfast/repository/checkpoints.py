"""The checkpoints and savepoints in a repository: list, find, read, take, abort, delete.

Rules:
- An id is never used twice, in any timeline. The highest id that was ever reserved is never forgotten.
- The newest checkpoint is found by listing; no file points to it. Only checkpoints of the current lineage count.
- A manifest that a replaced driver writes late does not count: the new lease holder aborts its open attempts first.
- Listing tolerates damage: a damaged record is listed as damaged and does not hide any other.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from holdfast import _figures as figures
from holdfast._html import h, table
from holdfast._validation import checked_name, checked_positive
from holdfast.barriers import BarrierFlags
from holdfast.errors import (
    AlreadyExists,
    BadName,
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointMissing,
    Corrupt,
    HoldfastError,
    ManifestCorrupt,
    NotFound,
    UnsupportedVersion,
)
from holdfast.formats.manifest import Manifest
from holdfast.formats.manifest_parts import StreamCut
from holdfast.formats.sealed_json import digest_of
from holdfast.repository.base import Repository, checked_repository, now_ms
from holdfast.repository.checkpoint_keys import (
    AbortRecord,
    AttemptRecord,
    CheckpointPlace,
    abort_key,
    attempt_key,
    checkpoint_folder,
    id_of_savepoint_file,
    savepoint_folder,
)
from holdfast.repository.checkpoint_records import ABORTED_BEFORE_FINISH, CheckpointRecords, misplaced
from holdfast.repository.filelist import FileList, HeldFile
from holdfast.repository.lease import refuse_replaced
from holdfast.repository.lineage import Lineage
from holdfast.repository.objectstore import ObjectRepository
from holdfast.repository.summary import Status, Summary, utc

_SHOWN = 50  # in a notebook
LATEST = "latest"  # the newest checkpoint, as an argument of commands
_KEPT_ABORTS = 100  # older abort records are of no use once there is a newer checkpoint

SAVEPOINT_EXISTS = (  # the next step
    "choose another name; or delete that savepoint while the pipeline is stopped, in Python: "
    "Checkpoints(repository).drop_savepoint(name)"
)


class Checkpoints:
    """The checkpoints and savepoints of one pipeline. Reading needs no lease; only the lease holder may change them."""

    def __init__(self, repository: Repository, clock: Callable[[], float] = time.time) -> None:
        self.repository = checked_repository(repository)
        self._records = CheckpointRecords(self.repository)
        self._clock = clock

    def __repr__(self) -> str:
        try:
            taken = {number for t in self.timelines() for number in self._records.live(t)}
            savepoints = self._records.finished_savepoints()
        except HoldfastError as error:
            return f"<Checkpoints of {self.repository.where!r}: {error.summary}>"
        newest = f", the newest is {max(taken)}" if taken else ""
        return f"<Checkpoints of {self.repository.where!r}: {len(taken)}{newest}; savepoints: {savepoints}>"

    def _repr_html_(self) -> str:
        """Return a table of the newest checkpoints, for notebooks."""
        found = self.all()
        rows = [
            (
                each.name,
                str(each.status),
                utc(each.timestamp_ms) if each.timestamp_ms else "",
                figures.number(each.file_count),
                figures.size(each.file_bytes),
                each.why or ", ".join(f"{stream} {epoch}" for stream, epoch in (each.epochs or {}).items()),
            )
            for each in reversed(found[-_SHOWN:])
        ]
        more = f", the newest {_SHOWN}" if len(found) > _SHOWN else ""
        title = h("<p><b>{}</b>{}</p>", figures.counted(len(found), "checkpoint"), more)
        return title + table(("id", "status", "taken", "files", "size", "epochs"), rows)

    # --- reading ---

    def place(self, timeline: int, checkpoint: int, savepoint: str | None = None) -> CheckpointPlace:
        """Return the location of a checkpoint, or of the savepoint with this name, whether it exists or not."""
        return self._records.place(timeline, checkpoint, savepoint)

    def all(self) -> list[Summary]:
        """Return all checkpoints and savepoints in the order of their ids, including damaged and aborted ones."""
        savepoints = self.savepoints()
        taken = {each.checkpoint for each in savepoints}
        aborted = [
            self._records.aborted(timeline, number)
            for timeline in self.timelines()
            for number in sorted(self._records.aborts(timeline) - taken)
        ]
        return sorted([*self._unaborted(taken), *aborted, *savepoints], key=lambda each: each.checkpoint)

    def standing(self) -> list[Summary]:
        """Return all that were not aborted, in the order of their ids. Abort records are not read."""
        savepoints = [each for each in self.savepoints() if each.status is not Status.ABORTED]
        found = self._unaborted({each.checkpoint for each in savepoints})
        return sorted([*found, *savepoints], key=lambda each: each.checkpoint)

    def savepoints(self) -> list[Summary]:
        """Return the savepoints in the order of their names. The id of a damaged one is not known: 0."""
        return [self._records.savepoint(name) for name in self._records.finished_savepoints()]

    def newest(self, lineage: Lineage | None = None) -> Summary | None:
        """Return the newest checkpoint of the lineage that has a manifest, damaged or not, or `None`."""
        return next(self._of_lineage(lineage), None)

    def restorable(self, lineage: Lineage | None = None) -> list[Summary]:
        """Return the restorable checkpoints of the lineage, oldest first, without savepoints."""
        return list(self.newest_first(lineage))[::-1]

    def newest_first(self, lineage: Lineage | None = None) -> Iterator[Summary]:
        """Yield the restorable checkpoints of the lineage, newest first, without savepoints. Reads them one by one."""
        return (each for each in self._of_lineage(lineage) if each.status is Status.RESTORABLE)

    def read(self, checkpoint: int | str) -> Manifest:
        """Return the checked manifest of a checkpoint by its id, or of a savepoint by its name."""
        place, timeline = self.find(checkpoint)
        return self._read(place, checkpoint, timeline)

    def find(self, checkpoint: int | str) -> tuple[CheckpointPlace, int]:
        """Return a checkpoint's location and timeline (0 for a savepoint), or raise `CheckpointMissing`."""
        why = ""
        if isinstance(checkpoint, str):
            if checkpoint in self._records.finished_savepoints():
                return self._place_of_savepoint(checkpoint), 0
        else:
            checked_positive("checkpoint", checkpoint)
            for timeline in reversed(self.timelines()):
                place, aborted = self.place(timeline, checkpoint), abort_key(timeline, checkpoint)
                exist = self._records.exist([place.manifest, aborted])
                if exist[place.manifest] and not exist[aborted]:
                    return place, timeline
                if exist[aborted]:
                    why = self._records.aborted(timeline, checkpoint).why or ""
            for each in self.savepoints():
                if each.checkpoint == checkpoint and each.savepoint is not None:
                    return self._place_of_savepoint(each.savepoint), 0
            why = why or self._why_missing(checkpoint)
        raise CheckpointMissing(checkpoint=checkpoint, where=self.repository.where, why=why)

    def latest(self, lineage: Lineage | None = None) -> Manifest:
        """Return the manifest of the newest checkpoint of the lineage; by default the current one is read.

        If it is damaged, raise `CheckpointDamaged`, which names the checkpoint before it. That one is never used
        silently.
        """
        found = self.newest(lineage)
        if found is None:
            raise CheckpointMissing(checkpoint=0, where=self.repository.where)
        if found.status is not Status.RESTORABLE:
            offered = self.before(found.checkpoint, lineage)
            raise CheckpointDamaged(checkpoint=found.checkpoint, why=found.why or "", offered=offered)
        return self._read(self.place(found.timeline, found.checkpoint), found.checkpoint, found.timeline)

    def before(self, checkpoint: int, lineage: Lineage | None = None) -> int | None:
        """Return the id of the newest restorable checkpoint of the lineage before this one, or `None`."""
        for found in self._of_lineage(lineage):
            if found.checkpoint < checkpoint and found.status is Status.RESTORABLE:
                return found.checkpoint
        return None

    def files(self, place: CheckpointPlace, cut: StreamCut, checkpoint: int | str) -> FileList:
        """Return the list of files that one stream's cut needs, verified by its digest."""
        if cut.files is None:
            return FileList([])
        found = self.file_list(place, cut.files)
        if isinstance(found, str):
            raise self.damaged(checkpoint, found)
        return found

    def file_list(self, place: CheckpointPlace, digest: str) -> FileList | str:
        """Return a file list by its digest, or a description of what is wrong with it."""
        return self._records.file_list(place, digest)

    def read_file_list(self, place: CheckpointPlace, digest: str) -> FileList | str:
        """Do the same, but raise `StorageFailed` if the storage failed: it is not known whether the list is damaged."""
        return self._records.read_file_list(place, digest)

    def sidecar(self, place: CheckpointPlace, manifest: Manifest) -> bytes | None:
        """Return the sidecar of a manifest; `None` if it has none or it is missing."""
        if manifest.state_checksum is None:
            return None
        try:
            return self.repository.read(place.sidecar)
        except NotFound:
            return None

    def open_attempts(self, timeline: int) -> list[AttemptRecord]:
        """Return the attempts that are neither finished nor aborted. Lease 0: the record is damaged."""
        savepoints = self.savepoints()
        taken = {each.checkpoint for each in savepoints}
        unknown = any(each.status is Status.DAMAGED for each in savepoints)
        live = sorted(self._records.live(timeline) - taken)
        exist = self._records.exist([self.place(timeline, number).manifest for number in live])
        found = [
            self._records.attempt(timeline, number)
            for number, exists in zip(live, exist.values(), strict=True)
            if not exists
        ]
        # One of them may be the id of a savepoint whose manifest is damaged, which must not be aborted.
        return [each for each in found if not (unknown and each.flags & BarrierFlags.FULL_SNAPSHOT)]

    def highest(self) -> int:
        """Return the highest id that was ever reserved; 0 if there is none."""
        found = [number for t in self.timelines() for number in self._records.reserved(t)]
        return max([*found, *(each.checkpoint for each in self.savepoints())], default=0)

    def timelines(self) -> list[int]:
        """Return the numbers of the existing timelines, sorted."""
        return self._records.timelines()

    def damaged(self, checkpoint: int | str, why: str) -> CheckpointDamaged:
        """Return the error for a damaged checkpoint, which names the restorable one before it."""
        offered = None
        if isinstance(checkpoint, int):
            with contextlib.suppress(NotFound, Corrupt, UnsupportedVersion):  # copied without its repository
                offered = self.before(checkpoint)
        return CheckpointDamaged(checkpoint=checkpoint, why=why, offered=offered)

    # --- changing ---

    def claim(self, timeline: int, lease: int, flags: int = 0) -> int:
        """Reserve the next id durably. It is never assigned again, even if the checkpoint fails.

        1. Write the next id into this timeline; if it is taken, try the following one.  2. Check the other timelines: a
        replaced driver may still be running there and may have reserved the same id at the same moment. If so, the id
        is aborted and not used.
        """
        number = self.highest()
        while True:
            number += 1
            record = AttemptRecord(checkpoint_id=number, lease=lease, begun_at_ms=now_ms(self._clock), flags=flags)
            if not self.repository.put_if_absent(attempt_key(timeline, number), record.sealed()).won:  # 1
                continue
            others = (t for t in self.timelines() if t != timeline)
            if not any(number in self._records.reserved(t) for t in others):  # 2
                return number
            self.abort(timeline, number, lease, "its id was taken in another timeline at the same moment")

    def abort(self, timeline: int, checkpoint: int, lease: int, why: str, late: Sequence[str] = ()) -> AbortRecord:
        """Abort an attempt durably and remove its files, except for shared objects."""
        begun = self._records.attempt(timeline, checkpoint).begun_at_ms  # that record is removed below
        record = AbortRecord(
            checkpoint_id=checkpoint,
            lease=lease,
            at_ms=now_ms(self._clock),
            begun_at_ms=begun,
            why=why,
            late=list(late),
        )
        key = abort_key(timeline, checkpoint)
        stored = AbortRecord.unsealed(self.repository.put_if_absent(key, record.sealed()).data, key)
        self.repository.clear(checkpoint_folder(timeline, checkpoint))
        self._forget_aborts(timeline)
        return stored

    def close_open(self, timeline: int, lease: int) -> list[int]:
        """Abort the attempts that an earlier driver left open. A manifest that it still writes will not count.

        A driver that has replaced this one takes checkpoints, too. 1. Note the highest id.  2. Raise `Fenced` if there
        is a newer lease. Otherwise a driver that replaces this one uses higher ids.  3. Abort attempts up to that id.
        """
        last = self.highest()  # 1
        refuse_replaced(self.repository, lease)  # 2
        left = [each for each in self.open_attempts(timeline) if each.checkpoint_id <= last]  # 3
        for each in left:
            owner = f"lease {each.lease}" if each.lease else "an unknown lease: its record is damaged"
            self.abort(timeline, each.checkpoint_id, lease, f"it was left unfinished under {owner}")
        self._drop_unfinished_savepoints(last)
        return [each.checkpoint_id for each in left]

    def put(self, manifest: Manifest, sidecar: Sequence[memoryview] = ()) -> str:
        """Make a checkpoint restorable and return the digest of its manifest.

        1. Refuse if there is a manifest already; its sidecar is not touched.  2. Write the sidecar.  3. Write the
        manifest.  4. Check whether the checkpoint was aborted in the meantime: if so, it does not count.
        """
        place = self.place(manifest.timeline, manifest.checkpoint_id, manifest.savepoint)
        data = manifest.to_bytes()
        if self.repository.sizes([place.manifest])[place.manifest] is not None:  # 1
            raise AlreadyExists(what=place.manifest)
        if sidecar:
            self.repository.put_new(place.sidecar, sidecar)  # 2
        if not self.repository.put_if_absent(place.manifest, data).won:  # 3
            raise AlreadyExists(what=place.manifest)
        if manifest.checkpoint_id in self._records.aborts(manifest.timeline):  # 4
            raise CheckpointFailed(checkpoint=manifest.checkpoint_id, why=ABORTED_BEFORE_FINISH)
        return digest_of(data)

    def put_files(
        self, place: CheckpointPlace, files: Iterable[HeldFile], *, live: str = "", copies: str = ""
    ) -> tuple[str, FileList]:
        """Store a file list as an object; return its digest and the list. `live`, `copies`: on an object store."""
        listed = FileList(sorted(files, key=lambda each: each.path), live, copies)
        data = listed.to_bytes()
        digest = hashlib.sha256(data).hexdigest()
        self.repository.put_if_absent(place.object(digest), data)
        return digest, listed

    def require_free(self, savepoint: str) -> None:
        """Raise `AlreadyExists` if there is a savepoint with this name, and `BadName` for a word of the commands."""
        checked_name("savepoint", savepoint)
        if savepoint == LATEST:
            why = "commands use this word for the newest checkpoint"
            raise BadName(kind="savepoint", name=savepoint, why=why)
        if savepoint in self._records.finished_savepoints():
            raise AlreadyExists(what=f"savepoint {savepoint!r}", do=SAVEPOINT_EXISTS)

    def drop(self, timeline: int, checkpoint: int) -> None:
        """Delete a checkpoint, its manifest first: if this is interrupted, the rest does not count."""
        self.repository.delete(self.place(timeline, checkpoint).manifest)
        self._clear_id(timeline, checkpoint)

    def drop_timeline(self, timeline: int, lease: int) -> None:
        """Delete an abandoned timeline. If it has the highest id, this id is recorded in the current one before."""
        rest = [number for each in self.timelines() if each != timeline for number in self._records.reserved(each)]
        highest = self.highest()
        if highest > max([*rest, *(each.checkpoint for each in self.savepoints())], default=0):
            self.abort(Lineage.load(self.repository).current, highest, lease, "it was deleted")
        self.repository.clear(f"timelines/{timeline}")

    def drop_savepoint(self, name: str) -> None:
        """Delete a savepoint with all its files, its manifest first."""
        place, _ = self.find(checked_name("savepoint", name))
        found = self._records.savepoint(name)
        self.repository.delete(place.manifest)
        self.repository.clear(place.folder)
        if found.checkpoint:
            self._clear_id(found.timeline, found.checkpoint)

    def drop_unfinished(self, savepoint: str, checkpoint: int) -> None:
        """Delete the files of a savepoint whose attempt failed; one that has a manifest is not touched.

        `checkpoint` is the id of that attempt. Files of later attempts at a savepoint of this name are not deleted.
        """
        if savepoint not in self._records.finished_savepoints():
            self._clear_savepoint(savepoint, checkpoint, aborted=False)

    # --- internal ---

    def _place_of_savepoint(self, name: str) -> CheckpointPlace:
        """Return the location of a savepoint. On an object store, its sidecar is under its id, or where it was earlier.

        Only the id in the manifest tells which sidecar is its own: a driver that was replaced may have left another.
        """
        earlier = self.place(0, 0, name)
        if not isinstance(self.repository, ObjectRepository):
            return earlier
        own = self.place(0, self._records.savepoint(name).checkpoint, name)
        exist = self._records.exist([own.sidecar, earlier.sidecar])
        return earlier if exist[earlier.sidecar] and not exist[own.sidecar] else own

    def _why_missing(self, checkpoint: int) -> str:
        """Return why a checkpoint without a manifest is missing, if its id was reserved and nothing is left of it."""
        left = any(checkpoint in self._records.reserved(timeline) for timeline in self.timelines())
        return "" if left or checkpoint > self.highest() else "it was pruned or deleted"

    def _unaborted(self, without: set[int]) -> list[Summary]:
        return [
            self._records.checkpoint(timeline, number)
            for timeline in self.timelines()
            for number in sorted(self._records.live(timeline) - without)
        ]

    def _of_lineage(self, lineage: Lineage | None) -> Iterator[Summary]:
        """Yield the checkpoints of the lineage that have a manifest and are not aborted; newest first."""
        lineage = Lineage.load(self.repository) if lineage is None else lineage
        for timeline in reversed(lineage.timelines):
            yield from self._with_manifest(timeline, lineage)

    def _with_manifest(self, timeline: int, lineage: Lineage | None = None) -> Iterator[Summary]:
        """Yield the checkpoints that have a manifest and are not aborted, restorable or damaged; newest first."""
        live = self._records.live(timeline)
        for number in sorted(live, reverse=True):
            if lineage is not None and not lineage.holds_checkpoint(timeline, number):
                continue
            found = self._records.checkpoint(timeline, number)
            if found.status is not Status.OPEN:
                yield found

    def _clear_id(self, timeline: int, checkpoint: int) -> None:
        """Delete the folder of an id. The highest id leaves an abort record, so that it is not assigned again."""
        if checkpoint == self.highest():
            self.abort(timeline, checkpoint, 0, "it was deleted")
        self.repository.clear(checkpoint_folder(timeline, checkpoint))

    def _forget_aborts(self, timeline: int) -> None:
        """Delete old abort records, but none that is newer than the newest checkpoint."""
        newest = next(self._with_manifest(timeline), None)
        if newest is None:
            return
        for number in sorted(self._records.aborts(timeline))[:-_KEPT_ABORTS]:
            if number < newest.checkpoint:
                self.repository.clear(checkpoint_folder(timeline, number))
                self.repository.delete(abort_key(timeline, number))

    def _drop_unfinished_savepoints(self, last: int) -> None:
        """Delete the files of savepoints that do not count, of the attempts up to an id."""
        aborted = {each.savepoint for each in self.savepoints() if each.status is Status.ABORTED}
        finished = set(self._records.finished_savepoints()) - aborted
        for name in sorted(set(self._records.savepoint_names()) - finished):
            self._clear_savepoint(name, last, aborted=name in aborted)

    def _clear_savepoint(self, savepoint: str, last: int, *, aborted: bool) -> None:
        """Delete the files of a savepoint without a manifest, or with that of an attempt that was aborted.

        On an object store, this driver may be paused here, or within the listing, and replaced. Its successor may take
        a savepoint of the same name. It first reserves an id higher than `last`. If there is such an id after the
        listing, only files are deleted whose keys have an earlier id.
        """
        folder = savepoint_folder(savepoint)
        if not isinstance(self.repository, ObjectRepository):
            self.repository.clear(folder)
            return
        found = [each.key for each in self.repository.flat(folder)]
        if not aborted and self.place(0, 0, savepoint).manifest in found:
            return
        if self.highest() > last:
            ids = {key: id_of_savepoint_file(key) for key in found}
            found = [key for key, number in ids.items() if number is not None and number <= last]
        self.repository.delete_all(found)

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
        wrong = misplaced(manifest, checkpoint, timeline)
        if wrong:
            raise self.damaged(checkpoint, wrong)
        return manifest

"""Verify: whether a checkpoint is what it says, in grades, each of which holds those before it.

    STRUCTURE   its records: seal, place, chain, file lists; every file there with its size; cuts that fit each other
    DIGESTS     the bytes: SHA-256 of every file, of the sidecar and of every operator's state
    READ_DATA   Spark loads the state for real; whoever has a session passes in how

Rules:
- What is wrong is a finding, never an exception; a checkpoint that is not there, or a storage that says no, is one.
- An error says that the checkpoint cannot be restored as it is, a warning that somebody should know.
- Nothing is written, and no lease is needed. Over all checkpoints, each file is read once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from itertools import chain
from typing import Any, TypeAlias

from holdfast import _figures as figures
from holdfast._offsets import log_edges
from holdfast._validation import checked_type
from holdfast.errors import BadValue, CheckpointMissing, Corrupt, NotFound, StorageFailed, UnsupportedVersion
from holdfast.formats.manifest import Manifest, Severity
from holdfast.formats.sealed_json import plain
from holdfast.formats.sidecar import read_state
from holdfast.in_doubt import in_doubt
from holdfast.repository import CheckpointPlace, Checkpoints, FileList, Held, Identity, Repository, Status
from holdfast.repository.decisions import stream_folder
from holdfast.restore import RestorePlan, StreamRestore, missing_files

_THREADS = min(4, os.cpu_count() or 1)
_LARGE = 1 << 16
_CHUNK = 64  # small files between two words of progress


class Grade(IntEnum):
    """How closely to look; a higher grade holds the lower ones."""

    STRUCTURE = 1  # records, and that every file is there with its size; no file is read
    DIGESTS = 2  # every byte of every file
    READ_DATA = 3  # Spark loads the state for real

    @property
    def word(self) -> str:
        """The grade as people write it."""
        return self.name.lower().replace("_", " ")


class FindingCode(StrEnum):
    """What can be found, beside what a manifest's own validation does and whoever reads the data."""

    MANIFEST = "manifest-damaged"
    UNREADABLE = "file-unreadable"  # the storage failed: whether the file is damaged is not known
    IDENTITY = "identity-unreadable"
    FOREIGN = "of-another-pipeline"
    PARENT = "chain-broken"
    LIST = "file-list-damaged"
    COUNT = "file-list-miscounted"
    FILE_MISSING = "file-missing"
    FILE_SIZE = "file-size"
    FILE_DIGEST = "file-digest"
    SIDECAR = "sidecar-damaged"
    STATE = "state-damaged"
    EDGE = "downstream-ahead"
    IN_DOUBT = "epoch-in-doubt"
    DECISION = "decision-damaged"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found, and where."""

    code: str  # what kind of thing, as in `file-missing`: never renamed
    severity: Severity  # only an error keeps it from being restored
    message: str  # for people
    where: str  # the file or record

    def __str__(self) -> str:
        return f"{self.severity}: {self.message} [{self.code}, {self.where}]"


@dataclass(frozen=True, slots=True)
class Verification:
    """What a look at one checkpoint has found."""

    checkpoint: int | str  # its id, or the name of a savepoint
    grade: Grade
    findings: tuple[Finding, ...]
    files: int  # how many it needs
    bytes: int  # their size
    seconds: float  # how long the look took

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings may be."""
        return not any(each.severity is Severity.ERROR for each in self.findings)

    def summary(self) -> str:
        """Say it."""
        verdict = "is sound" if self.ok else "CANNOT BE RESTORED as it is"
        looked = f"{figures.number(self.files)} files, {figures.size(self.bytes)}, {self.seconds:.2f} s"
        head = f"checkpoint {self.checkpoint} {verdict} ({self.grade.word}: {looked})"
        return "\n".join([head, *(f"  {each}" for each in self.findings)])

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**plain(self), "grade": self.grade.word, "ok": self.ok}


Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes that are read and those that are to be, as reading goes on."""
ReadData: TypeAlias = Callable[[RestorePlan], Iterable[Finding]]
"""Loads the data of a sound checkpoint for real, and says what it found."""


def verify(
    repository: Repository,
    checkpoint: int | str | None = None,
    *,
    grade: Grade = Grade.DIGESTS,
    progress: Progress | None = None,
    read_data: ReadData | None = None,
) -> Verification:
    """Look at one checkpoint: by id, a savepoint by its name, or the newest of the current timeline, damaged or not."""
    look = _Look(repository, grade, progress, read_data)
    if checkpoint is not None:
        return look.at(checkpoint)
    newest = look.checkpoints.newest(Identity.load(repository).timeline)
    if newest is None:
        raise CheckpointMissing(checkpoint=0, where=repository.where)
    return look.at(newest.checkpoint)


def verify_all(
    repository: Repository,
    *,
    grade: Grade = Grade.DIGESTS,
    progress: Progress | None = None,
    read_data: ReadData | None = None,
) -> list[Verification]:
    """Look at all checkpoints and savepoints, oldest first, damaged ones too; each file is read once.

    Where there is nothing to look at, that is no good news but `CheckpointMissing`, or `RepositoryMissing`.
    """
    look = _Look(repository, grade, progress, read_data)
    counts = (Status.RESTORABLE, Status.DAMAGED)
    found = list(look.at_each(each.name for each in look.summaries if each.status in counts))
    if not found:
        Identity.load(repository)
        raise CheckpointMissing(checkpoint=0, where=repository.where)
    return found


class _Look:
    """One look at one or more checkpoints of a repository."""

    def __init__(
        self, repository: Repository, grade: Grade, progress: Progress | None, read_data: ReadData | None
    ) -> None:
        checked_type("grade", grade, Grade)
        if grade >= Grade.READ_DATA and read_data is None:
            why = "it needs somebody who reads the data"
            raise BadValue(what="grade", value=grade.word, why=why, do="pass read_data, or choose a lower grade")
        self.checkpoints = Checkpoints(repository)
        self.summaries = self.checkpoints.all()
        self._repository = repository
        self._grade = grade
        self._progress = progress
        self._read_data = read_data
        self._held: dict[str, Held | None] = {}  # by key, as read

    def at(self, checkpoint: int | str) -> Verification:
        """Look at one."""
        start = time.perf_counter()
        place, _ = self.checkpoints.find(checkpoint)
        looked = _Looked()
        manifest = self._manifest(looked, place, checkpoint)
        if manifest is not None:
            plan = self._plan(looked, manifest, place)
            looked.files = sum(len(each.files.files) for each in plan.streams.values())
            looked.bytes = sum(each.bytes for each in plan.streams.values())
            self._records(looked, plan)
            self._files(looked, plan)
            if self._grade >= Grade.DIGESTS:
                self._states(looked, plan)
            if self._grade >= Grade.READ_DATA and self._read_data is not None and not looked.errors:
                looked.findings.extend(self._read_data(plan))
        seconds = time.perf_counter() - start
        return Verification(checkpoint, self._grade, tuple(looked.findings), looked.files, looked.bytes, seconds)

    def at_each(self, checkpoints: Iterable[int | str]) -> Iterator[Verification]:
        """Verify several checkpoints. One that cannot be read is reported; the others are still verified."""
        for checkpoint in checkpoints:
            try:
                yield self.at(checkpoint)
            except StorageFailed as error:
                finding = Finding(FindingCode.UNREADABLE, Severity.ERROR, error.summary, error.key)
                yield Verification(checkpoint, self._grade, (finding,), 0, 0, 0.0)

    # --- structure ---

    def _manifest(self, looked: _Looked, place: CheckpointPlace, checkpoint: int | str) -> Manifest | None:
        try:
            return self.checkpoints.read(checkpoint)
        except (Corrupt, UnsupportedVersion) as error:
            looked.error(FindingCode.MANIFEST, error.summary, place.manifest)
            return None

    def _plan(self, looked: _Looked, manifest: Manifest, place: CheckpointPlace) -> RestorePlan:
        streams = {}
        for name, cut in manifest.streams.items():
            found = FileList([]) if cut.files is None else self.checkpoints.file_list(place, cut.files)
            if isinstance(found, str):
                looked.error(FindingCode.LIST, f"stream {name!r}: {found}", place.object(str(cut.files)))
                found = FileList([])
            elif (len(found.files), found.bytes) != (cut.file_count, cut.file_bytes):
                said = f"{cut.file_count} files of {cut.file_bytes} bytes"
                has = f"{len(found.files)} of {found.bytes}"
                message = f"the manifest says that stream {name!r} needs {said}, and its list has {has}"
                looked.error(FindingCode.COUNT, message, place.manifest)
            streams[name] = StreamRestore(cut.epoch, found)
        return RestorePlan(manifest, place, streams)

    def _records(self, looked: _Looked, plan: RestorePlan) -> None:
        manifest, place = plan.manifest, plan.place
        sidecar = self._repository.sizes([place.sidecar])[place.sidecar]
        for issue in manifest.validate(sidecar_length=sidecar):
            looked.add(issue.code, issue.severity, issue.message, place.manifest)
        if manifest.state_checksum is not None and sidecar is None:
            looked.error(FindingCode.SIDECAR, "the sidecar is missing", place.sidecar)
        self._identity(looked, plan)
        if not self._is_chained(manifest):
            message = "its parent is not the checkpoint before it: one of the two was replaced"
            looked.error(FindingCode.PARENT, message, place.manifest)
        for edge in log_edges(manifest.streams):
            if edge.lag < 0:
                held, has = f"{edge.downstream!r} stands at {edge.sequence}", f"{edge.upstream!r} ends at {edge.tail}"
                message = f"downstream holds what its upstream has not: stream {held}, and stream {has}"
                looked.error(FindingCode.EDGE, message, place.manifest)

    def _identity(self, looked: _Looked, plan: RestorePlan) -> None:
        try:
            identity = Identity.load(self._repository)
        except (NotFound, Corrupt, UnsupportedVersion, StorageFailed) as error:
            looked.warning(
                FindingCode.IDENTITY, f"whose repository this is cannot be told: {error.summary}", "holdfast.json"
            )
            return
        manifest = plan.manifest
        if (manifest.uid or identity.uid, manifest.pipeline or identity.pipeline) != (identity.uid, identity.pipeline):
            whose = f"pipeline {manifest.pipeline!r} {manifest.uid}, and this is {identity.pipeline!r} {identity.uid}"
            looked.error(FindingCode.FOREIGN, f"it belongs to {whose}", plan.place.manifest)
        if manifest.timeline == identity.timeline and manifest.savepoint is None:
            for stream in manifest.streams:
                self._in_doubt(looked, stream, manifest.timeline)

    def _is_chained(self, manifest: Manifest) -> bool:
        """Whether the parent is the checkpoint before it, as far as that one is still there.

        Ids that were given up leave no link. Behind one that was dropped nobody knows; a savepoint may stand between.
        """
        if manifest.savepoint is not None:
            return True
        by_id = {each.checkpoint: each for each in self.summaries}
        savepoints: set[str | None] = set()
        for number in range(manifest.checkpoint_id - 1, 0, -1):
            before = by_id.get(number)
            if before is None or before.timeline != manifest.timeline or before.status is Status.DAMAGED:
                return True
            if before.savepoint is not None:
                savepoints.add(before.digest)
            elif before.status is Status.RESTORABLE:
                return manifest.parent in {before.digest, *savepoints}
        return True

    def _in_doubt(self, looked: _Looked, stream: str, timeline: int) -> None:
        """Warn of a decision that Spark has not committed yet, where Spark's folder is here to be looked at."""
        folder = stream_folder(stream, timeline)
        try:
            doubt = in_doubt(self._repository, stream, timeline)
        except (Corrupt, UnsupportedVersion, StorageFailed) as error:
            looked.warning(FindingCode.DECISION, error.summary, f"{folder}/epochs")
            return
        if doubt is not None:
            what = f"epoch {doubt.epoch} of stream {stream!r}"
            message = f"{what} is decided and Spark has not committed it: a start finishes it"
            looked.warning(FindingCode.IN_DOUBT, message, folder)

    # --- files ---

    def _files(self, looked: _Looked, plan: RestorePlan) -> None:
        """See that every file is there with its size, and, where bytes are read, that they are the right ones."""
        sizes = self._sizes(plan)
        for file in missing_files(plan, sizes):
            code = FindingCode.FILE_MISSING if file.found is None else FindingCode.FILE_SIZE
            looked.error(code, file.summary(), file.key)
        for key, due in plan.objects.items():
            found = self._held.get(key)
            if found is not None and found.sha256 != due.sha256 and found.size == due.size:
                message = f"file {due.path!r} does not hold the bytes that were kept"
                looked.error(FindingCode.FILE_DIGEST, message, key)

    def _sizes(self, plan: RestorePlan) -> Mapping[str, int | None]:
        if self._grade < Grade.DIGESTS:
            return self._repository.sizes(plan.objects)
        self._read({key: file.size for key, file in plan.objects.items() if key not in self._held})
        return {key: None if (held := self._held[key]) is None else held.size for key in plan.objects}

    def _read(self, sizes: Mapping[str, int]) -> None:
        """Read what was not read yet: large files on a few threads, since hashing them needs no lock of Python's.

        Small ones are read here meanwhile: threads would spend more on taking turns than on them.
        """
        total, done = sum(sizes.values()), 0
        small = [key for key, size in sizes.items() if size < _LARGE]
        with ThreadPoolExecutor(_THREADS) as pool:
            large = pool.map(self._repository.digests, ([key] for key, size in sizes.items() if size >= _LARGE))
            here = (self._repository.digests(small[at : at + _CHUNK]) for at in range(0, len(small), _CHUNK))
            for found in chain(here, large):
                self._held |= found
                done += sum(sizes[key] for key in found)
                if self._progress is not None:
                    self._progress(done, total)

    # --- states ---

    def _states(self, looked: _Looked, plan: RestorePlan) -> None:
        manifest, place = plan.manifest, plan.place
        sidecar = self.checkpoints.sidecar(place, manifest)
        if sidecar is not None and self._repository.digest(place.sidecar) != manifest.state_checksum:
            looked.error(FindingCode.SIDECAR, "the sidecar does not match its checksum", place.sidecar)
        for name, state in manifest.operator_states.items():
            try:
                read_state(name, state, None if sidecar is None else memoryview(sidecar))
            except Corrupt as error:
                looked.error(FindingCode.STATE, error.summary, place.sidecar if state.external else place.manifest)


@dataclass(slots=True)
class _Looked:
    """What a look has found so far."""

    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    def add(self, code: str, severity: Severity, message: str, where: str) -> None:
        self.findings.append(Finding(code, severity, message, where))

    def error(self, code: FindingCode, message: str, where: str) -> None:
        self.add(code, Severity.ERROR, message, where)

    def warning(self, code: FindingCode, message: str, where: str) -> None:
        self.add(code, Severity.WARNING, message, where)

    @property
    def errors(self) -> bool:
        return any(each.severity is Severity.ERROR for each in self.findings)

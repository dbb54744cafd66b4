"""The checks of a verification, in grades; each grade includes those before it.

    STRUCTURE   the records: seal, place, chain, file lists; every file exists with its size; the cuts are consistent
    DIGESTS     the bytes: SHA-256 of every file, of the sidecar and of every operator's state
    READ_DATA   Spark loads the state; the caller, which has the session, passes in a function for it

Rules:
- A problem is a finding, never an exception. That includes a missing file and a storage failure.
- An error means that the checkpoint cannot be restored as it is, or that this is not known; a warning needs attention
  but does not prevent a restore.
- Spark loads nothing of a checkpoint that is damaged: its verification has at most the grade `DIGESTS`.
- Nothing is written, and no lease is needed. When several checkpoints are verified, each file is read once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from holdfast._offsets import log_edges
from holdfast._validation import checked_type
from holdfast.errors import BadValue, CheckpointMissing, Corrupt, NotFound, StorageFailed, UnsupportedVersion
from holdfast.formats.manifest import Manifest
from holdfast.formats.manifest_parts import Severity
from holdfast.formats.sidecar import read_state
from holdfast.in_doubt import in_doubt
from holdfast.repository import Checkpoints, FileList, Held, Identity, Lineage, Repository, Status
from holdfast.repository.checkpoint_keys import CheckpointPlace
from holdfast.repository.decisions import stream_folder
from holdfast.repository.filesizes import FileSizes
from holdfast.repository.identity import KEY as IDENTITY
from holdfast.restore import RestorePlan, StreamRestore, missing_files, sizes_of
from holdfast.verification.findings import Finding, FindingCode, FindingsSoFar, Grade, Verification
from holdfast.verification.reading import FileReader, Progress

ReadData: TypeAlias = Callable[[RestorePlan], Iterable[Finding]]
"""Loads the data of a checkpoint without errors, and returns its findings."""


def verify(
    repository: Repository,
    checkpoint: int | str | None = None,
    *,
    grade: Grade = Grade.DIGESTS,
    progress: Progress | None = None,
    read_data: ReadData | None = None,
) -> Verification:
    """Verify a checkpoint by id, a savepoint by name, or by default the newest of the current lineage."""
    verifier = _Verifier(repository, grade, progress, read_data)
    if checkpoint is not None:
        return verifier.one(checkpoint)
    newest = verifier.checkpoints.newest()
    if newest is None:
        raise CheckpointMissing(checkpoint=0, where=repository.where)
    return verifier.one(newest.checkpoint)


def verify_all(
    repository: Repository,
    *,
    grade: Grade = Grade.DIGESTS,
    progress: Progress | None = None,
    read_data: ReadData | None = None,
) -> list[Verification]:
    """Verify all checkpoints and savepoints, oldest first, including damaged ones; each file is read once.

    If there are none, raise `CheckpointMissing`, or `RepositoryMissing`: nothing verified is not a success.
    """
    verifier = _Verifier(repository, grade, progress, read_data)
    counts = (Status.RESTORABLE, Status.DAMAGED)
    found = list(verifier.each(each.name for each in verifier.summaries if each.status in counts))
    if not found:
        Identity.load(repository)
        raise CheckpointMissing(checkpoint=0, where=repository.where)
    return found


class _Verifier:
    """Verifies checkpoints of one repository."""

    def __init__(
        self, repository: Repository, grade: Grade, progress: Progress | None, read_data: ReadData | None
    ) -> None:
        checked_type("grade", grade, Grade)
        if grade >= Grade.READ_DATA and read_data is None:
            why = "it needs the argument read_data"
            raise BadValue(what="grade", value=grade.word, why=why, do="pass read_data, or choose a lower grade")
        self.checkpoints = Checkpoints(repository)
        self.summaries = self.checkpoints.all()
        self._repository = repository
        self._grade = grade
        self._read_data = read_data
        self._reader = FileReader(repository, progress)
        self._sizes = FileSizes(repository)

    def one(self, checkpoint: int | str) -> Verification:
        """Verify one checkpoint."""
        start = time.perf_counter()
        place, _ = self.checkpoints.find(checkpoint)
        found, grade = FindingsSoFar(), min(self._grade, Grade.DIGESTS)
        manifest = self._manifest(found, place, checkpoint)
        if manifest is not None:
            plan = self._plan(found, manifest, place)
            found.files = sum(len(each.files.files) for each in plan.streams.values())
            found.bytes = sum(each.bytes for each in plan.streams.values())
            self._records(found, plan)
            self._files(found, plan)
            if self._grade >= Grade.DIGESTS:
                self._states(found, plan)
            if self._grade >= Grade.READ_DATA and self._read_data is not None and not found.errors:
                grade = self._grade
                found.findings.extend(self._read_data(plan))
        seconds = time.perf_counter() - start
        return Verification(checkpoint, grade, tuple(found.findings), found.files, found.bytes, seconds)

    def each(self, checkpoints: Iterable[int | str]) -> Iterator[Verification]:
        """Verify several checkpoints. One that cannot be read is reported; the others are still verified."""
        for checkpoint in checkpoints:
            try:
                yield self.one(checkpoint)
            except StorageFailed as error:
                finding = Finding(FindingCode.UNREADABLE, Severity.ERROR, error.summary, error.key)
                yield Verification(checkpoint, self._grade, (finding,), 0, 0, 0.0)

    # --- structure ---

    def _manifest(self, found: FindingsSoFar, place: CheckpointPlace, checkpoint: int | str) -> Manifest | None:
        try:
            return self.checkpoints.read(checkpoint)
        except (Corrupt, UnsupportedVersion) as error:
            found.error(FindingCode.MANIFEST, error.summary, place.manifest)
            return None

    def _plan(self, found: FindingsSoFar, manifest: Manifest, place: CheckpointPlace) -> RestorePlan:
        streams = {}
        for name, cut in manifest.streams.items():
            try:
                listed = FileList([]) if cut.files is None else self.checkpoints.read_file_list(place, cut.files)
            except StorageFailed as error:
                message = f"stream {name!r}: its file list: {error.summary}"
                found.error(FindingCode.UNREADABLE, message, error.key)
                streams[name] = StreamRestore(cut.epoch, FileList([]))
                continue
            if isinstance(listed, str):
                found.error(FindingCode.LIST, f"stream {name!r}: {listed}", place.object(str(cut.files)))
                listed = FileList([])
            elif (len(listed.files), listed.bytes) != (cut.file_count, cut.file_bytes):
                recorded = f"{cut.file_count} files with {cut.file_bytes} bytes"
                actual = f"{len(listed.files)} files with {listed.bytes} bytes"
                message = f"the manifest records {recorded} for stream {name!r}, but its file list has {actual}"
                found.error(FindingCode.COUNT, message, place.manifest)
            streams[name] = StreamRestore(cut.epoch, listed)
        return RestorePlan(manifest, place, streams)

    def _records(self, found: FindingsSoFar, plan: RestorePlan) -> None:
        manifest, place = plan.manifest, plan.place
        sidecar = self._repository.sizes([place.sidecar])[place.sidecar]
        for issue in manifest.validate(sidecar_length=sidecar):
            found.add(issue.code, issue.severity, issue.message, place.manifest)
        if manifest.state_checksum is not None and sidecar is None:
            found.error(FindingCode.SIDECAR, "the sidecar is missing", place.sidecar)
        self._identity(found, plan)
        self._chain(found, manifest, place)
        for edge in log_edges(manifest.streams):
            if edge.lag < 0:
                read = f"stream {edge.downstream!r} has read up to {edge.sequence}"
                message = f"downstream is ahead of upstream: {read}, but stream {edge.upstream!r} ends at {edge.tail}"
                found.error(FindingCode.EDGE, message, place.manifest)

    def _identity(self, found: FindingsSoFar, plan: RestorePlan) -> None:
        try:
            lineage = Lineage.load(self._repository)
        except (NotFound, Corrupt, UnsupportedVersion, StorageFailed) as error:
            message = f"the identity of the repository cannot be read: {error.summary}"
            found.warning(FindingCode.IDENTITY, message, IDENTITY)
            return
        manifest, identity = plan.manifest, lineage.identity
        if (manifest.uid or identity.uid, manifest.pipeline or identity.pipeline) != (identity.uid, identity.pipeline):
            other = f"{manifest.pipeline!r} {manifest.uid}"
            message = f"it belongs to pipeline {other}, but this is {identity.pipeline!r} {identity.uid}"
            found.error(FindingCode.FOREIGN, message, plan.place.manifest)
        if manifest.timeline == lineage.current and manifest.savepoint is None:
            for stream in manifest.streams:
                self._in_doubt(found, stream, lineage.timeline_of(stream))

    def _chain(self, found: FindingsSoFar, manifest: Manifest, place: CheckpointPlace) -> None:
        """Add a finding if the parent is not the previous checkpoint, as far as that can still be checked.

        A run that cannot read the newest manifest when it begins records no parent in the next one.
        """
        before = self._unchained(manifest)
        if before is None:
            return
        if manifest.parent is None:
            message = f"it has no parent, although checkpoint {before} is before it: a run could not read that one"
            found.warning(FindingCode.PARENT, message, place.manifest)
        else:
            message = "its parent is not the previous checkpoint: one of the two was replaced"
            found.error(FindingCode.PARENT, message, place.manifest)

    def _unchained(self, manifest: Manifest) -> int | None:
        """Return the id of the previous checkpoint if it is not the parent; `None` also if this cannot be checked.

        Aborted ids are not part of the chain. Nothing can be checked across a deleted checkpoint. A savepoint between
        the two may be the parent instead.
        """
        if manifest.savepoint is not None:
            return None
        by_id = {each.checkpoint: each for each in self.summaries}
        savepoints: set[str | None] = set()
        for number in range(manifest.checkpoint_id - 1, 0, -1):
            before = by_id.get(number)
            if before is None or before.timeline != manifest.timeline or before.status is Status.DAMAGED:
                return None
            if before.savepoint is not None:
                savepoints.add(before.digest)
            elif before.status is Status.RESTORABLE:
                return None if manifest.parent in {before.digest, *savepoints} else number
        return None

    def _in_doubt(self, found: FindingsSoFar, stream: str, timeline: int) -> None:
        """Add a warning for a decision that Spark has not committed."""
        folder = stream_folder(stream, timeline)
        try:
            doubt = in_doubt(self._repository, stream, timeline)
        except (Corrupt, UnsupportedVersion, StorageFailed) as error:
            found.warning(FindingCode.DECISION, error.summary, f"{folder}/epochs")
            return
        if doubt is not None:
            what = f"epoch {doubt.epoch} of stream {stream!r}"
            message = f"{what} is decided but Spark has not committed it: the next start completes it"
            if not self._repository.list(f"{folder}/spark"):
                message = f"{what} is decided, and Spark's folder is missing: only the sinks know whether they have it"
            found.warning(FindingCode.IN_DOUBT, message, folder)

    # --- files ---

    def _files(self, found: FindingsSoFar, plan: RestorePlan) -> None:
        """Check that every file exists with its size; from `DIGESTS` on, also that its bytes are unchanged."""
        held: Mapping[str, Held | None] = {}
        if self._grade >= Grade.DIGESTS:
            held = self._reader.digests({key: file.size for key, file in plan.objects.items()})
            sizes: Mapping[str, int | None] = {key: None if each is None else each.size for key, each in held.items()}
        else:
            sizes = sizes_of(self._repository, plan, self._sizes)
            self._etags(found, plan)
        for missing in missing_files(plan, sizes):
            code = FindingCode.FILE_MISSING if missing.found is None else FindingCode.FILE_SIZE
            found.error(code, missing.summary(), missing.key)
        for key, each in held.items():
            expected = plan.objects[key]
            if each is not None and each.sha256 != expected.sha256 and each.size == expected.size:
                message = f"file {expected.path!r} does not contain the bytes that were stored"
                found.error(FindingCode.FILE_DIGEST, message, key)

    def _etags(self, found: FindingsSoFar, plan: RestorePlan) -> None:
        """Add a warning for each file in place on an object store that was written again: its bytes may differ."""
        for key, file in plan.objects.items():
            now = self._sizes.etag(key)
            if file.etag and now is not None and now != file.etag:
                message = f"file {file.path!r} was written again since the checkpoint: verify its digest"
                found.warning(FindingCode.FILE_ETAG, message, key)

    # --- states ---

    def _states(self, found: FindingsSoFar, plan: RestorePlan) -> None:
        manifest, place = plan.manifest, plan.place
        sidecar = self.checkpoints.sidecar(place, manifest)
        if sidecar is not None and self._repository.digest(place.sidecar) != manifest.state_checksum:
            found.error(FindingCode.SIDECAR, "the sidecar does not match its checksum", place.sidecar)
        for name, state in manifest.operator_states.items():
            try:
                read_state(name, state, None if sidecar is None else memoryview(sidecar))
            except Corrupt as error:
                found.error(FindingCode.STATE, error.summary, place.sidecar if state.external else place.manifest)

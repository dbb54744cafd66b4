"""Restore: write a checkpoint into folders from which Spark can start, on a local disk or on an object store.

Rules:
- A plan comes first. It checks that every file exists with its size. The restore compares every byte with its digest,
  before it writes anything into a local folder: Spark would load a changed byte of its state without an error.
- A damaged checkpoint is refused with the reason. The error names the one before it, which is never used silently.
- Nothing is overwritten: a target must be empty or missing.
- Every restored stream gets a new Spark id: two running queries with the same id stop each other.
- Files of a savepoint are copied: a savepoint shares no bytes with live files.
- A restored folder does not refer to the live one. Spark's operator metadata (`state/N/_metadata/v2/…`, written for
  transformWithState) contains absolute paths of schema files. These paths are rewritten, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from holdfast import _figures as figures
from holdfast._html import preformatted
from holdfast._validation import checked_type
from holdfast.errors import (
    AlreadyExists,
    BadValue,
    Corrupt,
    ManifestRefused,
    NotFound,
    NotSupported,
    StorageFailed,
)
from holdfast.formats.manifest import Manifest
from holdfast.repository import (
    Checkpoints,
    FileList,
    FileRepository,
    HeldFile,
    Identity,
    ObjectRepository,
    Repository,
)
from holdfast.repository.checkpoint_keys import CheckpointPlace
from holdfast.repository.files import (
    failing_as,
    hadoop_address,
    link_or_copy,
    local_path,
    make_folders,
    replace_durably,
    sync_all,
)
from holdfast.repository.filesizes import FileSizes
from holdfast.repository.s3address import SCHEME
from holdfast.sparkfiles.schema_paths import has_schema_paths, with_schema_paths
from holdfast.sparkfiles.storefolder import hadoop_root
from holdfast.transfer import Download, copy_all, download_all, key_in

__all__ = ["RestorePlan", "StreamRestore", "plan_restore", "refuse_changed", "restore_stream", "stage_states"]

METADATA = "metadata"
_NEVER_RESTORED = {METADATA, f".{METADATA}.crc"}  # the id of the old query, and the checksum of that file


@dataclass(frozen=True, slots=True)
class StreamRestore:
    """The starting point of one stream: the last epoch, and the files."""

    epoch: int
    files: FileList

    @property
    def bytes(self) -> int:
        """The total size of the files."""
        return self.files.bytes


@dataclass(frozen=True)
class RestorePlan:
    """The plan of a restore: a value that can be inspected before it is applied."""

    manifest: Manifest  # of the checkpoint
    place: CheckpointPlace  # the location of its files
    streams: Mapping[str, StreamRestore]  # by stream name: its starting point

    @property
    def checkpoint(self) -> int:
        """The id of the checkpoint."""
        return self.manifest.checkpoint_id

    @property
    def name(self) -> int | str:
        """The name of a savepoint, otherwise the id."""
        return self.manifest.savepoint or self.manifest.checkpoint_id

    @cached_property
    def objects(self) -> dict[str, HeldFile]:
        """The objects that it needs, by key; on a local disk, identical files share one object."""
        return {key: file for stream in self.streams for key, file in self.files(stream)}

    def files(self, stream: str) -> list[tuple[str, HeldFile]]:
        """Return the files of one stream's cut, each with its key."""
        listed = self.streams[stream].files
        return [(self.place.key(listed, file), file) for file in listed.files]

    def summary(self) -> str:
        """Return the plan as text: one line, and one more per stream."""
        lines = [f"{self.manifest.title} of timeline {self.manifest.timeline}"]
        for name, each in self.streams.items():
            count, total = figures.number(len(each.files.files)), figures.size(each.bytes)
            what = f"{count} files, {total}" if each.epoch else "had not started"
            lines.append(f"  stream {name!r} after epoch {each.epoch}: {what}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the plan as text, for notebooks."""
        return preformatted(self.summary())

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict, with the number of files instead of the files."""
        streams = {
            name: {"epoch": each.epoch, "files": len(each.files.files), "bytes": each.bytes}
            for name, each in self.streams.items()
        }
        manifest = self.manifest
        about = {"timeline": manifest.timeline, "savepoint": manifest.savepoint, "timestamp_ms": manifest.timestamp_ms}
        return {"checkpoint": self.checkpoint, **about, "streams": streams}


def plan_restore(repository: Repository, checkpoint: int | str | None = None) -> RestorePlan:
    """Plan to restore a checkpoint by its id, a savepoint by its name, or the newest of the current lineage.

    1. Read the manifest, and check that it belongs to this pipeline.  2. Validate it against its sidecar.  3. Read the
    file lists.  4. Check that every object exists with its size. Any problem raises `CheckpointDamaged`.
    """
    checkpoints = Checkpoints(repository)
    name = _newest(checkpoints) if checkpoint is None else checkpoint
    place, _ = checkpoints.find(name)
    manifest = checkpoints.read(name)  # 1
    uid = _uid(repository)
    if manifest.uid is not None and uid is not None and manifest.uid != uid:
        raise checkpoints.damaged(name, f"it belongs to pipeline {manifest.uid}, but this is {uid}")
    sidecar = repository.sizes([place.sidecar])[place.sidecar]
    if manifest.state_checksum is not None and sidecar is None:
        raise checkpoints.damaged(name, f"its sidecar {place.sidecar} is missing")
    try:
        manifest.require_valid(sidecar_length=sidecar)  # 2
    except ManifestRefused as error:
        raise checkpoints.damaged(name, "; ".join(error.issues)) from error
    streams = {
        stream: StreamRestore(cut.epoch, checkpoints.files(place, cut, name))  # 3
        for stream, cut in manifest.streams.items()
    }
    plan = RestorePlan(manifest, place, streams)
    wrong = next(missing_files(plan, sizes_of(repository, plan)), None)  # 4
    if wrong is not None:
        raise checkpoints.damaged(name, wrong.summary())
    return plan


def refuse_changed(repository: Repository, plan: RestorePlan) -> None:
    """Raise `CheckpointDamaged` if a file on a local disk does not match its digest, or cannot be read.

    This reads every file. On a store, only a restore detects damage: it downloads or copies every file.
    """
    if isinstance(repository, ObjectRepository):
        return
    try:
        stage_states(repository, plan)
        with _gone_as_damage(repository, plan):
            for stream in plan.streams:
                _refuse_changed(repository, plan, plan.files(stream))
    except StorageFailed as error:
        raise Checkpoints(repository).damaged(plan.name, error.summary) from error


def sizes_of(repository: Repository, plan: RestorePlan, sizes: FileSizes | None = None) -> dict[str, int | None]:
    """Return the actual size of every object that a plan needs; `sizes` remembers what was looked up before."""
    known = sizes or FileSizes(repository)
    found: dict[str, int | None] = {}
    for each in plan.streams.values():
        found |= known.of(plan.place, each.files)
    return found


@dataclass(frozen=True, slots=True)
class MissingFile:
    """A file of a cut whose object is missing or has a different size."""

    stream: str
    path: str
    key: str
    size: int
    found: int | None

    def summary(self) -> str:
        """Return a one-line summary."""
        what = "is missing"
        if self.found is not None:
            what = f"has {figures.number(self.found)} bytes, expected {figures.number(self.size)}"
        return f"file {self.path!r} of stream {self.stream!r}, {self.key}, {what}"


def missing_files(plan: RestorePlan, sizes: Mapping[str, int | None]) -> Iterator[MissingFile]:
    """Yield the files whose objects are missing or have a different size; `sizes` has the actual sizes."""
    for stream, each in plan.streams.items():
        for file in each.files.files:
            key = plan.place.key(each.files, file)
            if sizes[key] != file.size:
                yield MissingFile(stream, file.path, key, file.size, sizes[key])


def restore_stream(
    repository: Repository, plan: RestorePlan, stream: str, target: Path | str, *, used_at: Path | None = None
) -> None:
    """Write the files of one stream's cut into `target`, durably. For a stream that had not started, do nothing.

    `target` is a folder, or for a checkpoint on an object store also another place there, `s3://bucket/prefix`.
    `used_at` is where the folder will be when Spark uses it, by default where it is now.

    1. Refuse a target that is not empty.  2. Rewrite the absolute paths in Spark's metadata.  3. Write the files, as
    links where possible.  4. Write the new id last: Spark treats a folder without an id as that of a new query, and
    Holdfast treats it as an interrupted restore.
    """
    checked_type("plan", plan, RestorePlan)
    if isinstance(target, str) and target.startswith(SCHEME):
        restore_into(repository, plan, stream, ObjectRepository(target))
    else:
        _restore_locally(repository, plan, stream, local_path("target", target), used_at)


def _restore_locally(
    repository: Repository, plan: RestorePlan, stream: str, folder: Path, used_at: Path | None
) -> None:
    found = _stream_of(plan, stream)
    with failing_as("open", str(folder)):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):  # 1
            raise AlreadyExists(what=str(folder), do="choose a folder that is empty or does not exist")
    if not found.epoch:
        return
    files = _sound_files(repository, plan, stream)
    with _gone_as_damage(repository, plan):
        rewritten = _rewritten(repository, plan, files, hadoop_address(used_at or folder))  # 2
        others = [(key, file) for key, file in files if file.path not in rewritten]
        if isinstance(repository, ObjectRepository):  # 3
            download_all(repository, (Download(key, file, folder / file.path) for key, file in others))
        else:
            copy = plan.manifest.savepoint is not None
            _refuse_changed(repository, plan, others)
            targets = ((key, folder / file.path) for key, file in others)
            cast("FileRepository", repository).restore_all(targets, copy=copy)
    _write_own(folder, rewritten)  # 4


def restore_into(
    repository: Repository, plan: RestorePlan, stream: str, target: ObjectRepository, folder: str = ""
) -> None:
    """Copy the files of one stream's cut into a folder of a repository on an object store, on the server's side.

    1. Refuse a folder that is not empty.  2. Copy the files, and compare their digests.  3. Write the files with
    absolute paths.  4. Write the new id last.
    """
    if not isinstance(repository, ObjectRepository):
        why = f"the checkpoint is in {repository.where}, which is not on an object store"
        raise NotSupported(what=f"a restore to {target.where}", why=why, do="restore into a local folder")
    if not _stream_of(plan, stream).epoch:
        return
    if target.flat(folder):  # 1
        raise AlreadyExists(what=f"{target.where}/{folder}", do="choose a place that is empty")
    files = _sound_files(repository, plan, stream)
    with _gone_as_damage(repository, plan):
        rewritten = _rewritten(repository, plan, files, f"{hadoop_root(target)}/{folder}".removesuffix("/"))
        copied = {key: file for key, file in files if file.path not in rewritten}
        copy_all(repository, copied, target, folder)  # 2
    for path, data in rewritten.items():
        target.put_new(key_in(folder, path), data)  # 3
    target.put_new(key_in(folder, METADATA), _new_id())  # 4


def _stream_of(plan: RestorePlan, stream: str) -> StreamRestore:
    found = plan.streams.get(stream)
    if found is None:
        raise BadValue(what="stream", value=stream, expected=f"one of {', '.join(plan.streams) or 'none'}")
    return found


def _sound_files(repository: Repository, plan: RestorePlan, stream: str) -> list[tuple[str, HeldFile]]:
    """Return the files to restore, with their keys.

    The plan may come from anywhere: nothing is written outside the target.
    """
    wrong = plan.streams[stream].files.unsound()
    if wrong:
        raise Checkpoints(repository).damaged(plan.name, wrong)
    return [(key, file) for key, file in plan.files(stream) if file.path not in _NEVER_RESTORED]


@contextlib.contextmanager
def _gone_as_damage(repository: Repository, plan: RestorePlan) -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise Checkpoints(repository).damaged(plan.name, error.summary) from error


def _rewritten(
    repository: Repository, plan: RestorePlan, files: Iterable[tuple[str, HeldFile]], address: str
) -> dict[str, bytes]:
    return {
        file.path: with_schema_paths(_checked(repository, plan, key, file), file.path, address)
        for key, file in files
        if has_schema_paths(file.path)
    }


def link_spark_folder(source: Path, target: Path) -> None:
    """Make a copy of one of Spark's checkpoint folders with links, durably, under a new id.

    Spark never writes into a file that it has finished, so the two folders can be used independently. Temporary files
    that a killed query left are not linked; the checksums of finished files are.
    """
    with failing_as("open", str(target)):
        if target.exists():
            raise AlreadyExists(what=str(target), do="choose a folder that does not exist")
        found = [path.relative_to(source) for path in sorted(source.rglob("*")) if _is_finished(path)]
    rewritten: dict[str, bytes] = {}
    new: set[Path] = set()
    for path in found:
        name = path.as_posix()
        if name in _NEVER_RESTORED or (has_schema_paths(name) and path.name.startswith(".")):
            continue  # the checksum of a file that is rewritten would refuse it
        with failing_as("link", str(source / path)):
            if has_schema_paths(name):
                rewritten[name] = with_schema_paths((source / path).read_bytes(), name, hadoop_address(target))
                continue
            new |= make_folders((target / path).parent)
            link_or_copy(source / path, target / path)
            new.add(target / path)
    with failing_as("sync", str(target), unknown=True):
        sync_all(sorted(new))
    _write_own(target, rewritten)


def _is_finished(path: Path) -> bool:
    """Whether a file is one of Spark's finished ones, or the checksum of one."""
    if not path.is_file() or path.is_symlink():
        return False
    if not path.name.startswith("."):
        return True
    return path.name.endswith(".crc") and path.with_name(path.name[1:-4]).is_file()


def _write_own(folder: Path, rewritten: Mapping[str, bytes]) -> None:
    """Write the files that differ from those of the old folder; the new id last."""
    for path, data in rewritten.items():
        with failing_as("create", str(folder)):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
        replace_durably(folder / path, data, path)
    with failing_as("create", str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    replace_durably(folder / METADATA, _new_id(), METADATA)


def _new_id() -> bytes:
    """Return the record of a new query."""
    return json.dumps({"id": str(uuid.uuid4())}).encode()


def _refuse_changed(repository: Repository, plan: RestorePlan, files: Sequence[tuple[str, HeldFile]]) -> None:
    held = repository.digests(key for key, _ in files)
    for key, file in files:
        found = held[key]
        if found is None:
            raise NotFound(key=key, where=repository.where)
        _require_digest(repository, plan, key, file, found.sha256)


def _checked(repository: Repository, plan: RestorePlan, key: str, file: HeldFile) -> bytes:
    """Return the bytes of a file of the cut after verifying its digest."""
    data = bytes(repository.read(key))
    _require_digest(repository, plan, key, file, hashlib.sha256(data).hexdigest())
    return data


def _require_digest(repository: Repository, plan: RestorePlan, key: str, file: HeldFile, found: str) -> None:
    if found != file.sha256:
        raise Checkpoints(repository).damaged(plan.name, f"file {file.path!r}, {key}, does not match its digest")


def stage_states(repository: Repository, plan: RestorePlan) -> dict[str, bytes]:
    """Return the verified state of every operator at the cut. Damage raises `CheckpointDamaged` with the operator."""
    checkpoints = Checkpoints(repository)
    try:
        found = plan.manifest.read_states(checkpoints.sidecar(plan.place, plan.manifest))
    except Corrupt as error:
        raise checkpoints.damaged(plan.name, error.summary) from error
    return {name: bytes(state) for name, state in found.items()}


def _newest(checkpoints: Checkpoints) -> int:
    return checkpoints.latest().checkpoint_id


def _uid(repository: Repository) -> str | None:
    try:
        return Identity.load(repository).uid
    except NotFound:  # a checkpoint that was copied without its repository
        return None

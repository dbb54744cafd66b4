"""Restore: from a checkpoint to folders that Spark can start from.

Rules:
- A plan is made first, and proves that every file is there with its size; that their bytes are right is for `verify`.
- Damage is refused, naming what is wrong, and the checkpoint before it is offered, never taken silently.
- Nothing is written over: a target is empty, or not there.
- Every restored stream gets a new Spark id: two live queries with one id stop each other.
- What is restored from a savepoint is copied: a savepoint shares no bytes with live files.
- A restored folder does not refer to the live one. Spark's metadata of an operator (`state/N/_metadata/v2/…`, written
  for transformWithState) names schema files by absolute paths: these are rewritten, and nothing else is.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast import _figures as figures
from holdfast._validation import checked_type
from holdfast.errors import (
    AlreadyExists,
    BadValue,
    Corrupt,
    ManifestRefused,
    NotFound,
    NotSupported,
    UnsupportedVersion,
)
from holdfast.formats.manifest import Manifest
from holdfast.repository import CheckpointPlace, Checkpoints, FileList, HeldFile, Identity, Repository
from holdfast.repository.files import failing_as, hadoop_address, local_path, replace_durably

METADATA = "metadata"
_OPERATOR = re.compile(r"state/(\d+)/_metadata/v(\d{1,9})/.+")
_PATHS = "stateSchemaFilePaths"
_NEVER_RESTORED = {METADATA, f".{METADATA}.crc"}  # the old query's id, and the checksum of the file that says it


@dataclass(frozen=True, slots=True)
class StreamRestore:
    """What one stream starts from: after which epoch, with which files."""

    epoch: int
    files: FileList

    @property
    def bytes(self) -> int:
        """How many bytes the files have together."""
        return self.files.bytes


@dataclass(frozen=True)
class RestorePlan:
    """What a restore gives back: a value, to be looked at before it is applied."""

    manifest: Manifest  # of the checkpoint
    place: CheckpointPlace  # where its files are
    streams: Mapping[str, StreamRestore]  # by name: what each starts from

    @property
    def checkpoint(self) -> int:
        """The id of the checkpoint."""
        return self.manifest.checkpoint_id

    @property
    def name(self) -> int | str:
        """What to ask for it by: the name of a savepoint, else the id."""
        return self.manifest.savepoint or self.manifest.checkpoint_id

    @cached_property
    def objects(self) -> dict[str, HeldFile]:
        """The objects that it needs, by key; of files that are alike, one."""
        place = self.place.object
        return {place(file.sha256): file for each in self.streams.values() for file in each.files.files}

    def summary(self) -> str:
        """Say it."""
        lines = [f"checkpoint {self.name} of timeline {self.manifest.timeline}"]
        for name, each in self.streams.items():
            count, total = figures.number(len(each.files.files)), figures.size(each.bytes)
            what = f"{count} files, {total}" if each.epoch else "had not started"
            lines.append(f"  stream {name!r} after epoch {each.epoch}: {what}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it; of the files their count."""
        streams = {
            name: {"epoch": each.epoch, "files": len(each.files.files), "bytes": each.bytes}
            for name, each in self.streams.items()
        }
        manifest = self.manifest
        about = {"timeline": manifest.timeline, "savepoint": manifest.savepoint, "timestamp_ms": manifest.timestamp_ms}
        return {"checkpoint": self.checkpoint, **about, "streams": streams}


def plan_restore(repository: Repository, checkpoint: int | str | None = None) -> RestorePlan:
    """Plan to restore a checkpoint by its id, a savepoint by its name, or the newest of the current timeline.

    1. Read the manifest, and see that it is this pipeline's.  2. Validate it against its sidecar.  3. Read the file
    lists.  4. See that every object is there and has its size. Anything amiss is `CheckpointDamaged`.
    """
    checkpoints = Checkpoints(repository)
    asked = _newest(checkpoints) if checkpoint is None else checkpoint
    place, _ = checkpoints.find(asked)
    manifest = checkpoints.read(asked)  # 1
    uid = _uid(repository)
    if manifest.uid is not None and uid is not None and manifest.uid != uid:
        raise checkpoints.damaged(asked, f"it belongs to pipeline {manifest.uid}, and this is {uid}")
    sidecar = repository.sizes([place.sidecar])[place.sidecar]
    if manifest.state_checksum is not None and sidecar is None:
        raise checkpoints.damaged(asked, f"its sidecar {place.sidecar} is missing")
    try:
        manifest.require_valid(sidecar_length=sidecar)  # 2
    except ManifestRefused as error:
        raise checkpoints.damaged(asked, "; ".join(error.issues)) from error
    streams = {
        name: StreamRestore(cut.epoch, checkpoints.files(place, cut, asked))  # 3
        for name, cut in manifest.streams.items()
    }
    plan = RestorePlan(manifest, place, streams)
    wrong = next(missing_files(plan, repository.sizes(plan.objects)), None)  # 4
    if wrong is not None:
        raise checkpoints.damaged(asked, wrong.summary())
    return plan


@dataclass(frozen=True, slots=True)
class MissingFile:
    """A file of a cut whose object is not there, or has another size."""

    stream: str
    path: str
    key: str
    size: int
    found: int | None

    def summary(self) -> str:
        """Say it."""
        what = "is missing"
        if self.found is not None:
            what = f"has {figures.number(self.found)} bytes, expected {figures.number(self.size)}"
        return f"file {self.path!r} of stream {self.stream!r}, {self.key}, {what}"


def missing_files(plan: RestorePlan, sizes: Mapping[str, int | None]) -> Iterator[MissingFile]:
    """Give the files whose objects are not there with their size, by the sizes that were found."""
    found = {file.sha256: sizes[key] for key, file in plan.objects.items()}
    for stream, each in plan.streams.items():
        for file in each.files.files:
            if found[file.sha256] != file.size:
                key = plan.place.object(file.sha256)
                yield MissingFile(stream, file.path, key, file.size, found[file.sha256])


def restore_stream(repository: Repository, plan: RestorePlan, stream: str, target: Path) -> None:
    """Put the files of one stream's cut into `target`, durably; a stream that had not started leaves it as it is.

    1. Refuse a target that holds something.  2. Rewrite the absolute paths in Spark's own metadata.  3. Put the files
    there, by link where that is possible.  4. Write the new id last: Spark takes a folder without one for a new
    query's, and Holdfast takes it for an interrupted restore.
    """
    checked_type("plan", plan, RestorePlan)
    folder = local_path("target", target)
    found = plan.streams.get(stream)
    if found is None:
        raise BadValue(what="stream", value=stream, why=f"the checkpoint has {', '.join(plan.streams) or 'none'}")
    with failing_as("look at", str(folder)):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):  # 1
            raise AlreadyExists(what=str(folder), do="choose a folder that is empty or not there")
    if not found.epoch:
        return
    wrong = found.files.unsound()  # the plan may be anybody's: nothing is written outside the target
    if wrong:
        raise Checkpoints(repository).damaged(plan.name, wrong)
    files = [file for file in found.files.files if file.path not in _NEVER_RESTORED]
    try:
        rewritten = {  # 2
            file.path: _rewritten(_checked(repository, plan, file), file.path, folder)
            for file in files
            if _OPERATOR.fullmatch(file.path)
        }
        targets = ((plan.place.object(file.sha256), folder / file.path) for file in files if file.path not in rewritten)
        repository.restore_all(targets, copy=plan.manifest.savepoint is not None)  # 3
    except NotFound as error:
        raise Checkpoints(repository).damaged(plan.name, error.summary) from error
    for path, data in rewritten.items():
        with failing_as("make", str(folder)):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
        replace_durably(folder / path, data, path)
    with failing_as("make", str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    replace_durably(folder / METADATA, json.dumps({"id": str(uuid.uuid4())}).encode(), METADATA)  # 4


def _checked(repository: Repository, plan: RestorePlan, file: HeldFile) -> bytes:
    """Return the bytes of a file of the cut, which must have the digest that the checkpoint has for it."""
    key = plan.place.object(file.sha256)
    data = bytes(repository.read(key))
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise Checkpoints(repository).damaged(plan.name, f"file {file.path!r}, {key}, does not match its digest")
    return data


def _rewritten(data: bytes, path: str, folder: Path) -> bytes:
    """Return an operator's metadata with the paths of its schema files moved to `folder`; all else stays as it is.

    An unknown format is refused: a path that was missed would leave the copy dependent on the live folder.
    """
    operator, version = _OPERATOR.fullmatch(path).groups()  # type: ignore[union-attr] # the caller has matched it
    first, _, text = data.partition(b"\n")
    if (version, first) != ("2", b"v2"):
        said = re.fullmatch(rb"v(\d{1,9})", first)
        found = int(version) if version != "2" or said is None else int(said[1])
        raise UnsupportedVersion(what=f"Spark's operator metadata {path!r}", found=found, known="v2")
    below = f"/state/{operator}/_stateSchema/"

    def moved(old: str) -> str:
        _, found, name = old.rpartition(below)
        if not found:
            raise ValueError(f"path {old!r}")
        return f"{hadoop_address(folder)}{below}{name}"

    try:
        metadata = json.loads(text)
        for store in metadata["stateStoreInfo"]:
            store[_PATHS] = [moved(old) for old in store[_PATHS]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"its format is not known ({error}), so the paths in it cannot be rewritten"
        do = "restore with the version of Holdfast that took the checkpoint, or report it with this file"
        raise NotSupported(what=f"Spark's operator metadata {path!r}", why=why, do=do) from error
    return first + b"\n" + json.dumps(metadata, separators=(",", ":"), ensure_ascii=False).encode()


def stage_states(repository: Repository, plan: RestorePlan) -> dict[str, bytes]:
    """Return every operator's state at the cut, each checked; damage is `CheckpointDamaged`, naming the operator."""
    checkpoints = Checkpoints(repository)
    try:
        found = plan.manifest.read_states(checkpoints.sidecar(plan.place, plan.manifest))
    except Corrupt as error:
        raise checkpoints.damaged(plan.name, error.summary) from error
    return {name: bytes(state) for name, state in found.items()}


def _newest(checkpoints: Checkpoints) -> int:
    return checkpoints.latest(Identity.load(checkpoints.repository).timeline).checkpoint_id


def _uid(repository: Repository) -> str | None:
    try:
        return Identity.load(repository).uid
    except NotFound:  # a checkpoint that was copied by itself
        return None

"""Fork: another pipeline that begins at a checkpoint of this one, and is independent of it from then on.

Rules:
- A fork has its own name, uid and Spark ids. Its streams continue after the epochs of the checkpoint, into empty
  targets. The original may be running.
- It is built in a hidden folder, which is renamed at the end: a crash leaves no incomplete pipeline. For object stores
  see `store_forking`.
- The event logs that join streams inside the repository are copied up to the cut: the offsets of their readers contain
  the uid and the chain of the log. A log elsewhere is a target. A stream that reads such a log cannot be forked.
- If a prune removes files of the checkpoint meanwhile, the error names the newest checkpoint that is sound.

Not guaranteed: that the sources still have the input after the checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast._validation import checked_name
from holdfast.epoch import Attempt, Decision, Facts, Verdict
from holdfast.errors import AlreadyExists, BadValue, CheckpointDamaged, NotSupported
from holdfast.eventlog.copying import copy_log
from holdfast.formats.sealed_json import plain
from holdfast.repository import (
    Decisions,
    History,
    Identity,
    Lineage,
    LocalRepository,
    ObjectRepository,
    Repository,
)
from holdfast.repository.decisions import stream_folder
from holdfast.repository.files import failing_as, local_path, make_folder, sync_folder
from holdfast.repository.forks import ForkRecord, record_fork
from holdfast.repository.lineage import FIRST
from holdfast.repository.opening import local_repository
from holdfast.repository.s3address import SCHEME
from holdfast.repository.stream_records import stream_record_key
from holdfast.repository.topics import StreamTopics
from holdfast.restore import restore_stream
from holdfast.rewind.bases import RewindBase, find_base
from holdfast.rewind.building import other_sound, stream_record_of
from holdfast.rewind.own_logs import own_logs, require_own_logs
from holdfast.rewind.store_forking import built_fork

_FORK = "fork"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """A fork that was made."""

    pipeline: str  # its name
    uid: str
    where: str  # its repository
    origin: str  # the pipeline that it was forked from
    base: str  # the checkpoint
    epochs: dict[str, int]  # by stream: the last epoch that it has
    logs: tuple[str, ...]  # the streams whose event logs were copied

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return plain(self)


def fork(repository: Repository, base: int | str, *, name: str, root: str | os.PathLike[str] | None = None) -> Forked:
    """Make another pipeline from a checkpoint or savepoint of this one.

    - `base`: a checkpoint id, the name of a savepoint, `latest`, or `before:<stream>:<epoch>`.
    - `name`: the name of the new pipeline.
    - `root`: the folder or the place on S3 for its repository; by default the one that contains the original's.

    Then define a pipeline of that name and root, with targets of its own, and run it.
    """
    checked_name("pipeline", name)
    if isinstance(repository, ObjectRepository):
        return _fork_on_store(repository, base, name, root)
    return _fork_on_disk(local_repository(repository, "a fork"), base, name, root)


def _fork_on_store(
    repository: ObjectRepository, to: int | str, name: str, root: str | os.PathLike[str] | None
) -> Forked:
    place = os.fspath(root) if root is not None else repository.where.rpartition("/")[0]
    if not place.startswith(SCHEME):
        why = "the original is on an object store, and files are copied inside it"
        raise NotSupported(what=f"a fork at {place}", why=why, do="pass a root such as s3://bucket/prefix")
    new = ObjectRepository(f"{place.rstrip('/')}/{name}")
    lineage = Lineage.load(repository)
    base = find_base(repository, lineage, to)
    require_own_logs(repository.where, base)
    facts = {
        stream: found
        for stream in base.manifest.streams
        if (found := base.facts(stream, _stage_type(repository, lineage, stream, base))) is not None
    }
    try:
        identity = built_fork(repository, lineage, base, new, name, facts)
    except CheckpointDamaged as error:
        error.offered = other_sound(repository, base) or error.offered
        raise
    return Forked(
        pipeline=name,
        uid=identity.uid,
        where=new.where,
        origin=lineage.identity.pipeline,
        base=base.to,
        epochs={stream: base.manifest.streams[stream].epoch for stream in facts},
        logs=tuple(each.stream for each in own_logs(repository.where, base)),
    )


def _fork_on_disk(
    repository: LocalRepository, base: int | str, name: str, root: str | os.PathLike[str] | None
) -> Forked:
    folder = repository.root.parent if root is None else local_path("root", root)
    target = folder / name
    if target.exists():
        raise AlreadyExists(what=f"a folder {target}", do="choose another name or another root")
    lineage = Lineage.load(repository)
    found = find_base(repository, lineage, base)
    require_own_logs(repository.where, found)
    scratch = folder / f".{name}.{_FORK}-{uuid.uuid4().hex}"
    try:
        with failing_as("create", str(scratch)):
            make_folder(scratch)
        made = _build(repository, lineage, found, name, scratch, target)
        with failing_as("rename", str(target)):
            scratch.rename(target)  # fails if the name was taken meanwhile: a folder with files in it
            sync_folder(folder)
    except CheckpointDamaged as error:
        error.offered = error.offered or other_sound(repository, found)
        raise
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(scratch)
    return made


def _build(  # noqa: PLR0917 - from where, and to where
    repository: LocalRepository, lineage: Lineage, base: RewindBase, name: str, scratch: Path, target: Path
) -> Forked:
    """Write the repository of a fork into a folder that will be renamed to `target`."""
    new = LocalRepository(scratch)
    identity = Identity.create(new, name)
    origin = lineage.identity
    record_fork(new, ForkRecord(pipeline=origin.pipeline, uid=origin.uid, base=base.to, manifest=base.digest))
    epochs = {}
    for stream, cut in base.manifest.streams.items():
        facts = base.facts(stream, _stage_type(repository, lineage, stream, base))
        if facts is None:
            continue
        epochs[stream] = cut.epoch
        inside = Path(stream_folder(stream, FIRST)) / "spark"
        restore_stream(repository, base.restore, stream, scratch / inside, used_at=target / inside)
        new.put(stream_record_key(stream, FIRST), stream_record_of(repository, stream, base))
        attempt = Attempt(stream=stream, timeline=FIRST, epoch=cut.epoch, attempt=1)
        Decisions(new).close(Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=facts.plain()))
        StreamTopics(repository, stream).copy_to(new, lineage, cut.epoch, FIRST)
    logs = _copy_logs(repository, base, scratch)
    facts_of = {"origin": origin.pipeline, "uid": origin.uid, "epochs": epochs, "logs": list(logs)}
    History(new).add(_FORK, f"from {base.to} of pipeline {origin.pipeline}", facts_of)
    return Forked(
        pipeline=name,
        uid=identity.uid,
        where=str(target),
        origin=origin.pipeline,
        base=base.to,
        epochs=epochs,
        logs=logs,
    )


def _copy_logs(repository: LocalRepository, base: RewindBase, scratch: Path) -> tuple[str, ...]:
    """Copy the event logs inside the repository up to the cut; return the streams that write them."""
    found = tuple(own_logs(repository.where, base))
    for each in found:
        copy_log(Path(each.path), scratch / each.inside, each.tail)
    return tuple(each.stream for each in found)


def _stage_type(repository: Repository, lineage: Lineage, stream: str, base: RewindBase) -> str | None:
    """Return the type of a stream's stage, which only decisions record."""
    if stream not in base.states:
        return None
    decision = Decisions(repository).newest(stream, lineage.timeline_of(stream))
    stage = Facts.of(decision).stage if decision else None
    if not stage or not stage.get("type"):
        why = f"no decision records the type of the stage of stream {stream!r}"
        raise BadValue(what="base of a fork", value=base.to, why=why, do="use a newer checkpoint")
    return str(stage["type"])

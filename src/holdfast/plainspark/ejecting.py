"""Eject: write a plain Spark checkpoint from which a query without Holdfast continues a stream.

Rules:
- The pipeline must be stopped: the lease is taken. The stream itself is not changed.
- The checkpoint is at the last committed epoch. An epoch in doubt is refused: a sink may lack its rows, and only
  Holdfast can write them. An undecided epoch has left nothing in a sink, and plain Spark plans its batch again.
- An adopted stream whose last plain batch is in some sinks and not in others must have run once.
- The target must not exist. The checkpoint is built in a hidden folder beside it and renamed last; what a killed
  process has left there is removed by the next one.
- The state of a stage is not included: plain Spark has no place for it.

Not guaranteed: that the query writes every row once from then on. Plain Spark runs a batch again after a crash. Nor
that the pipeline is not started again, which would continue the stream a second time: remove it from the program.
"""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast._validation import checked_name
from holdfast.epoch import Decision, Facts, Reach, unwatched
from holdfast.errors import AlreadyExists, BadValue, NotSupported, SparkLogMismatch
from holdfast.errors.base import PROGRAM
from holdfast.formats.sealed_json import plain
from holdfast.in_doubt import in_doubt
from holdfast.plainspark.folders import CopiedFolder, FolderCopy, copy_folder
from holdfast.plainspark.leasing import lease_of
from holdfast.plainspark.records import adopted
from holdfast.repository import Decisions, History, Identity, Lineage, LocalRepository
from holdfast.repository.decisions import streams_of
from holdfast.repository.files import failing_as, local_path, make_folder, sync_folder
from holdfast.sparkfiles.closure import Closure
from holdfast.sparkfiles.places import spark_key

STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
POINTS = {
    # the points at which an eject may die, in order, and what is on disk then
    "eject built": "a complete folder beside the target",
    "ejected": "the target",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ejection:
    """A plain Spark checkpoint that was written."""

    stream: str  # the stream that it continues
    path: str  # the folder
    epoch: int  # the last epoch that it contains
    batch: int  # the batch that Spark runs next
    offsets: tuple[str | None, ...]  # by source: where that batch begins, verbatim
    rows: int  # given to each sink up to there
    files: int  # number of files
    bytes: int  # their size
    settings: dict[str, str]  # of Spark: those that the offsets pin, and the format of the state
    stage: bool  # the stream has a stage, whose state is not included

    def summary(self) -> str:
        """Return the result as text."""
        text = f"wrote {self.path}: after epoch {self.epoch}, plain Spark continues with batch {self.batch}"
        return f"{text}; the state of its stage is not included" if self.stage else text

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return plain(self)


def eject(
    repository: LocalRepository,
    stream: str,
    to: str | os.PathLike[str],
    *,
    take_over: bool = False,
    reach: Reach = unwatched,
) -> Ejection:
    """Write a plain Spark checkpoint of a stream at its last committed epoch.

    1. Take the lease; `take_over` confirms that the driver of a `shared` pipeline is gone.  2. Refuse an epoch in
    doubt.  3. Build the folder beside the target.  4. Rename it.  5. Record it in the history.
    """
    checked_name("stream", stream)
    target = local_path("target", to)
    identity = Identity.load(repository)
    _require_free(target)
    with lease_of(repository, f"eject {stream}", take_over=take_over) as lease:  # 1
        lineage = Lineage.load(repository)
        decision = _last(repository, lineage, stream)  # 2
        facts, timeline = Facts.of(decision), decision.attempt.timeline
        batch = decision.attempt.epoch - 1
        source = repository.root / spark_key(stream, timeline)
        _require_committed(stream, source, batch)
        scratch = target.with_name(f".{target.name}.ejecting-{identity.uid[:8]}-{stream}")
        with failing_as("create", str(scratch)):
            shutil.rmtree(scratch, ignore_errors=True)
            make_folder(scratch.parent)
        copied = copy_folder(FolderCopy(source, batch), scratch, target)  # 3
        reach("eject built")
        lease.check()
        _publish(scratch, target)  # 4
        reach("ejected")
        done = _result(stream, target, decision, facts, copied)
        History(repository).add("eject", f"stream {stream} to {target}", done.to_dict())  # 5
    return done


def _result(stream: str, target: Path, decision: Decision, facts: Facts, copied: CopiedFolder) -> Ejection:
    return Ejection(
        stream=stream,
        path=str(target),
        epoch=decision.attempt.epoch,
        batch=decision.attempt.epoch,
        offsets=tuple(facts.end),
        rows=facts.total_rows,
        files=copied.files,
        bytes=copied.bytes,
        settings=_settings(copied.closure) if copied.closure else {},
        stage=facts.stage is not None,
    )


def _settings(closure: Closure) -> dict[str, str]:
    formats = {each.rpartition("-")[2] for each in closure.formats}
    return dict(sorted({**closure.offsets.confs, **({STATE_FORMAT: max(formats)} if formats else {})}.items()))


def _last(repository: LocalRepository, lineage: Lineage, stream: str) -> Decision:
    """Return the last decision of a stream, unless its epoch is in doubt."""
    timeline = lineage.timeline_of(stream)
    decision = Decisions(repository).newest(stream, timeline)
    if decision is None:
        known = sorted({each for number in lineage.timelines for each in streams_of(repository, number)})
        why = "no epoch of it is committed" if stream in known else f"the pipeline has {', '.join(known) or 'none'}"
        do = f"name a stream that has run: holdfast show --repo {shlex.quote(repository.where)}"
        raise BadValue(what="stream to eject", value=stream, why=why, do=do)
    what = f"ejecting stream {stream!r}"
    do = f"run the pipeline until the epoch is committed: holdfast run {PROGRAM} --once"
    doubt = in_doubt(repository, stream, timeline)
    if doubt is not None:
        why = f"epoch {doubt.epoch} is in doubt: a sink may not have it yet"
        do = f"{do}; show it: holdfast doubt --repo {shlex.quote(repository.where)}"
        raise NotSupported(what=what, why=why, do=do)
    record = adopted(repository, stream, timeline)
    if record is not None and decision.attempt.epoch < record.pending:
        why = f"batch {record.in_doubt} of the adopted query is in some of its sinks and not in others"
        raise NotSupported(what=what, why=why, do=do)
    return decision


def _require_committed(stream: str, source: Path, batch: int) -> None:
    if not (source / "commits" / str(batch)).is_file():
        why = f"commits/{batch} is missing, although epoch {batch + 1} is decided"
        raise SparkLogMismatch(stream=stream, path=str(source), why=why)


def _require_free(target: Path) -> None:
    if os.path.lexists(target):
        raise AlreadyExists(what=str(target), do="choose a path that does not exist; nothing was changed")


def _publish(scratch: Path, target: Path) -> None:
    with failing_as("rename", str(scratch)):
        _require_free(target)  # a rename would replace an empty folder
        scratch.rename(target)
        sync_folder(target.parent)

"""Adopt: create a stream from the checkpoint of a plain Spark query.

Rules:
- An epoch is Spark's batch id + 1, in an adopted stream too. If N is the last committed batch of the query, the stream
  begins with a *base decision* of epoch N + 1. It states where that epoch ended, and that no sink was given it: the
  position of each sink is 0, as the sink itself reports. Recovery compares Spark's logs and the sinks with this
  decision as with any other, and the first epoch that the stream decides is N + 2. If no batch is committed, there is
  no base.
- If batch N + 1 was begun and not committed, plain Spark has no record of whether its rows are in the targets. The user
  states this for each sink. If all sinks have the rows, epoch N + 2 is decided without giving it to any sink, and Spark
  replays it only to rebuild its state. If no sink has them, the epoch is undecided, and Spark runs it again with the
  same input. If some have them, the epoch is undecided too, and `adopted.json` lists the sinks that are not given it:
  the epoch must then have the same offsets, and no checkpoint is taken before it is decided.
- The files are those of a copy that `plainspark.folders` makes. Settings and formats of the state come from them, not
  from the session. The sources are compared as `plainspark.inputs` describes.
- The old query must be stopped: `plainspark.looking` looks at its folder twice before the plan is made, and again
  before the copy begins and after it is complete. The old folder is never changed.
- The stream must not exist. The pipeline must be stopped: the lease is taken. Sinks are opened before anything is
  copied, so a target that cannot be used is refused first. They must hold no epoch of this stream. Whether a target may
  contain rows of other writers depends on the sink.
- The folder of the stream is built in the repository's folder for temporary files and renamed last. A killed adoption
  has changed nothing; the next one removes what it left. Repeating a complete one is harmless.

Not guaranteed: that an idle query is noticed; that Spark accepts the program on the old state, which only its first
batch shows. The output mode of the query is not recorded in its checkpoint, so it is not compared.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast._validation import checked_seconds, checked_type
from holdfast.doctor import Examination
from holdfast.doctor.targets import checkpoint_folder
from holdfast.epoch import Reach, unwatched
from holdfast.errors import AlreadyExists, BadValue, Locked, NotFound, SinkAhead, SinkForeign
from holdfast.plainspark.adoption import Adoption, AdoptPlan, checked_last_batch
from holdfast.plainspark.inputs import compared
from holdfast.plainspark.leasing import lease_of
from holdfast.plainspark.looking import PAUSE_S, FolderLook, examined
from holdfast.plainspark.records import adopted
from holdfast.repository import History, Identity, Lineage, LocalRepository
from holdfast.repository.decisions import stream_folder
from holdfast.repository.files import failing_as, make_folder
from holdfast.repository.opening import local_repository, local_root
from holdfast.sinks.base import StreamIdentity, checked_position
from holdfast.spark import adapter
from holdfast.spark.adopted_folder import AdoptedFolder
from holdfast.spark.adopted_program import (
    BuiltStream,
    built_stream,
    formats_of,
    require_state,
    session_or,
    settings_of,
    sources_of,
    spec_of,
)
from holdfast.spark.opening import sink_context
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.starting import lineage_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINTS = {
    # the points at which an adoption may die, in order, and what is on disk then
    "sinks opened": "targets exist, without a row; the stream does not",
    "adoption built": "the folder of the stream, complete, among the temporary files",
    "adopted": "the stream",
}
_log = logging.getLogger(__name__)


def require_arguments(pipeline: Pipeline, stream: str, checkpoint: str | os.PathLike[str]) -> None:
    """Refuse a root on a store, an unknown stream and a path that is not a checkpoint folder; this needs no session."""
    local_repository(pipeline.repository, "adopting a query")
    spec_of(pipeline, stream)
    checkpoint_folder(checkpoint)


def plan_adopt(
    pipeline: Pipeline,
    stream: str,
    checkpoint: str | os.PathLike[str],
    *,
    last_batch: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    pause: float = PAUSE_S,
) -> AdoptPlan:
    """Plan to create a stream of a pipeline from the checkpoint of a plain Spark query. Nothing is changed.

    - `stream`: a stream of the pipeline that has not run yet, with the sources and the query of the old program.
    - `checkpoint`: the `checkpointLocation` of the query, which must be stopped.
    - `last_batch`: by sink, "written" or "not-written". Required for every sink if the last batch was begun and not
      committed.
    - `spark`: the session that builds the stream; by default the active one, or one that is stopped afterwards.
    - `pause`: seconds between two looks at the folder, which must find the same.

    1. Look at the folder, and refuse one that cannot be adopted.  2. Build the stream.  3. Look again.  4. Compare
    sources and state.  5. Require an answer for each sink.
    """
    checked_type("pipeline", pipeline, Pipeline)
    checked_seconds("pause", pause)
    repository = local_repository(pipeline.repository, "adopting a query")
    spec = spec_of(pipeline, stream)
    look = FolderLook.take(checkpoint_folder(checkpoint))  # 1
    folder, found = look.folder, examined(look.folder)
    _require_new(repository, spec.name, str(folder), found)
    with session_or(spark) as session, tempfile.TemporaryDirectory(prefix="holdfast-adopt-") as scratch:
        built = built_stream(pipeline, spec.name, Path(scratch), session)  # 2
        program = sources_of(built.df)
        stateful = adapter.is_stateful(built.df)
    look.require_same(pause=pause)  # 3
    sources = compared(spec.name, folder, found.sources, program)  # 4
    require_state(spec.name, found, stateful=stateful)
    read = "; ".join(f"source {each.source} up to {each.position}" for each in sources)
    answers = checked_last_batch(str(folder), found.in_doubt, built.sinks, last_batch or {}, read)  # 5
    return AdoptPlan(
        pipeline=pipeline.name,
        stream=spec.name,
        checkpoint=str(folder),
        query=found.query or "",
        committed=found.committed,
        in_doubt=found.in_doubt,
        last_batch=answers,
        sinks=built.sinks,
        sources=sources,
        state=() if found.committed is None else formats_of(found),
        settings=settings_of(found, look) if stateful else {},
        files=len(look.facts),
        look=look,
    )


def apply_adopt(
    pipeline: Pipeline,
    plan: AdoptPlan,
    *,
    spark: SparkSession | None = None,
    take_over: bool = False,
    reach: Reach = unwatched,
) -> Adoption:
    """Create the stream of a plan. The next run of the pipeline continues the query.

    `take_over` confirms that the driver of a `shared` pipeline is gone.

    1. Take the lease.  2. Open the sinks, which must hold no epoch of the stream.  3. Build the folder of the stream.
    4. Look at the old folder once more.  5. Rename the new one.  6. Record it in the history.
    """
    checked_type("plan", plan, AdoptPlan)
    spec, repository = spec_of(pipeline, plan.stream), local_repository(pipeline.repository, "adopting a query")
    with failing_as("make", repository.where):
        make_folder(repository.root)
    with session_or(spark) as session, lease_of(repository, f"adopt {spec.name}", take_over=take_over) as lease:  # 1
        lineage = lineage_of(pipeline._definition())
        timeline = lineage.timeline_of(spec.name)
        if _is_adopted(repository, spec.name, timeline, plan):
            return _result(plan, 0, 0, already=True)
        plan.look.require_same()
        built = built_stream(pipeline, spec.name, repository.root, session)
        if built.sinks != plan.sinks:
            why = f"the sinks were {', '.join(plan.sinks)} when the plan was made and are {', '.join(built.sinks)} now"
            raise BadValue(what="plan", value=plan.stream, why=why, do="make a new plan")
        _require_empty_sinks(pipeline, built, lineage.identity, timeline, session)  # 2
        reach("sinks opened")
        work = AdoptedFolder(plan, built.spec, repository, lease, timeline)
        files, size = work.build()  # 3
        reach("adoption built")
        plan.look.require_same()  # 4
        lease.check()
        work.publish()  # 5
        reach("adopted")
        done = _result(plan, files, size)
        try:
            facts = {**done.to_dict(), "checkpoint": plan.checkpoint, "last_batch": dict(plan.last_batch)}
            History(repository).add("adopt", f"stream {spec.name} from {plan.checkpoint}", facts)  # 6
        except Locked:
            _log.warning("stream %s: the adoption is not recorded: another process writes to the history", spec.name)
    return done


def _result(plan: AdoptPlan, files: int, size: int, *, already: bool = False) -> Adoption:
    first = plan.first_epoch
    return Adoption(stream=plan.stream, epoch=first - 1, first_epoch=first, files=files, bytes=size, already=already)


# --- the repository and the sinks ------------------------------------------------------------------------------------


def _require_new(repository: LocalRepository, stream: str, checkpoint: str, found: Examination) -> None:
    """Raise early if the stream exists and was not adopted from this checkpoint."""
    with contextlib.suppress(NotFound):
        timeline = Lineage.load(repository).timeline_of(stream)
        record = adopted(repository, stream, timeline)
        if record is None or (record.checkpoint, record.committed) != (checkpoint, found.committed):
            _require_absent(repository, stream, timeline)


def _is_adopted(repository: LocalRepository, stream: str, timeline: int, plan: AdoptPlan) -> bool:
    """Whether this plan was applied before; raise if the stream exists for another reason."""
    record = adopted(repository, stream, timeline)
    if record is not None:
        same = (record.checkpoint, record.query, record.committed, record.in_doubt, record.last_batch)
        if same == (plan.checkpoint, plan.query, plan.committed, plan.in_doubt, dict(plan.last_batch)):
            return True
    _require_absent(repository, stream, timeline)
    return False


def _require_absent(repository: LocalRepository, stream: str, timeline: int) -> None:
    if repository.list(stream_folder(stream, timeline)):
        what = f"stream {stream!r} in {repository.where}"
        do = "adopt under another name: give the stream of the program a name that the pipeline has not used"
        raise AlreadyExists(what=what, do=f"{do}; nothing was changed")


def _require_empty_sinks(
    pipeline: Pipeline, built: BuiltStream, identity: Identity, timeline: int, spark: SparkSession
) -> None:
    """Open every sink, as the first start would, and require that it holds no epoch of the stream."""
    owner = StreamIdentity(identity.pipeline, identity.uid, built.spec.name)
    with contextlib.ExitStack() as opened:
        for sink in built.spec.sinks:
            opened.callback(sink.close)
            sink.open(
                sink_context(
                    built.df,
                    sink,
                    owner,
                    spark=spark,
                    output_mode=built.spec.output_mode,
                    root=local_root(pipeline.repository),
                    shared=pipeline.shared,
                )
            )
            position = checked_position(sink, sink.inspect(owner, timeline))
            if position.foreign is not None:
                raise SinkForeign(sink=sink.name, place=repr(sink), owner=position.foreign)
            if position.epoch:
                raise SinkAhead(stream=owner.stream, sink=sink.name, holds=position.epoch, decided=0)

"""Backfill: a sink that was added to a stream gets every row that the stream has written so far.

Rules:
- The rows are read from another sink of the stream that holds all of them: files, or an event log. As many rows must be
  staged as the decisions of the stream count; otherwise nothing is written.
- The rows become visible in one commit, under the key of the last decided epoch. The next epoch follows it in every
  sink.
- The pipeline is not running meanwhile: the backfill holds its lease. It first recovers the stream with the sinks of
  its last decision.
- A rewind that was interrupted is finished first, as by a start.
- A sink that the program lacks is accepted only if the user says so. The record names it, so that the next start does
  not ask again.
- A backfill that is repeated after a crash stages the rows again, or commits what was decided.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.epoch import Decision, Facts, Reach
from holdfast.errors import BackfillIncomplete, BadValue, Locked, NotSupported, SinkForeign, SinksChanged
from holdfast.errors.base import PROGRAM
from holdfast.formats.sealed_json import plain
from holdfast.repository import History
from holdfast.repository.backfills import BackfillRecord, Backfills
from holdfast.repository.files import sync_all
from holdfast.repository.lease import BACKFILL
from holdfast.repository.lineage import FIRST
from holdfast.rewind.asking import held_epoch
from holdfast.sinks.base import EpochKey, Sink, checked_position, checked_staged
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.log import LogSink
from holdfast.spark import adapter
from holdfast.spark.chain import Chain
from holdfast.spark.context import RunContext
from holdfast.spark.logsource import read_log
from holdfast.spark.parts import StreamParts
from holdfast.spark.recovering import RecoveredStream, commit_backfill, context_of
from holdfast.spark.starting import PipelineDefinition, checked_accept, finish_rewind, lineage_of, take_lease
from holdfast.spark.stream import StreamRun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.spark.spec import Accept, StreamSpec

_EMPTY = f"start with the new sink empty: holdfast run {PROGRAM} --accept sinks"
_GLOB = re.compile(r"([\[\]{}*?\\])")  # what Spark would take for a pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """The result of a backfill."""

    stream: str
    sink: str  # the sink that was filled
    source: str  # the sink that the rows were read from
    epoch: int  # the sink holds everything up to this epoch
    rows: int
    already: bool  # an earlier backfill had done it

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return plain(self)


def backfill_pipeline(  # noqa: PLR0917 - the pipeline, and what to fill
    pipeline: PipelineDefinition,
    session: SparkSession,
    stream: str,
    sink: str,
    source: str | None,
    accept: Accept | Collection[Accept],
    reach: Reach,
) -> Backfilled:
    """Take the lease of a pipeline, and fill one sink of one of its streams."""
    if stream not in pipeline.streams:
        why = f"the pipeline has {', '.join(pipeline.streams)}"
        raise BadValue(what="stream", value=stream, why=why, do="pass the name of one of them")
    accepted = checked_accept(accept)
    if accepted - {"sinks"}:
        raise BadValue(what="accept", value=", ".join(sorted(accepted)), expected="sinks")
    with contextlib.ExitStack() as undo:
        retain = max(adapter.require_retention(session), adapter.RETAINED)
        lease = take_lease(pipeline, session, why=BACKFILL)
        undo.callback(lease.release)
        finish_rewind(pipeline, lease, reach)
        chain = Chain(pipeline.name, pipeline.streams, pipeline.repository.where, session)
        _, specs = chain.join()
        run = RunContext(
            spark=session,
            repository=pipeline.repository,
            lineage=lineage_of(pipeline),
            lease=lease,
            retain=retain,
            shared=pipeline.shared,
            available_now=True,
            accept=accepted,
            backoff=pipeline.backoff,
            callbacks=pipeline.callbacks,
            reach=reach,
            build=chain.build,
        )
        return fill_sink(run, next(each for each in specs if each.name == stream), sink, source)


def fill_sink(run: RunContext, spec: StreamSpec, sink_name: str, source_name: str | None) -> Backfilled:
    """Fill one sink of a stream.

    1. Find the sinks.  2. Recover the stream with the sinks of its last decision.  3. Open the new sink.  4. Stage the
    rows.  5. Decide.  6. Commit.
    """
    parts = StreamParts.of(spec, run)
    decision = parts.decisions.newest(parts.name, parts.timeline)
    facts = Facts.of(decision) if decision else None
    if decision is None or facts is None:
        why = "the stream has no epoch yet, so there is nothing to fill in"
        raise NotSupported(what=f"a backfill of stream {parts.name!r}", why=why, do="run the pipeline: holdfast run")
    sink = _named(parts, sink_name)  # 1
    if sink.name in facts.sinks:
        why = "the stream writes to it already, so it would get rows twice"
        do = "to fill a new sink, add it to the stream and run the backfill before the next start"
        raise NotSupported(what=f"a backfill of sink {sink.name!r} of stream {parts.name!r}", why=why, do=do)
    if sink not in spec.outputs:
        why, do = "rows that failed a check before are in the other sinks", "start with it empty: --accept sinks"
        raise NotSupported(what=f"a backfill of the dead letter {sink.name!r}", why=why, do=do)
    source = _source(parts, facts, source_name, sink)
    old = replace(spec, sinks=tuple(each for each in parts.sinks if each.name in facts.sinks))
    with contextlib.ExitStack() as opened:
        stream = StreamRun(old, run)
        opened.callback(stream.close)
        recovered = _recovered(stream, sink)  # 2
        decision = parts.decisions.newest(parts.name, parts.timeline) or decision
        sink.open(context_of(parts, recovered.df, sink))  # 3
        opened.callback(sink.close)
        return _fill(parts, sink, source, decision, recovered.df)


def _recovered(stream: StreamRun, sink: Sink) -> RecoveredStream:
    """Recover the stream without the new sink. Sinks that the program lacks must have been accepted."""
    try:
        return stream.recover()
    except SinksChanged as changed:
        changed.fills = sink.name
        raise


def _fill(parts: StreamParts, sink: Sink, source: Sink, decision: Decision, df: DataFrame) -> Backfilled:
    epoch, records = decision.attempt.epoch, Backfills(parts.run.repository)
    holds = checked_position(sink, sink.inspect(parts.owner, parts.timeline))
    if holds.foreign is not None:
        raise SinkForeign(sink=sink.name, place=repr(sink), owner=holds.foreign)
    record = records.find(parts.name, parts.timeline, sink.name, epoch)
    held = holds.epoch or max((held_epoch(sink, parts.owner, each) for each in range(FIRST, parts.timeline)), default=0)
    if held and (record is None or holds.epoch != epoch):
        why = f"it holds epoch {held} of the stream, and only an empty sink can be filled"
        raise NotSupported(what=f"a backfill of sink {sink.name!r}", why=why, do="use another, empty target")
    already = bool(holds.epoch)
    if record is None:
        record = _decide(parts, records, sink, source, decision, df)  # 4, 5
    if not already:
        commit_backfill(parts, sink, record)  # 6
    _note(parts, record)
    return Backfilled(
        stream=parts.name, sink=sink.name, source=record.source, epoch=epoch, rows=record.rows, already=already
    )


def _decide(  # noqa: PLR0917 - what a record is made of
    parts: StreamParts, records: Backfills, sink: Sink, source: Sink, decision: Decision, df: DataFrame
) -> BackfillRecord:
    """Stage the rows and write the record. Before the record, everything can be discarded."""
    attempt = decision.attempt.next()
    sink.abort(EpochKey(parts.owner, attempt, None))  # what a backfill that was killed has staged
    parts.reach("backfill opened")
    rows = _rows(parts, source, df)
    key = EpochKey(parts.owner, attempt, parts.lease.number)
    with contextlib.ExitStack() as frozen:
        if not sink.one_action:
            rows = frozen.enter_context(adapter.frozen(rows))
        staged = checked_staged(sink, sink.prepare(rows, key))
    expected = Facts.of(decision).total_rows
    if staged.rows != expected:
        sink.abort(key)
        raise BackfillIncomplete(stream=parts.name, source=source.name, found=staged.rows, expected=expected)
    sync_all(staged.paths)
    parts.lease.check()
    parts.reach("backfill durable")
    record = records.decide(
        BackfillRecord(
            attempt=attempt,
            sink=sink.name,
            source=source.name,
            handle=staged.handle,
            rows=staged.rows,
            lease=parts.lease.number,
            replaces=sorted(Facts.of(decision).sinks.keys() - {each.name for each in parts.sinks}),
        )
    )
    parts.reach("backfill decided")
    return record


def _rows(parts: StreamParts, source: Sink, df: DataFrame) -> DataFrame:
    """Return everything that a sink holds, with the columns of the stream."""
    spark = parts.run.spark
    if isinstance(source, LogSink):
        return read_log(spark, source.path).select("payload.*").select(*_quoted(df))
    if not isinstance(source, FileSink):
        raise TypeError(type(source))
    reader = spark.read.schema(df.schema).format(source.format).options(**_reading(source))
    return reader.load(_GLOB.sub(r"\\\1", str(source.path))).select(*_quoted(df))


def _reading(source: FileSink) -> dict[str, str]:
    return {**source.options, "mode": "FAILFAST"} if source.format in ("json", "csv") else {}


def _quoted(df: DataFrame) -> list[str]:
    return ["`" + name.replace("`", "``") + "`" for name in df.columns]


def _named(parts: StreamParts, name: str) -> Sink:
    for sink in parts.sinks:
        if sink.name == name:
            return sink
    why = f"stream {parts.name!r} has the sinks {', '.join(each.name for each in parts.sinks)}"
    raise BadValue(what="sink", value=name, why=why, do="add the sink to the stream, and pass its name")


def _source(parts: StreamParts, facts: Facts, name: str | None, sink: Sink) -> Sink:
    """Return the sink to read from: the named one, or the first that can be read."""
    if parts.spec.output_mode != "append":
        why = f"its output mode is {parts.spec.output_mode!r}, so no sink holds every row exactly once"
        do = _EMPTY
        raise NotSupported(what=f"a backfill of stream {parts.name!r}", why=why, do=do)
    found = [each for each in parts.spec.outputs if each.name in facts.sinks and isinstance(each, FileSink | LogSink)]
    for each in found:
        if name in (None, each.name):
            return each
    what = f"a backfill of sink {sink.name!r}" + (f" from sink {name!r}" if name else "")
    why = f"no sink of stream {parts.name!r} can be read back: only files and event logs can"
    if found:
        why = f"it cannot be read back; those that can are {', '.join(each.name for each in found)}"
    raise NotSupported(what=what, why=why, do=_EMPTY)


def _note(parts: StreamParts, record: BackfillRecord) -> None:
    """Add the backfill to the history, unless it is there: an earlier try may have died just before."""
    facts = {
        "stream": parts.name,
        "sink": record.sink,
        "source": record.source,
        "epoch": record.attempt.epoch,
        "rows": record.rows,
    }
    history = History(parts.run.repository)
    if not any(each.what == "backfill" and each.facts == facts for each in history.seen()[0]):
        with contextlib.suppress(Locked):  # another process keeps the history locked; the record itself is durable
            history.add("backfill", f"up to epoch {record.attempt.epoch}", facts)

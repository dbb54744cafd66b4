"""Pipelines: a named set of streams that run, recover and stop together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Unpack

from holdfast._html import h, table
from holdfast._validation import checked_name
from holdfast.epoch import Reach, unwatched
from holdfast.errors import AlreadyExists, BadValue
from holdfast.policy import Backoff
from holdfast.repository.opening import repository_below
from holdfast.rewind.program import Program
from holdfast.sinks.base import Sink
from holdfast.spark.backfilling import Backfilled, backfill_pipeline
from holdfast.spark.chain import read_here
from holdfast.spark.context import StreamCallbacks
from holdfast.spark.handle import PipelineHandle, running_handle
from holdfast.spark.loading import require_running_allowed
from holdfast.spark.options import (
    PIPELINE_DEFAULTS,
    SINGLE_STREAM_DEFAULTS,
    START_DEFAULTS,
    STREAM_DEFAULTS,
    PipelineOptions,
    SingleStreamOptions,
    StartOptions,
    StreamOptions,
    part_of,
    takes,
)
from holdfast.spark.pipeline_status import PipelineStatus
from holdfast.spark.program_plan import ProgramPlan, plan_program
from holdfast.spark.session import borrowed
from holdfast.spark.spec import (
    Accept,
    Build,
    OutageLimits,
    RestartPolicies,
    StreamSpec,
    checked_outage,
    checked_restart,
    checked_spec,
    defined_twice,
)
from holdfast.spark.starting import PipelineDefinition, RunSettings, obtain_session, program_of, start_pipeline
from holdfast.spark.stop_signals import counted_signals, run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Pipeline:
    """A named set of streams that run, recover, are checkpointed and stop together.

        pipeline = hf.Pipeline("orders", root="./checkpoints")

        @pipeline.stream(sinks=[hf.FileSink("out/orders")])
        def orders(spark):
            return spark.readStream.schema("id long, amount double").json("in")

        pipeline.run()

    Everything that the pipeline needs to continue after a stop or a crash is kept in its repository, the folder
    `<root>/<name>`. A new start continues after the last epoch of each stream. One process at a time can run it;
    another one that tries is refused with `Locked`, or with `LeaseHeld` if the root is on S3.

    - `name`: letters, digits, `_`, `.` and `-`, at most 64 characters. It names the repository; do not change it.
    - `root`: a folder on a local disk, or on a file system that every machine of a cluster mounts; or a place on S3,
      `s3://bucket/prefix`.
    - `shared`: a local root, and local paths of sinks, are the same on every machine that may run the pipeline.
      Required on a cluster, unless the root is on S3 and no sink has a local path. With a local root, there is no OS
      lock then: a new start takes over from an old one, which stops with `Fenced`.
    - `restart`: how often a stream that failed is restarted: a `RestartPolicy`, or a dict of them by kind of failure
      ("source", "sink", "state", "user code", "repository", "executors"). The default is at most 5 restarts in 10
      minutes.
    - `outage`: how long a running stream waits for a server that cannot be reached, a lost executor or a full disk: a
      span of time, or a dict of them by kind of failure, as in `{"sink": "2h"}`. The default is one hour; 0 handles an
      outage as a failure.
    - `backoff`: how long to wait before each restart, and each try during an outage, a `Backoff`.
    - `callbacks`: functions to call on epochs, restarts, outages, checkpoints and failures, a `StreamCallbacks`.
    - `observers`: called before and after each write of a checkpoint, `hf.stages.FlushObserver`s.

    `run()` blocks until the pipeline ends or a signal stops it; `start()` returns a `PipelineHandle` at once, which the
    property `handle` returns again. Streams can be added before that, and replaced while the pipeline is not running.
    """

    @takes(PipelineOptions, PIPELINE_DEFAULTS)
    def __init__(self, name: str, root: str | os.PathLike[str], **options: Unpack[PipelineOptions]) -> None:
        self.name = checked_name("pipeline", name)
        self.repository = repository_below(root, self.name)
        self.shared = options["shared"]
        checked_restart(options["restart"])
        checked_outage(options["outage"])
        self._options = options
        self._streams: dict[str, StreamSpec] = {}
        self._spark: SparkSession | None = None
        self._started = False

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {self.repository.where!r}, streams={list(self._streams)})"

    def _repr_html_(self) -> str:
        """Return the status if the pipeline runs here, otherwise its streams and sinks, for notebooks."""
        handle = self.handle
        if handle is not None:
            return handle._repr_html_()
        rows = [(each.name, each.output_mode, ", ".join(map(repr, each.sinks))) for each in self._streams.values()]
        title = h("<p><b>{}</b>, not running here; repository {}</p>", self.name, self.repository.where)
        return title + table(("stream", "output mode", "sinks"), rows)

    @property
    def handle(self) -> PipelineHandle | None:
        """The handle of this pipeline's run in this process, or `None` if the pipeline is not running here.

        Every `Pipeline` object of the same repository returns it, as when a notebook cell that creates one is run
        again.
        """
        return running_handle(self.repository.where)

    @property
    def program(self) -> Program:
        """The streams and sinks, as `hf.plan_rewind` needs them. No Spark session is needed."""
        return program_of(self._definition())

    @takes(StreamOptions, STREAM_DEFAULTS)
    def stream(
        self,
        build: Build | None = None,
        *,
        sinks: Sink | Sequence[Sink],
        name: str | None = None,
        reads: str | Sequence[str] = (),
        restart: RestartPolicies | None = None,
        outage: OutageLimits | None = None,
        **options: Unpack[StreamOptions],
    ) -> Callable[[Build], Build]:
        """Add a stream: a function from a session to a streaming DataFrame, and the sinks that get every row once.

        Used as a decorator, or called with the function.

        - `sinks`: a sink, or a list of them.
        - `name`: the name of the stream; the default is the name of the function.
        - `reads`: the names of streams of this pipeline whose output this stream reads by a channel other than
          `read`: a topic, a folder, a table.
        - `restart`, `outage`: as for `Pipeline`; the default is the pipeline's.
        - `output_mode`: Spark's output mode: "append", "update" or "complete".
        - `trigger`: a processing time ("10 seconds"), or one of Spark's triggers as a dict.
        - `options`: options for Spark's `writeStream`.
        - `quarantine_after`: after this many equal failures of one epoch, the epoch is skipped and recorded as a gap;
          never two epochs in a row. The default is never.
        - `stage`, `on_epoch`: Python-side state of the stream, and the function `on_epoch(df, stage)` that turns the
          rows of each epoch into the rows for the sinks.
        - `commit_group`: a Kafka consumer group to which the offsets of each epoch are committed, for tools that show
          lag. No other consumer may be in this group, and the stream itself never reads them.
        - `valid`, `dead_letter`: a condition in Spark SQL, or a dict of them by name, and a sink for the rows for which
          it is not true. They go there in the same decision, instead of to `sinks`, with the column
          `dead_letter_reason`. So do rows that a sink of the stream would refuse, if the sink checks for them.
        """

        def add(function: Build) -> Build:
            spec = checked_spec(
                name or getattr(function, "__name__", None),
                function,
                sinks=sinks,
                reads=reads,
                restart=self._options["restart"] if restart is None else restart,
                outage=self._options["outage"] if outage is None else outage,
                **options,
            )
            self._add(spec)
            return function

        if build is not None:
            add(build)
        return add

    def _add(self, spec: StreamSpec) -> None:
        """Add a stream, or replace the one of this name, as when a notebook cell is run again."""
        before = self._streams.get(spec.name)
        if before is not None:
            what = f"stream {spec.name!r} of pipeline {self.name!r}"
            if not self._started and defined_twice(before.build, spec.build):
                raise AlreadyExists(what=what, do="rename one of the two streams: the pipeline would run only one")
            if self.handle is not None:
                what = f"stream {spec.name!r} of the running pipeline {self.name!r}"
                do = "stop the pipeline (pipeline.handle.stop()), define the stream again and start: it continues"
                raise AlreadyExists(what=what, do=f"{do} after its last epoch")
        _require_own_targets(spec, [each for each in self._streams.values() if each is not before])
        self._streams[spec.name] = spec

    def read(self, stream: str, *, rows_per_epoch: int | None = None) -> DataFrame:
        """Read the output of another stream of this pipeline from its event log: a streaming DataFrame of its columns.

        To be called inside a stream's function. If the other stream has no event log, it gets one. `rows_per_epoch` is
        the most rows that one epoch reads.
        """
        return read_here(self.name, stream, rows_per_epoch)

    @takes(StartOptions, START_DEFAULTS)
    def start(self, spark: SparkSession | None = None, **options: Unpack[StartOptions]) -> PipelineHandle:
        """Recover every stream and start it; return at once with a handle.

        - `spark`: the session to run on. Without it, the active session is used, or one is created on this machine and
          stopped at the end.
        - `available_now`: every stream processes the input that is available now, upstream first, and the pipeline
          ends.
        - `checkpoint_every`: the interval between checkpoints of all streams ("30s", a number of seconds, a
          `timedelta`), or a `CheckpointPolicy`. The default is one minute; a graceful stop takes a last one. `None`
          turns checkpoints off, except for those that are requested from the handle.
        - `accept`: problems to accept in this run: "sinks" (the set of sinks changed), "gaps" (an epoch does not begin
          where the last one ended, or a Kafka topic has lost records or was created again), "replay" (a state was
          rebuilt differently).
        - `outage`: replaces the limits of `Pipeline` and of its streams.
        - `poll_every`: how often an idle stream polls for new input, from "1ms" to "60s". By default, 10 ms times the
          number of streams, at most 200 ms, unless the session sets `spark.sql.streaming.pollingDelay`. With a root on
          S3 it is at least 50 ms, and with an input path on an object store 200 ms.
        - `take_over`: with a root on S3, start at once even if the last driver did not end cleanly. Without it, a
          start waits until that driver has been silent for 30 seconds. A driver that still runs stops with `Fenced`.
        - `callbacks`: called after the pipeline's own.
        - `page`: serve the page of this pipeline at this port of this machine while it runs, in a process of its own;
          0: at any free port. The address is logged. Needs the extra `page`.
        - `program`: what `holdfast run` starts, such as "app.py:pipeline". The page and `holdfast status` name it in
          next steps. `holdfast run` passes it.
        - `reach`: called at each point of the protocol, for tests.
        """
        require_running_allowed(self.name)
        settings = RunSettings.checked(options)
        definition = self._definition()
        session, undo = obtain_session(definition, spark or self._spark)
        return self._start(definition, session, settings, undo)

    @takes(StartOptions, START_DEFAULTS)
    def run(
        self,
        spark: SparkSession | None = None,
        *,
        watch: Callable[[PipelineHandle], object] = lambda _: None,
        **options: Unpack[StartOptions],
    ) -> PipelineStatus:
        """Run until every stream ends, or until stopped; raise `StreamFailed` if a stream failed.

        The other arguments are those of `start`. SIGTERM and Ctrl-C end every stream at the end of its epoch; a second
        signal ends them at once. `watch` is called a few times a second in the caller's thread; an error that it raises
        ends the run at once.
        """
        require_running_allowed(self.name)
        settings = RunSettings.checked(options)
        definition = self._definition()
        session, undo = obtain_session(definition, spark or self._spark)  # first: Spark handles Ctrl-C when it starts
        with undo, counted_signals() as counted:
            handle = self._start(definition, session, settings, contextlib.ExitStack())
            return run_to_end(handle, counted, watch)

    def plan(self, spark: SparkSession | None = None) -> ProgramPlan:
        """Compare this program with the one that ran last: what is safe, what takes effect, and what is impossible.

        Only looks: nothing is written. `run` makes the same comparison, and refuses what is impossible.
        """
        definition = self._definition()
        with contextlib.ExitStack() as undo:
            session = spark or self._spark
            if session is None:
                session = undo.enter_context(borrowed())
            return plan_program(definition, session)

    def backfill(
        self,
        *,
        stream: str,
        sink: str,
        source: str | None = None,
        accept: Accept | Collection[Accept] = (),
        spark: SparkSession | None = None,
        reach: Reach = unwatched,
    ) -> Backfilled:
        """Fill a sink that was added to a stream with every row that the stream has written so far.

        The rows are read from `source`, another sink of the stream: a `FileSink` or `LogSink` that holds all of them.
        By default the first one is used. The new sink must be empty. Its rows become visible in one commit, with the
        last epoch of the stream; the next run continues with all sinks, without `accept`. Call it while the pipeline is
        not running; after a crash, call it again.

        If the new sink replaces one that is no longer in the program, pass `accept="sinks"`.
        """
        require_running_allowed(self.name)
        definition = self._definition()
        session, undo = obtain_session(definition, spark or self._spark)
        with undo:
            return backfill_pipeline(definition, session, stream, sink, source, accept, reach)

    def _start(
        self,
        definition: PipelineDefinition,
        session: SparkSession,
        settings: RunSettings,
        undo: contextlib.ExitStack,
    ) -> PipelineHandle:
        handle = start_pipeline(definition, session, settings, undo)
        self._started = True
        return handle

    def _definition(self) -> PipelineDefinition:
        return PipelineDefinition(
            name=self.name,
            repository=self.repository,
            shared=self.shared,
            backoff=self._options["backoff"] or Backoff(),
            callbacks=self._options["callbacks"] or StreamCallbacks(),
            observers=tuple(self._options["observers"]),
            streams=dict(self._streams),
        )


def _require_own_targets(spec: StreamSpec, others: Sequence[StreamSpec]) -> None:
    """Refuse two sinks with the same target."""
    taken: dict[object, str] = {}
    for other in others:
        for sink in other.sinks:
            taken |= {id(sink): other.name, sink.target or id(sink): other.name}
    for sink in spec.sinks:
        place = id(sink) if id(sink) in taken else sink.target or id(sink)
        if place in taken:
            raise BadValue(
                what=f"sink {sink.name!r} of stream {spec.name!r}",
                value=sink,
                why=f"stream {taken[place]!r} writes there already",
                do="give it a target of its own",
            )
        taken[place] = spec.name


@takes(SingleStreamOptions, SINGLE_STREAM_DEFAULTS)
def exactly_once(
    df: DataFrame,
    *,
    name: str,
    sinks: Sink | Sequence[Sink],
    root: str | os.PathLike[str],
    **options: Unpack[SingleStreamOptions],
) -> Pipeline:
    """Make a pipeline of one stream from a streaming DataFrame: `.start()` it in place of `df.writeStream…start()`.

    `name`, `root`, `shared`, `restart`, `outage`, `backoff`, `callbacks` and `observers` are those of `Pipeline`; the
    others are those of `Pipeline.stream`. The stream has the pipeline's name.
    """
    pipeline = Pipeline(name, root, **part_of(PipelineOptions, options))
    pipeline.stream(lambda _: df, name=name, sinks=sinks, **part_of(StreamOptions, options))
    pipeline._spark = df.sparkSession
    return pipeline

"""The start of a pipeline: obtain a session, take the lease, recover every stream, start the threads."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.control.channel import ControlChannel
from holdfast.control.records import RequestKind
from holdfast.coordinator import Topology
from holdfast.epoch import Reach
from holdfast.errors import (
    BadValue,
    HoldfastError,
    Locked,
    NotFound,
    NotSupported,
    RepositoryMissing,
    SparkFileDamaged,
    SparkLogMismatch,
)
from holdfast.formats.manifest import pipeline_hash
from holdfast.policy import Backoff, CheckpointPolicy
from holdfast.repository import Checkpoints, Identity, Lease, Lineage, LocalRepository, Repository
from holdfast.repository.activity import START_FAILED
from holdfast.repository.files import failing_as, make_folder
from holdfast.repository.guards import LOCK
from holdfast.repository.lease import LONGEST_PROGRAM, RUN
from holdfast.repository.objectstore import ObjectRepository
from holdfast.repository.opening import local_repository, local_root
from holdfast.repository.probe import probe
from holdfast.rewind.finishing import finish_unfinished
from holdfast.rewind.program import Program, ProgramStream
from holdfast.rewind.way_back import way_back
from holdfast.sinks.log import LogSink
from holdfast.spark import adapter
from holdfast.spark.activity import ActivityTally, ActivityWriter, noted
from holdfast.spark.chain import Chain, inner_log
from holdfast.spark.checkpoint_setup import CheckpointSetup, Inbox
from holdfast.spark.checkpoints import Checkpointing
from holdfast.spark.context import RunContext, StreamCallbacks
from holdfast.spark.failures import Kind
from holdfast.spark.handle import PipelineHandle, start_threads
from holdfast.spark.logsource import FORMAT as LOG_SOURCE
from holdfast.spark.opening import sink_folder
from holdfast.spark.options import StartOptions
from holdfast.spark.page_process import PageProcess, checked_page
from holdfast.spark.polling import checked_delay_ms, chosen_delay_ms
from holdfast.spark.session import active_or_new, require_java
from holdfast.spark.spec import ACCEPTABLE, Accept, StreamSpec, checked_outage
from holdfast.spark.store_cluster import require_cluster
from holdfast.spark.store_session import prepare_session
from holdfast.spark.stream import StreamRun
from holdfast.spark.stream_threads import StreamThreads
from holdfast.spark.tracing import tracing_callbacks
from holdfast.stages import FlushObserver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDefinition:
    """A pipeline as it is started."""

    name: str
    repository: Repository
    shared: bool
    backoff: Backoff
    callbacks: StreamCallbacks
    observers: tuple[FlushObserver, ...]
    streams: Mapping[str, StreamSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The options of one run, checked."""

    available_now: bool
    policy: CheckpointPolicy
    accept: frozenset[str]
    outage: Mapping[Kind, float | None]
    poll_ms: int | None
    take_over: bool
    callbacks: StreamCallbacks | None
    page: int | None
    program: str
    reach: Reach

    @classmethod
    def checked(cls, options: StartOptions) -> RunSettings:
        """Check the options of a run before Spark is started, which takes seconds."""
        every, outage = options["checkpoint_every"], options["outage"]
        return cls(
            available_now=options["available_now"],
            policy=every if isinstance(every, CheckpointPolicy) else CheckpointPolicy(every=every),
            accept=checked_accept(options["accept"]),
            outage={} if outage is None else checked_outage(outage),
            poll_ms=checked_delay_ms(options["poll_every"]),
            take_over=options["take_over"],
            callbacks=options["callbacks"],
            page=checked_page(options["page"]),
            program=checked_program(options["program"]),
            reach=options["reach"],
        )


def checked_accept(accept: Accept | Collection[Accept]) -> frozenset[str]:
    """Return the problems that a user accepts."""
    words = [accept] if isinstance(accept, str) else accept
    for word in words:
        if word not in ACCEPTABLE:
            raise BadValue(what="accept", value=word, expected=f"one of {', '.join(ACCEPTABLE)}")
    return frozenset(words)


def checked_program(program: str) -> str:
    """Return the name of the program, which the page and `holdfast status` show in next steps."""
    if not isinstance(program, str) or len(program) > LONGEST_PROGRAM or not program.isprintable():
        raise BadValue(what="program", value=program, expected=f"one line of at most {LONGEST_PROGRAM} characters")
    return program


def obtain_session(
    pipeline: PipelineDefinition, given: SparkSession | None
) -> tuple[SparkSession, contextlib.ExitStack]:
    """Return the session to use, and a stack that stops it at the end if it was created here."""
    if not pipeline.streams:
        raise BadValue(what="pipeline", value=pipeline.name, why="it has no stream", do="add one with @pipeline.stream")
    if given is None:
        require_java()  # nothing is created if Spark cannot start
    else:
        _require_fit(pipeline, given)
    _make_root(pipeline.repository)  # before Spark takes its seconds to start
    with contextlib.ExitStack() as undo:
        if given is not None:
            return given, undo.pop_all()
        session, new = active_or_new()
        if new:
            undo.callback(adapter.stop_session, session)
        _require_fit(pipeline, session)
        return session, undo.pop_all()


def _make_root(repository: Repository) -> None:
    """Create the folder of a repository, or find out whether a bucket can hold one."""
    if isinstance(repository, ObjectRepository):
        probe(repository)
        return
    root = local_repository(repository, "running a pipeline").root
    with failing_as("make", repository.where):
        make_folder(root)


def start_pipeline(
    pipeline: PipelineDefinition, session: SparkSession, settings: RunSettings, undo: contextlib.ExitStack
) -> PipelineHandle:
    """Start a pipeline; on a failure, release everything that was taken.

    1. Take the lease: a driver that is replaced must end first, because it may hold all cores of the cluster.
    2. Look at what executors lack, then finish a rewind that was interrupted.  3. Build every stream, and recover it.
    4. Prepare the checkpoints.  5. Start the threads.
    """
    with undo:
        retain = max(adapter.require_retention(session), adapter.RETAINED)
        prepare_session(session, pipeline.repository)
        lease = take_lease(pipeline, session, take_over=settings.take_over, program=settings.program)  # 1
        undo.callback(lease.release)
        with _recording_why(pipeline.repository, lease.number):
            sinks = [sink for spec in pipeline.streams.values() for sink in spec.sinks]
            require_cluster(session, pipeline.repository, sinks)  # 2
            finish_rewind(pipeline, lease, settings.reach)
            channel = ControlChannel(pipeline.repository, lease, RequestKind)
            undo.callback(channel.close)  # before the lease is released: askers wait for the lock
            chain = Chain(pipeline.name, pipeline.streams, pipeline.repository.where, session, accept=settings.accept)
            topology, specs = chain.join()  # 3
            inbox: Inbox = queue.SimpleQueue()
            callbacks = pipeline.callbacks
            for more in filter(None, (settings.callbacks, tracing_callbacks(pipeline.name))):
                callbacks = callbacks.and_then(more)
            run = RunContext(
                spark=session,
                repository=pipeline.repository,
                lineage=lineage_of(pipeline),
                lease=lease,
                retain=retain,
                shared=pipeline.shared,
                available_now=settings.available_now,
                accept=settings.accept,
                backoff=pipeline.backoff,
                callbacks=callbacks,
                reach=settings.reach,
                acknowledge=lambda checkpoint, state: inbox.put((checkpoint, state)),
                build=chain.build,
                outage=settings.outage,
                poll_ms=_poll_ms(settings, pipeline.repository, chain, session),
            )
            streams = [StreamRun(spec, run) for spec in specs]
            with _recording_failure(run):
                for stream in streams:
                    undo.callback(stream.close)
                    with _naming_the_way_back(run):
                        stream.recover()
            threads = StreamThreads(streams, topology, available_now=settings.available_now)
            setup = _checkpoint_setup(pipeline, run, streams, topology, settings.policy)
            checkpointing = Checkpointing(setup, inbox, on_fatal=threads.end_after)
            checkpointing.prepare()  # 4
            if settings.page is not None:
                undo.callback(PageProcess(pipeline.repository.where, settings.page).close)
            handle = PipelineHandle(run, threads, checkpointing, channel, undo.pop_all())
        start_threads(handle, pipeline.repository.where)  # 5
        return handle


def _poll_ms(settings: RunSettings, repository: Repository, chain: Chain, session: SparkSession) -> int | None:
    """Return the delay between two polls for input; `None` leaves it to the session."""
    if settings.poll_ms is not None:
        return settings.poll_ms
    if settings.available_now or adapter.setting(session, adapter.POLLING_DELAY) is not None:
        return None
    paths = [
        options.get("path", "")
        for df in chain.frames
        for name, options in adapter.inputs(df)
        if name != LOG_SOURCE  # it paces its own requests
    ]
    return chosen_delay_ms(len(chain.frames), paths, on_store=isinstance(repository, ObjectRepository))


def _checkpoint_setup(
    pipeline: PipelineDefinition,
    run: RunContext,
    streams: list[StreamRun],
    topology: Topology,
    policy: CheckpointPolicy,
) -> CheckpointSetup:
    if isinstance(run.repository, ObjectRepository):
        policy = policy.at_least_every(run.retain)  # a checkpoint decides which of Spark's files may be deleted there
    return CheckpointSetup(
        run=run,
        streams={stream.name: stream for stream in streams},
        topology=topology,
        policy=policy,
        checkpoints=Checkpoints(run.repository),
        program=pipeline_hash({stream.name: msgspec.to_builtins(stream.description) for stream in streams}),
        observers=pipeline.observers,
    )


def lineage_of(pipeline: PipelineDefinition) -> Lineage:
    """Return the lineage of a pipeline's repository, which is created if it does not exist."""
    repository = pipeline.repository
    try:
        lineage = Lineage.load(repository)
    except NotFound:
        if repository.list("timelines"):
            why = "there are timelines, but no holdfast.json"
            raise BadValue(what="repository", value=repository.where, why=why, do="restore the file") from None
        return Lineage(Identity.create(repository, pipeline.name))
    if lineage.identity.pipeline != pipeline.name:
        why = f"it belongs to pipeline {lineage.identity.pipeline!r}"
        raise BadValue(what="repository", value=repository.where, why=why, do="choose another root")
    return lineage


def program_of(pipeline: PipelineDefinition) -> Program:
    """Return the streams and sinks of a pipeline as a rewind needs them, with the event logs that were added."""
    return Program(
        name=pipeline.name,
        repository=pipeline.repository,
        shared=pipeline.shared,
        streams={name: _program_stream(spec, pipeline.repository) for name, spec in pipeline.streams.items()},
    )


def _program_stream(spec: StreamSpec, repository: Repository) -> ProgramStream:
    root, inner = local_root(repository), inner_log(repository.where, spec.name)
    added = (inner,) if inner.exists() and not any(isinstance(sink, LogSink) for sink in spec.outputs) else ()
    stage = None if spec.stage is None else spec.stage.codec.type_name
    for sink in spec.sinks:
        folder = sink_folder(root, spec.name, sink)
        if folder is not None:
            sink.set_folder(folder)
    return ProgramStream(spec.name, (*spec.sinks, *added), spec.reads, stage)


def finish_rewind(pipeline: PipelineDefinition, lease: Lease, reach: Reach) -> None:
    """Finish a rewind that was interrupted, or raise `RewindUnfinished` if this program cannot."""
    with contextlib.suppress(RepositoryMissing):  # a new one
        finish_unfinished(program_of(pipeline), lease, reach)


@contextlib.contextmanager
def _recording_why(repository: Repository, lease: int) -> Iterator[None]:
    """Record why a run ends before its first epoch: otherwise the next look at the repository takes it for a kill.

    The first start in a new repository records nothing, because there is no pipeline to show yet.
    """
    try:
        yield
    except Exception as error:
        with contextlib.suppress(HoldfastError):  # the error of the start is the one to raise
            Identity.load(repository)
            tally = ActivityTally()
            tally.event(noted(START_FAILED, lease, error=error))
            ActivityWriter(repository, tally, lease).work()
        raise


@contextlib.contextmanager
def _recording_failure(run: RunContext) -> Iterator[None]:
    """Record what happened before a recovery failed: the streams that were recovered, and how."""
    try:
        yield
    except Exception:
        ActivityWriter(run.repository, run.activity, run.lease.number).work()
        raise


@contextlib.contextmanager
def _naming_the_way_back(run: RunContext) -> Iterator[None]:
    """Name the newest sound checkpoint, if the Spark folder of a stream is damaged or gone."""
    try:
        yield
    except (SparkLogMismatch, SparkFileDamaged) as error:
        with contextlib.suppress(HoldfastError):  # the damage is what must be reported
            error.do = way_back(run.repository, run.lineage) or error.do
        raise


def _require_fit(pipeline: PipelineDefinition, spark: SparkSession) -> None:
    """Refuse a session that this pipeline cannot run on."""
    adapter.require_classic(spark)
    on_disk = isinstance(pipeline.repository, LocalRepository)
    if on_disk and not adapter.is_local(spark) and not pipeline.shared:
        raise NotSupported(
            what=f"the local root {pipeline.repository.where} on a cluster",
            why="executors on other machines would not see Spark's checkpoint in it",
            do='keep it in a bucket: Pipeline(..., root="s3://bucket/prefix"); or use a folder that all machines mount '
            "at the same path, and pass Pipeline(..., shared=True)",
        )


def take_lease(
    pipeline: PipelineDefinition, spark: SparkSession, *, why: str = RUN, take_over: bool = False, program: str = ""
) -> Lease:
    """Become the only process that writes to the pipeline's repository; `why` is recorded.

    On a store there is no lock: a start waits for the beat of the last holder to end, unless it takes over.
    """
    repository = pipeline.repository
    if not isinstance(repository, LocalRepository):
        return Lease.take(repository, take_over=take_over, why=why, started_as=program)
    root = repository.root
    return Lease.take(
        repository, locker=lambda: _lock(pipeline, root, spark), shared=pipeline.shared, why=why, started_as=program
    )


def _lock(pipeline: PipelineDefinition, root: Path, spark: SparkSession) -> adapter.JvmLock | None:
    if pipeline.shared:
        return None  # drivers may be on other machines: only the leases keep them apart
    path = root / LOCK
    with failing_as("make", str(path.parent)):
        make_folder(path.parent)
    try:
        return adapter.JvmLock.acquire(spark, path, f"the lease of pipeline {pipeline.name!r}")
    except Locked as error:
        error.do = "the pipeline runs: use pipeline.handle, or stop it first with pipeline.handle.stop()"
        raise

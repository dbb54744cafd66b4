"""Pipelines: a named set of streams that run, recover and stop together."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any

from holdfast._validation import checked_name
from holdfast.barriers import BarrierFlags
from holdfast.coordinator import Topology, Wanted
from holdfast.epoch import Reach, unwatched
from holdfast.errors import AlreadyExists, BadValue, Fenced, Locked, NotFound, NotSupported, SessionLost, StreamFailed
from holdfast.formats.manifest import Manifest, pipeline_hash
from holdfast.policy import CHECKPOINT_EVERY, Backoff, CheckpointPolicy, RestartPolicy, seconds_of
from holdfast.recovery import RecoveryPlan
from holdfast.repository import Identity, Lease, LocalRepository
from holdfast.repository.files import failing_as, local_path, make_folder
from holdfast.repository.lease import LOCK, RUN
from holdfast.sinks.base import OutputMode, Sink
from holdfast.spark import adapter
from holdfast.spark.chain import Chain, read_here
from holdfast.spark.checkpoints import Checkpointing, CheckpointStatus, Inbox
from holdfast.spark.context import RunContext, StreamCallbacks
from holdfast.spark.session import embedded, require_java
from holdfast.spark.spec import (
    ACCEPTABLE,
    DEFAULT_OUTAGE,
    DEFAULT_RESTART,
    Accept,
    Build,
    OutageLimits,
    StreamSpec,
    checked_outage,
    checked_restart,
    checked_spec,
    defined_twice,
)
from holdfast.spark.stages import OnEpoch
from holdfast.spark.status import StreamStatus, as_data
from holdfast.spark.stream import StreamRun
from holdfast.stages import FlushObserver, Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)
_LOOK_S = 0.2  # how often the main thread looks up from waiting, so that signals reach it
_PATIENCE_S = 5.0  # how long a run that was cut waits for its threads


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """How a pipeline is doing."""

    pipeline: str
    uid: str  # its repository's
    timeline: int  # the current one
    lease: int  # the number of the one that this run holds
    streams: dict[str, StreamStatus]  # by name
    checkpoints: CheckpointStatus

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return dict(as_data(self))


class Pipeline:
    """A named set of streams that run, recover, are checkpointed and stop together.

        pipeline = hf.Pipeline("orders", root="./checkpoints")

        @pipeline.stream(sinks=[hf.FileSink("out/orders")])
        def orders(spark):
            return spark.readStream.schema("id long, amount double").json("in")

        pipeline.run()

    Everything that the pipeline needs to continue after a stop or a crash is kept in its repository, the folder
    `<root>/<name>`. A new start continues after the last epoch of each stream. One process at a time can run it;
    another one that tries is refused with `Locked`.

    - `name`: letters, digits, `_`, `.` and `-`, at most 64 characters. It names the repository; do not change it.
    - `root`: a folder on a local disk, or on a file system that every machine of a cluster mounts.
    - `shared`: the root, and local paths of sinks, are the same on every machine that may run the pipeline. Required on
      a cluster. There is no OS lock then: a new start takes over from an old one, which stops with `Fenced`.
    - `restart`: how often a stream that failed is restarted: a `RestartPolicy`, or a dict of them by kind of failure
      ("source", "sink", "state", "user code", "repository", "executors"). The default is at most 5 restarts in 10
      minutes.
    - `outage`: how long a running stream waits for a server that cannot be reached, a lost executor or a full disk: a
      span of time, or a dict of them by kind of failure, as in `{"sink": "2h"}`. The default is one hour; 0 handles an
      outage as a failure.
    - `backoff`: how long to wait before each restart, and each try during an outage, a `Backoff`.
    - `callbacks`: functions to call on epochs, restarts, outages, checkpoints and failures, a `StreamCallbacks`.
    - `observers`: called before and after each write of a checkpoint, `FlushObserver`s.

    `run()` blocks until the pipeline ends or a signal stops it; `start()` returns a `PipelineHandle` at once, which the
    property `handle` returns again. Streams can be added before that, and replaced while the pipeline is not running.
    """

    def __init__(
        self,
        name: str,
        root: str | os.PathLike[str],
        *,
        shared: bool = False,
        restart: RestartPolicy | Mapping[str, RestartPolicy] = DEFAULT_RESTART,
        outage: OutageLimits = DEFAULT_OUTAGE,
        backoff: Backoff | None = None,
        callbacks: StreamCallbacks | None = None,
        observers: Sequence[FlushObserver] = (),
    ) -> None:
        self.name = checked_name("pipeline", name)
        self.repository = LocalRepository(local_path("root", root) / self.name)
        self.shared = shared
        checked_restart(restart)
        checked_outage(outage)
        self._restart = restart
        self._outage = outage
        self._backoff = backoff or Backoff()
        self._callbacks = callbacks or StreamCallbacks()
        self._observers = tuple(observers)
        self._streams: dict[str, StreamSpec] = {}
        self._spark: SparkSession | None = None
        self._started = False

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {self.repository.where!r}, streams={list(self._streams)})"

    @property
    def handle(self) -> PipelineHandle | None:
        """The handle of this pipeline's run in this process, or `None` if the pipeline is not running here.

        Any `Pipeline` object of the same repository has it, as when a notebook cell that creates it is run again.
        """
        found = _running.get(self.repository.where)
        return None if found is None or found.wait(0) else found

    def stream(
        self,
        build: Build | None = None,
        *,
        sinks: Sink | Sequence[Sink],
        name: str | None = None,
        output_mode: OutputMode = "append",
        trigger: str | Mapping[str, Any] | None = None,
        options: Mapping[str, str] | None = None,
        restart: RestartPolicy | Mapping[str, RestartPolicy] | None = None,
        outage: OutageLimits | None = None,
        quarantine_after: int | None = None,
        reads: str | Sequence[str] = (),
        stage: Stage[Any] | Any = None,
        on_epoch: OnEpoch | None = None,
    ) -> Callable[[Build], Build]:
        """Add a stream: a function from a session to a streaming DataFrame, and the sinks that get every row once.

        Used as a decorator, or called with the function. `trigger` is a processing time ("10 seconds") or one of
        Spark's triggers as a dict; `restart` a policy, or one by kind of failure; `outage` the longest wait for an
        outage to end, as `Pipeline` takes it; after `quarantine_after` equal
        failures of one epoch it is passed over, though never two in a row, and recorded as a gap. `reads` names streams
        of this pipeline whose output this one reads by a channel that is not theirs to `read`: a topic, a folder, a
        table. With `stage`, the state that Python keeps of this stream, `on_epoch(df, stage)` makes of each epoch's
        rows what the sinks get.
        """

        def add(function: Build) -> Build:
            spec = checked_spec(
                name or getattr(function, "__name__", None),
                function,
                sinks=sinks,
                output_mode=output_mode,
                trigger=trigger,
                options=options,
                restart=self._restart if restart is None else restart,
                outage=self._outage if outage is None else outage,
                quarantine_after=quarantine_after,
                reads=reads,
                stage=stage,
                on_epoch=on_epoch,
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
        taken: dict[object, str] = {}
        for other in self._streams.values():
            for sink in other.sinks if other is not before else ():
                taken |= {id(sink): other.name, sink.target or id(sink): other.name}
        for sink in spec.sinks:
            place = id(sink) if id(sink) in taken else sink.target or id(sink)
            if place in taken:
                why = f"stream {taken[place]!r} writes there already"
                raise BadValue(
                    what=f"sink {sink.name!r} of stream {spec.name!r}",
                    value=sink,
                    why=why,
                    do="give it a target of its own",
                )
            taken[place] = spec.name
        self._streams[spec.name] = spec

    def read(self, stream: str, *, rows_per_epoch: int | None = None) -> DataFrame:
        """Read what another stream of this pipeline gives to its event log: a streaming DataFrame of its columns.

        To be called inside a stream's function. The other one is given a log where it has none. `rows_per_epoch` is the
        most that one epoch takes.
        """
        return read_here(self.name, stream, rows_per_epoch)

    def start(
        self,
        spark: SparkSession | None = None,
        *,
        available_now: bool = False,
        checkpoint_every: CheckpointPolicy | float | str | timedelta | None = CHECKPOINT_EVERY,
        accept: Accept | Collection[Accept] = (),
        outage: OutageLimits | None = None,
        callbacks: StreamCallbacks | None = None,
        reach: Reach = unwatched,
    ) -> PipelineHandle:
        """Recover every stream and start it; return at once with a handle.

        A checkpoint of all streams is taken every minute, and a last one by a graceful stop. `checkpoint_every` sets
        another interval ("30s", a number of seconds, a `timedelta`) or a `CheckpointPolicy`; `None` turns checkpoints
        off, except for those that are requested from the handle. With `available_now`, every stream processes the
        input that is available now, upstream first, and the pipeline ends.

        Without `spark`, a session is created on this machine and stopped at the end. `accept` names changes that
        you know of: "sinks" (the set of sinks changed), "gaps" (an epoch does not begin where the last one ended),
        "replay" (a state was rebuilt differently). `outage` replaces the limits of `Pipeline` and of its streams.
        `callbacks` are called after the pipeline's own. `reach` is called at each point of the protocol, for tests.
        """
        _require_running_allowed(self.name)
        accepted, policy = _checked_accept(accept), _checked_policy(checkpoint_every)
        limits = {} if outage is None else checked_outage(outage)
        session, undo = self._session(spark)
        with undo:
            retain = max(adapter.require_retention(session), adapter.RETAINED)
            lease = Lease.take(self.repository, locker=lambda: self._lock(session), shared=self.shared, why=RUN)
            undo.callback(lease.release)
            chain = Chain(self.name, self._streams, self.repository.root, session)
            inbox: Inbox = queue.SimpleQueue()
            topology, specs = chain.join()
            run = RunContext(
                spark=session,
                repository=self.repository,
                identity=self._identity(),
                lease=lease,
                retain=retain,
                shared=self.shared,
                available_now=available_now,
                accept=accepted,
                backoff=self._backoff,
                callbacks=self._callbacks if callbacks is None else self._callbacks.and_then(callbacks),
                reach=reach,
                acknowledge=lambda checkpoint, state: inbox.put((checkpoint, state)),
                build=chain.build,
                outage=limits,
            )
            streams = [StreamRun(spec, run) for spec in specs]
            for stream in streams:
                undo.callback(stream.close)
                stream.recover()
            checkpointing = Checkpointing(
                run,
                streams,
                topology,
                policy,
                inbox=inbox,
                program=pipeline_hash({stream.name: stream.description for stream in streams}),
                observers=self._observers,
            )
            checkpointing.prepare()
            handle = PipelineHandle(
                self.name, run, streams, topology=topology, checkpointing=checkpointing, undo=undo.pop_all()
            )
            self._started = True
            _running[self.repository.where] = handle
            return handle

    def _session(self, spark: SparkSession | None) -> tuple[SparkSession, contextlib.ExitStack]:
        """Return the session to use, and what stops it at the end if it was made here."""
        if not self._streams:
            raise BadValue(what="pipeline", value=self.name, why="it has no stream", do="add one with @pipeline.stream")
        given = spark or self._spark
        if given is None:
            require_java()  # nothing is created where Spark cannot start
        else:
            self._require_fit(given)
        with failing_as("make", self.repository.where):
            make_folder(self.repository.root)  # before Spark takes its seconds
        with contextlib.ExitStack() as undo:
            if given is not None:
                return given, undo.pop_all()
            session, new = embedded()
            if new:
                undo.callback(adapter.stop_session, session)
            self._require_fit(session)
            return session, undo.pop_all()

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        available_now: bool = False,
        checkpoint_every: CheckpointPolicy | float | str | timedelta | None = CHECKPOINT_EVERY,
        accept: Accept | Collection[Accept] = (),
        outage: OutageLimits | None = None,
        callbacks: StreamCallbacks | None = None,
        watch: Callable[[PipelineHandle], object] = lambda _: None,
        reach: Reach = unwatched,
    ) -> PipelineStatus:
        """Run until every stream ends, or until stopped; raise `StreamFailed` where one gave up.

        The arguments are those of `start`. SIGTERM and Ctrl-C end every stream at its epoch's end; a second one ends
        them at once. `watch` is called a few times a second, in the caller's thread; what it raises ends the run at
        once.
        """
        _require_running_allowed(self.name)
        policy, _ = _checked_policy(checkpoint_every), _checked_accept(accept)  # before Spark takes its seconds
        if outage is not None:
            checked_outage(outage)
        session, undo = self._session(spark)  # first: Spark takes Ctrl-C for itself when it starts
        with undo, _signals() as asked:
            handle = self.start(
                session,
                available_now=available_now,
                checkpoint_every=policy,
                accept=accept,
                outage=outage,
                callbacks=callbacks,
                reach=reach,
            )
            try:
                watch(handle)
                while not handle.wait(_LOOK_S):
                    watch(handle)
                    if asked.signals == 1 and not handle.stopping:
                        _log.warning("stopping at the end of each stream's epoch; once more stops at once")
                        threading.Thread(target=handle.stop, name="holdfast-stop", daemon=True).start()
                    elif asked.signals > 1:
                        raise asked.end
            except BaseException:
                handle.kill()
                raise
            return handle.await_termination()

    def _identity(self) -> Identity:
        try:
            identity = Identity.load(self.repository)
        except NotFound:
            if self.repository.list("timelines"):
                why = "there are timelines, but no holdfast.json"
                raise BadValue(what="repository", value=self.repository.where, why=why, do="restore the file") from None
            return Identity.create(self.repository, self.name)
        if identity.pipeline != self.name:
            why = f"it belongs to pipeline {identity.pipeline!r}"
            raise BadValue(what="repository", value=self.repository.where, why=why, do="choose another root")
        return identity

    def _require_fit(self, spark: SparkSession) -> None:
        """Refuse a session that this pipeline cannot run on."""
        adapter.require_classic(spark)
        if not adapter.is_local(spark) and not self.shared:
            raise NotSupported(
                what=f"the local root {self.repository.where} on a cluster",
                why="executors on other machines would not see Spark's checkpoint in it",
                do="use a folder that every machine sees alike and say so with Pipeline(..., shared=True)",
            )

    def _lock(self, spark: SparkSession) -> adapter.JvmLock | None:
        if self.shared:
            return None  # drivers may be on other machines: leases alone keep them apart
        path = self.repository.root / LOCK
        with failing_as("make", str(path.parent)):
            make_folder(path.parent)
        try:
            return adapter.JvmLock.acquire(spark, path, f"the lease of pipeline {self.name!r}")
        except Locked as error:
            error.do = "the pipeline runs: use pipeline.handle, or stop it first with pipeline.handle.stop()"
            raise


class PipelineHandle:
    """A running pipeline. In `with`, leaving the block stops it, and raises what `await_termination` does."""

    def __init__(
        self,
        name: str,
        run: RunContext,
        streams: list[StreamRun],
        *,
        topology: Topology,
        checkpointing: Checkpointing,
        undo: contextlib.ExitStack,
    ) -> None:
        self.name = name
        self.stopping = False
        self._run = run
        self._streams = streams
        self._topology = topology
        self._checkpointing = checkpointing
        self._undo = undo
        self._over = threading.Event()
        self._threads = {
            stream.name: threading.Thread(
                target=self._live, args=(stream,), name=f"holdfast-{stream.name}", daemon=True
            )
            for stream in streams
        }
        checkpointing.intolerable = self._must_end
        checkpointing.start()
        for stream in topology.upstream_first:
            self._threads[stream].start()
        self._caretaker = threading.Thread(target=self._take_care, name="holdfast-caretaker", daemon=True)
        self._caretaker.start()

    def __repr__(self) -> str:
        streams = ", ".join(f"{each.name} {each.state} at epoch {each.progress[1]}" for each in self._streams)
        last = self._checkpointing.status().last
        end = "ended" if self._over.is_set() else "stopping" if self.stopping else "running"
        return f"<PipelineHandle of {self.name!r}, {end}: {streams}; checkpoint {last}>"

    def status(self) -> PipelineStatus:
        """Return the status of every stream and of the checkpoints."""
        identity = self._run.identity
        streams = {stream.name: stream.status() for stream in self._streams}
        checkpoints = self._checkpointing.status()
        return PipelineStatus(self.name, identity.uid, identity.timeline, self._run.lease.number, streams, checkpoints)

    @property
    def recovery(self) -> dict[str, RecoveryPlan]:
        """What recovery found and did, by stream."""
        return {stream.name: stream.plan for stream in self._streams if stream.plan is not None}

    def checkpoint(self, timeout: float | str | timedelta | None = None) -> Manifest:
        """Take a checkpoint of all streams now; return its manifest, or raise `CheckpointFailed`.

        One that is under way is waited for; then this one begins. After `timeout` seconds of waiting it is
        `TimeoutError`; the checkpoint goes on. Refused inside a callback, which it would wait for.
        """
        return self._waited(Wanted(), timeout)

    def savepoint(self, name: str, timeout: float | str | timedelta | None = None) -> Manifest:
        """Take a checkpoint that is kept under a name until it is deleted, with copies of all that it needs."""
        return self._waited(Wanted(BarrierFlags.FULL_SNAPSHOT, name), timeout)

    def _waited(self, wanted: Wanted, timeout: float | str | timedelta | None) -> Manifest:
        seconds = None if timeout is None else seconds_of("timeout", timeout)
        ticket = self._checkpointing.ask(wanted)
        try:
            return ticket.result(seconds)
        except TimeoutError:
            if ticket.done():
                raise
            raise TimeoutError(f"the checkpoint was not taken within {seconds:g} s; it goes on") from None

    def cancel_checkpoint(self) -> None:
        """Give up the checkpoint that is under way, if there is one."""
        self._checkpointing.cancel()

    def drain(self, savepoint: str | None = None, timeout: float | str | timedelta = 60.0) -> Manifest:
        """Let what is available go through, stop every stream, and take a last checkpoint; return its manifest.

        Upstream first: when a stream has ended, those who read from it take in all that it has given. Input that never
        pauses is taken in for `timeout` seconds at most; the rest is for the next start. With `savepoint` the last
        checkpoint is one of that name. If it fails the streams are stopped all the same, and its error is raised.
        """
        deadline = time.monotonic() + seconds_of("timeout", timeout)
        flags = BarrierFlags.DRAIN | (BarrierFlags.FULL_SNAPSHOT if savepoint else BarrierFlags.NONE)
        ticket = self._checkpointing.ask_at_end(Wanted(flags, savepoint))
        self.stopping = True
        streams = {stream.name: stream for stream in self._streams}
        for name in self._topology.upstream_first:
            finishing = threading.Thread(target=streams[name].finish_available, daemon=True)
            finishing.start()
            finishing.join(max(deadline - time.monotonic(), _LOOK_S))
            if self._run.available_now:
                self._threads[name].join(max(deadline - time.monotonic(), _LOOK_S))
            streams[name].stop()
            self._threads[name].join()
        self._over.wait()
        return ticket.result()

    def stop(self) -> None:
        """Stop gracefully: end every stream at the end of its epoch, take a last checkpoint, release everything.

        The last checkpoint is taken where checkpoints are on and a stream has advanced since the previous one. If it
        fails, it is logged and reported to `on_checkpoint_failed`; the stop continues. Called from inside a
        callback, this returns at once and the stop follows.
        """
        self.stopping = True
        if self._checkpointing.is_inside:
            threading.Thread(target=self.stop, name="holdfast-stop", daemon=True).start()
            return
        if any(stream.is_inside for stream in self._streams):
            for stream in self._streams:
                stream.ask_to_stop()
            threading.Thread(target=self.stop, name="holdfast-stop", daemon=True).start()
            return
        stoppers = [threading.Thread(target=stream.stop, daemon=True) for stream in self._streams]
        for thread in stoppers:
            thread.start()
        for thread in [*stoppers, *self._threads.values()]:
            thread.join()
        self._over.wait()

    def kill(self) -> None:
        """Stop at once, without a last checkpoint: as safe as a kill. The next start completes what was in flight."""
        self.stopping = True
        self._checkpointing.cut_off()
        for stream in self._streams:
            threading.Thread(target=stream.kill, daemon=True).start()
        self._over.wait(_PATIENCE_S)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all is over, or so long; return whether it is."""
        return self._over.wait(seconds)

    def await_termination(self, timeout: float | None = None) -> PipelineStatus:
        """Wait until all streams have ended; raise `StreamFailed` where one gave up, `TimeoutError` after `timeout`.

        A driver that was replaced by a newer one ends with `Fenced`.
        A stream that gives up ends the pipeline: the others stop at their epoch's end.
        """
        if not self._over.wait(timeout):
            raise TimeoutError(f"pipeline {self.name!r} still runs after {timeout} s")
        if self._checkpointing.error is not None:
            raise self._checkpointing.error
        failures = self._failures()
        for failure in failures:
            if isinstance(failure.__cause__, Fenced | SessionLost):
                raise failure.__cause__  # the whole pipeline was replaced, or lost its session, not a stream of it
        if failures:
            raise failures[0]
        return self.status()

    def _failures(self) -> list[StreamFailed]:
        return [stream.failed for stream in self._streams if stream.failed is not None]

    def _live(self, stream: StreamRun) -> None:
        if self._run.available_now:  # what those above it are still to give is to go through too
            for name in self._topology.reads[stream.name]:
                self._threads[name].join()
        stream.live()
        if stream.failed is not None:
            self._stop_all()

    def _must_end(self, error: BaseException) -> None:
        """End: as after a failure, or at once where something has killed the thread that takes checkpoints."""
        if isinstance(error, Exception):
            self._stop_all()
        else:
            threading.Thread(target=self.kill, daemon=True).start()

    def _stop_all(self) -> None:
        if self.stopping:
            return
        self.stopping = True
        for stream in self._streams:
            threading.Thread(target=stream.stop, daemon=True).start()

    def _take_care(self) -> None:
        """Wait for the streams, then give back what the run took."""
        for thread in self._threads.values():
            thread.join()
        self._checkpointing.finish()
        try:
            self._undo.close()
        except Exception:
            _log.exception("pipeline %s: something could not be given back", self.name)
        self._over.set()

    def __enter__(self) -> PipelineHandle:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.stop()
        self._over.wait()
        if error is None:
            self.await_termination()


def exactly_once(
    df: DataFrame,
    *,
    name: str,
    sinks: Sink | Sequence[Sink],
    root: str | os.PathLike[str],
    output_mode: OutputMode = "append",
    trigger: str | Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    restart: RestartPolicy | Mapping[str, RestartPolicy] = DEFAULT_RESTART,
    outage: OutageLimits = DEFAULT_OUTAGE,
    quarantine_after: int | None = None,
    stage: Stage[Any] | Any = None,
    on_epoch: OnEpoch | None = None,
    shared: bool = False,
    backoff: Backoff | None = None,
    callbacks: StreamCallbacks | None = None,
    observers: Sequence[FlushObserver] = (),
) -> Pipeline:
    """Make a pipeline of one stream from a streaming DataFrame: `.start()` it in place of `df.writeStream…start()`.

    `name`, `root`, `shared`, `restart`, `outage`, `backoff`, `callbacks` and `observers` are those of `Pipeline`; the
    others are those of `Pipeline.stream`. The stream has the pipeline's name.
    """
    pipeline = Pipeline(
        name,
        root,
        shared=shared,
        restart=restart,
        outage=outage,
        backoff=backoff,
        callbacks=callbacks,
        observers=observers,
    )
    pipeline.stream(
        lambda _: df,
        name=name,
        sinks=sinks,
        output_mode=output_mode,
        trigger=trigger,
        options=options,
        quarantine_after=quarantine_after,
        stage=stage,
        on_epoch=on_epoch,
    )
    pipeline._spark = df.sparkSession
    return pipeline


_running: weakref.WeakValueDictionary[str, PipelineHandle] = weakref.WeakValueDictionary()
"""By repository, in this process: a handle's threads keep it while it runs."""
_defining: ContextVar[str | None] = ContextVar("defining", default=None)


@contextlib.contextmanager
def defining(program: str) -> Iterator[None]:
    """Load a program that defines a pipeline for somebody else to run: one that runs it by itself is refused."""
    token = _defining.set(program)
    try:
        yield
    finally:
        _defining.reset(token)


def _require_running_allowed(pipeline: str) -> None:
    program = _defining.get()
    if program is not None:
        why = f"{program} is only being loaded; whoever loads it runs the pipeline"
        do = 'put that line under `if __name__ == "__main__":`'
        raise NotSupported(what=f"running pipeline {pipeline!r} here", why=why, do=do)


class _StopSignals:
    """How many signals have asked for an end."""

    def __init__(self) -> None:
        self.signals = 0
        self.end: BaseException = KeyboardInterrupt()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signals += 1
        self.end = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


@contextlib.contextmanager
def _signals() -> Iterator[_StopSignals]:
    """Count SIGTERM and Ctrl-C instead of dying of them; only the main thread can."""
    asked = _StopSignals()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {each: signal.signal(each, asked) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _checked_policy(every: CheckpointPolicy | float | str | timedelta | None) -> CheckpointPolicy:
    return every if isinstance(every, CheckpointPolicy) else CheckpointPolicy(every=every)


def _checked_accept(accept: Accept | Collection[Accept]) -> frozenset[str]:
    words = [accept] if isinstance(accept, str) else accept
    for word in words:
        if word not in ACCEPTABLE:
            raise BadValue(what="accept", value=word, expected=f"one of {', '.join(ACCEPTABLE)}")
    return frozenset(words)

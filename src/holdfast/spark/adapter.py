"""The only place that knows Spark's internals, for the version that `extras` names.

What is used and not part of Spark's public API: the JVM behind a session (`_jvm`, `_jdf`, `_jsc`), class names of
logical plans, settings by their full name, and the RDD of a local checkpoint.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession

from holdfast._error_text import one_line
from holdfast.errors import BadValue, Closed, Locked, MissingExtra, NotSupported, StorageFailed
from holdfast.repository.files import hadoop_address
from holdfast.repository.oslock import OsLock
from holdfast.spark.unread import FileInput

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

LEAST_RETAINED = 10
RETAIN = "spark.sql.streaming.minBatchesToRetain"
RETAINED = 100  # Spark's own default
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_STATE = "spark.sql.streaming.stateStore"
_PACKAGE = "org.apache.spark.sql.execution.streaming"
PROVIDER = f"{_STATE}.providerClass"
_ROCKSDB = f"{_PACKAGE}.state.RocksDBStateStoreProvider"
FAST_FILES = {FILE_MANAGER: f"{_PACKAGE}.checkpointing.FileSystemBasedCheckpointFileManager"}
STATE = {
    PROVIDER: _ROCKSDB,
    f"{_STATE}.checkpointFormatVersion": "2",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
}
_STATEFUL = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "GlobalLimit",
    "LocalLimit",
    "TransformWithState",
    "TransformWithStateInPySpark",
}
_IDLE = ("Waiting for data to arrive", "Waiting for next trigger")  # as `StreamingQuery.status` has it
_NOISY = (  # loggers, below Spark's own package
    "broadcast.TorrentBroadcast",
    "executor.Executor",
    "scheduler.TaskSetManager",
    "sql.execution.datasources.FileFormatWriter",
    "sql.execution.datasources.v2",
    "sql.execution.streaming.runtime.MicroBatchExecution",
    "util.Utils",
)
_STATEFUL_PROCESSORS_NEED = ("google.protobuf", "pandas")
_EXIT_S = 2.0  # how long to wait for the exit code of a JVM that does not answer
_QUERY = re.compile(r"=== Streaming Query ===.*?(?=\n\s+at |\nCaused by: |\Z)", re.DOTALL)
_MONITORED = "org$apache$spark$api$python$PythonWorkerFactory$MonitorThread$$$outer"
_SOURCES_S = 3.0  # for a query to make its sources
_settings = threading.RLock()  # a session's settings are changed around the start of one query at a time
_locks = threading.Lock()
_locked: set[Path] = set()  # what this process's JVM has locked
_log = logging.getLogger(__name__)


def require_classic(spark: SparkSession) -> None:
    """Refuse Spark Connect sessions. Other versions of PySpark were refused when this package was imported."""
    if not isinstance(spark, SparkSession):
        if not type(spark).__module__.startswith("pyspark.sql.connect"):
            raise BadValue(what="spark", value=spark, expected="a SparkSession", do="pass one, or none at all")
        why = "its driver is elsewhere: neither its files nor its lock can be reached from here"
        raise NotSupported(what="a Spark Connect session", why=why, do="run the program on the driver: spark-submit")


def is_local(spark: SparkSession) -> bool:
    """Whether executors are on this machine."""
    return str(spark.sparkContext.master).startswith("local")


def setting(spark: SparkSession, name: str) -> str | None:
    """Return a setting that somebody made, or `None` where Spark's default is in force."""
    found = spark.conf.get(name, None)
    return None if found is None else str(found)


def require_retention(spark: SparkSession) -> int:
    """Return how many batches Spark keeps, or refuse too few: recovery may need the last ones."""
    kept = int(setting(spark, RETAIN) or RETAINED)
    if kept < LEAST_RETAINED:
        why = f"recovery and checkpoints need at least {LEAST_RETAINED} batches"
        raise NotSupported(what=f"{RETAIN}={kept}", why=why, do=f"set {RETAIN} to {RETAINED}, its default")
    return kept


def state_settings(spark: SparkSession) -> dict[str, str]:
    """Return the settings of state for a new stream: ours, but for what the user has set."""
    if setting(spark, PROVIDER) not in (None, _ROCKSDB):
        return {name: found for name in STATE if (found := setting(spark, name)) is not None}
    return {name: setting(spark, name) or value for name, value in STATE.items()}


# --- plans ---


def _nodes(df: DataFrame) -> Iterator[Any]:
    pending = [df._jdf.queryExecution().analyzed()]
    while pending:
        node = pending.pop()
        yield node
        children = node.children()
        pending += [children.apply(number) for number in range(children.size())]


def is_stateful(df: DataFrame) -> bool:
    """Whether a streaming DataFrame keeps state from batch to batch."""
    for node in _nodes(df):
        kind = node.getClass().getSimpleName()
        if kind in _STATEFUL and node.isStreaming():
            return True
        if kind == "Join" and node.left().isStreaming() and node.right().isStreaming():
            return True
    return False


def state_schemas(df: DataFrame) -> list[str]:
    """Describe what a streaming DataFrame keeps from batch to batch: each operator's kind and columns."""
    nodes = ((node.getClass().getSimpleName(), node) for node in _nodes(df))
    return [f"{kind} {node.schema().json()}" for kind, node in nodes if kind in _STATEFUL and node.isStreaming()]


def source_names(df: DataFrame) -> list[str]:
    """Return the names of the streaming sources that a DataFrame reads."""
    return [
        str(node.sourceName())
        for node in _nodes(df)
        if node.getClass().getSimpleName() in ("StreamingRelation", "StreamingRelationV2")
    ]


def source_paths(df: DataFrame, name: str) -> list[Path]:
    """Return the paths that sources of a name read, once each."""
    nodes = (node for node in _nodes(df) if node.getClass().getSimpleName() == "StreamingRelationV2")
    found = (node.extraOptions().get("path") for node in nodes if node.sourceName() == name)
    return [Path(each) for each in dict.fromkeys(found) if each is not None]


_FILE_SOURCE = re.compile(r"FileStreamSource\[(?:file:)?(/.*)\]")


def file_inputs(df: DataFrame, query: StreamingQuery) -> list[FileInput]:
    """Return what each file source of a running query reads from the local disk."""
    options: dict[str, dict[str, str]] = {}
    for node in _nodes(df):
        if node.getClass().getSimpleName() == "StreamingRelation":
            found, given = node.dataSource().options().iterator(), {}
            while found.hasNext():
                pair = found.next()
                given[str(pair._1()).lower()] = str(pair._2())
            options[_plain_path(given.get("path", ""))] = given
    sources = query._jsq.streamingQuery().sources()
    named = [_FILE_SOURCE.fullmatch(str(sources.apply(number).toString())) for number in range(sources.size())]
    places = {number: _plain_path(match[1]) for number, match in enumerate(named) if match}
    return [FileInput(number, path, options[path]) for number, path in places.items() if path in options]


def _plain_path(path: str) -> str:
    """Return the path of a local file or folder as Spark lists it: absolute, without a scheme."""
    plain = re.sub(r"^file:(//(?=/))?", "", path)
    return os.path.abspath(plain)  # noqa: PTH100 - Spark does not resolve symbolic links either


def progress_of(query: StreamingQuery) -> dict[str, Any]:
    """Return what Spark says of a query's last trigger; empty before the first."""
    found = query.lastProgress
    return {} if found is None else dict(json.loads(found.json))


def let_replace_sources(spark: SparkSession) -> None:
    """Let a source be registered again without a warning of Spark's: it is done on purpose."""
    with contextlib.suppress(Exception):  # another logger is in use: then it warns
        logging_: Any = spark._jvm.org.apache.logging.log4j
        name = "org.apache.spark.sql.execution.datasources.DataSourceManager"
        logging_.core.config.Configurator.setLevel(name, logging_.Level.ERROR)


def quiet(spark: SparkSession) -> None:
    """Silence the Spark loggers that print pages when a query fails: Holdfast reports the failure in one line.

    The exception has the same text. Does nothing if the logger `holdfast` is at DEBUG.
    """
    if _log.isEnabledFor(logging.DEBUG):
        return
    with contextlib.suppress(Exception):  # another logging library is in use: it still prints them
        logging_: Any = spark._jvm.org.apache.logging.log4j
        for name in _NOISY:
            logging_.core.config.Configurator.setLevel(f"org.apache.spark.{name}", logging_.Level.OFF)


def folder_mode(spark: SparkSession) -> int:
    """Return the permissions of folders that Spark makes: Hadoop has a umask of its own."""
    jvm: Any = spark._jvm
    umask = jvm.org.apache.hadoop.fs.permission.FsPermission.getUMask(spark.sparkContext._jsc.hadoopConfiguration())
    return 0o777 & ~int(umask.toShort())


# --- freezing rows ---


@contextlib.contextmanager
def frozen(df: DataFrame) -> Iterator[DataFrame]:
    """Compute the rows once and keep them for several actions.

    An eager local checkpoint, not `persist`: a persisted part that is lost with its executor would be computed anew,
    into other rows where the query is not deterministic; a lost checkpoint block fails the attempt instead.
    """
    kept = df.localCheckpoint(eager=True)
    try:
        yield kept
    finally:
        with contextlib.suppress(Exception):  # the session may be gone
            # `df.unpersist()` would leave the blocks, and `rdd.unpersist()` would warn of it at every epoch.
            number = kept._jdf.queryExecution().logical().rdd().id()
            kept.sparkSession.sparkContext._jsc.sc().unpersistRDD(number, False)


def run_for_nothing(df: DataFrame) -> None:
    """Run a DataFrame and keep nothing of it: Spark must rebuild the state behind it."""
    df.write.format("noop").mode("overwrite").save()


# --- the lock ---


class JvmLock:
    """A lock that the driver's JVM holds, because it may live and write on for seconds after its Python was killed."""

    def __init__(self, channel: Any, pid: int, path: Path) -> None:
        self._channel = channel
        self._path = path
        self._pid = pid  # of this Python: a forked child does not have the lock

    @classmethod
    def acquire(cls, spark: SparkSession, path: Path, what: str) -> JvmLock:
        """Take the lock on `path`, or raise `Locked` at once with the holder's pid."""
        jvm: Any = spark._jvm
        pid = int(jvm.java.lang.ProcessHandle.current().pid())
        real = path.resolve()
        with _locks:
            if real in _locked:  # to open the file once more and close it would let go of the lock that is held
                raise Locked(what=what, pid=pid, own=True)
            for _ in range(20):
                channel = cls._locked_channel(jvm, real, what, pid)
                if channel is not None:
                    _locked.add(real)
                    return cls(channel, os.getpid(), real)
                OsLock.acquire(real, what).release()  # raises, with the pid of the holder; or it has just let go
        raise Locked(what=what, pid=0)

    @staticmethod
    def _locked_channel(jvm: Any, path: Path, what: str, pid: int) -> Any:
        """Open a file and lock it; `None` where another process has it."""
        channel = None
        try:
            channel = jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
            if channel.tryLock() is not None:
                return channel
        except Py4JJavaError as error:
            why = str(error.java_exception)
            if "OverlappingFileLockException" in why:  # to close it would let go of the lock that this JVM has
                raise Locked(what=what, pid=pid, own=True) from error
            if channel is not None:
                channel.close()
            raise StorageFailed(action="lock", key=what, why=why) from error
        channel.close()
        return None

    @property
    def held(self) -> bool:
        """Whether this process's JVM still has it."""
        return self._channel is not None and os.getpid() == self._pid

    def release(self) -> None:
        """Let go; harmless when done twice, or when the JVM is gone."""
        channel, self._channel = self._channel, None
        if channel is not None and os.getpid() == self._pid:
            with contextlib.suppress(Exception):
                channel.close()
            with _locks:
                _locked.discard(self._path)

    def __enter__(self) -> JvmLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


# --- queries ---


def state_reading(state_format: str, confs: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that Spark's reader of state needs for a folder: what the query was pinned to."""
    version = state_format.rpartition("-")[2]
    pinned = {name: value for name, value in confs.items() if name.startswith(_STATE)}
    return {**pinned, f"{_STATE}.checkpointFormatVersion": version}


@contextlib.contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change a session's settings for a while. A query clones the session when it starts, so it keeps them."""
    with _settings:
        before = {name: setting(spark, name) for name in settings}
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, old)


class BatchFailed(Exception):
    """A batch failed. Only this is given to py4j and Spark, which log it with its causes: it is free of secrets."""


class Batches:
    """Passes each batch of a query to a function, until it is released.

    py4j keeps this object for as long as the JVM keeps the query. After `release`, neither the function nor anything
    that it refers to is reachable from here. Unlike Spark's own class, this one does not keep an error either: its
    traceback would hold the batch.
    """

    def __init__(self, body: Callable[[DataFrame, int], None], spark: SparkSession) -> None:
        self._body: Callable[[DataFrame, int], None] | None = body
        self._spark = spark
        self._connection: Any = None  # from the JVM to here, of the query's thread

    def call(self, jdf: Any, batch: int) -> None:
        """Process a batch; called by the JVM, in the thread of the query."""
        body = self._body
        if body is None:
            raise Closed(what="the stream", do="start the pipeline again")
        if self._connection is None:
            with contextlib.suppress(Py4JError):  # with PYSPARK_PIN_THREAD=false, py4j closes idle connections itself
                self._connection = _callback_client(self._spark).getPerThreadConnection()
        try:
            body(DataFrame(jdf, SparkSession(self._spark.sparkContext, jdf.sparkSession())), batch)
        except Exception as error:  # the function has kept it
            raise BatchFailed(one_line(error)) from None

    def release(self) -> None:
        """Drop the function, and close the connection of the query's thread, which py4j would keep.

        To be called when the query has ended.
        """
        connection, self._body, self._connection = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):  # the JVM may be gone
                connection.shutdown()
                _callback_client(self._spark).connectionStopped(connection)

    class Java:
        """What py4j must know of this class."""

        implements: ClassVar = ["org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchFunction"]


def ends_within(query: StreamingQuery, seconds: float) -> bool:
    """Wait so long for a query to end, and return whether it has; raise what it failed with."""
    return bool(query.awaitTermination(seconds))


def is_idle(query: StreamingQuery) -> bool:
    """Whether the query has completed a trigger and waits for the next one."""
    try:
        return query.status["message"] in _IDLE
    except Exception:  # it is ending, or its session is
        return False


def _callback_client(spark: SparkSession) -> Any:
    gateway: Any = spark.sparkContext._gateway
    return JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()


def start_query(
    df: DataFrame,
    batches: Batches,
    *,
    name: str,
    output_mode: str,
    trigger: Mapping[str, Any],
    options: Mapping[str, str],
    checkpoint: Path,
    settings: Mapping[str, str],
) -> StreamingQuery:
    """Start a query that passes its batches on."""
    writer = df.writeStream.outputMode(output_mode).queryName(name).options(**options)
    gateway: Any = df.sparkSession.sparkContext._gateway
    helper = gateway.jvm.org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchHelper
    helper.callForeachBatch(writer._jwrite, batches)  # as writer.foreachBatch does
    ensure_callback_server_started(gateway)
    writer = writer.option("checkpointLocation", hadoop_address(checkpoint))
    if trigger:
        writer = writer.trigger(**trigger)
    with with_settings(df.sparkSession, settings):
        query: StreamingQuery = writer.start()
        try:
            _wait_for_sources(query)
        except BaseException:
            query.stop()  # nobody will ever hold it
            raise
    return query


def _wait_for_sources(query: StreamingQuery) -> None:
    """Return when a query has made its sources: they keep a log each, and look for its settings in the shared session.

    That is done in a thread of its own, after the start has returned. One that takes too long gets Spark's own way.
    """
    running = query._jsq.streamingQuery()
    end = time.monotonic() + _SOURCES_S
    while running.sources().isEmpty() and query.isActive and time.monotonic() < end:
        time.sleep(0.002)


def end_idle_monitors(spark: SparkSession) -> None:
    """End the threads that watch for idle Python workers where there can be none.

    Spark makes a factory of workers for every start of a Python source, with such a thread, and never ends it; the
    thread keeps the factory and its pipes. A factory without a daemon has no idle workers, so nothing is lost.
    """
    jvm: Any = spark._jvm
    with contextlib.suppress(Py4JError):  # a failure only leaks some memory
        for thread in jvm.java.lang.Thread.getAllStackTraces().keySet():
            if not thread.getName().startswith("Idle Worker Monitor"):
                continue
            if not getattr(thread, _MONITORED)().useDaemonEnabled():
                thread.setUncaughtExceptionHandler(_silence(jvm))
                thread.interrupt()


def _silence(jvm: Any) -> Any:
    """Return a handler of uncaught exceptions that does nothing."""
    invoke: Any = jvm.java.lang.invoke
    kind = invoke.MethodType.fromMethodDescriptorString("(Ljava/lang/Thread;Ljava/lang/Throwable;)V", None)
    handler = jvm.java.lang.Class.forName("java.lang.Thread$UncaughtExceptionHandler")
    return invoke.MethodHandleProxies.asInterfaceInstance(handler, invoke.MethodHandles.empty(kind))


def finish_available(query: StreamingQuery) -> bool:
    """Return when a query has processed what was available when this was called, or has ended; whether it was well."""
    try:
        query.processAllAvailable()
    except Exception:  # it failed or was stopped meanwhile: whoever watches it knows
        _log.debug("a query ended while it was drained", exc_info=True)
        return False
    return True


def stop_from_within(query: StreamingQuery) -> None:
    """Stop a query at the end of its own callback: it commits the batch and ends clean. The interrupt is swallowed.

    From outside it waits for the query's end, for whoever gives up the lock must know that nothing is written any more.
    A limit of the user's on that (`spark.sql.streaming.stopTimeout`) ends this wait only: others wait for the query.
    """
    try:
        query.stop()
    except Py4JJavaError as error:
        why = str(error.java_exception)
        if "TimeoutException" in why:
            _log.warning("query %s was told to stop and has not ended yet", query.name)
        elif "InterruptedException" not in why:
            raise
    except (Py4JNetworkError, ConnectionError):
        _log.debug("a query ended with its JVM", exc_info=True)


def stop_session(spark: SparkSession) -> None:
    """Stop a session; harmless when its JVM is gone."""
    try:
        spark.stop()
    except (Py4JNetworkError, ConnectionError):
        _log.debug("a session ended with its JVM", exc_info=True)


def require_trigger(spark: SparkSession, trigger: Mapping[str, Any]) -> None:
    """Refuse a processing time that Spark cannot parse: Spark reports it only when the query starts."""
    text = trigger.get("processingTime")
    if text is None:
        return
    jvm: Any = spark._jvm
    try:
        jvm.org.apache.spark.sql.streaming.Trigger.ProcessingTime(text)
    except (PySparkException, Py4JError) as error:
        why = str(error).split(" SQLSTATE: ", maxsplit=1)[0].splitlines()[0]
        do = 'pass a processing time such as "10 seconds" or "1 minute"'
        raise BadValue(what="trigger", value=text, why=why, do=do) from error


def require_packages(df: DataFrame) -> None:
    """Refuse a query whose Python worker would crash without a message because a package is missing."""
    kinds = {node.getClass().getSimpleName() for node in _nodes(df)}
    if not any(kind.startswith("TransformWithStateInPySpark") for kind in kinds):
        return
    for module in _STATEFUL_PROCESSORS_NEED:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MissingExtra(extra="spark", module=module) from error


def is_gone(error: BaseException) -> bool:
    """Whether the JVM is not there any more."""
    return isinstance(error, Py4JNetworkError | ConnectionError)


def session_end(spark: SparkSession) -> str | None:
    """Return why a session can do nothing more: its JVM is gone, or it was stopped; `None` while it is alive."""
    context = spark.sparkContext
    try:
        return "it was stopped" if context._jsc is None or context._jsc.sc().isStopped() else None
    except Exception as error:
        if not is_gone(error):
            raise
    process = getattr(context._gateway, "proc", None)
    if process is None:
        return "its JVM does not answer"
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_S)
    code = process.poll()
    how = "does not answer" if code is None else f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
    return f"its JVM, process {process.pid}, {how}"


def full_text(error: BaseException) -> str:
    """Return an error's text with its Java trace, without the description of the query that it quotes."""
    try:
        text = f"{type(error).__name__}: {error}\n{getattr(error, '_stackTrace', None) or ''}"
    except Exception:  # its text comes from the JVM, which may be gone
        return type(error).__name__
    return _QUERY.sub("", text)


def is_interrupt(error: BaseException) -> bool:
    """Whether a query ended because it was told to stop."""
    text = str(error)
    return "InterruptedException" in text or "InterruptedIOException" in text or "ClosedByInterrupt" in text

"""The only place that knows Spark's internals, and for which version.

What is used and not part of Spark's public API: the JVM behind a session (`_jvm`, `_jdf`, `_jsc`), class names of
logical plans, settings by their full name, and the RDD of a local checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import BadValue, Locked, NotSupported, StorageFailed
from holdfast.repository.files import hadoop_address
from holdfast.repository.oslock import OsLock

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

VERSION = "4.3"
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
_SOURCES_S = 3.0  # for a query to make its sources
_settings = threading.RLock()  # a session's settings are changed around the start of one query at a time
_locks = threading.Lock()
_locked: set[Path] = set()  # what this process's JVM has locked
_log = logging.getLogger(__name__)


def require_classic(spark: SparkSession) -> None:
    """Refuse sessions that this version does not know: other versions of Spark, and Spark Connect."""
    if not pyspark.__version__.startswith(f"{VERSION}."):
        why = f"Spark's internals differ by minor version, and this Holdfast knows {VERSION}"
        raise NotSupported(what=f"Spark {pyspark.__version__}", why=why, do=f"pip install 'pyspark=={VERSION}.*'")
    if not isinstance(spark, SparkSession):
        if not type(spark).__module__.startswith("pyspark.sql.connect"):
            raise BadValue(what="spark", value=spark, why="a SparkSession is due", do="pass one, or none at all")
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


def start_query(
    df: DataFrame,
    body: Callable[[DataFrame, int], None],
    *,
    name: str,
    output_mode: str,
    trigger: Mapping[str, Any],
    options: Mapping[str, str],
    checkpoint: Path,
    settings: Mapping[str, str],
) -> StreamingQuery:
    """Start a query that gives each batch to `body`."""
    writer = df.writeStream.foreachBatch(body).outputMode(output_mode).queryName(name).options(**options)
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


def is_gone(error: BaseException) -> bool:
    """Whether the JVM is not there any more."""
    return isinstance(error, Py4JNetworkError | ConnectionError)


def is_interrupt(error: BaseException) -> bool:
    """Whether a query ended because it was told to stop."""
    text = str(error)
    return "InterruptedException" in text or "InterruptedIOException" in text or "ClosedByInterrupt" in text

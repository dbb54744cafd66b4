"""Streaming queries: start one that passes its batches to Python, watch it, stop it, and read its errors."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast._error_text import one_line
from holdfast.errors import Closed
from holdfast.spark.adapter.settings import with_settings
from holdfast.spark.adapter.versions import FACTS

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_IDLE = ("Waiting for data to arrive", "Waiting for next trigger")  # messages of `StreamingQuery.status`
_EXIT_S = 2.0  # how long to wait for the exit code of a JVM that does not answer
_QUERY = re.compile(r"=== Streaming Query ===.*?(?=\n\s+at |\nCaused by: |\Z)", re.DOTALL)
_MONITORED = "org$apache$spark$api$python$PythonWorkerFactory$MonitorThread$$$outer"
_SOURCES_S = 3.0  # how long to wait for a query to create its sources
_has_started = threading.Event()  # this process has started a query
_log = logging.getLogger(__name__)


class BatchFailed(Exception):
    """A batch failed. Only this error reaches py4j and Spark, which log it with its causes: it contains no secrets."""


class Batches:
    """Passes each batch of a query to a function, until it is released.

    py4j keeps this object for as long as the JVM keeps the query. After `release`, neither the function nor anything
    that it refers to is reachable from here. Unlike Spark's own class, this one does not keep an error either: its
    traceback would hold the batch.
    """

    def __init__(self, body: Callable[[DataFrame, int], None], spark: SparkSession) -> None:
        self._body: Callable[[DataFrame, int], None] | None = body
        self._spark = spark
        self._session: SparkSession | None = None  # of the query: Spark clones one for all its batches
        self._schema: str | None = None  # of all batches of the query, as JSON
        self._connection: Any = None  # from the JVM to Python, in the query's thread

    def call(self, jdf: Any, batch: int) -> None:
        """Process a batch; called by the JVM, in the thread of the query."""
        body = self._body
        if body is None:
            raise Closed(what="the stream", do="start the pipeline again")
        if self._connection is None:
            with contextlib.suppress(Py4JError):  # with PYSPARK_PIN_THREAD=false, py4j closes idle connections itself
                self._connection = _callback_client(self._spark).getPerThreadConnection()
        try:
            body(self._frame(jdf), batch)
        except Exception as error:  # the function has kept the error
            raise BatchFailed(one_line(error)) from None

    def _frame(self, jdf: Any) -> DataFrame:
        """Return a batch. Its session and its schema are read from the JVM once: that takes eight calls.

        Each batch has a schema of its own, because user code may change it: `StructType.add` does.
        """
        if self._session is None:
            self._session = SparkSession(self._spark.sparkContext, jdf.sparkSession())
        df = DataFrame(jdf, self._session)
        if self._schema is None:
            self._schema = df.schema.json()
        vars(df)["schema"] = StructType.fromJson(json.loads(self._schema))
        return df

    def release(self) -> None:
        """Drop the function, and close the connection of the query's thread, which py4j would keep.

        To be called when the query has ended.
        """
        connection, self._body, self._connection, self._session = self._connection, None, None, None
        if connection is not None:
            with contextlib.suppress(Exception):  # the JVM may have ended
                connection.shutdown()
                _callback_client(self._spark).connectionStopped(connection)

    class Java:
        """The Java interface that py4j implements by this class."""

        implements: ClassVar = ["org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchFunction"]


def _callback_client(spark: SparkSession) -> Any:
    gateway: Any = spark.sparkContext._gateway
    return JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()


# --- starting --------------------------------------------------------------------------------------------------------


def start_query(
    df: DataFrame,
    batches: Batches,
    *,
    name: str,
    output_mode: str,
    trigger: Mapping[str, Any],
    options: Mapping[str, str],
    checkpoint: str,
    settings: Mapping[str, str],
) -> StreamingQuery:
    """Start a query that passes its batches to Python."""
    writer = df.writeStream.outputMode(output_mode).queryName(name).options(**options)
    gateway: Any = df.sparkSession.sparkContext._gateway
    helper = gateway.jvm.org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchHelper
    helper.callForeachBatch(writer._jwrite, batches)  # as writer.foreachBatch does
    ensure_callback_server_started(gateway)
    writer = writer.option("checkpointLocation", checkpoint)
    if trigger:
        writer = writer.trigger(**trigger)
    _has_started.set()
    with with_settings(df.sparkSession, {**settings, **FACTS.query_settings}):
        query: StreamingQuery = writer.start()
        try:
            _wait_for_sources(query)
        except BaseException:
            query.stop()  # the caller never gets it
            raise
    return query


def has_started_queries() -> bool:
    """Whether this process has started a query."""
    return _has_started.is_set()


def _wait_for_sources(query: StreamingQuery) -> None:
    """Return when a query has created its sources: each keeps a log, and reads its settings from the shared session.

    Spark creates them in the query's thread, after the start has returned. If that takes longer than `_SOURCES_S`,
    the sources use the settings that the session has then.
    """
    running = query._jsq.streamingQuery()
    end = time.monotonic() + _SOURCES_S
    while running.sources().isEmpty() and query.isActive and time.monotonic() < end:
        time.sleep(0.002)


# --- watching --------------------------------------------------------------------------------------------------------


def progress_of(query: StreamingQuery) -> dict[str, Any]:
    """Return Spark's report of a query's last trigger; empty before the first."""
    found = query.lastProgress
    return {} if found is None else dict(json.loads(found.json))


def ends_within(query: StreamingQuery, seconds: float) -> bool:
    """Wait up to `seconds` for a query to end; return whether it has ended. Raise the error that it failed with."""
    return bool(query.awaitTermination(seconds))


def is_idle(query: StreamingQuery) -> bool:
    """Whether the query has completed a trigger and waits for the next one."""
    try:
        return query.status["message"] in _IDLE
    except Exception:  # the query or its session is ending
        return False


def finish_available(query: StreamingQuery) -> bool:
    """Process the input that is available now; return whether that succeeded: the query may end first."""
    try:
        query.processAllAvailable()
    except Exception:  # the query failed or was stopped; its supervisor handles that
        _log.debug("a query ended while it was drained", exc_info=True)
        return False
    return True


# --- stopping --------------------------------------------------------------------------------------------------------


def stop_from_within(query: StreamingQuery) -> None:
    """Stop a query at the end of its own callback: it commits the batch and ends without an error.

    The interrupt is ignored. Called from outside, this waits for the query to end, because the lock may be released
    only when nothing is written any longer. A user-supplied timeout (`spark.sql.streaming.stopTimeout`) ends this wait
    alone; callers that release the lock wait for the query itself.
    """
    try:
        query.stop()
    except Py4JJavaError as error:
        why = str(error.java_exception)
        if "TimeoutException" in why:
            _log.warning("query %s was stopped and has not ended yet", query.name)
        elif "InterruptedException" not in why:
            raise
    except (Py4JNetworkError, ConnectionError):
        _log.debug("a query ended with its JVM", exc_info=True)


def stop_session(spark: SparkSession) -> None:
    """Stop a session; harmless when its JVM has ended."""
    try:
        spark.stop()
    except (Py4JNetworkError, ConnectionError):
        _log.debug("a session ended with its JVM", exc_info=True)


def end_idle_monitors(spark: SparkSession) -> None:
    """End the threads that watch for idle Python workers where there can be none.

    Spark creates a worker factory for every start of a Python source, with such a thread, and never ends it; the
    thread keeps the factory and its pipes. A factory without a daemon has no idle workers, so nothing is lost.
    """
    jvm: Any = spark._jvm
    with contextlib.suppress(Py4JError):  # a failure only leaks some memory
        for thread in jvm.java.lang.Thread.getAllStackTraces().keySet():
            if not thread.getName().startswith("Idle Worker Monitor"):
                continue
            if not getattr(thread, _MONITORED)().useDaemonEnabled():
                thread.setUncaughtExceptionHandler(_no_handler(jvm))
                thread.interrupt()


def _no_handler(jvm: Any) -> Any:
    """Return a handler of uncaught exceptions that does nothing."""
    invoke: Any = jvm.java.lang.invoke
    kind = invoke.MethodType.fromMethodDescriptorString("(Ljava/lang/Thread;Ljava/lang/Throwable;)V", None)
    handler = jvm.java.lang.Class.forName("java.lang.Thread$UncaughtExceptionHandler")
    return invoke.MethodHandleProxies.asInterfaceInstance(handler, invoke.MethodHandles.empty(kind))


# --- errors ----------------------------------------------------------------------------------------------------------


def is_gone(error: BaseException) -> bool:
    """Whether an error means that the JVM has ended."""
    return isinstance(error, Py4JNetworkError | ConnectionError)


def session_end(spark: SparkSession) -> str | None:
    """Return why a session can no longer be used: its JVM ended, or it was stopped; `None` while it is alive."""
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
    except Exception:  # the text comes from the JVM, which may have ended
        return type(error).__name__
    return _QUERY.sub("", text)


def is_interrupt(error: BaseException) -> bool:
    """Whether a query ended because it was stopped."""
    text = str(error)
    return "InterruptedException" in text or "InterruptedIOException" in text or "ClosedByInterrupt" in text

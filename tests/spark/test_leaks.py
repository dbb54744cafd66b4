"""A run that has ended leaves nothing behind: no object, thread or descriptor, in Python or in the JVM.

`RUNS` runs of two streams are made in one session (12), which must be flat after the first quarter. `make soak` makes
200 and prints the curve.
"""

import gc
import json
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast import FileSink, Pipeline, RestartPolicy
from holdfast.errors import StreamFailed
from holdfast.policy import Backoff

RUNS = int(os.environ.get("RUNS", "12"))
WARM = 20 if RUNS >= 100 else max(RUNS // 4, 1)
PATIENCE_S = 60
KEPT = {  # the JVM's classes of which each run would leave some
    "queries": "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "sessions": "org.apache.spark.sql.classic.SparkSession",
    "configurations": "org.apache.hadoop.conf.Configuration",
    "factories": "org.apache.spark.api.python.PythonWorkerFactory",
    "connections": "py4j.ClientServerConnection",
}
POOLS = re.compile("block-manager-|Executor task launch|dispatcher-|process reaper|rpc-|shuffle-|broadcast-|map-output")
_STRINGS = "[Ljava.lang.String;"
SPARKS = 3  # descriptors that Spark itself loses with each start of a Python source: it never closes a selector
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Counts:
    """What there is now, once everything that nobody holds was collected."""

    queries: int
    sessions: int
    configurations: int
    factories: int
    connections: int
    callbacks: int  # that py4j keeps for the JVM
    jvm_threads: int  # without those of pools that Spark fills up to a limit
    python_threads: int
    jvm_descriptors: int
    python_descriptors: int

    def within(self, limit: "Counts", started: int = 0) -> bool:
        """Whether nothing is above a limit, after so many starts of a Python source.

        The JVM's collector has a connection to Python of its own, made when it first has something to report.
        """
        slack = dict.fromkeys(("connections", "jvm_threads", "python_threads", "python_descriptors"), 1)
        slack["jvm_descriptors"] = 2 + SPARKS * started
        allowed = asdict(limit)
        return all(value <= allowed[name] + slack.get(name, 0) for name, value in asdict(self).items())


class Watch:
    """Looks into the JVM of a session, and into this process."""

    def __init__(self, spark: SparkSession) -> None:
        self.gateway: Any = spark.sparkContext._gateway
        self.jvm: Any = spark._jvm
        self.pid = int(self.jvm.java.lang.ProcessHandle.current().pid())
        self.heap = 0

    def counts(self) -> Counts:
        gc.collect()
        live = self._histogram()
        self.heap = sum(size for _, size in live.values())
        return Counts(
            **{name: live.get(kind, (0, 0))[0] for name, kind in KEPT.items()},
            callbacks=len(self.gateway.gateway_property.pool),
            jvm_threads=len([name for name in self._threads() if not POOLS.match(name)]),
            python_threads=threading.active_count(),
            jvm_descriptors=len(os.listdir(f"/proc/{self.pid}/fd")),  # noqa: PTH208 - of another process
            python_descriptors=len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        )

    def settled(self) -> Counts:
        """Return the counts once they have stopped falling: collectors tell each other some time later."""
        found = self.counts()
        while True:
            time.sleep(0.2)
            now = self.counts()
            if found == now:
                return now
            found = now

    def wait_for(self, limit: Counts, started: int) -> Counts:
        """Return the counts, as soon as they are within a limit or time is up."""
        end = time.monotonic() + PATIENCE_S
        while not (found := self.counts()).within(limit, started) and time.monotonic() < end:
            time.sleep(0.2)
        return found

    def _histogram(self) -> dict[str, tuple[int, int]]:
        """Collect, then count the objects and bytes of every class."""
        server = self.jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
        name = self.jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
        methods = self.jvm.java.lang.Class.forName("javax.management.MBeanServer").getMethods()
        invoke = next(method for method in methods if method.getName() == "invoke")  # py4j cannot call it by name
        command = [name, "gcClassHistogram", self._array("Object", [self._array("String", [])])]
        text = str(invoke.invoke(server, self._array("Object", [*command, self._array("String", [_STRINGS])])))
        lines = re.findall(r"^\s*\d+:\s+(\d+)\s+(\d+)\s+(\S+)", text, re.MULTILINE)
        return {kind: (int(count), int(size)) for count, size, kind in lines}

    def _array(self, kind: str, items: list[Any]) -> Any:
        made = self.gateway.new_array(getattr(self.jvm.java.lang, kind), len(items))
        for number, item in enumerate(items):
            made[number] = item
        return made

    def _threads(self) -> list[str]:
        return [thread.getName() for thread in self.jvm.java.lang.Thread.getAllStackTraces().keySet()]


class Chained:
    """A pipeline of two streams, the second of which reads the first; made again for every run."""

    def __init__(self, folder: Path, query: Callable[[DataFrame], DataFrame] = lambda df: df) -> None:
        self.folder = folder
        self.query = query
        self.made: list[weakref.ref[Pipeline]] = []
        (folder / "in").mkdir()

    def run(self, spark: SparkSession) -> None:
        number = len(self.made)
        hidden = self.folder / "in" / f".{number}"
        hidden.write_text(json.dumps({"n": number}))
        hidden.rename(hidden.with_name(f"{number}.json"))
        pipeline = Pipeline("p", self.folder / "root", restart=RestartPolicy.never(), backoff=Backoff(first=0.01))

        @pipeline.stream(sinks=FileSink(self.folder / "out" / "first"))
        def first(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema("n long").json(str(self.folder / "in"))

        @pipeline.stream(sinks=FileSink(self.folder / "out" / "second"))
        def second(spark: SparkSession) -> DataFrame:
            return self.query(pipeline.read("first"))

        self.made.append(weakref.ref(pipeline))
        try:
            pipeline.run(spark, available_now=True)
        finally:
            hidden.with_name(f"{number}.json").unlink()  # Spark caches listings, up to a limit that is not reached here

    def alive(self) -> int:
        gc.collect()
        return sum(made() is not None for made in self.made)


def test_runs_leave_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    chained, watch = Chained(tmp_path), Watch(spark)
    warm = None
    for number in range(1, RUNS + 1):
        chained.run(spark)
        if number == WARM:
            warm, heap = watch.settled(), watch.heap
        if number in (20, 50, 100, 150, 200):
            print(f"run {number}: {watch.settled()}, live heap {watch.heap / MEGABYTE:.1f} MB")
    assert warm is not None
    found = watch.wait_for(warm, RUNS - WARM)
    assert found.within(warm, RUNS - WARM), f"{warm}\n{found}"
    assert chained.alive() == 0
    assert WARM < 20 or (watch.heap - heap) / (RUNS - WARM) < MEGABYTE / 10  # a query that is kept has more than that


def test_a_run_that_failed_leaves_nothing_behind(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What failed is an error with a traceback, which may hold the batch."""
    chained, watch = Chained(tmp_path, lambda df: df.selectExpr("raise_error('no') as n")), Watch(spark)

    def fail() -> None:
        with pytest.raises(StreamFailed, match="USER_RAISED_EXCEPTION"):
            chained.run(spark)

    for name in ("py4j", "holdfast"):
        caplog.set_level(logging.CRITICAL, name)  # a record that pytest collects would hold the traceback
    fail()
    warm = watch.settled()
    for _ in range(3):
        fail()
    found = watch.wait_for(warm, 3)
    assert found.within(warm, 3), f"{warm}\n{found}"
    assert chained.alive() == 0

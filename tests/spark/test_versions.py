"""The supported versions of Spark: each fact of the table is asked of the Spark that is installed."""

import gc
import importlib.util
import json
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from holdfast import FileSink, Pipeline, RestartPolicy, StreamCallbacks, exactly_once, read_log_stream
from holdfast._extras import SUPPORTED, minor_version, pyspark_version
from holdfast.epoch import Reach, unwatched
from holdfast.errors import StreamFailed
from holdfast.eventlog import EventLog
from holdfast.spark import adapter
from holdfast.spark.adapter import freezing, queries, settings, threads, versions
from holdfast.testing import CrashAt, Crashed
from support import events, new_log
from unclosed import LEAVES_SOCKETS, SOCKET

FACTS = adapter.FACTS
PYTHON_STREAM = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream"


def java_class(spark: SparkSession, name: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_supported_version_has_a_row() -> None:
    assert tuple(versions.VERSIONS) == SUPPORTED
    assert versions.VERSIONS[minor_version(pyspark_version())] is FACTS
    with pytest.raises(AttributeError):
        FACTS.passes_read_limits = False  # type: ignore[misc]


def test_read_limits_are_passed_or_not_by_python_by_its_workers_and_by_the_jvm(spark: SparkSession) -> None:
    module = "pyspark.sql.streaming.datasource"
    assert (importlib.util.find_spec(module) is not None) == FACTS.passes_read_limits
    (archive,) = Path(pyspark.__file__).parent.glob("python/lib/pyspark.zip")
    assert (module.replace(".", "/") + ".py" in zipfile.ZipFile(archive).namelist()) == FACTS.passes_read_limits
    for name in ("WithAdmissionControl", "WithTriggerAvailableNow"):
        if FACTS.passes_read_limits:
            assert java_class(spark, PYTHON_STREAM + name)
        else:
            with pytest.raises(Py4JJavaError, match="ClassNotFoundException"):
                java_class(spark, PYTHON_STREAM + name)


def test_every_setting_is_one_of_spark(spark: SparkSession) -> None:
    """Spark accepts a setting that it does not have without a word; only its default tells them apart."""
    own = [name for name in settings.STATE if ".rocksdb." not in name]  # the others are read by the state store
    for name in (*versions.ONE_BATCH, *own, adapter.RETAIN, adapter.POLLING_DELAY):
        assert spark.conf.get(name) is not None
    with pytest.raises(Exception, match="SQL_CONF_NOT_FOUND"):
        spark.conf.get("spark.sql.streaming.noSuchSetting")


def test_pyspark_closes_the_sockets_of_collected_rows_unless_the_tests_ignore_them(spark: SparkSession) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(spark.range(3).collect()) == 3
        gc.collect()
    unclosed = [each for each in caught if re.match(SOCKET, str(each.message))]
    assert bool(unclosed) == (minor_version(pyspark_version()) in LEAVES_SOCKETS)


# --- names that the adapter uses on every version ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        settings.FAST_FILES[adapter.FILE_MANAGER],
        settings.STATE[adapter.PROVIDER],
        threads._SESSION,
        queries.Batches.Java.implements[0],
        "org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchHelper",
        "org.apache.spark.sql.execution.streaming.runtime.StreamingRelation",
        "org.apache.spark.sql.catalyst.streaming.StreamingRelationV2",
        "org.apache.spark.sql.execution.datasources.DataSourceManager",
        *(f"org.apache.spark.{each}" for each in settings._VERBOSE if not each.endswith(".v2")),
    ],
)
def test_a_class_of_spark_has_the_name_that_the_adapter_uses(spark: SparkSession, name: str) -> None:
    assert java_class(spark, name).getName() == name


def test_the_monitor_of_idle_workers_has_the_method_that_the_adapter_calls(spark: SparkSession) -> None:
    kind = java_class(spark, "org.apache.spark.api.python.PythonWorkerFactory$MonitorThread")
    assert queries._MONITORED in [each.getName() for each in kind.getMethods()]


def test_the_plan_of_a_batch_counts_its_rows_by_the_name_that_the_adapter_uses(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.json").write_text('{"n": 1}\n{"n": 2}\n')
    counted: list[int] = []

    def take(df: DataFrame, batch: int) -> None:
        with adapter.frozen_on_use(df) as (kept, computed):
            kept.count()
            counted.append(computed())

    source = spark.readStream.schema("n int").json(str(tmp_path / "in"))
    writer = source.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination(120)
    assert (counted, freezing._COUNT) == ([2], "numOutputRows")


# --- the order of calls ----------------------------------------------------------------------------------------------


def telling() -> type[DataSource]:
    """Return a source without read limits that writes down what Spark calls. A local class can be sent to workers."""

    class TellingReader(DataSourceStreamReader):  # type: ignore[misc]
        def __init__(self, folder: Path) -> None:
            self.folder = folder

        def told(self, *words: object) -> None:
            with (self.folder / "calls").open("a") as file:
                file.write(" ".join(map(str, words)) + "\n")

        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name, as are the next ones
            return {"at": 0}

        def latestOffset(self) -> dict[str, int]:  # noqa: N802
            self.told("latest")
            return {"at": int((self.folder / "end").read_text())}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            self.told("partitions", start["at"], end["at"])
            return [InputPartition((start["at"], end["at"]))]

        def read(self, partition: InputPartition) -> Any:
            return iter([(n,) for n in range(*partition.value)])

    class TellingSource(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "telling"

        def schema(self) -> str:
            return "n long"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return TellingReader(Path(self.options["path"]))

    return TellingSource


def test_a_restarted_source_is_told_its_position_before_it_is_asked_for_its_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(telling())
    rows: list[list[int]] = []

    def run(end: int, *, crash: bool = False) -> list[str]:
        (tmp_path / "end").write_text(str(end))
        (tmp_path / "calls").write_text("")

        def take(df: DataFrame, batch: int) -> None:
            rows.append([row.n for row in df.collect()])
            assert not crash, "on purpose"

        source = spark.readStream.format("telling").option("path", str(tmp_path)).load()
        writer = source.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination(120)
        except Exception as error:
            assert crash, error
        return (tmp_path / "calls").read_text().splitlines()

    assert run(2) == ["latest", "partitions 0 2"]
    assert run(5, crash=True) == ["partitions 2 2", "latest", "partitions 2 5"]
    assert run(9) == ["partitions 5 5", "partitions 2 5"], "the batch in doubt, and no other"
    assert run(9) == ["partitions 5 5", "latest", "partitions 5 9"]
    assert rows == [[0, 1], [2, 3, 4], [2, 3, 4], [5, 6, 7, 8]]


# --- pipelines over an event log -------------------------------------------------------------------------------------


class LogPipeline:
    """A pipeline that reads a log, with a limit, into files."""

    def __init__(self, spark: SparkSession, folder: Path, log: EventLog, rows: int | None) -> None:
        self.spark, self.folder, self.log, self.rows = spark, folder, log, rows

    def run(self, reach: Reach = unwatched, during: Callable[[int], object] = lambda _: None) -> list[int]:
        """Process the available events; return the number of rows of each epoch."""
        epochs: list[int] = []

        def count(_: str, epoch: int, rows: int) -> None:
            epochs.append(rows)
            during(epoch)

        def build(spark: SparkSession) -> DataFrame:
            return read_log_stream(spark, self.log.path, rows_per_epoch=self.rows).select("sequence")

        pipeline = Pipeline("p", self.folder / "root", restart=RestartPolicy.never())
        pipeline.stream(build, name="s", sinks=[FileSink(self.folder / "out", format="json")])
        watching = StreamCallbacks(on_epoch=count)
        pipeline.run(self.spark, available_now=True, checkpoint_every=None, callbacks=watching, reach=reach)
        return epochs

    def sequences(self) -> list[int]:
        """Return what is in the files."""
        lines = [line for path in (self.folder / "out").rglob("*.json") for line in path.read_text().splitlines()]
        return sorted(json.loads(line)["sequence"] for line in lines)


def test_a_pipeline_reads_all_available_events_in_epochs_of_the_limit_and_ends(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = new_log(tmp_path / "log", events(*"abc"), events(*"defg"))
    reading = LogPipeline(spark, tmp_path, log, rows=3)

    def append(epoch: int) -> None:
        with log.writer() as writer:
            writer.append(events(f"late{epoch}"))

    epochs = reading.run(during=append)  # events arrive in every epoch: it ends nevertheless
    assert epochs == ([3, 3, 1] if FACTS.passes_read_limits else [3, 3, 3])
    assert reading.run() == ([3] if FACTS.passes_read_limits else [1])
    assert reading.run() == []
    assert reading.sequences() == list(range(10))


@pytest.mark.parametrize("point", ["opened", "durable", "decided", "committed"])
def test_after_a_crash_the_epoch_in_doubt_is_completed_and_the_rest_is_read(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    """Where Spark passes no limits, the query that completes the epoch in doubt reads nothing else."""
    reading = LogPipeline(spark, tmp_path, new_log(tmp_path / "log", events(*"abcdefg")), rows=2)
    crash = CrashAt(point, hit=2)
    with pytest.raises((Crashed, StreamFailed)):
        reading.run(reach=crash)
    assert crash.died
    reading.run()
    assert reading.sequences() == list(range(7))


def test_the_trigger_may_be_that_of_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    log = new_log(tmp_path / "log", events(*"abcde"))
    df = read_log_stream(spark, log.path, rows_per_epoch=2).select("sequence")
    sink = FileSink(tmp_path / "out", format="json")
    status = exactly_once(df, name="s", sinks=sink, root=tmp_path / "root", trigger={"availableNow": True}).run()
    assert status.streams["s"].epoch == 3
    assert LogPipeline(spark, tmp_path, log, None).sequences() == [0, 1, 2, 3, 4]


def test_a_pipeline_sets_what_its_version_of_spark_needs(spark: SparkSession, tmp_path: Path) -> None:
    """With this setting of the user, Spark 4.1 would ask the source for its end before its start."""
    (name,) = versions.ONE_BATCH
    spark.conf.set(name, "true")
    try:
        reading = LogPipeline(spark, tmp_path, new_log(tmp_path / "log", events(*"abcde")), rows=2)
        assert [reading.run(), reading.run()] == [[2, 2, 1], []]
        assert reading.sequences() == [0, 1, 2, 3, 4]
        assert spark.conf.get(name) == "true"
    finally:
        spark.conf.unset(name)


def test_few_rows_are_collected_from_the_rows_of_a_plan(spark: SparkSession) -> None:
    collect = adapter.few_rows(spark, freezes=False)
    assert collect is not None
    df = spark.range(0, 10, 1, 2).selectExpr("id AS `n.1`", "repeat('x', 10) AS text").repartition(3)
    with collect(df, 2, 1 << 20) as (same, batches):
        assert same is df
        assert sorted(row["n.1"] for batch in batches or [] for row in batch.to_pylist()) == [*range(10)]
    with collect(df, 2, 100) as (_, batches):
        assert batches is None

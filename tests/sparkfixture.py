"""One Spark session for all tests of a run: starting one takes seconds."""

from __future__ import annotations

import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holdfast.spark.java_environment import with_jar
from holdfast.spark.localfiles import CLASS, SETTING

_DELTA = {  # without the first two, Delta refuses to work; with the third, its small tables need few tasks
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
}


@cache
def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        # A run of a pipeline leaves some 3 MB behind, and here are hundreds: in 1 GB the collector took over at last.
        .config("spark.driver.memory", "2g")
        # Thousands of tiny jobs, each run a few times: what the second compiler would win is never earned back.
        # Else the JVM keeps 48 MB of compiled code, which the classes that Spark makes fill: then all is interpreted.
        .config(
            "spark.driver.extraJavaOptions",
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m",
        )
        .config("spark.ui.retainedJobs", "20")  # kept in the heap for a page that nobody opens
        .config("spark.ui.retainedStages", "20")
        .config("spark.ui.retainedTasks", "100")
        .config("spark.sql.ui.retainedExecutions", "20")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config(SETTING, CLASS)
    )
    fetched = Path(sys.prefix)
    lake = sorted((fetched / "lake").glob("*.jar"))  # tools/lake.py: where fetched
    if lake:
        for name, value in _DELTA.items():
            builder = builder.config(name, value)
    if jars := [*lake, *sorted((fetched / "kafka" / "connector").glob("*.jar"))]:  # tools/kafka.py, likewise
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    with with_jar():  # as an embedded session has it: Java uses an archive only for its own class path
        found = builder.getOrCreate()
    found.sparkContext.setLogLevel("OFF")  # crashes are what these tests make
    return found


def _start_and_stop() -> None:
    """Load the classes that most tests need; `make` lets Java write an archive of them when it ends."""
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
        counted = rows.groupBy("value").count().writeStream.outputMode("update")
        counted.trigger(availableNow=True).foreachBatch(lambda df, _: df.write.parquet(f"{folder}/out")).option(
            "checkpointLocation", f"{folder}/checkpoint"
        ).start().awaitTermination(120)
        spark.createDataFrame([(1, "a")], "n long, text string").write.json(f"{folder}/json")
        spark.read.json(f"{folder}/json").groupBy("text").count().collect()
    java: Any = spark.sparkContext._gateway.proc
    spark.stop()
    java.stdin.close()  # which ends it
    java.wait()


if __name__ == "__main__":
    _start_and_stop()

"""The Spark sessions of the benchmarks."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

HEAP = "2g"


def session(**settings: str) -> SparkSession:
    """Return a session of two cores and two shuffle partitions, all else as Spark has it; `a__b` in a name is `a.b`."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", HEAP)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.streaming.numRecentProgressUpdates", "20000")
    )
    for name, value in settings.items():
        builder = builder.config(name.replace("__", "."), value)
    spark: SparkSession = builder.getOrCreate()
    return spark

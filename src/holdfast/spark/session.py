"""The embedded Spark session, for programs that bring none of their own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from pyspark import SparkConf
from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(min(os.cpu_count() or 2, 8)),
    "spark.sql.session.timeZone": "UTC",
}


def embedded() -> tuple[SparkSession, bool]:
    """Return the session at hand, or a new one on this machine, and whether it is new.

    What `spark-submit` or the environment has set is kept; only what nobody set is ours.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active, False
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # local executors run the driver's interpreter
    given = SparkConf()
    builder = SparkSession.builder
    if not given.contains("spark.master"):
        builder = builder.master("local[*]")
        for name, value in _SETTINGS.items():
            if not given.contains(name):
                builder = builder.config(name, value)
    return builder.getOrCreate(), True


@contextlib.contextmanager
def borrowed() -> Iterator[SparkSession]:
    """Give the session at hand, or a new one that is stopped afterwards."""
    spark, new = embedded()
    try:
        yield spark
    finally:
        if new:
            spark.stop()

"""The executors of a cluster, as the driver sees them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

_SETTLED_S = 1.0  # executors of one application register within about this time of each other
_PATIENCE_S = 20.0


def registered_cores(spark: SparkSession) -> int:
    """Return how many tasks the executors run at once, after waiting until executors stop registering."""
    context = spark.sparkContext
    context.parallelize([0], 1).count()  # returns when there is an executor
    end = time.monotonic() + _PATIENCE_S
    cores, since = _cores(spark), time.monotonic()
    while time.monotonic() < min(end, since + _SETTLED_S):
        time.sleep(0.1)
        now = _cores(spark)
        if now != cores:
            cores, since = now, time.monotonic()
    return cores


def settings_of_bucket(spark: SparkSession, bucket: str, names: Iterable[str]) -> dict[str, str]:
    """Return those of some settings of the s3a connector that the session has for one bucket, by their full names."""
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
    own = [f"fs.s3a.bucket.{bucket}.{name.removeprefix('fs.s3a.')}" for name in names]
    return {name: str(value) for name in own if (value := conf.get(name)) is not None}


def _cores(spark: SparkSession) -> int:
    context: Any = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))

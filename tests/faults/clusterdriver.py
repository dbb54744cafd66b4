"""A driver for the cluster of machines that share nothing: `python clusterdriver.py <spec as JSON>`.

It prints one line for each point that it reaches, and how it ended. There is no other way to see it from outside: its
disk is its own.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from holdfast.errors import Fenced, HoldfastError, StreamFailed

SCHEMA = "n long, k long"
_lock = threading.Lock()


def tell(*words: object) -> None:
    """Print one whole line: several streams reach their points at the same time."""
    with _lock:
        print(*words, flush=True)


def submitted(master: str, cores: int) -> str:
    """Return what a user puts into PYSPARK_SUBMIT_ARGS: small executors, and frequent maintenance of state."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": str(cores),  # an old driver that is paused keeps its own
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return " ".join(["--master", master, *words, "pyspark-shell"])


def pipeline(root: str, given: str, dsn: str, options: dict[str, Any]) -> hf.Pipeline:
    """A stateless stream with a log, and a stateful one that reads it, both into PostgreSQL."""
    made = hf.Pipeline("shop", root=root, **options)

    @made.stream(sinks=[hf.PostgresSink(dsn, table="rows", create=True)])
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(given)

    @made.stream(output_mode="update", sinks=[hf.PostgresSink(dsn, table="totals", key=["k"], create=True)])
    def totals(spark: SparkSession) -> DataFrame:
        return (
            made.read("rows", rows_per_epoch=20).groupBy("k").agg(f.count("*").alias("many"), f.sum("n").alias("total"))
        )

    return made


def run(
    *,
    master: str,
    root: str,
    given: str,
    dsn: str,
    pause_at: str | None = None,
    cores: int = 2,
    pipeline_options: dict[str, Any] | None = None,
    run_options: dict[str, Any] | None = None,
) -> None:
    """Run the pipeline; stop at the point `pause_at` until this process is resumed."""
    paused = threading.Event()

    def reach(point: str) -> None:
        tell("point", point)
        if point == pause_at and not paused.is_set():
            paused.set()
            tell("paused", os.getpid())
            time.sleep(3)  # until SIGSTOP comes; the test sends it to every process of this driver

    tell("host", socket.gethostname())
    os.environ["PYSPARK_SUBMIT_ARGS"] = submitted(master, cores)
    try:
        status = pipeline(root, given, dsn, pipeline_options or {}).run(reach=reach, **(run_options or {}))
        tell("ended", "done", json.dumps({name: each.epoch for name, each in status.streams.items()}))
    except StreamFailed as failed:
        tell("ended", type(failed.__cause__).__name__, " ".join(str(failed).split()))
    except Fenced as fenced:
        tell("ended", "Fenced", fenced)
    except HoldfastError as error:
        tell("ended", type(error).__name__, " ".join(str(error).split()))


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))

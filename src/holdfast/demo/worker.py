"""One run of a job, in a separate process that can be killed: `python -m holdfast.demo.worker PROGRAM FOLDER`.

It ends when all orders are processed. The demo holds the other end of its standard input, so the worker also ends when
the demo ends or is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.demo.orders import LISTED_TWICE
from holdfast.demo.place import DemoFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.class_archive import ClassArchive


# For a JVM that runs for ten seconds, the second compiler, the verification of Spark's classes, and the garbage
# collections for a growing metaspace cost more time than they save.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms512m -Xmn256m -XX:MetaspaceSize=256m"
_UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"  # not for classes that are archived

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


# If plain Spark is killed while it writes its first offsets, it leaves a temporary file, takes it for that of another
# query at the next start, and refuses to start from then on. The demo is not about that. Holdfast deletes the file.
_OF_PLAIN = {"spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false"}


def _session(program: str) -> tuple[SparkSession, ClassArchive | None]:
    """Start Spark on this machine for a job of a few seconds: a fast start matters more than a fast run.

    All programs use the archive of Spark's classes, if there is one.
    """
    from pyspark.sql import SparkSession  # slow imports: the thread that watches the demo must be running first

    from holdfast.spark.class_archive import archived_classes
    from holdfast.spark.java_environment import with_jar

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "640m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        _JAVA_OPTIONS: _JAVA,
        **(_OF_PLAIN if program == "plain" else {}),
    }
    builder = SparkSession.builder.master("local[2]").appName("holdfast demo").config(map=settings)
    with with_jar(), archived_classes() as archive:
        if archive is None or archive.path is not None:
            builder = builder.config(_JAVA_OPTIONS, f"{_JAVA} {_UNVERIFIED}")
        return builder.getOrCreate(), archive


def _end_with_parent() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def main(program: str, folder: str) -> None:
    """Run one of the programs until all orders are processed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from holdfast.demo import job as pipeline
    from holdfast.demo import plain

    runs: dict[str, Callable[[SparkSession, DemoFolder], None]] = {
        "holdfast": pipeline.run,
        "plain": plain.run,
        "buggy": partial(pipeline.run, listed_twice=LISTED_TWICE),
        "fixed": pipeline.run,
    }
    spark, archive = _session(program)
    spark.sparkContext.setLogLevel("ERROR")
    runs[program](spark, DemoFolder(Path(folder)))
    if program == "holdfast" and archive is not None:
        archive.make()
    os._exit(0)  # everything is written and closed; shutting down the JVM properly would only take time


if __name__ == "__main__":
    main(*sys.argv[1:])

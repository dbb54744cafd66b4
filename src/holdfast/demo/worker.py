"""One life of a job, in a process of its own that can be killed: `python -m holdfast.demo.worker JOB FOLDER`.

It ends by itself when all orders have gone through. Whoever started it holds the other end of its standard input: when
that one is gone, however it went, the worker goes too.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.demo.place import DemoFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# A Java that lives for ten seconds never earns back what its second compiler costs, nor checking Spark's own classes,
# nor collecting garbage each time that room for classes runs short.
_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms512m -Xmn256m -XX:MetaspaceSize=256m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


# Killed while it writes its very first offsets, plain Spark leaves a temporary file, and takes it for another query's
# at the next start: it would refuse for ever. That is not what is shown here. Holdfast clears it.
_OF_PLAIN = {"spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false"}


def _session(job: str) -> SparkSession:
    """Start Spark on this machine, for a job that lives for seconds: starting fast counts more than running fast."""
    from pyspark.sql import SparkSession  # takes a while, and the watch must begin before

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "640m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": _JAVA,
        **(_OF_PLAIN if job == "plain" else {}),
    }
    builder = SparkSession.builder.master("local[2]").appName("holdfast demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _end_with_parent() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def main(job: str, folder: str) -> None:
    """Run a job until it has nothing to do."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from holdfast.demo import job as pipeline
    from holdfast.demo import plain

    runs = {"holdfast": pipeline.run, "plain": plain.run}
    spark = _session(job)
    spark.sparkContext.setLogLevel("ERROR")
    runs[job](spark, DemoFolder(Path(folder)))
    os._exit(0)  # all is written and closed; an orderly end of Java would only take time


if __name__ == "__main__":
    main(*sys.argv[1:])

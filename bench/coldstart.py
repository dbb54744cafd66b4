"""The duration of a cold start: from the start of a process to its first row in Parquet.

Each sample is a new Python process with its own JVM, from the moment it is started until it has committed its first
epoch. The job reads one JSON file and writes Parquet. The sides are Holdfast with an archive of Spark's classes, as
from the second start on a machine; Holdfast without it, as at the first start; and plain Spark, which appends the rows
in `foreachBatch`, with its defaults except for the Spark UI, which is off on all sides. An embedded session loads a few
more classes than plain Spark. There is nothing to recover. The file system cache is warm: every side has run before.

The archive is made by one run before the measurement, in a folder of the benchmark. Nothing is killed here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from bench.compare import CannotMeasure, Result, in_turn
from bench.scratch import scratch
from holdfast.spark.class_archive import OFF, VARIABLE

ROUNDS, QUICK_ROUNDS = 5, 2
GOAL = 0.7
_WRITING_S = 120.0
_INPUT = """
import sys
from pathlib import Path
folder = Path(sys.argv[1])
"""
_OURS = """
import holdfast as hf
from holdfast.spark.context import StreamCallbacks

pipeline = hf.Pipeline("cold", root=folder / "root")

@pipeline.stream(sinks=[hf.FileSink(folder / "out")])
def rows(spark):
    return spark.readStream.schema("n long").json(str(folder / "in"))

callbacks = StreamCallbacks(on_epoch=lambda *_: print("first", flush=True))
pipeline.run(available_now=True, checkpoint_every=None, callbacks=callbacks)
"""
_PLAIN = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()

def write(df, batch):
    df.write.mode("append").parquet(str(folder / "out"))
    print("first", flush=True)

rows = spark.readStream.schema("n long").json(str(folder / "in"))
writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
writer.trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def _start(program: str, archives: str, top: Path) -> float:
    """Run a job in a new folder and process; return the time to its first epoch."""
    folder = top / str(time.monotonic_ns())
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "1.json").write_text('{"n": 1}\n')
    words = [sys.executable, "-c", _INPUT + program, str(folder)]
    variables = {"PYSPARK_PYTHON": sys.executable, **os.environ, VARIABLE: archives}
    began = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables) as process:
        assert process.stdout
        line = process.stdout.readline()
        took = time.perf_counter() - began
        process.stdout.read()  # until its JVM has ended too
    if line != b"first\n" or process.returncode:
        raise RuntimeError(f"the process ended with {process.returncode} and wrote {line!r}")
    return took


def _make_archive(archives: Path, top: Path) -> None:
    _start(_OURS, str(archives), top)
    end = time.monotonic() + _WRITING_S
    while not list(archives.glob("*.jsa")):
        if time.monotonic() > end or not archives.is_dir():
            raise CannotMeasure("this Java writes no archive of classes\nuse an OpenJDK of version 17 or newer")
        time.sleep(0.1)


def run(quick: bool) -> list[Result]:
    with scratch(__name__) as top:
        archives = top / "classes"
        _make_archive(archives, top)
        sides = {
            "ours": partial(_start, _OURS, str(archives), top),
            "without": partial(_start, _OURS, OFF, top),
            "plain": partial(_start, _PLAIN, OFF, top),
        }
        found = in_turn(QUICK_ROUNDS if quick else ROUNDS, sides, warm_up=0 if quick else 1)
    what = "process to first epoch"
    return [
        Result("cold", what, "Holdfast without an archive", found["ours"], found["without"], GOAL),
        Result("cold", what, "plain Spark", found["ours"], found["plain"]),
        Result("cold", f"{what}, without an archive", "plain Spark", found["without"], found["plain"]),
    ]

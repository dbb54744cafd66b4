"""Drivers in processes of their own, to be killed and paused: `python drivers.py <verb> <spec as JSON>`."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import traceback
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psycopg
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from deltastaged import DeltaTarget
from holdfast.errors import Fenced, HoldfastError, StreamFailed
from holdfast.testing import CrashAt
from icebergstaged import IcebergTarget
from rig import FilesTarget, ForeachTarget, LogTarget, MarkerTarget, PostgresTarget, Rig, SqliteTarget, Target
from sparkfixture import session


def by_chance(df: DataFrame) -> DataFrame:
    """Give other rows each time it is computed. `rand()` would not: its seed is in the plan."""
    return df.withColumn("text", f.udf(lambda _: uuid.uuid4().hex, "string", useArrow=False)("n"))


def targets(folder: Path, dsn: str | None = None) -> list[Target]:
    found: list[Target] = [
        FilesTarget(folder / "files"),
        SqliteTarget(folder / "rows.db"),
        LogTarget(folder / "log"),
        ForeachTarget(folder / "calls"),
        MarkerTarget(folder / "marker.db"),
    ]
    if dsn:
        found += [FilesTarget(folder / "flat", layout="flat"), PostgresTarget(dsn, "rows", create=True)]
        (folder / "iceberg").mkdir(exist_ok=True)
        found += [DeltaTarget(folder / "delta"), IcebergTarget(folder / "iceberg")]
    return found


def rigged(spark: Any, folder: Path, dsn: str | None = None) -> Rig:
    return Rig(spark, folder, targets(folder, dsn), by_chance)


def rigged_with_dead_letter(spark: Any, folder: Path, dsn: str | None = None) -> Rig:
    """The same, with a dead letter for about a quarter of the rows: which ones is drawn with each computation."""
    dead = FilesTarget(folder / "dead", name="dead")
    return Rig(spark, folder, targets(folder, dsn), by_chance, dead=dead, valid="text < 'c'")


def run_until_killed(folder: str, dsn: str | None, go: str) -> None:
    """Start Spark, wait for `go`, run for ever, and write down each point as it is reached.

    The last line tells where a kill struck.
    """
    rig = rigged_with_dead_letter(session(), Path(folder), dsn)
    while not Path(go).exists():
        time.sleep(0.02)
    points = (Path(folder) / "points").open("a", buffering=1)
    points.write("start\n")
    rig.pipeline().run(rig.spark, reach=lambda point: points.write(f"{point}\n") and None)


def keep_a_secret(folder: str, dsn: str, admin: str) -> None:
    """Let everything log that can, and let things go wrong; nobody may tell the password."""
    logging.basicConfig(level=logging.DEBUG)
    spark = session()
    spark.sparkContext.setLogLevel("INFO")
    rig = Rig(spark, Path(folder), [PostgresTarget(dsn, "rows", create=True)])
    rig.add(1)
    rig.run()
    rig.add(2)
    rig.crash(CrashAt("decided"))
    rig.run()
    rig.add(3)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("ALTER TABLE rows ADD CONSTRAINT small CHECK (n < 3)")
        _show(rig)
        connection.execute("ALTER TABLE rows DROP CONSTRAINT small")
        connection.execute("ALTER ROLE guarded PASSWORD 'another'")
    _show(rig)
    print(repr(rig.targets[0].make()))


def _show(rig: Rig) -> None:
    try:
        rig.run()
    except HoldfastError as error:
        print(error)
        traceback.print_exception(error)


def pause_at_each(folder: str, points: list[str]) -> None:
    """For each point a pipeline of its own: stop at that point until somebody sends SIGCONT; say how it ended."""
    spark = session()
    for point in points:
        place = Path(folder) / point.replace(" ", "-")
        rig = rigged(spark, place)
        reached: list[str] = []

        def reach(found: str, point: str = point, place: Path = place, reached: list[str] = reached) -> None:
            reached.append(found)
            if reached.count(point) == 1 and found == point:
                (place / "paused").write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(0.2)  # the signal stops every thread; this one goes on when it is over

        try:
            rig.pipeline(shared=True).run(spark, available_now=True, reach=reach)
            ended = "done"
        except StreamFailed as failed:
            ended = "Fenced" if isinstance(failed.__cause__, Fenced) else str(failed)
        except Fenced:
            ended = "Fenced"
        (place / "ended").write_text(ended)


def kill_an_executor(folder: str, master: str) -> None:
    """Kill an executor between two prepares, on a real cluster; the next attempt finishes."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", "1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    from holdfast.policy import RestartPolicy

    rig = Rig(
        spark,
        Path(folder),
        [FilesTarget(Path(folder, "a")), FilesTarget(Path(folder, "b"))],
        lambda df: by_chance(df.repartition(4)),
    )
    killed: list[int] = []

    def reach(point: str) -> None:
        if point == "prepared" and not killed:
            victim = _executors()[0]
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)
            time.sleep(1)

    status = rig.pipeline(shared=True, restart=RestartPolicy.bounded(5, 60)).run(spark, available_now=True, reach=reach)
    rows = [target.visible(spark, "n text") for target in rig.targets]
    (Path(folder) / "result").write_text(
        json.dumps({"killed": killed, "rows": rows, "restarts": status.streams["rows"].restarts})
    )
    spark.stop()


def _executors() -> list[int]:
    """Find the executors of the cluster that the test started: by their command line and by its own mark."""
    mark = os.environ["HOLDFAST_TEST_CLUSTER"].encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except (OSError, ValueError):
            continue
        if b"CoarseGrainedExecutorBackend" in command and mark in environment:
            found.append(int(entry.name))
    return sorted(found)


VERBS = {"secret": keep_a_secret, "run": run_until_killed, "pause": pause_at_each, "executor": kill_an_executor}

if __name__ == "__main__":
    VERBS[sys.argv[1]](**json.loads(sys.argv[2] if len(sys.argv) > 2 else sys.stdin.read()))

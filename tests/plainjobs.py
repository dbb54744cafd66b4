"""Jobs in plain Spark, as people write them: `foreachBatch` into a table. Run as a program, they wait to be killed.

    python plainjobs.py <root> written|not-written

Each job reads one file per batch. In batch `LAST`, it writes its rows, or not, and waits: all jobs are then killed
at once, in the middle of a batch.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from counting import counter

LAST = 3
FILES = 6
SAME = 8  # rows of a file; the first one has the id of the last one of the file before
_STATE = "spark.sql.streaming.stateStore"
_ROCKS = {f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
_FORMAT_2 = {
    **_ROCKS,
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}.checkpointFormatVersion": "2",
}


@dataclass(frozen=True)
class Job:
    """A query, and the table that it writes."""

    build: Callable[[SparkSession, Path], DataFrame]
    columns: str
    mode: str = "append"
    key: str | None = None
    settings: dict[str, str] = field(default_factory=dict)


def feed(root: Path, first: int, count: int) -> None:
    """Write input files, with times in their order."""
    for side in ("a", "b"):
        (root / side).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            rows = [{"id": number * (SAME - 1) + each, "k": each % 3, "v": number + each} for each in range(SAME)]
            path = root / side / f"{number:03}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def expected(job: str, files: int) -> list[tuple[int, ...]]:
    """Return the rows of a job's table once it has read this many files."""
    rows = [(n * (SAME - 1) + each, each % 3, n + each) for n in range(files) for each in range(SAME)]
    if job.startswith("totals"):
        return sorted((k, sum(v for _, each, v in rows if each == k)) for k in range(3))
    if job == "dedup":
        return sorted({(row[0],) for row in rows})
    if job == "joined":
        return sorted((one[0], one[2], other[2]) for one in rows for other in rows if one[0] == other[0])
    if job == "counts":
        return sorted((k, sum(1 for row in rows if row[1] == k)) for k in range(3))
    return sorted((row[0], row[2]) for row in rows)


def _read(spark: SparkSession, root: Path, side: str = "a") -> DataFrame:
    reader = spark.readStream.schema("id long, k long, v long").option("maxFilesPerTrigger", 1)
    return reader.json(str(root / side))


def _totals(spark: SparkSession, root: Path) -> DataFrame:
    return _read(spark, root).groupBy("k").agg(f.sum("v").alias("total"))


def _join(spark: SparkSession, root: Path) -> DataFrame:
    one, other = _read(spark, root), _read(spark, root, "b").select("id", f.col("v").alias("w"))
    return one.join(other, "id").select("id", "v", "w")


def _counts(spark: SparkSession, root: Path) -> DataFrame:
    keys = _read(spark, root).select(f.col("k").cast("string").alias("k")).groupBy("k")
    counted = keys.transformWithState(counter(), "k string, n long", "Update", "None")
    return counted.select(f.col("k").cast("long").alias("k"), "n")


_TOTALS = {"build": _totals, "columns": "k, total", "mode": "update", "key": "k"}
JOBS = {
    "files": Job(lambda spark, root: _read(spark, root).select("id", "v"), "id, v"),
    "totals_hdfs": Job(**_TOTALS),  # type: ignore[arg-type]
    "totals_rocksdb": Job(**_TOTALS, settings=_ROCKS),  # type: ignore[arg-type]
    "totals_format2": Job(**_TOTALS, settings=_FORMAT_2),  # type: ignore[arg-type]
    "joined": Job(_join, "id, v, w"),
    "dedup": Job(lambda spark, root: _read(spark, root).select("id").dropDuplicates(["id"]), "id"),
    "counts": Job(_counts, "k, n", "update", "k", settings=_ROCKS),
}


def table(root: Path, name: str) -> Path:
    """Return the database of a job; its table has the name of the job."""
    path = root / f"{name}.db"
    job = JOBS[name]
    with sqlite3.connect(path) as made:
        columns = ", ".join(f"{each} INTEGER NOT NULL" for each in job.columns.split(", "))
        unique = f", UNIQUE ({job.key})" if job.key else ""
        made.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns}{unique})")
    made.close()
    return path


def rows_of(root: Path, name: str) -> list[tuple[int, ...]]:
    """Return all rows of a job's table, sorted."""
    with sqlite3.connect(root / f"{name}.db") as found:
        rows = found.execute(f"SELECT {JOBS[name].columns} FROM {name}").fetchall()  # noqa: S608
    found.close()
    return sorted(rows)


def write(root: Path, name: str, df: DataFrame) -> None:
    """Write a batch into a job's table, in one transaction."""
    job, rows = JOBS[name], [tuple(row) for row in df.collect()]
    marks = ", ".join("?" * len(job.columns.split(", ")))
    with sqlite3.connect(table(root, name)) as made:
        made.executemany(f"INSERT OR REPLACE INTO {name} ({job.columns}) VALUES ({marks})", rows)  # noqa: S608
    made.close()


def start(
    spark: SparkSession, root: Path, name: str, checkpoint: Path, take: Callable[[DataFrame, int], None]
) -> object:
    """Start the query of a job over the input that exists."""
    job = JOBS[name]
    before = {each: spark.conf.get(each, None) for each in job.settings}
    for each, value in job.settings.items():
        spark.conf.set(each, value)
    writer = job.build(spark, root).writeStream.outputMode(job.mode).foreachBatch(take).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    for each, old in before.items():
        spark.conf.unset(each) if old is None else spark.conf.set(each, old)
    return query


def _until_killed(root: Path, name: str, ending: str) -> Callable[[DataFrame, int], None]:
    def take(df: DataFrame, batch: int) -> None:
        if batch < LAST or ending == "written":
            write(root, name, df)
        else:
            df.write.format("noop").mode("overwrite").save()  # the state of the batch is there, its rows are not
        if batch == LAST:
            (root / f"{name}.reached").touch()
            time.sleep(600)

    return take


def main(root: Path, ending: str) -> None:
    """Run all jobs until they are killed."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    settings = {"spark.sql.shuffle.partitions": "2", "spark.driver.bindAddress": "127.0.0.1"}
    spark = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for name in JOBS:
        start(spark, root, name, root / "old" / name, _until_killed(root, name, ending))
    time.sleep(600)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

"""What the digest of its rows costs an epoch of a query with state: the same rows to Parquet, watched and not."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame

from bench.compare import Result, in_turn, timed
from bench.scratch import scratch
from bench.spark import QUICK_FILES, session
from holdfast.sinks.rows import RowDigest

ROWS, QUICK_ROWS = 1_000_000, 200_000
PARTITIONS = 2


def write(df: DataFrame, folder: Path) -> None:
    df.write.mode("overwrite").parquet(str(folder))


def watched(df: DataFrame, digest: RowDigest, folder: Path) -> None:
    observed, tell = digest.observed(df)
    write(observed, folder)
    tell()


def run(quick: bool) -> list[Result]:
    rows = QUICK_ROWS if quick else ROWS
    with scratch(__name__) as folder:
        spark = session(QUICK_FILES)
        try:
            df = spark.range(0, rows, 1, PARTITIONS).selectExpr("id AS k", "id * 7919 % 1000 AS n", "string(id) AS s")
            df.cache().count()
            digest = RowDigest(df)
            ours, theirs = partial(watched, df, digest, folder / "ours"), partial(write, df, folder / "theirs")
            sides = {"ours": lambda: timed(ours), "theirs": lambda: timed(theirs)}
            found = in_turn(2 if quick else 10, sides, warm_up=1 if quick else 4)
        finally:
            spark.stop()
    return [
        Result(
            "path",
            f"{rows:,} rows of a query with state, with their digest",
            "without it",
            found["ours"],
            found["theirs"],
        )
    ]

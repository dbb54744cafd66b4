"""The cost of digests in an epoch.

For the rows of a stateful query: writing the same rows to Parquet with and without the row digest. For the files that a
sink stages: writing the same rows to Parquet with and without the SHA-256 of each file.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame

from bench.compare import Result, in_turn, timed
from bench.scratch import scratch
from bench.spark import QUICK_FILES, session
from holdfast.sinks.rows import RowDigest
from holdfast.sinks.staged_files import digests
from holdfast.sinks.staging import below

ROWS, QUICK_ROWS = 1_000_000, 200_000
PARTITIONS = 2


def write(df: DataFrame, folder: Path) -> None:
    df.write.mode("overwrite").parquet(str(folder))


def watched(df: DataFrame, digest: RowDigest, folder: Path) -> None:
    observed, result = digest.observed(df)
    write(observed, folder)
    result()


def hashed(df: DataFrame, folder: Path) -> None:
    write(df, folder)
    files = {str(path.relative_to(folder)): path.stat().st_size for path in below(folder) if path.is_file()}
    digests(folder, files)


def run(quick: bool) -> list[Result]:
    rows = QUICK_ROWS if quick else ROWS
    with scratch(__name__) as folder:
        spark = session(QUICK_FILES)
        try:
            df = spark.range(0, rows, 1, PARTITIONS).selectExpr("id AS k", "id * 7919 % 1000 AS n", "string(id) AS s")
            df.cache().count()
            sides = {
                "watched": partial(watched, df, RowDigest(df), folder / "watched"),
                "hashed": partial(hashed, df, folder / "hashed"),
                "plain": partial(write, df, folder / "plain"),
            }
            turns = {name: partial(timed, side) for name, side in sides.items()}
            found = in_turn(2 if quick else 10, turns, warm_up=1 if quick else 4)
        finally:
            spark.stop()
    names = {
        "watched": f"{rows:,} rows of a stateful query, with their digest",
        "hashed": f"{rows:,} rows staged as Parquet, with the digests of their files",
    }
    return [Result("path", name, "without it", found[side], found["plain"]) for side, name in names.items()]

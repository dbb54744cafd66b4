"""The program of `bench/visible.py` and `bench/killed.py`, on Spark, as a user would write it.

Usage: python -m bench.program FOLDER [SETTINGS]

It reads the CSV files of FOLDER/in, continuously, and writes CSV files to FOLDER/out: with Holdfast, or, if there are
SETTINGS (JSON), with plain Spark and these settings. It imports only what its side needs, because its start is
measured.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SCHEMA = "id long, customer string, amount double, at_ms long, paid boolean"


def with_holdfast(folder: Path) -> None:
    """Run a pipeline without a session of its own, with all defaults."""
    import holdfast as hf  # noqa: PLC0415

    pipeline = hf.Pipeline("bench", folder / "root")

    @pipeline.stream(sinks=[hf.FileSink(folder / "out", format="csv")])
    def rows(spark: Any) -> Any:
        return spark.readStream.schema(SCHEMA).csv(str(folder / "in"))

    pipeline.run()


def plain(folder: Path, settings: dict[str, str]) -> None:
    """Append in `foreachBatch`: at least once."""
    from pyspark.sql import DataFrame, SparkSession  # noqa: PLC0415

    spark = SparkSession.builder.master("local[*]").config(map=settings).getOrCreate()

    def write(df: DataFrame, _: int) -> None:
        df.write.mode("append").csv(str(folder / "out"))

    writer = spark.readStream.schema(SCHEMA).csv(str(folder / "in")).writeStream.foreachBatch(write)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    at, given = Path(sys.argv[1]), sys.argv[2:]
    plain(at, json.loads(given[0])) if given else with_holdfast(at)

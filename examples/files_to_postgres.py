"""Customer records from files in a folder into a PostgreSQL table with the newest version of each record.

What it shows: an upsert that accepts versions in any order, including two versions in one epoch and an old version in a
late file; invalid lines that go to a separate folder instead of stopping the stream; a connection string that stays
secret.

How to run it in a clone of the repository:

    export JAVA_HOME=$(cat .venv/java-home) HOLDFAST_DSN='host=localhost dbname=shop user=me'
    .venv/bin/python examples/files_to_postgres.py --input data/customers --once

The input is lines like `{"id": 7, "version": 2, "name": "Ada", "email": "ada@example.org"}`, or CSV with such a header.
Write each file elsewhere on the same disk and move it into the folder, because Spark also reads incomplete files.

What to look at: `SELECT * FROM customers` in the database, and `data/rejected/`. Kill the program at any moment, run it
again, and look at both again. Without `--once` it runs until SIGTERM or Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

import holdfast as hf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATA = os.environ.get("HOLDFAST_DATA", "data")
COLUMNS = "id long, version long, name string, email string"
SOUND = "_corrupt_record IS NULL AND id IS NOT NULL AND version IS NOT NULL"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; `arguments([])` returns the defaults."""
    parser = argparse.ArgumentParser(
        description="Customer records from files into PostgreSQL, by upsert.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--input", default=f"{DATA}/customers", help="input folder")
    parser.add_argument(
        "--format", default="json", choices=("json", "csv"), help="format of the files; CSV needs a header"
    )
    parser.add_argument("--output", default=f"{DATA}/rejected", help="folder for invalid lines")
    parser.add_argument("--table", default="customers", help="table to upsert into; created if it does not exist")
    # The default is neither shown nor read here, because it may contain a password. A command line is visible in the
    # list of processes: prefer the environment variable, or a password file of libpq.
    parser.add_argument("--dsn", default=argparse.SUPPRESS, help="connection string (default: HOLDFAST_DSN)")
    parser.add_argument("--checkpoints", default=f"{DATA}/checkpoints", help="folder for the pipeline's repository")
    parser.add_argument("--checkpoint-every", default="30s", help="interval between checkpoints")
    parser.add_argument("--once", action="store_true", help="process the available input, then end")
    return parser.parse_args(given)


def build(options: argparse.Namespace) -> hf.Pipeline:
    """Define the pipeline, without starting, writing or connecting to anything."""
    dsn = getattr(options, "dsn", None) or os.environ.get("HOLDFAST_DSN")
    if not dsn:
        do = "pass --dsn 'host=... dbname=... user=...', or set HOLDFAST_DSN"
        raise hf.errors.BadValue(what="connection string", value=dsn, why="there is none", do=do)
    pipeline = hf.Pipeline("customers", root=options.checkpoints)
    folder = Path(options.input).absolute()

    def records(spark: SparkSession) -> DataFrame:
        folder.mkdir(parents=True, exist_ok=True)  # Spark refuses a folder that does not exist
        reader = spark.readStream.schema(f"{COLUMNS}, _corrupt_record string").format(options.format)
        return reader.option("header", True).option("maxFilesPerTrigger", 100).load(str(folder))

    # A key must be unique within an epoch: the sink cannot know which of two rows is newer, and refuses both. So each
    # customer is reduced to the newest version over all epochs; otherwise an old file that arrives late would win.
    # Structs are compared field by field: first by `version`, then by the other fields, so a repeated run gives the
    # same result. The state has one row per customer.
    @pipeline.stream(
        output_mode="update", trigger="1 second", sinks=[hf.PostgresSink(dsn, options.table, key="id", create=True)]
    )
    def customers(spark: SparkSession) -> DataFrame:
        newest = f.max(f.struct("version", "name", "email")).alias("newest")
        return records(spark).where(SOUND).groupBy("id").agg(newest).select("id", "newest.*")

    @pipeline.stream(trigger="1 second", sinks=[hf.FileSink(options.output, format="json")])
    def rejected(spark: SparkSession) -> DataFrame:
        return records(spark).where(f"NOT ({SOUND})").select("*", "_metadata.file_path")

    return pipeline


def pipeline() -> hf.Pipeline:
    """Build the pipeline with default options; a function, because it needs HOLDFAST_DSN."""
    return build(arguments([]))


def main() -> None:
    """Run the pipeline with the options of the command line."""
    options = arguments()
    try:
        status = build(options).run(available_now=options.once, checkpoint_every=options.checkpoint_every)
    except hf.HoldfastError as error:
        sys.exit(f"{error}")
    for name, stream in status.streams.items():
        print(f"{name}: {stream.state}, {stream.rows} rows in this run, epoch {stream.epoch}")


if __name__ == "__main__":
    main()

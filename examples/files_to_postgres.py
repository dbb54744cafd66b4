"""Customer records, which arrive as files in a folder, into a PostgreSQL table: the newest version of each, once.

What it shows: an upsert that bears versions in any order, two of them in one epoch and an old one in a late file; lines
that cannot be used set aside instead of stopping the stream; a connection string that stays out of sight.

How to run it, from the repository:

    export JAVA_HOME=$(cat .venv/java-home) HOLDFAST_DSN='host=localhost dbname=shop user=me'
    .venv/bin/python examples/files_to_postgres.py --input data/customers --once

Give it a line like `{"id": 7, "version": 2, "name": "Ada", "email": "ada@example.org"}` (or CSV with such a header).
Write a file elsewhere on the same disk and move it into the folder: what is there is read, whether complete or not.

What to look at: `SELECT * FROM customers` in the database; `data/rejected/`; and, after a kill at any moment and
another run, both again. Without `--once` it runs until SIGTERM or Ctrl-C.
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
    """Read the command line; `arguments([])` is all defaults."""
    parser = argparse.ArgumentParser(
        description="Customer records from files into PostgreSQL, by upsert.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--input", default=f"{DATA}/customers", help="folder in which the files arrive")
    parser.add_argument("--format", default="json", choices=("json", "csv"), help="of the files; CSV with a header")
    parser.add_argument("--output", default=f"{DATA}/rejected", help="folder for lines that cannot be used")
    parser.add_argument("--table", default="customers", help="table to upsert into; made where there is none")
    # The default is not shown, and not read here: it may hold a password. So may your command line, which others can
    # see in the list of processes: prefer the environment, or a password file of libpq's.
    parser.add_argument("--dsn", default=argparse.SUPPRESS, help="connection string (default: HOLDFAST_DSN)")
    parser.add_argument("--checkpoints", default=f"{DATA}/checkpoints", help="folder of the pipeline's repository")
    parser.add_argument("--checkpoint-every", default="30s", help="how often a checkpoint is taken")
    parser.add_argument("--once", action="store_true", help="take in what is there, then end")
    return parser.parse_args(given)


def build(options: argparse.Namespace) -> hf.Pipeline:
    """Describe the pipeline; nothing is started, written or connected to."""
    dsn = getattr(options, "dsn", None) or os.environ.get("HOLDFAST_DSN")
    if not dsn:
        do = "pass --dsn 'host=... dbname=... user=...', or set HOLDFAST_DSN"
        raise hf.errors.BadValue(what="connection string", value=dsn, why="there is none", do=do)
    pipeline = hf.Pipeline("customers", root=options.checkpoints)
    folder = Path(options.input).absolute()

    def records(spark: SparkSession) -> DataFrame:
        folder.mkdir(parents=True, exist_ok=True)  # Spark refuses to watch a folder that is not there
        reader = spark.readStream.schema(f"{COLUMNS}, _corrupt_record string").format(options.format)
        return reader.option("header", True).option("maxFilesPerTrigger", 100).load(str(folder))

    # A key may come once an epoch: of two rows the sink could not know the last, and refuses both. So each customer is
    # reduced to the newest version, over all epochs, or an old file that comes late would win. A struct is compared
    # field by field: `version` decides, and among equal ones the rest does, the same way whenever it is run again.
    # The state holds one row a customer.
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
    """Build it from defaults and environment: a function, because without HOLDFAST_DSN there is nothing to build."""
    return build(arguments([]))


def main() -> None:
    """Run it as the command line says."""
    options = arguments()
    try:
        status = build(options).run(available_now=options.once, checkpoint_every=options.checkpoint_every)
    except hf.HoldfastError as error:
        sys.exit(f"{error}")
    for name, stream in status.streams.items():
        print(f"{name}: {stream.state}, {stream.rows} rows in this run, epoch {stream.epoch}")


if __name__ == "__main__":
    main()

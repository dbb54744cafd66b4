"""Orders from a Kafka topic into a Delta table and a PostgreSQL table, each order exactly once in both.

What it shows: one stream with two sinks that always hold the same rows, including a column that the query draws at
random; records that are not valid orders in a folder of their own, with their partition and offset, so that they can be
found in the topic; a start that is refused if the topic has lost records that were not read.

How to run it in a clone of the repository, with a Kafka broker and a PostgreSQL server:

    export JAVA_HOME=$(cat .venv/java-home) HOLDFAST_DSN='host=localhost dbname=shop user=me'
    export PYSPARK_SUBMIT_ARGS='--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 pyspark-shell'
    kafka-topics.sh --bootstrap-server localhost:9092 --create --topic orders
    .venv/bin/python examples/kafka_to_delta_and_postgres.py --servers localhost:9092 --once

Use the version of the package that fits your Spark. The values of the records are lines like
`{"id": 7, "customer": "Ada", "cents": 1250}`, which `kafka-console-producer.sh` can send.

What to look at: `SELECT * FROM orders` in the database; the table in `data/orders`, for example with
`deltalake.DeltaTable("data/orders").to_pandas()`; and `data/rejected/`. Kill the program at any moment, run it again,
and compare both tables: each order is there once, with the same `receipt`. Without `--once` it runs until SIGTERM or
Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

import holdfast as hf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATA = os.environ.get("HOLDFAST_DATA", "data")
ORDER = "id long, customer string, cents long"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; `arguments([])` returns the defaults."""
    parser = argparse.ArgumentParser(
        description="Orders from Kafka into a Delta table and a PostgreSQL table.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--servers", default="localhost:9092", help="Kafka brokers, as host:port,host:port")
    parser.add_argument("--topic", default="orders", help="topic to read; it must exist")
    parser.add_argument("--output", default=f"{DATA}/orders", help="Delta table; created if it does not exist")
    parser.add_argument("--table", default="orders", help="PostgreSQL table; created if it does not exist")
    parser.add_argument("--rejected", default=f"{DATA}/rejected", help="folder for records that are not valid orders")
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
    pipeline = hf.Pipeline("orders", root=options.checkpoints)

    # Every row goes to both tables, or to the dead letter. The rows of an epoch are computed once, so both tables have
    # the same receipts, also after a crash.
    @pipeline.stream(
        trigger="1 second",
        sinks=[hf.DeltaSink(options.output), hf.PostgresSink(dsn, options.table, create=True)],
        valid={"JSON with an id": "id IS NOT NULL", "positive amount": "cents > 0"},
        dead_letter=hf.FileSink(options.rejected, format="json", name="rejected"),
    )
    def orders(spark: SparkSession) -> DataFrame:
        # The limit keeps the first epoch small if the topic already has many records.
        limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 100_000}
        records = hf.read_kafka(spark, options.topic, servers=options.servers, options=limits)
        order = f.from_json(f.col("value").cast("string"), ORDER).alias("order")
        place = [f.col("partition").alias("kafka_partition"), f.col("offset").alias("kafka_offset")]
        return records.select(*place, order).select(
            "order.*", "kafka_partition", "kafka_offset", f.expr("uuid()").alias("receipt")
        )

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
        print(f"{name}: {stream.state}, {stream.rows} rows in this run, {stream.dead_rows} rejected")


if __name__ == "__main__":
    main()

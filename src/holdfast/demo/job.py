"""The demo's pipeline, written as a user would write it: two streams, three sinks.

After a kill at any moment, running it again is all that is needed. All sinks can be taken back by a rewind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

import holdfast as hf
from holdfast.demo.orders import WATERMARK, Row
from holdfast.demo.place import DemoFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def orders_of(spark: SparkSession, place: DemoFolder, listed_twice: str | None = None) -> DataFrame:
    """Read the events, remove duplicates, and add the details of the product.

    `listed_twice` is the bug: a category whose products are in the list twice, so that the join doubles their orders.
    """
    events = (
        spark.readStream.schema("event string, time timestamp, product string, quantity long")
        .option("maxFilesPerTrigger", 1)  # for many epochs, and so many chances for a kill
        .json(str(place.input))
    )
    products = spark.read.schema("product string, category string, price long").json(str(place.products))
    if listed_twice:
        products = products.union(products.where(f.col("category") == listed_twice))
    return (
        events.withWatermark("time", f"{WATERMARK.total_seconds():.0f} seconds")
        .dropDuplicatesWithinWatermark(["event"])
        .join(f.broadcast(products), "product")
        .withColumn("day", f.date_format("time", "yyyy-MM-dd"))
        .withColumn("cents", f.col("quantity") * f.col("price"))
        .select(*Row._fields)
    )


def totals_of(orders: DataFrame) -> DataFrame:
    """Count the orders and sum their amounts by day and category."""
    return orders.groupBy("day", "category").agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))


def pipeline(place: DemoFolder, listed_twice: str | None = None) -> hf.Pipeline:
    """Return the pipeline: orders are written to Parquet and SQLite, and a second stream computes totals from them."""
    pipeline = hf.Pipeline("orders", root=place.checkpoints)
    out = place.outputs("holdfast")

    @pipeline.stream(sinks=[hf.FileSink(out.parquet), hf.SqliteSink(out.sqlite, table="orders", epoch_column="epoch")])
    def orders(spark: SparkSession) -> DataFrame:
        return orders_of(spark, place, listed_twice)

    @pipeline.stream(
        output_mode="update",
        sinks=[hf.SqliteSink(out.sqlite, table="totals", key=["day", "category"], undo=True)],
    )
    def totals(_: SparkSession) -> DataFrame:
        return totals_of(pipeline.read("orders"))

    return pipeline


def run(spark: SparkSession, place: DemoFolder, listed_twice: str | None = None) -> None:
    """Run until all orders are processed, with a checkpoint every few epochs and a final one."""
    policy = hf.CheckpointPolicy(every=None, epochs=4)
    with pipeline(place, listed_twice).start(spark, checkpoint_every=policy) as running:
        for plan in running.recovery.values():
            print(plan.summary(), flush=True)
        last = running.drain(timeout="10m").checkpoint_id
        print(f"all orders are processed; the last checkpoint is {last}", flush=True)

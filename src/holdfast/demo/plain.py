"""The equivalent job in plain Spark: the same two queries with `foreachBatch`, as commonly written.

Spark's checkpoint ensures that each batch runs at least once. A batch that was killed writes its rows a second time.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from holdfast.demo.job import orders_of, totals_of
from holdfast.demo.place import DemoFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = "event string, day string, product string, category string, quantity long, cents long"
_TABLES = """
CREATE TABLE IF NOT EXISTS orders (event TEXT, day TEXT, product TEXT, category TEXT, quantity INTEGER, cents INTEGER);
CREATE TABLE IF NOT EXISTS totals
    (day TEXT, category TEXT, orders INTEGER, cents INTEGER, PRIMARY KEY (day, category));
"""


def run(spark: SparkSession, place: DemoFolder) -> None:
    """Run until all orders are processed."""
    out = place.outputs("plain")
    out.parquet.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(out.sqlite)) as shop:
        shop.executescript(_TABLES)

    def insert(statement: str, df: DataFrame) -> None:
        with closing(sqlite3.connect(out.sqlite)) as shop, shop:
            shop.executemany(statement, [tuple(row) for row in df.collect()])

    def write_orders(df: DataFrame, _: int) -> None:
        df.persist()
        df.write.mode("append").parquet(str(out.parquet))
        insert("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", df)
        df.unpersist()

    def write_totals(df: DataFrame, _: int) -> None:
        insert("INSERT OR REPLACE INTO totals VALUES (?, ?, ?, ?)", df)

    orders = (
        orders_of(spark, place)
        .writeStream.foreachBatch(write_orders)
        .option("checkpointLocation", str(place.plain_checkpoints / "orders"))
        .start()
    )
    totals = (
        totals_of(spark.readStream.schema(_COLUMNS).parquet(str(out.parquet)))
        .writeStream.foreachBatch(write_totals)
        .outputMode("update")
        .option("checkpointLocation", str(place.plain_checkpoints / "totals"))
        .start()
    )
    for query in (orders, totals):
        query.processAllAvailable()
        query.stop()

"""Pipelines with their repository on S3 and their rows in PostgreSQL or in an event log, for tests that crash them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgfixture import server
from rig import PostgresTarget
from s3fixture import S3Place
from s3spark import StoreRig, StoreTarget


def totals(df: DataFrame) -> DataFrame:
    return df.groupBy((f.col("n") % 3).alias("k")).agg(f.sum("n").alias("total"), f.count("n").alias("rows"))


def stateless(spark: SparkSession, s3: S3Place, folder: Path) -> StoreRig:
    pg = server()
    target = PostgresTarget(pg.dsn(pg.fresh_database()), "rows", create=True, method="prepared", driver_rows=0)
    return StoreRig(spark, s3, folder, [target], lambda df: df.repartition(2))


def stateful(spark: SparkSession, s3: S3Place, folder: Path) -> StoreRig:
    pg = server()
    target = PostgresTarget(pg.dsn(pg.fresh_database()), "totals", create=True, key=["k"], method="staged")
    return StoreRig(spark, s3, folder, [target], totals, output_mode="update")


def stateless_log(spark: SparkSession, s3: S3Place, folder: Path) -> StoreRig:
    return StoreRig(spark, s3, folder, [StoreTarget(s3.url("log"))], lambda df: df.repartition(2))


def stateful_log(spark: SparkSession, s3: S3Place, folder: Path) -> StoreRig:
    """The log keeps every version of a total."""
    target = StoreTarget(s3.url("log"), changelog=True)
    return StoreRig(spark, s3, folder, [target], totals, output_mode="update")


MAKE: dict[str, Callable[[SparkSession, S3Place, Path], StoreRig]] = {
    "stateless": stateless,
    "stateful": stateful,
    "stateless log": stateless_log,
    "stateful log": stateful_log,
}

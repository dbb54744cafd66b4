"""The digest of an epoch's rows: what a replay must give again."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast.policy import RestartPolicy
from holdfast.sinks.rows import RowDigest
from rig import FilesTarget, Rig

COLUMNS = "k long, `a.b` string, x double, m map<string,int>, d date"


def digest(df: DataFrame) -> str:
    observed, tell = RowDigest(df).observed(df)
    observed.write.format("noop").mode("overwrite").save()
    return tell()


def rows(spark: SparkSession) -> DataFrame:
    given = [(1, "x", 0.5, {"a": 1}, None), (2, None, None, None, None), (-(2**63), "", float("nan"), {}, None)]
    return spark.createDataFrame(given, COLUMNS)


def test_it_is_what_decisions_of_before_have(spark: SparkSession) -> None:
    """Else a replay after an upgrade would be taken for another result."""
    assert digest(rows(spark)) == "3:4747342706051284736:-1432415926224042274:2:2"
    assert digest(rows(spark).limit(0)) == "0:0:0:0:0"
    assert digest(rows(spark).select("x", "m")) == "3:0:0:2:2"


def test_it_adds_up_all_hashes_and_knows_no_order(spark: SparkSession) -> None:
    many = spark.range(20_000).select("id", f.col("id").cast("string").alias("s"))
    hashes = [row.h for row in many.select(f.xxhash64("id", "s").alias("h")).collect()]
    assert max(hashes) > 2**62
    assert min(hashes) < -(2**62)
    mixed = 0
    for each in hashes:
        mixed ^= each
    assert digest(many) == f"20000:{mixed}:{sum(hashes)}"
    assert digest(many.orderBy(f.desc("id")).repartition(7)) == digest(many)
    assert digest(many.where("id != 7")) != digest(many)
    assert digest(many.union(many.where("id = 7"))) != digest(many)


def test_a_query_that_is_built_otherwise_after_a_failure_has_a_digest_of_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As where its columns come from a registry that was changed meanwhile."""
    built = []

    def totals(df: DataFrame) -> DataFrame:
        built.append("first" if not built else "later")
        failing = f.raise_error(f.lit("not yet")).cast("long")
        n = failing if built == ["first"] else f.col("n")
        return df.withColumn("n", n).groupBy("text").agg(f.sum("n").alias(built[-1]))

    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out", changelog=True)], totals, output_mode="update")
    rig.add(1, 2)
    status = rig.run(restart=RestartPolicy.bounded(3, 60))
    assert built == ["first", "later"]
    assert status.streams["rows"].restarts == 1
    assert rig.spark.read.parquet(str(tmp_path / "out")).select("later").count() == 2

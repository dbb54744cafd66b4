"""The digest of an epoch's rows: what a replay must give again."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast.policy import RestartPolicy
from holdfast.sinks.rows import RowDigest, is_comparable
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
    assert digest(rows(spark)) == "v3:3:6464421557057019992:5741285028:2:2"
    assert digest(rows(spark).limit(0)) == "v3:0:0:0:0:0"
    assert digest(rows(spark).select("x", "m")) == "v3:3:0:0:2:2"


def test_those_of_an_earlier_version_are_not_compared(spark: SparkSession) -> None:
    first, second = "3:4747342706051284736:-1432415926224042274:2:2", "v2:3:6464421557057019992:3932016138295512740:2:2"
    assert not is_comparable(first, digest(rows(spark)))
    assert not is_comparable(second, digest(rows(spark)))
    assert is_comparable(digest(rows(spark).limit(1)), digest(rows(spark)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1 a, cast(null as int) b", "cast(null as int) a, 1 b"),
        ("'' a", "cast(null as string) a"),
        ("array(1, null) a", "array(null, 1) a"),
        ("array(1, 2) a, array(3) b", "array(1) a, array(2, 3) b"),
        ("array(array(1, 2), array(3)) a", "array(array(1), array(2, 3)) a"),
        ("cast(null as array<int>) a", "cast(array() as array<int>) a"),
        ("named_struct('a', cast(null as int)) a", "cast(null as struct<a: int>) a"),
        ("named_struct('a', 1, 'b', cast(null as int)) a", "named_struct('a', cast(null as int), 'b', 1) a"),
        (
            "named_struct('geo_id', 1, 'interval', 2, 'x.y', 3) a",
            "named_struct('geo_id', 1, 'interval', 2, 'x.y', 4) a",
        ),
        ("array(named_struct('a', 1), null) a", "array(null, named_struct('a', 1)) a"),
        ("named_struct('a', 1, 'A', 2) a", "named_struct('a', 1, 'A', 3) a"),
        ("named_struct('t', timestamp'2026-01-01 00:00:00.000001') a", "named_struct('t', timestamp'2026-01-01') a"),
        ("cast(1.10 as decimal(30, 2)) a", "cast(1.11 as decimal(30, 2)) a"),
        ("X'00' a", "X'0000' a"),
        ("time'10:00:00' a", "time'10:00:01' a"),
    ],
)
def test_other_values_have_another_digest(spark: SparkSession, one: str, other: str) -> None:
    """Nulls and borders too, which Spark's hash passes over; and no name of a field is taken for a type."""
    first, second = (digest(spark.sql(f"select {each}")) for each in (one, other))
    assert first != second
    assert is_comparable(first, second)


@pytest.mark.parametrize("kind", ["double", "map<string,int>", "struct<x: array<float>>", "interval day", "variant"])
def test_what_has_no_certain_hash_counts_by_its_values(spark: SparkSession, kind: str) -> None:
    assert digest(spark.sql(f"select cast(null as {kind}) a")) == "v3:1:0:0:0"


def test_it_combines_all_hashes_and_knows_no_order(spark: SparkSession) -> None:
    many = spark.range(20_000).select("id", f.col("id").cast("string").alias("s"))
    hashes = [row.h for row in many.select(f.xxhash64(f.isnull("id"), "id", f.isnull("s"), "s").alias("h")).collect()]
    assert max(hashes) > 2**62
    assert min(hashes) < -(2**62)
    mixed = 0
    for each in hashes:
        mixed ^= each
    assert digest(many) == f"v3:20000:{mixed}:{sum(each & 0xFFFFFFFF for each in hashes)}"
    assert digest(many.orderBy(f.desc("id")).repartition(7)) == digest(many)
    assert digest(many.where("id != 7")) != digest(many)
    assert digest(many.union(many.where("id = 7"))) != digest(many)
    pairs = [many.where(f"id != {each}").union(many.where("id in (8, 9)")) for each in (8, 9)]
    assert digest(pairs[0]) != digest(pairs[1])  # an even number of equal rows, which the xor does not see


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

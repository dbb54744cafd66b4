"""Die at every named point of the protocol, into every kind of sink; run again; every row is there once.

After each crash it is asserted what is prepared and what is visible; the protocol's own table says what that must be.
"""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast.epoch import HOLDS, POINTS, Extent
from holdfast.testing import CrashAt
from pgfixture import server
from rig import FilesTarget, LogTarget, PostgresTarget, Rig, SqliteTarget, Target


def postgres(**options: Any) -> Target:
    pg = server()
    return PostgresTarget(pg.dsn(pg.fresh_database()), "rows", create=True, **options)


TARGETS: dict[str, Callable[[Path], Target]] = {
    "files": lambda folder: FilesTarget(folder / "out"),
    "flat": lambda folder: FilesTarget(folder / "out", layout="flat"),
    "partitioned": lambda folder: FilesTarget(folder / "out", layout="flat", partition_by="text", format="json"),
    "sqlite": lambda folder: SqliteTarget(folder / "out.db"),
    "log": lambda folder: LogTarget(folder / "log", entity="text"),
    "postgres-prepared": lambda _: postgres(method="prepared"),
    "postgres-staged": lambda _: postgres(method="staged"),
}
PLAIN = [point for point in POINTS if point not in ("aborted", "discarded")]


def after_a_crash(rig: Rig, before: list[int], point: str) -> None:
    """Compare what is staged and what is visible with the protocol's table, for a stream of one sink."""
    (visible,), (staged,) = rig.visible(), rig.staged()
    prepared, shown = HOLDS[POINTS[point]]
    if point == "staging":
        assert staged
    elif prepared is Extent.NONE:
        assert staged <= 1  # the epoch before may still have its own
    if shown is Extent.NONE or point == "decided":
        assert visible == before
    elif shown is Extent.ALL or point == "committed":
        assert visible == sorted(rig.rows)
    else:
        assert set(before) <= set(visible) <= set(rig.rows)
        assert len(visible) == len(set(visible))
    if prepared is Extent.ALL and shown is not Extent.ALL and point != "committed":
        assert staged


@pytest.mark.parametrize("kind", TARGETS)
def test_every_point(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """One pipeline dies at every point in turn, and goes on after each."""
    query = (
        (lambda df: df.repartition(2)) if kind.startswith("postgres") else None
    )  # two parts: between them is a point
    rig = Rig(spark, tmp_path, [TARGETS[kind](tmp_path)], query)
    rig.add(0)
    rig.run()
    for number, point in enumerate(PLAIN, 1):
        before = sorted(rig.rows)
        rig.add(*range(10 * number, 10 * number + 3))
        assert rig.crash(CrashAt(point)).startswith(point)
        after_a_crash(rig, before, point)
        rig.run()
        assert rig.visible() == [sorted(rig.rows)], point
    for point in ("aborted", "discarded"):  # of a second driver, that clears up after the first
        before = sorted(rig.rows)
        rig.add(1000 + len(rig.rows), 2000 + len(rig.rows))
        rig.crash(CrashAt("durable"))
        assert rig.crash(CrashAt(point)).startswith(point)
        assert rig.visible() == [before]
        own = 0 if kind in ("files", "postgres-prepared") else 1  # what the epoch before staged stays until the next
        assert rig.staged()[0] == own + (point == "aborted") * (2 if kind == "postgres-prepared" else 1), point
        rig.run()
        assert rig.visible() == [sorted(rig.rows)], point


def test_the_matrix_has_every_point_of_the_table() -> None:
    """A new point cannot be left out."""
    assert {*PLAIN, "aborted", "discarded"} == set(POINTS)


def totals(df: DataFrame) -> DataFrame:
    return df.groupBy((f.col("n") % 3).alias("k")).agg(
        f.sum("n").alias("total"), f.sum(f.col("n") * 0.1).alias("tenth")
    )


def self_join(spark: SparkSession, folder: Path) -> Callable[[DataFrame], DataFrame]:
    def query(df: DataFrame) -> DataFrame:
        right = spark.readStream.schema("n long, text string").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
        return df.join(right.select("n", f.col("text").alias("other")), "n")

    return query


def expected_totals(epochs: list[list[int]]) -> list[tuple[str, int, int]]:
    sums: dict[int, int] = {}
    found = []
    for number, rows in enumerate(epochs, 1):
        for n in rows:
            sums[n % 3] = sums.get(n % 3, 0) + n
        found += [(f"t1-{number:010}", k, sums[k]) for k in {n % 3 for n in rows}]
    return sorted(found)


def test_every_point_of_an_aggregation(spark: SparkSession, tmp_path: Path) -> None:
    """State goes on as if nothing had happened: each epoch's totals are those of the rows so far."""
    target = FilesTarget(tmp_path / "out", changelog=True)
    rig = Rig(spark, tmp_path, [target], totals, output_mode="update")
    epochs = [[0, 1, 2]]
    rig.add(*epochs[0])
    rig.run()
    for number, point in enumerate(PLAIN, 1):
        epochs.append([10 * number, 10 * number + 1])
        rig.add(*epochs[-1])
        rig.crash(CrashAt(point))
        rig.run()
        assert target.visible(spark, "hf_epoch k total") == expected_totals(epochs), point


def test_every_point_of_a_join_of_two_streams(spark: SparkSession, tmp_path: Path) -> None:
    """Each pair is found once."""
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")], self_join(spark, tmp_path))
    rig.add(0, 1)
    rig.run()
    for number, point in enumerate(PLAIN, 1):
        rig.add(10 * number, 10 * number + 1)
        rig.crash(CrashAt(point))
        rig.run()
        assert rig.visible() == [sorted(rig.rows)], point


def by_chance(df: DataFrame) -> DataFrame:
    """Give other rows each time it is computed. `rand()` would not: its seed is in the plan."""
    return df.withColumn("text", f.udf(lambda _: uuid.uuid4().hex, "string", useArrow=False)("n"))


def test_every_point_with_all_sinks_on_one_stream(spark: SparkSession, tmp_path: Path) -> None:
    """A query that gives other rows each time it runs: every sink still has the same ones, at every point."""
    targets: list[Target] = [make(tmp_path / kind) for kind, make in TARGETS.items() if kind != "partitioned"]
    for kind in TARGETS:
        (tmp_path / kind).mkdir()
    for number, target in enumerate(targets):
        make = target.make
        target.make = lambda make=make, number=number: _named(make(), f"sink-{number}")
    rig = Rig(spark, tmp_path, targets, by_chance)
    rig.add(0)
    rig.run()
    hits = dict.fromkeys(("prepared", "committed"), (1, 3, len(targets))) | dict.fromkeys(
        ("staging", "committing"), (1, 2)
    )
    for number, point in enumerate(PLAIN, 1):
        for hit in hits.get(point, (1,)):
            before = sorted(rig.rows)
            rig.add(100 * number + 10 * hit, 100 * number + 10 * hit + 1)
            rig.crash(CrashAt(point, hit))
            for found in rig.visible():
                assert set(before) <= set(found) <= set(rig.rows)
                if HOLDS[POINTS[point]][1] is Extent.NONE:
                    assert found == before
            rig.run()
            rows = [target.visible(spark, "n text") for target in targets]
            assert all(each == rows[0] for each in rows)
            assert [n for n, _ in rows[0]] == sorted(rig.rows)


def _named(sink: object, name: str) -> object:
    sink.name = name
    return sink

"""Die at every named point of the protocol, into every kind of sink; run again; every row is there once.

After each crash it is asserted what is prepared and what is visible; the protocol's own table says what that must be.
Each point is a test. The points of one kind share a pipeline, which dies at each of them in turn and goes on. After a
test that fails, the next one gets a new pipeline.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from deltastaged import DeltaTarget
from holdfast.epoch import HOLDS, POINTS, Extent
from holdfast.testing import CrashAt
from icebergstaged import IcebergTarget
from pgfixture import server
from rig import FilesTarget, LogTarget, MarkerTarget, PostgresTarget, Rig, SqliteTarget, Target


def postgres(**options: Any) -> Target:
    pg = server()
    return PostgresTarget(pg.dsn(pg.fresh_database()), "rows", create=True, **options)


TARGETS: dict[str, Callable[[Path], Target]] = {
    "files": lambda folder: FilesTarget(folder / "out"),
    "flat": lambda folder: FilesTarget(folder / "out", layout="flat"),
    "partitioned": lambda folder: FilesTarget(folder / "out", layout="flat", partition_by="text", format="json"),
    "sqlite": lambda folder: SqliteTarget(folder / "out.db"),
    "log": lambda folder: LogTarget(folder / "log", entity="text"),
    "delta": lambda folder: DeltaTarget(folder / "table"),
    "iceberg": IcebergTarget,
    "marker": lambda folder: MarkerTarget(folder / "marker.db"),
    "marker-duckdb": lambda folder: MarkerTarget(folder / "out.duckdb", duckdb=True),
    "postgres-prepared": lambda _: postgres(method="prepared", driver_rows=0),
    "postgres-staged": lambda _: postgres(method="staged", driver_rows=0),
    "postgres-prepared-by-driver": lambda _: postgres(method="prepared"),  # all epochs but the first
    "postgres-staged-by-driver": lambda _: postgres(method="staged"),
}
CLEARING = ["aborted", "discarded"]  # reached by a second driver, which clears up after the first
PLAIN = [point for point in POINTS if point not in CLEARING]
Make = Callable[[Path], Rig]


class Rigs:
    """One rig for all points of a kind."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._whole: dict[str, Rig] = {}

    @contextmanager
    def of(self, kind: str, make: Make) -> Iterator[Rig]:
        """Give the rig of a kind, after its first epoch; the next test gets it too, unless this one fails."""
        rig = self._whole.pop(kind, None)
        if rig is None:
            rig = make(self._factory.mktemp(kind))
            rig.add(0)
            rig.run()
        yield rig
        self._whole[kind] = rig


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Rigs:
    return Rigs(tmp_path_factory)


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
        assert staged or visible == sorted(rig.rows)  # a single prepared transaction is committed or not


def one_sink(kind: str, spark: SparkSession) -> Make:
    # Two parts for PostgreSQL: between them is a point.
    query = (lambda df: df.repartition(2)) if kind.startswith("postgres") else None
    return lambda folder: Rig(spark, folder, [TARGETS[kind](folder)], query)


@pytest.mark.parametrize("point", PLAIN)
@pytest.mark.parametrize("kind", TARGETS)
def test_a_crash_at_a_point(kind: str, point: str, spark: SparkSession, rigs: Rigs) -> None:
    with rigs.of(kind, one_sink(kind, spark)) as rig:
        before = sorted(rig.rows)
        rig.add_more(3)
        assert rig.crash(CrashAt(point)).startswith(point)
        after_a_crash(rig, before, point)
        rig.run()
        assert rig.visible() == [sorted(rig.rows)]


@pytest.mark.parametrize("point", CLEARING)
@pytest.mark.parametrize("kind", TARGETS)
def test_a_crash_of_the_driver_that_clears_up(kind: str, point: str, spark: SparkSession, rigs: Rigs) -> None:
    with rigs.of(kind, one_sink(kind, spark)) as rig:
        before = sorted(rig.rows)
        rig.add_more(2)
        rig.crash(CrashAt("durable"))
        assert rig.crash(CrashAt(point)).startswith(point)
        assert rig.visible() == [before]
        own = (
            0 if kind in ("files", "delta", "iceberg") or kind.startswith("postgres-prepared") else 1
        )  # what the epoch before staged stays until the next
        assert rig.staged()[0] == own + (point == "aborted") * (2 if kind == "postgres-prepared" else 1)
        rig.run()
        assert rig.visible() == [sorted(rig.rows)]


def test_the_matrix_has_every_point_of_the_table() -> None:
    """A new point cannot be left out."""
    assert {*PLAIN, *CLEARING} == set(POINTS)


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


@pytest.mark.parametrize("point", PLAIN)
def test_a_crash_of_an_aggregation(point: str, spark: SparkSession, rigs: Rigs) -> None:
    """State goes on as if nothing had happened: each epoch's totals are those of the rows so far."""

    def make(folder: Path) -> Rig:
        return Rig(spark, folder, [FilesTarget(folder / "out", changelog=True)], totals, output_mode="update")

    with rigs.of("aggregation", make) as rig:
        rig.add_more(2)
        rig.crash(CrashAt(point))
        rig.run()
        assert rig.targets[0].visible(spark, "hf_epoch k total") == expected_totals(rig.epochs)


@pytest.mark.parametrize("point", PLAIN)
def test_a_crash_of_a_join_of_two_streams(point: str, spark: SparkSession, rigs: Rigs) -> None:
    """Each pair is found once."""

    def make(folder: Path) -> Rig:
        return Rig(spark, folder, [FilesTarget(folder / "out")], self_join(spark, folder))

    with rigs.of("join", make) as rig:
        rig.add_more(2)
        rig.crash(CrashAt(point))
        rig.run()
        assert rig.visible() == [sorted(rig.rows)]


def by_chance(df: DataFrame) -> DataFrame:
    """Give other rows each time it is computed. `rand()` would not: its seed is in the plan."""
    return df.withColumn("text", f.udf(lambda _: uuid.uuid4().hex, "string", useArrow=False)("n"))


SHARED = [kind for kind in TARGETS if kind != "partitioned"]  # on one stream, each is a sink
HITS = {"prepared": (1, 3, len(SHARED)), "committed": (1, 3, len(SHARED)), "staging": (1, 2), "committing": (1, 2)}


def all_sinks(spark: SparkSession, folder: Path) -> Rig:
    targets = []
    for number, kind in enumerate(SHARED):
        (folder / kind).mkdir()
        target = TARGETS[kind](folder / kind)
        make = target.make
        target.make = lambda make=make, number=number: _named(make(), f"sink-{number}")
        targets.append(target)
    return Rig(spark, folder, targets, by_chance)


@pytest.mark.parametrize(("point", "hit"), [(point, hit) for point in PLAIN for hit in HITS.get(point, (1,))])
def test_a_crash_with_all_sinks_on_one_stream(point: str, hit: int, spark: SparkSession, rigs: Rigs) -> None:
    """A query that gives other rows each time it runs: every sink still has the same ones, at every point."""
    with rigs.of("all", lambda folder: all_sinks(spark, folder)) as rig:
        before = sorted(rig.rows)
        rig.add_more(2)
        rig.crash(CrashAt(point, hit))
        for found in rig.visible():
            assert set(before) <= set(found) <= set(rig.rows)
            if HOLDS[POINTS[point]][1] is Extent.NONE:
                assert found == before
        rig.run()
        rows = [target.visible(spark, "n text") for target in rig.targets]
        assert all(each == rows[0] for each in rows)
        assert [n for n, _ in rows[0]] == sorted(rig.rows)


def _named(sink: object, name: str) -> object:
    sink.name = name
    return sink

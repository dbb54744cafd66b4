"""A pipeline with its repository on S3 dies at every point of the protocol: no row is lost, and none is there twice.

The points of one kind share a pipeline, as in test_crash_matrix.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from holdfast.epoch import HOLDS, POINTS, Extent
from holdfast.testing import CrashAt
from s3fixture import S3Place, using
from s3fixture import server as s3_server
from s3spark import StoreRig, executors
from storekinds import MAKE

CLEARING = ["aborted", "discarded"]
PLAIN = [point for point in POINTS if point not in CLEARING]


def expected(kind: str, rig: StoreRig) -> list[object]:
    if kind.startswith("stateless"):
        return sorted(rig.rows)
    versions: list[tuple[int, int, int]] = []  # of each total, one per epoch that has changed it
    seen: list[int] = []
    for epoch in rig.epochs:
        seen += epoch
        groups = {k: [n for n in seen if n % 3 == k] for k in {n % 3 for n in epoch}}
        versions += [(k, sum(found), len(found)) for k, found in groups.items()]
    last = {version[0]: version for version in versions}
    return sorted(versions if kind.endswith("log") else last.values())


def visible(kind: str, rig: StoreRig) -> list[object]:
    target = rig.targets[0]
    return target.visible(rig.spark, "n" if kind.startswith("stateless") else "k total rows")


class Rigs:
    """One rig for all points of a kind, on a bucket that outlives a test."""

    def __init__(self, spark: SparkSession, factory: pytest.TempPathFactory) -> None:
        self._spark, self._factory = spark, factory
        self._whole: dict[str, StoreRig] = {}

    @contextmanager
    def of(self, kind: str) -> Iterator[StoreRig]:
        rig = self._whole.pop(kind, None)
        if rig is None:
            found = s3_server()
            place = S3Place(found, found.bucket(), found.endpoint)
            rig = MAKE[kind](self._spark, place, self._factory.mktemp(kind))
        with using(rig.s3.environment), executors(self._spark, rig.s3.environment):
            if not rig.rows:
                rig.add(0, 1)
                rig.run()
            yield rig
        self._whole[kind] = rig


@pytest.fixture(scope="module")
def rigs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Rigs:
    return Rigs(spark, tmp_path_factory)


@pytest.mark.parametrize("point", PLAIN)
@pytest.mark.parametrize("kind", MAKE)
def test_a_crash_at_a_point(kind: str, point: str, rigs: Rigs) -> None:
    with rigs.of(kind) as rig:
        before = expected(kind, rig)
        rig.add_more(3)
        assert rig.crash(CrashAt(point)).startswith(point)
        if HOLDS[POINTS[point]][1] is Extent.NONE:
            assert visible(kind, rig) == before
        rig.run()
        assert visible(kind, rig) == expected(kind, rig)


@pytest.mark.parametrize("point", CLEARING)
@pytest.mark.parametrize("kind", MAKE)
def test_a_crash_of_the_driver_that_clears_up(kind: str, point: str, rigs: Rigs) -> None:
    with rigs.of(kind) as rig:
        before = expected(kind, rig)
        rig.add_more(2)
        rig.crash(CrashAt("durable"))
        assert rig.crash(CrashAt(point)).startswith(point)
        assert visible(kind, rig) == before
        rig.run()
        assert visible(kind, rig) == expected(kind, rig)

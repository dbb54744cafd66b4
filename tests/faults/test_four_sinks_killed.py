"""One stream from Kafka into four sinks: a topic, a Delta table, an Iceberg table and a PostgreSQL table.

The text of each row differs each time the query runs, so the sinks hold the same rows only if each epoch was computed
once. Drivers are killed with their JVM, at random moments and at every point of the protocol. The broker and PostgreSQL
are killed under a running driver, which waits for them. At the end every sink holds every row once, and all hold the
same rows. The control is a stream with Spark's own writers and the same drivers killed: it doubles rows.

DuckDB reads the Parquet files that the Delta log and the Iceberg snapshot name. Its extensions for both formats have to
be downloaded, so these tests do not use them.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from deltastaged import DeltaTarget
from faults import fourdrivers
from faults.drivers import by_chance
from faults.fourdrivers import EPOCH
from faults.killed import Killed, Moment
from holdfast.epoch import HOLDS, POINTS, Extent
from holdfast.testing import CrashAt
from icebergstaged import IcebergTarget
from kafkafixture import broker
from kafkarig import KafkaTarget, TopicRig
from pgfixture import server
from rig import PostgresTarget
from sparkfixture import session

SCRIPT = Path(__file__).with_name("fourdrivers.py")
KILLS = int(os.environ.get("FOUR_SINK_KILLS", "4"))
MOMENTS = (Moment.START, Moment.POINT, Moment.GROWING, Moment.RANDOM)
OUTAGES_EVERY = 20  # kills of a driver; the first ones are among the first four
SINKS = 4
CLEARING = ["aborted", "discarded"]  # reached by a second driver, which clears up after the first
HITS = {point: range(1, SINKS + 1) for point in ("staging", "prepared", "committing", "committed")}
PLAIN = [(point, hit) for point in POINTS if point not in CLEARING for hit in HITS.get(point, (1,))]
Row = tuple[int, str]


def rigged(folder: Path) -> tuple[TopicRig, dict[str, str]]:
    """Return a pipeline with new topics and a new database, and what another process needs to build it."""
    source, topic = broker().topic(partitions=2), broker().topic(partitions=2)
    dsn = server().dsn(server().fresh_database())
    rig = fourdrivers.rigged(folder, broker(), source, topic, dsn)
    spec = {"folder": str(folder), "address": broker().address, "source": source, "topic": topic, "dsn": dsn}
    return rig, spec


def read_all(rig: TopicRig) -> dict[str, list[Row]]:
    """Return the rows of each sink, by the name of the reader."""
    kafka, delta, iceberg, postgres = rig.targets
    assert isinstance(kafka, KafkaTarget) and isinstance(delta, DeltaTarget)
    assert isinstance(iceberg, IcebergTarget) and isinstance(postgres, PostgresTarget)
    return {
        "Kafka, read_committed": kafka.visible(columns="n text"),
        "Delta, by delta-rs": delta.visible(columns="n text"),
        "Delta, by DuckDB": delta.visible_to_duckdb(),
        "Iceberg, by PyIceberg": iceberg.visible(columns="n text"),
        "Iceberg, by DuckDB": iceberg.visible_to_duckdb(),
        "PostgreSQL": postgres.visible(columns="n text"),
    }


def lost_and_doubled(given: list[int], rows: list[Row]) -> tuple[int, int]:
    numbers = [n for n, _ in rows]
    return len(set(given) - set(numbers)), len(numbers) - len(set(numbers))


def print_tallies(rig: TopicRig, found: dict[str, list[Row]]) -> None:
    for name, rows in found.items():
        lost, doubled = lost_and_doubled(rig.rows, rows)
        print(f"  {name}: {len(rows)} rows, {lost} lost, {doubled} doubled")


def require_same_rows(rig: TopicRig, found: dict[str, list[Row]]) -> None:
    """Require that every reader finds every row once, and the same rows as the others."""
    assert {name: lost_and_doubled(rig.rows, rows) for name, rows in found.items()} == dict.fromkeys(found, (0, 0))
    first, *others = found.values()
    assert all(each == first for each in others)
    assert [n for n, _ in first] == sorted(rig.rows)


def restart_broker() -> None:
    broker().kill()
    broker().start()


def restart_postgres() -> None:
    server().kill()
    server().start()


def outage(number: int) -> Callable[[], None] | None:
    """Return what happens to a server before the kill with a number. The driver is running."""
    return {2: restart_broker, 3: restart_postgres}.get(number % OUTAGES_EVERY)


def test_drivers_and_servers_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FOUR_SINK_KILLS says how often. With 100 kills, drivers die at every point of the protocol."""
    rig, spec = rigged(tmp_path)
    points = random.sample(PLAIN, len(PLAIN))
    began, outages = time.monotonic(), 0
    driver = Killed(SCRIPT, "holdfast", rig, size=lambda: broker().size(spec["topic"]), rows=2 * EPOCH, spec=spec)
    try:
        for number in range(KILLS):
            moment, server_dies = MOMENTS[number % len(MOMENTS)], outage(number)
            point, hit = points[number // len(MOMENTS) % len(points)]
            driver.strike(moment, point=f"{point} {hit}" if moment is Moment.POINT else "", outage=server_dies)
            outages += server_dies is not None
    finally:
        driver.close()
    rig.run()
    found = read_all(rig)
    with capsys.disabled():
        seconds = time.monotonic() - began
        print(f"\nHoldfast: {KILLS} drivers and {outages} servers killed, {len(rig.rows)} rows given, {seconds:.0f} s")
        print_tallies(rig, found)
    require_same_rows(rig, found)
    assert max(rig.staged()) <= 1  # the last epoch may still have its own


def test_the_control_doubles_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only drivers are killed here: Spark's own stream ends when a server does."""
    source, topic = broker().topic(partitions=2), broker().topic(partitions=2)
    rig = TopicRig(session(), tmp_path, [], by_chance, broker=broker(), source=source, rows_per_epoch=EPOCH)
    spec = {"folder": str(tmp_path), "address": broker().address, "source": source, "topic": topic}
    kills, began = max(2, KILLS), time.monotonic()  # the second one strikes before a batch is committed
    driver = Killed(SCRIPT, "plain", rig, size=lambda: broker().size(topic), rows=2 * EPOCH, spec=spec)
    try:
        for number in range(kills):
            moment = MOMENTS[number % len(MOMENTS)]
            driver.strike(Moment.GROWING if moment is Moment.POINT else moment)
    finally:
        driver.close()
    fourdrivers.plainly(rig, topic).trigger(availableNow=True).start().awaitTermination()
    written = ds.dataset(tmp_path / "parquet", format="parquet").to_table().to_pylist()
    found = {
        "Kafka, read_committed": KafkaTarget(broker(), topic, tmp_path).visible(columns="n text"),
        "Parquet, by pyarrow": sorted((row["n"], row["text"]) for row in written),
    }
    tallies = {name: lost_and_doubled(rig.rows, rows) for name, rows in found.items()}
    with capsys.disabled():
        seconds = time.monotonic() - began
        print(f"\nSpark's own writers: {kills} drivers killed, {len(rig.rows)} rows given, {seconds:.0f} s")
        print_tallies(rig, found)
    assert [lost for lost, _ in tallies.values()] == [0, 0]
    assert tallies["Kafka, read_committed"][1] > 0
    kafka, parquet = found.values()
    assert kafka != parquet


# --- every point, in this process ------------------------------------------------------------------------------------


class OneRig:
    """One pipeline for all points, after its first epoch; after a test that fails, the next one gets a new one."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._whole: TopicRig | None = None

    @contextmanager
    def ready(self) -> Iterator[TopicRig]:
        rig, self._whole = self._whole, None
        if rig is None:
            rig, _ = rigged(self._factory.mktemp("four"))
            rig.add(0)
            rig.run()
        yield rig
        self._whole = rig


@pytest.fixture(scope="module")
def one_rig(tmp_path_factory: pytest.TempPathFactory) -> OneRig:
    return OneRig(tmp_path_factory)


def require_table(rig: TopicRig, before: list[int], point: str) -> None:
    """Compare what each sink shows after a crash with the protocol's table."""
    for found in rig.visible():
        assert found in (before, sorted(rig.rows))  # all of an epoch or nothing
        if HOLDS[POINTS[point]][1] is Extent.NONE or point == "decided":
            assert found == before
        if HOLDS[POINTS[point]][1] is Extent.ALL:
            assert found == sorted(rig.rows)


@pytest.mark.parametrize(("point", "hit"), PLAIN)
def test_a_crash_at_a_point(point: str, hit: int, one_rig: OneRig) -> None:
    with one_rig.ready() as rig:
        before = sorted(rig.rows)
        rig.add_more(3)
        assert rig.crash(CrashAt(point, hit)).startswith(point)
        require_table(rig, before, point)
        if point == "committed":
            shown: list[Any] = [found == sorted(rig.rows) for found in rig.visible()]
            assert shown == [number < hit for number in range(SINKS)]
        rig.run()
        require_same_rows(rig, read_all(rig))


@pytest.mark.parametrize("point", CLEARING)
def test_a_crash_of_the_driver_that_clears_up(point: str, one_rig: OneRig) -> None:
    with one_rig.ready() as rig:
        before = sorted(rig.rows)
        rig.add_more(2)
        rig.crash(CrashAt("durable"))
        assert rig.crash(CrashAt(point)).startswith(point)
        assert rig.visible() == [before] * SINKS
        rig.run()
        require_same_rows(rig, read_all(rig))

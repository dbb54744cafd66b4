"""Delta and Iceberg tables as sources, with Spark's own connectors: what no longer fits the last epoch is refused or
recorded, never skipped.

`make matrix` fetches the connectors (tools/lake.py). Where there is none for the version of Spark, tests are skipped.
"""

from __future__ import annotations

import logging
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from holdfast import FileSink, Pipeline, apply_rewind, plan_rewind
from holdfast.errors import RewindRefused, SourceGap, StreamFailed
from holdfast.policy import RestartPolicy
from holdfast.repository import GapRecord, Gaps, Lineage
from holdfast.rewind import Readable
from holdfast.spark import adapter
from holdfast.testing import CrashAt, Crashed

NAME = "orders"
JARS = Path(sys.prefix) / "lake"
CATALOG = "holdfast_lake"


def require_connector(kind: str) -> None:
    if kind not in adapter.FACTS.connectors:
        pytest.skip(f"no connector for {kind} is released for this version of Spark")
    if not list(JARS.glob("*.jar")):
        missing = JARS / "missing"
        pytest.skip(missing.read_text() if missing.is_file() else f"{JARS} is missing; make matrix fetches it")


class Story(ABC):
    """One pipeline that reads a table into files, and is run again and again."""

    kind: str

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        require_connector(self.kind)
        self.spark = spark
        self.folder = folder
        self.options: dict[str, str] = {}

    @abstractmethod
    def build(self, spark: SparkSession) -> DataFrame:
        """Return what the stream reads."""

    @abstractmethod
    def write(self, rows: DataFrame) -> None:
        """Append rows to the table, in one version or snapshot."""

    def add(self, *numbers: int) -> None:
        self.write(self.spark.createDataFrame([(each,) for each in numbers], "n long").coalesce(1))

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(NAME, root=self.folder / "root", restart=RestartPolicy.never(), outage=0)
        pipeline.stream(self.build, name=NAME, sinks=[FileSink(self.folder / "out")])
        return pipeline

    def run(self, **options: Any) -> list[int]:
        """Process what there is, and return all rows so far."""
        self.pipeline().run(self.spark, available_now=True, **{"checkpoint_every": None, **options})
        return self.rows()

    def rows(self) -> list[int]:
        return sorted(ds.dataset(self.folder / "out", format="parquet").to_table()["n"].to_pylist())

    def refused(self, text: str, **options: Any) -> SourceGap:
        """Run, expect that the start is refused, and that it has changed nothing."""
        before = self.offsets(), self.rows()
        with pytest.raises(SourceGap, match=text) as caught:
            self.run(**options)
        assert (self.offsets(), self.rows()) == before
        assert not self.gaps()
        return caught.value

    def offsets(self) -> list[str]:
        return sorted(str(each) for each in (self.folder / "root").rglob("offsets/*"))

    def gaps(self) -> list[GapRecord]:
        repository = self.pipeline().repository
        return Gaps(repository).all(NAME, Lineage.load(repository).timeline_of(NAME))


class DeltaStory(Story):
    """A Delta table."""

    kind = "delta"

    @property
    def table(self) -> Path:
        return self.folder / "table"

    def build(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.format("delta").options(**self.options).load(str(self.table))

    def write(self, rows: DataFrame) -> None:
        rows.write.format("delta").mode("append").save(str(self.table))

    def remove(self) -> None:
        shutil.rmtree(self.table)
        self.forget()

    def forget(self) -> None:
        """Remove what Spark remembers of the table, as a new process would."""
        jvm: Any = self.spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def clean_log(self, first: int, last: int) -> None:
        """Remove versions from the log, as its retention does: a checkpoint has their files."""
        DeltaTable(self.table).create_checkpoint()
        self.cut_log(first, last)

    def cut_log(self, first: int, last: int) -> None:
        for version in range(first, last + 1):
            for each in (self.table / "_delta_log").glob(f"*{version:020}.*"):
                if "checkpoint" not in each.name:
                    each.unlink()
        self.forget()


class IcebergStory(Story):
    """An Iceberg table in a catalog of files."""

    kind = "iceberg"

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder)
        self.table = f"{CATALOG}.{folder.name}.events"
        spark.conf.set(f"spark.sql.catalog.{CATALOG}", "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"spark.sql.catalog.{CATALOG}.type", "hadoop")
        spark.conf.set(f"spark.sql.catalog.{CATALOG}.warehouse", str(folder.parent / "warehouse"))
        self.create()

    def create(self) -> None:
        self.spark.sql(f"CREATE TABLE {self.table} (n bigint) USING iceberg")

    def build(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.format("iceberg").options(**self.options).load(self.table)

    def write(self, rows: DataFrame) -> None:
        rows.writeTo(self.table).append()

    def snapshots(self) -> list[int]:
        rows = self.spark.table(f"{self.table}.snapshots").orderBy("committed_at").select("snapshot_id")
        return [each.snapshot_id for each in rows.collect()]

    def call(self, procedure: str, **arguments: str) -> None:
        given = {"table": f"'{self.table.partition('.')[2]}'", **arguments}
        words = ", ".join(f"{name} => {value}" for name, value in given.items())
        self.spark.sql(f"CALL {CATALOG}.system.{procedure}({words})").collect()


AnyStory = TypeVar("AnyStory", bound=Story)


@pytest.fixture(params=[DeltaStory, IcebergStory], ids=["delta", "iceberg"])
def story(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Story:
    """Three rows in two versions have been read."""
    return begun(request.param(spark, tmp_path))


@pytest.fixture
def delta(spark: SparkSession, tmp_path: Path) -> DeltaStory:
    """Three rows in versions 0 and 1 have been read: the stream continues with version 2."""
    return begun(DeltaStory(spark, tmp_path))


@pytest.fixture
def iceberg(spark: SparkSession, tmp_path: Path) -> IcebergStory:
    """Three rows in two snapshots have been read."""
    return begun(IcebergStory(spark, tmp_path))


def begun(made: AnyStory) -> AnyStory:
    made.add(1, 2)
    made.add(3)
    assert made.run() == [1, 2, 3]
    return made


# --- exactly once ----------------------------------------------------------------------------------------------------


def test_a_stream_continues_where_its_last_epoch_ended(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    story.add(4)
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert story.run() == [1, 2, 3, 4]
    assert "not compared" not in caplog.text
    assert story.run() == [1, 2, 3, 4]
    assert not story.gaps()


@pytest.mark.parametrize("point", ["prepared", "decided", "committed"])
def test_rows_are_there_once_wherever_a_driver_dies(story: Story, point: str) -> None:
    story.add(4)
    with pytest.raises((Crashed, StreamFailed)):
        story.run(reach=CrashAt(point))
    story.add(5)
    assert story.run() == [1, 2, 3, 4, 5]


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_delta_table_that_was_created_again_is_refused(delta: DeltaStory) -> None:
    delta.remove()
    for number in range(10, 15):
        delta.add(number)
    error = delta.refused("it was created again")
    assert (error.epoch, error.source) == (2, 0)
    delta.options["failOnDataLoss"] = "false"
    delta.refused("it was created again", accept="gaps")  # Spark's source would fail


def test_versions_that_are_no_longer_in_the_log_of_a_delta_table_are_refused(delta: DeltaStory) -> None:
    for number in (4, 5, 6):
        delta.add(number)
    delta.clean_log(0, 3)
    error = delta.refused("versions 2 to 3 are no longer in its log")
    assert "--accept gaps" in str(error)
    error = delta.refused("versions 2 to 3", accept="gaps")
    assert error.do.startswith("run with the option failOnDataLoss of the source and the session's setting")


@pytest.fixture
def unvalidated(spark: SparkSession) -> Iterator[None]:
    """Spark does not require the versions of the last batch, which it asks for again at a start."""
    setting = "spark.databricks.delta.streaming.trailingCommitValidation.enabled"
    spark.conf.set(setting, "false")
    yield
    spark.conf.unset(setting)


@pytest.mark.usefixtures("unvalidated")
def test_accepted_losses_of_a_delta_table_are_in_the_gap_ledger(delta: DeltaStory) -> None:
    delta.add(4)
    assert delta.run() == [1, 2, 3, 4]  # the last batch must not be the first one, which Spark always requires
    for number in (5, 6, 7):
        delta.add(number)
    delta.clean_log(0, 4)
    delta.options["failOnDataLoss"] = "false"
    assert delta.run(accept="gaps") == [1, 2, 3, 4, 7]
    (gap,) = delta.gaps()
    assert (gap.kind, gap.epoch) == ("source", 3)
    (lost,) = gap.facts["lost"]
    assert (lost["kind"], lost["versions"]) == ("expired", [3, 4])
    delta.add(8)
    assert delta.run() == [1, 2, 3, 4, 7, 8]
    del delta.options["failOnDataLoss"]  # not before: at the last start, Spark has asked for the lost versions again
    delta.add(9)
    assert delta.run() == [1, 2, 3, 4, 7, 8, 9]
    assert len(delta.gaps()) == 1


def test_versions_that_were_read_may_be_gone(delta: DeltaStory) -> None:
    delta.add(4)
    assert delta.run() == [1, 2, 3, 4]
    delta.add(5)
    delta.clean_log(0, 1)
    assert delta.run() == [1, 2, 3, 4, 5]


def test_an_older_copy_of_a_delta_table_is_refused(delta: DeltaStory) -> None:
    delta.cut_log(1, 1)
    delta.refused("the stream has read version 1, but the table ends at version 0")


def test_versions_that_are_lost_while_a_stream_runs_are_refused(delta: DeltaStory) -> None:
    """With failOnDataLoss=false, Spark would skip them without an error."""
    for number in (4, 5, 6):
        delta.add(number)
    delta.options |= {"failOnDataLoss": "false", "maxFilesPerTrigger": "1"}

    def lose(point: str) -> None:
        if point == "prepared":
            delta.clean_log(0, 3)

    with pytest.raises((SourceGap, StreamFailed), match="are no longer in its log"):
        delta.run(reach=lose)
    assert delta.rows() == [1, 2, 3]


def test_an_expired_snapshot_of_an_iceberg_table_is_refused(iceberg: IcebergStory) -> None:
    iceberg.add(4)
    iceberg.add(5)
    iceberg.call("expire_snapshots", older_than="TIMESTAMP '2100-01-01 00:00:00'", retain_last="1")
    error = iceberg.refused("does not exist: it has expired, or the table was created again", accept="gaps")
    assert "a stream with a new name" in error.do


def test_an_iceberg_table_that_was_created_again_is_refused(iceberg: IcebergStory) -> None:
    iceberg.spark.sql(f"DROP TABLE {iceberg.table}")
    iceberg.create()
    iceberg.add(10)
    iceberg.refused("does not exist: it has expired, or the table was created again")


def test_an_iceberg_table_that_was_rolled_back_is_refused(iceberg: IcebergStory) -> None:
    iceberg.call("rollback_to_snapshot", snapshot_id=str(iceberg.snapshots()[0]))
    iceberg.add(10)
    iceberg.refused("is not in its history")


# --- a rewind --------------------------------------------------------------------------------------------------------


def test_a_rewind_of_a_delta_stream_reads_the_same_versions_again(delta: DeltaStory) -> None:
    delta.run(checkpoint_every="1h")
    delta.add(4)
    assert delta.run() == [1, 2, 3, 4]
    plan = plan_rewind(delta.pipeline(), 1)
    assert [(each.kind, each.readable) for each in plan.streams[0].sources] == [("delta", Readable.YES)]
    apply_rewind(delta.pipeline(), plan)
    assert delta.rows() == [1, 2, 3]
    assert delta.run() == [1, 2, 3, 4]


def test_a_rewind_behind_the_retention_of_a_delta_log_is_refused(delta: DeltaStory) -> None:
    delta.run(checkpoint_every="1h")
    delta.add(4)
    delta.add(5)
    assert delta.run() == [1, 2, 3, 4, 5]
    delta.clean_log(0, 2)
    plan = plan_rewind(delta.pipeline(), 1)
    (problem,) = plan.problems
    assert "versions 2 to 2 are no longer in its log" in problem
    with pytest.raises(RewindRefused):
        apply_rewind(delta.pipeline(), plan)


def test_a_rewind_of_an_iceberg_stream_is_compared_at_the_next_start(iceberg: IcebergStory) -> None:
    iceberg.run(checkpoint_every="1h")
    iceberg.add(4)
    assert iceberg.run() == [1, 2, 3, 4]
    plan = plan_rewind(iceberg.pipeline(), 1)
    (source,) = plan.streams[0].sources
    assert (source.kind, source.readable) == ("iceberg", Readable.UNKNOWN)
    assert "its catalog is known only to the Spark session" in source.why
    apply_rewind(iceberg.pipeline(), plan, accept_input=True)
    assert iceberg.run() == [1, 2, 3, 4]

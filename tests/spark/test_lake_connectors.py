"""Streams that read lake tables where Spark has no connector for them: the error names what is missing."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast import FileSink, Pipeline
from holdfast.errors import NotSupported
from holdfast.spark import adapter
from holdfast.spark.adapter import connectors, versions
from tools import maven

ROOT = Path(__file__).parents[2]
CATALOG = "spark.sql.catalog.holdfast_test_absent"
PACKAGED = sorted(adapter.FACTS.connectors)
ABSENT = sorted(connectors.TITLES.keys() - adapter.FACTS.connectors.keys())


def released(kind: str) -> list[str]:
    return [version for version, facts in versions.VERSIONS.items() if kind in facts.connectors]


def refused(pipeline: Pipeline, spark: SparkSession) -> NotSupported:
    with pytest.raises(NotSupported) as caught:
        pipeline.run(spark, available_now=True)
    return caught.value


@pytest.mark.parametrize("version", versions.VERSIONS)
def test_the_connectors_of_the_table_are_pinned_for_the_tests(version: str) -> None:
    lock = ROOT / "tools" / f"lake-{version}.lock"
    pinned = maven.pins(lock) if lock.exists() else {}
    for package in versions.VERSIONS[version].connectors.values():
        group, name, number = package.split(":")
        assert f"{group.replace('.', '/')}/{name}/{number}/{name}-{number}.jar" in pinned
    assert bool(pinned) == bool(versions.VERSIONS[version].connectors)


@pytest.mark.parametrize("kind", ABSENT or [pytest.param("", marks=pytest.mark.skip("this Spark has all connectors"))])
def test_a_format_without_a_connector_for_this_spark_names_the_versions_that_have_one(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    pipeline = Pipeline("lake", root=tmp_path / "root")

    @pipeline.stream(name="rows", sinks=[FileSink(tmp_path / "out")])
    def rows(session: SparkSession) -> DataFrame:
        return session.readStream.format(kind).load(str(tmp_path / "table"))

    error = refused(pipeline, spark)
    assert error.what == f"the source {kind!r} of stream 'rows'"
    assert released(kind)
    assert error.why.endswith(f"only for Spark {' and '.join(released(kind))}")


def test_a_catalog_whose_class_is_missing_is_reported_as_its_connector(spark: SparkSession, tmp_path: Path) -> None:
    if "iceberg" in PACKAGED:
        pytest.skip("the connector may be in this session")
    pipeline = Pipeline("lake", root=tmp_path / "root")

    @pipeline.stream(name="rows", sinks=[FileSink(tmp_path / "out")])
    def rows(session: SparkSession) -> DataFrame:
        return session.readStream.table(f"{CATALOG.rpartition('.')[2]}.db.events")

    spark.conf.set(CATALOG, "org.apache.iceberg.spark.SparkCatalog")
    try:
        error = refused(pipeline, spark)
    finally:
        spark.conf.unset(CATALOG)
    assert error.why.endswith(f"only for Spark {' and '.join(released('iceberg'))}")


def test_a_session_without_a_connector_that_exists_gets_the_name_of_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connectors, "FACTS", versions.VERSIONS["4.1"])
    text = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: DELTA. Make sure the provider name is correct"
    error = adapter.missing_connector("rows", RuntimeError(text))
    assert error is not None
    assert error.why == "the Spark session has no connector for Delta"
    assert error.do == "start the session with spark.jars.packages=io.delta:delta-spark_4.1_2.13:4.4.0"


def test_other_formats_keep_the_error_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("lake", root=tmp_path / "root")

    @pipeline.stream(name="rows", sinks=[FileSink(tmp_path / "out")])
    def rows(session: SparkSession) -> DataFrame:
        return session.readStream.format("nonsense").load("table")

    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND") as caught:
        pipeline.run(spark, available_now=True)
    assert not isinstance(caught.value, NotSupported)

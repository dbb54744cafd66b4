"""Spark sessions that reach the S3 server of the tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holdfast.eventlog import EventLog
from holdfast.repository import ObjectRepository
from holdfast.spark import adapter
from holdfast.spark.s3a import CLASS
from rig import LogTarget, Rig, Target
from s3fixture import KEY_ID, SECRET, S3Place, unavailable


def connect(spark: SparkSession, s3: S3Place, endpoint: str | None = None) -> None:
    """Give the shared session the credentials of a bucket: its JVM was started without them."""
    if not adapter.has_class(spark, CLASS):
        unavailable("the jars of the s3a connector are missing; make test fetches them")
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
    own = f"fs.s3a.bucket.{s3.bucket}."
    for name, value in {
        "access.key": KEY_ID,
        "secret.key": SECRET,
        "endpoint": endpoint or s3.endpoint,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "attempts.maximum": "2",
        "retry.limit": "2",
        "retry.interval": "50ms",
        "retry.throttle.limit": "2",
        "retry.throttle.interval": "50ms",
    }.items():
        conf.set(own + name, value)


@contextmanager
def executors(spark: SparkSession, variables: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Set the environment of Python on executors, which a user sets before Java starts; yield it."""
    found = spark.sparkContext.environment
    before = dict(found)
    found.update(variables)
    try:
        yield found
    finally:
        found.clear()
        found.update(before)


class StoreTarget(LogTarget):
    """A log on a store, as a test sees it."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)  # type: ignore[arg-type]

    def staged(self) -> int:
        """Attempts whose objects are not part of the log."""
        found = {each.key.rpartition("/")[0] for each in ObjectRepository(str(self.path)).flat("segments")}
        log = EventLog.open(self.path) if self.make().exists() else None  # type: ignore[attr-defined]
        named = {each.path.rpartition("/")[0] for each in log.segments(0, log.tail)} if log else set()
        return len(found - named)


class StoreRig(Rig):
    """A pipeline to torment whose repository is on S3."""

    def __init__(
        self, spark: SparkSession, s3: S3Place, folder: Path, targets: list[Target], *more: Any, **options: Any
    ):
        super().__init__(spark, folder, targets, *more, **options)
        connect(spark, s3)
        self.s3 = s3
        self.root = s3.url("pipelines")

    @property
    def repository(self) -> Path:
        """The objects of the repository, as files of the server."""
        return self.s3.folder / "pipelines" / "torment"

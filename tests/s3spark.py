"""Spark sessions that reach the S3 server of the tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.spark import adapter
from holdfast.spark.s3a import CLASS
from rig import Rig, Target
from s3fixture import KEY_ID, SECRET, S3Place


def connect(spark: SparkSession, s3: S3Place, endpoint: str | None = None) -> None:
    """Give the shared session the credentials of a bucket: its JVM was started without them."""
    if not adapter.has_class(spark, CLASS):
        why = "the jars of the s3a connector are missing; make test fetches them"
        if os.environ.get("HOLDFAST_REQUIRE_S3"):
            pytest.fail(why)
        pytest.skip(why)
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

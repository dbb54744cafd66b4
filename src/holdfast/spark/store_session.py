"""A Spark session whose pipeline keeps its repository on an object store.

Spark writes its checkpoint folders through Hadoop's connector for S3, Holdfast everything else through its own client.
Before anything is decided, a start proves that both see the same bucket and that conditional writes work in both.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, NotSupported, StorageFailed, StoresDiffer
from holdfast.repository import Repository
from holdfast.repository.objectstore import ObjectRepository
from holdfast.repository.probe import PROBES
from holdfast.spark import adapter, s3a
from holdfast.spark.localfiles import JAR
from holdfast.sparkfiles.storefolder import hadoop_root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OURS, _SPARKS = "holdfast", "spark"  # who writes the object of this name


def prepare_session(spark: SparkSession, repository: Repository) -> None:
    """Make a session ready for a repository; for one on a disk, nothing is needed.

    1. Refuse settings that cannot work.  2. Require the connector and the file manager.  3. Pass endpoint and region to
    the connector.  4. Let the file manager serve this repository, for the rest of the session.  5. Probe.
    """
    if not isinstance(repository, ObjectRepository):
        return
    adapter.require_store_settings(spark)  # 1
    _require_classes(spark)  # 2
    adapter.set_for_bucket(spark, repository.address.bucket, s3a.s3a_settings())  # 3
    adapter.serve_root(spark, hadoop_root(repository))  # 4
    probe_spark(spark, repository)  # 5


def connect_bucket(spark: SparkSession, bucket: str) -> None:
    """Let Spark's tasks reach a bucket with the endpoint and region that Holdfast uses, for a sink on S3."""
    _require_connector(spark, "a table on S3")
    adapter.set_for_bucket(spark, bucket, s3a.s3a_settings())


def _require_connector(spark: SparkSession, what: str) -> None:
    if not adapter.has_class(spark, s3a.CLASS):
        line = s3a.submit_line(adapter.hadoop_version(spark))
        raise NotSupported(
            what=f"{what} in this Spark session",
            why="Hadoop's connector for S3 (s3a) is not on the class path of its JVM",
            do=f"start it with: spark-submit {line} … ; or, without spark-submit, set the variable "
            f'PYSPARK_SUBMIT_ARGS="{line} pyspark-shell" before Java starts',
        )


def _require_classes(spark: SparkSession) -> None:
    _require_connector(spark, "a root on S3")
    if not adapter.has_class(spark, adapter.STORE_FILES):
        raise NotSupported(
            what="a root on S3 in this Spark session",
            why="the class holdfast.StoreFiles is not on the class path of its JVM",
            do=f"start it with: spark-submit --jars {JAR} … ; or let Holdfast create the session",
        )


def probe_spark(spark: SparkSession, repository: ObjectRepository) -> None:
    """Raise an error if Spark and Holdfast do not work on the same bucket in the same way; leave nothing behind.

    1. Spark writes an object through the file manager; Holdfast reads and lists it.  2. Holdfast writes one; Spark
    reads and lists it.  3. A conditional write of one does not overwrite the object of the other.  4. Holdfast deletes
    both; Spark no longer finds them.
    """
    folder = f"{PROBES}/{uuid.uuid4().hex}"
    ours, sparks = f"{folder}/{_OURS}", f"{folder}/{_SPARKS}"
    data, other = uuid.uuid4().hex.encode(), b"another\n"

    def require(holds: bool, why: str) -> None:
        if not holds:
            raise StoresDiffer(where=repository.where, why=why)

    try:
        files = adapter.StoreFiles(spark, f"{hadoop_root(repository)}/{folder}")
        require(files.is_ours, "Spark does not use Holdfast's file manager")
        require(files.write(_SPARKS, data), "Spark finds an object that was not written yet")  # 1
        found = repository.read_all([sparks])[sparks]
        require(found == data, "Holdfast does not find an object that Spark wrote")
        require(repository.list(folder) == [_SPARKS], "Holdfast does not list an object that Spark wrote")
        repository.put_if_absent(ours, data)  # 2
        require(files.read(_OURS) == data, "Spark does not find an object that Holdfast wrote")
        require(files.names() == [_OURS, _SPARKS], "Spark does not list an object that Holdfast wrote")
        refused = not files.write(_OURS, other) and not repository.put_if_absent(sparks, other).won  # 3
        require(refused and files.read(_OURS) == data, "a conditional write overwrites an object")
    except StorageFailed as error:
        with contextlib.suppress(HoldfastError):
            repository.delete_all([ours, sparks])
        raise StoresDiffer(where=repository.where, why=error.summary) from error
    except BaseException:
        with contextlib.suppress(HoldfastError):
            repository.delete_all([ours, sparks])
        raise
    repository.delete_all([ours, sparks])  # 4
    require(files.read(_OURS) is None and files.names() == [], "objects that were deleted can still be read")

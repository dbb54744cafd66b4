"""Where Spark's checkpointLocation of a stream is: in the repository of its pipeline."""

from __future__ import annotations

from holdfast.errors import NotSupported
from holdfast.repository import LocalRepository, Repository
from holdfast.repository.decisions import stream_folder
from holdfast.repository.objectstore import ObjectRepository
from holdfast.sparkfiles.folder import SparkFolder
from holdfast.sparkfiles.localfolder import LocalSparkFolder
from holdfast.sparkfiles.storefolder import StoreSparkFolder

SPARK = "spark"


def spark_key(stream: str, timeline: int) -> str:
    """Return the key of Spark's folder of a stream in a timeline."""
    return f"{stream_folder(stream, timeline)}/{SPARK}"


def spark_folder(repository: Repository, stream: str, timeline: int) -> SparkFolder:
    """Return Spark's folder of a stream in a timeline; it need not exist."""
    key = spark_key(stream, timeline)
    if isinstance(repository, ObjectRepository):
        return StoreSparkFolder(repository, key)
    if isinstance(repository, LocalRepository):
        return LocalSparkFolder(repository.root / key)
    why = "Spark needs a folder or an object store for its own files"
    raise NotSupported(what=f"a stream in {repository.where}", why=why, do="use a folder, or s3://bucket/prefix")

"""Where Spark's checkpointLocation of a stream is: in the repository of its pipeline."""

from __future__ import annotations

from holdfast.repository import LocalRepository
from holdfast.repository.decisions import stream_folder
from holdfast.sparkfiles.folder import SparkFolder
from holdfast.sparkfiles.localfolder import LocalSparkFolder

SPARK = "spark"


def spark_key(stream: str, timeline: int) -> str:
    """Return the key of Spark's folder of a stream in a timeline."""
    return f"{stream_folder(stream, timeline)}/{SPARK}"


def spark_folder(repository: LocalRepository, stream: str, timeline: int) -> SparkFolder:
    """Return Spark's folder of a stream in a timeline; it need not exist."""
    return LocalSparkFolder(repository.root / spark_key(stream, timeline))

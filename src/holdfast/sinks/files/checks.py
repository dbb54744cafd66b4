"""Checks before the first epoch: which paths, folders and columns a FileSink can write."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import BadValue, NotSupported
from holdfast.sinks.files.epoch_folders import EPOCH_COLUMN, EPOCH_FOLDER

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SPARK_METADATA = "_spark_metadata"
_NOT_IN_CSV = ("struct", "array", "map", "binary", "interval", "variant")


def refuse_object_store(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the path, or refuse the address of an object store or of HDFS."""
    if isinstance(path, str) and re.match(r"(s3[an]?|gs|abfss?|wasbs?|hdfs|oss|cosn?)://", path):
        raise NotSupported(
            what=f"a FileSink in an object store ({path.split(':')[0]}:)",
            why="object stores have no atomic rename",
            do="on S3, write a Delta Lake table (DeltaSink) or an Iceberg table (IcebergSink): these formats commit "
            "without a rename; otherwise use PostgresSink, or a folder on a local or mounted disk",
        )
    return path


def check_columns(schema: StructType, *, format: str, layout: str, partition_by: Sequence[str]) -> None:
    """Refuse columns that cannot be written in this format, layout and partitioning."""
    columns = {each.name.lower(): each.dataType.typeName() for each in schema.fields}
    missing = [each for each in partition_by if each.lower() not in columns]
    if missing:
        raise BadValue(what="partition_by", value=missing, expected=f"columns of the stream: {sorted(columns)}")
    hidden = [each for each in partition_by if each.startswith(".")]
    if hidden:
        why = "readers skip folders whose names begin with a dot"
        raise BadValue(what="partition_by", value=hidden, why=why, do="rename the column")
    if len(partition_by) >= len(columns):
        raise BadValue(what="partition_by", value=list(partition_by), why="no column would be left for the files")
    if layout == "epochs" and EPOCH_COLUMN in columns:
        why = f"the layout 'epochs' adds a column {EPOCH_COLUMN}"
        raise BadValue(what="column", value=EPOCH_COLUMN, why=why, do="rename it, or use layout='flat'")
    if format == "csv":
        nested = [name for name, kind in columns.items() if kind.startswith(_NOT_IN_CSV)]
        if nested:
            raise BadValue(what="columns", value=nested, why="csv cannot hold them", do="use to_json(), or parquet")


def refuse_spark_sink(folder: Path) -> None:
    """Refuse a folder that Spark's own file sink has written: readers would ignore files that are added to it."""
    if (folder / SPARK_METADATA).exists():
        raise NotSupported(
            what=f"a FileSink in {folder}",
            why=f"it holds {SPARK_METADATA}, the log of Spark's file sink, and Spark reads only files listed there",
            do="choose another folder; to have all rows in one place, copy the old ones into it with layout='flat'",
        )


def refuse_other_files(folder: Path) -> None:
    """Refuse the layout `epochs` in a folder with other files: Spark cannot read them beside `hf_epoch=` folders."""
    for name in os.listdir(folder):  # noqa: PTH208 - thousands of them
        if not EPOCH_FOLDER.fullmatch(name) and not name.startswith(("_", ".")):
            raise NotSupported(
                what=f"the layout 'epochs' in {folder}",
                why=f"the folder contains {name!r}, and readers cannot read a mix of two layouts",
                do="choose an empty folder, or layout='flat'",
            )

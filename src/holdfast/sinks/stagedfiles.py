"""What an attempt staged as files: written by Spark, listed in a sealed record beside them, proven before use."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import NotSupported, RecordCorrupt, SinkFailed, StagedGone
from holdfast.repository.files import hadoop_address, replace_durably
from holdfast.seal import digest_of
from holdfast.sinks.base import Key, Setting, Staged
from holdfast.sinks.epochfolders import KEY_FILE, KeyRecord, told_options
from holdfast.sinks.rows import counted
from holdfast.sinks.staging import Staging, below
from holdfast.spark.adapter import folder_mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SET_IDS = 0o6000  # of a folder that is shared by its group
_PENDING = "_temporary/0/_temporary"  # where Hadoop's committer keeps what is not committed; it removes all of it


def require_seen_by_all(sink: str, setting: Setting) -> None:
    """Refuse a local folder where executors on other machines would write to another one."""
    if not setting.local and not setting.shared:
        raise NotSupported(
            what=f"the local folder of sink {sink!r} on a cluster",
            why="each machine would write to a folder of its own",
            do="use a folder that every machine sees alike and say so with Pipeline(..., shared=True)",
        )


def stage(
    df: DataFrame,
    key: Key,
    staging: Staging,
    setting: Setting,
    *,
    format: str = "parquet",
    options: Mapping[str, str] | None = None,
    partition_by: Sequence[str] = (),
) -> Staged:
    """Let Spark write an attempt's rows, and put the list of what it wrote beside them. No rows leave nothing."""
    folder = staging.folder(key)
    observed, tell = (df, None) if format == "parquet" else counted(df)  # its files say how many rows they hold
    observed.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = observed.write.format(format).options(**(options or {}))
    writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    if staging.mode is None:
        staging.mode = folder_mode(df.sparkSession)
    _make_unused(folder, staging.mode)
    writer.mode("append").save(hadoop_address(folder))
    setting.reach("staging")
    found = list(below(folder))
    count = tell() if tell else _rows_in(folder, found, df, options or {})
    if not count:
        staging.clear(key)
        return Staged({"rows": 0}, 0, trace=False)
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in found if path.is_file()}
    told = told_options(options or {})
    record = _record(key, count, sizes, _shape(df, format, options or {}, partition_by), told).sealed()
    replace_durably(folder / KEY_FILE, record, KEY_FILE)
    handle = {"rows": count, "files": len(sizes), "digest": digest_of(record)}
    return Staged(handle, count, (*found, staging.root))


def _make_unused(folder: Path, mode: int) -> None:
    """Make an attempt's folder, and in it those that Hadoop would make: for each it may start a process.

    One that is there is refused, as two jobs in one folder would mix up their files. It becomes an epoch's, so it is
    for whom Hadoop would make it for, whatever this process's own umask says.
    """
    folder.mkdir()
    folder.chmod(mode | folder.stat().st_mode & _SET_IDS)
    (folder / _PENDING).mkdir(parents=True)


def _rows_in(folder: Path, found: Sequence[Path], df: DataFrame, options: Mapping[str, str]) -> int:
    """Count the rows of Parquet files by what each says of itself. Where that is encrypted, Spark reads them.

    All that readers would read is counted, whatever it is called: an epoch without rows is cleared away.
    """
    from pyarrow import ArrowException, parquet  # noqa: PLC0415 - heavy, and no other format needs it

    try:
        files = (path for path in found if not path.name.startswith(("_", ".")) and path.is_file())
        return sum(parquet.read_metadata(path).num_rows for path in files)
    except (ArrowException, OSError):
        return int(df.sparkSession.read.options(**options).parquet(hadoop_address(folder)).count())


def proven(sink: str, folder: Path, key: Key, handle: Mapping[str, Any]) -> KeyRecord:
    """Return the list of what was staged: the one that the handle names, and every file of it there in full."""
    path = folder / KEY_FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise StagedGone(sink=sink, epoch=key.epoch) from None
    record = KeyRecord.unsealed(data, str(path))
    if digest_of(data) != handle["digest"]:
        raise RecordCorrupt(key=str(path), why="it is not the one that the decision names")
    for name, size in record.files.items():
        try:
            found = (folder / name).stat().st_size
        except FileNotFoundError:
            if not folder.exists():  # cleared while we looked: by a driver that has gone on
                raise StagedGone(sink=sink, epoch=key.epoch) from None
            found = -1
        if found != size:
            why = f"{folder / name} has {found} bytes where {size} were staged" if found >= 0 else f"{name} is gone"
            raise SinkFailed(sink=sink, action=f"commit epoch {key.epoch}", why=why)
    return record


def _shape(df: DataFrame, format: str, options: Mapping[str, str], partition_by: Sequence[str]) -> str:
    """Return what is equal for files that were written alike, and may be merged."""
    apart = {name.lower() for name in partition_by}
    columns = [(field.name, field.dataType.json()) for field in df.schema.fields if field.name.lower() not in apart]
    told = sorted((name.lower(), str(value)) for name, value in options.items())
    return hashlib.sha256(json.dumps([format, columns, list(partition_by), told]).encode()).hexdigest()[:16]


def _record(key: Key, rows: int, files: dict[str, int], shape: str, options: dict[str, str]) -> KeyRecord:
    return KeyRecord(
        pipeline=key.owner.pipeline,
        uid=key.owner.uid,
        stream=key.owner.stream,
        timeline=key.timeline,
        epoch=key.epoch,
        attempt=key.attempt.attempt,
        lease=key.lease or 0,
        rows=rows,
        files=files,
        shape=shape,
        options=options,
    )

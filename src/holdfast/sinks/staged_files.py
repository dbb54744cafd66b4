"""What an attempt staged as files: written by Spark, listed in a sealed record beside them, checked before use.

Rules:
- The record has the size and the SHA-256 of every file, and the handle has the digest of the record.
- The files are hashed once, by `stage`. A commit by the object that staged them compares sizes only. Every other
  commit, after a restart or in a replay, reads the files again and compares their digests.
- A file that is not listed, and that readers would find, is refused by every commit.
- A record without digests was written by an earlier version: its files are compared by size only.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import _figures as figures
from holdfast.errors import NotSupported, RecordCorrupt, StagedDamaged, StagedGone
from holdfast.formats.sealed_json import digest_of
from holdfast.repository.files import hadoop_address, replace_durably
from holdfast.sinks.base import EpochKey, SinkContext, Staged
from holdfast.sinks.files.epoch_folders import KEY_FILE, KeyRecord, told_options
from holdfast.sinks.rows import counted
from holdfast.sinks.staging import Staging, below

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SET_IDS = 0o6000  # of a folder that is shared by its group
_HASHERS = 4  # threads: hashing releases Python's lock
_ALONE = 1 << 20  # bytes that one thread hashes faster than several can be started
_PENDING = "_temporary/0/_temporary"  # where Hadoop's committer keeps what is not committed; it removes all of it


def require_seen_by_all(sink: str, setting: SinkContext) -> None:
    """Refuse a local folder where executors on other machines would write to another one."""
    if not setting.local and not setting.shared:
        raise NotSupported(
            what=f"the local folder of sink {sink!r} on a cluster",
            why="each machine would write to a folder of its own",
            do="use a folder that every machine sees alike and say so with Pipeline(..., shared=True)",
        )


def stage(
    df: DataFrame,
    key: EpochKey,
    staging: Staging,
    setting: SinkContext,
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
    _make_unused(folder, setting.folder_mode)
    writer.mode("append").save(hadoop_address(folder))
    setting.reach("staging")
    found = list(below(folder))
    count = tell() if tell else _rows_in(folder, found, df, options or {})
    if not count:
        staging.clear(key)
        return Staged({"rows": 0}, 0, trace=False)
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in found if path.is_file()}
    record = KeyRecord(
        pipeline=key.owner.pipeline,
        uid=key.owner.uid,
        stream=key.owner.stream,
        timeline=key.timeline,
        epoch=key.epoch,
        attempt=key.attempt.attempt,
        lease=key.lease or 0,
        rows=count,
        files=sizes,
        shape=_shape(df, format, options or {}, partition_by),
        options=told_options(options or {}),
        digests=digests(folder, sizes),
    ).sealed()
    replace_durably(folder / KEY_FILE, record, KEY_FILE)
    staging.hashed = digest_of(record)
    handle = {"rows": count, "files": len(sizes), "digest": staging.hashed}
    return Staged(handle, count, (*found, staging.root))


def digests(folder: Path, sizes: Mapping[str, int]) -> dict[str, str]:
    """Return the SHA-256 of each of these files in a folder."""
    if len(sizes) < 2 or sum(sizes.values()) < _ALONE:
        return {name: _sha256(folder / name) for name in sizes}
    with ThreadPoolExecutor(_HASHERS) as pool:
        return dict(zip(sizes, pool.map(lambda name: _sha256(folder / name), sizes), strict=True))


def _sha256(path: Path) -> str:
    with path.open("rb") as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()


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


def key_record(folder: Path, key: EpochKey, handle: Mapping[str, Any], sink: str) -> KeyRecord:
    """Return the record of what was staged, or raise where it is gone or is not the one that the handle names."""
    path = folder / KEY_FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise StagedGone(sink=sink, epoch=key.epoch) from None
    record = KeyRecord.unsealed(data, str(path))
    if digest_of(data) != handle["digest"]:
        raise RecordCorrupt(key=str(path), why="it is not the one that the decision names")
    return record


def proven(sink: str, staging: Staging, key: EpochKey, handle: Mapping[str, Any]) -> KeyRecord:
    """Return the record of what was staged, after a check that the folder holds these files, sound, and no others."""
    folder = staging.folder(key)
    record = key_record(folder, key, handle, sink)
    check = StagedCheck(sink, folder, key)
    check.sizes(record.files)
    check.no_others(record.files)
    if staging.hashed != handle["digest"]:
        check.digests(record.files, record.digests or {})
    return record


@dataclass(frozen=True, slots=True)
class StagedCheck:
    """Compares the files of an attempt with what was recorded; raises `StagedDamaged`, which names the file."""

    sink: str
    folder: Path
    key: EpochKey

    def sizes(self, files: Mapping[str, int]) -> None:
        """Require every file, with its size."""
        for name, size in files.items():
            try:
                found = (self.folder / name).stat().st_size
            except FileNotFoundError:
                raise self._missing(name) from None
            if found != size:
                raise self._damaged(
                    name, f"it has {figures.number(found)} bytes where {figures.number(size)} were staged"
                )

    def no_others(self, files: Mapping[str, int]) -> None:
        """Require that readers would find only these files.

        Hidden names are allowed: readers skip them, and a file system or a late task of Spark may have left them.
        """
        for top, folders, names in os.walk(self.folder):
            folders[:] = (name for name in folders if not _is_hidden(name))
            links = (name for name in folders if Path(top, name).is_symlink())  # readers follow them, os.walk does not
            for name in filter(lambda name: not _is_hidden(name), (*names, *links)):
                path = os.path.relpath(Path(top, name), self.folder)
                if path not in files:
                    raise self._damaged(
                        ".",
                        f"it holds {path}, which was not staged",
                        do=f"move {self.folder / path} to another folder and run again: the epoch is then committed",
                    )

    def digests(self, sizes: Mapping[str, int], expected: Mapping[str, str]) -> None:
        """Require that each file has the digest that is expected of it, where one is."""
        try:
            found = digests(self.folder, {name: size for name, size in sizes.items() if name in expected})
        except FileNotFoundError as error:
            raise self._missing(str(Path(error.filename).relative_to(self.folder))) from None
        for name, digest in found.items():
            if digest != expected[name]:
                raise self._damaged(name, "its SHA-256 is not the one that was recorded when it was staged")

    def _missing(self, name: str) -> StagedGone | StagedDamaged:
        if not self.folder.exists():  # removed meanwhile by another driver, after its commit
            return StagedGone(sink=self.sink, epoch=self.key.epoch)
        return self._damaged(name, "it is gone")

    def _damaged(self, name: str, why: str, **advice: str) -> StagedDamaged:
        return StagedDamaged(sink=self.sink, epoch=self.key.epoch, path=str(self.folder / name), why=why, **advice)


def _is_hidden(name: str) -> bool:
    """Whether Spark's readers skip a file or folder of this name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _shape(df: DataFrame, format: str, options: Mapping[str, str], partition_by: Sequence[str]) -> str:
    """Return what is equal for files that were written alike, and may be merged."""
    apart = {name.lower() for name in partition_by}
    columns = [(field.name, field.dataType.json()) for field in df.schema.fields if field.name.lower() not in apart]
    told = sorted((name.lower(), str(value)) for name, value in options.items())
    return hashlib.sha256(json.dumps([format, columns, list(partition_by), told]).encode()).hexdigest()[:16]

"""Staged files: written by Spark, listed in a sealed record beside them, checked before use.

Rules:
- The record has the size and the SHA-256 of every file. The handle has the digest of the record.
- Nothing is synced here. The record and the files are among the paths that are synced together before the decision.
- The files are hashed once, by `stage`. A commit by the object that staged them compares sizes only. Every other
  commit, after a restart or in a replay, reads the files again and compares their digests.
- Every commit refuses a file that is not listed and that readers would find.
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
from holdfast.errors import BadValue, MissingExtra, NotSupported, RecordCorrupt, StagedDamaged, StagedGone
from holdfast.formats.sealed_json import digest_of
from holdfast.repository.files import hadoop_address
from holdfast.sinks.base import EpochKey, SinkContext, Staged
from holdfast.sinks.files.epoch_folders import KEY_FILE, KeyRecord, recorded_options
from holdfast.sinks.rows import counted
from holdfast.sinks.staging import Staging, below

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SET_IDS = 0o6000  # setuid and setgid bits, of a folder that a group shares
_HASHERS = 4  # threads: hashing releases the GIL
_SINGLE_THREADED = 1 << 20  # bytes: one thread hashes fewer sooner than several threads start
_PENDING = ("_temporary", "0", "_temporary")  # Hadoop's committer keeps uncommitted files there, and removes them


def require_arrow() -> None:
    """Raise `MissingExtra` if pyarrow is not installed. It is an extra: call this before the first epoch."""
    try:
        import pyarrow.parquet  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError:
        raise MissingExtra(extra="spark", module="pyarrow") from None


def require_seen_by_all(sink: str, context: SinkContext) -> None:
    """Refuse a local folder if executors run on other machines: each would write to its own disk."""
    if not context.local and not context.shared:
        raise NotSupported(
            what=f"the local folder of sink {sink!r} on a cluster",
            why="each machine would write to its own disk",
            do="use a folder on a file system that every machine mounts, and pass shared=True to the Pipeline",
        )


def refuse_file(what: str, path: Path) -> None:
    """Refuse a path that must be a folder and is a file."""
    if path.exists() and not path.is_dir():
        raise BadValue(what=what, value=str(path), why="it is a file", do="choose a folder")


def stage(
    df: DataFrame,
    key: EpochKey,
    staging: Staging,
    context: SinkContext,
    *,
    format: str = "parquet",
    options: Mapping[str, str] | None = None,
    partition_by: Sequence[str] = (),
) -> Staged:
    """Write the rows of an attempt with Spark, and a list of the files beside them; nothing if there are no rows."""
    folder = staging.folder(key)
    observed, rows = (df, None) if format == "parquet" else counted(df)  # Parquet files contain their row counts
    if staging.session is not df.sparkSession:  # one for each query: its settings are set once
        df.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        staging.session = df.sparkSession
    writer = observed.write.options(**(options or {}))
    writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    make_unused(folder, context.folder_mode)
    getattr(writer.mode("append"), format)(hadoop_address(folder))  # one call to the JVM less than format() and save()
    context.reach("staging")
    found = list(below(folder))
    count = rows() if rows else _rows_in(folder, found, df, options or {})
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
        options=recorded_options(options or {}),
        digests=digests(folder, sizes),
    ).sealed()
    (folder / KEY_FILE).write_bytes(record)
    staging.hashed = digest_of(record)
    handle = {"rows": count, "files": len(sizes), "digest": staging.hashed}
    return Staged(handle, count, (*found, folder / KEY_FILE, staging.root))


def digests(folder: Path, sizes: Mapping[str, int]) -> dict[str, str]:
    """Return the SHA-256 of each of these files in a folder."""
    if len(sizes) < 2 or sum(sizes.values()) < _SINGLE_THREADED:
        return {name: _sha256(folder / name) for name in sizes}
    with ThreadPoolExecutor(_HASHERS) as pool:
        return dict(zip(sizes, pool.map(lambda name: _sha256(folder / name), sizes), strict=True))


def _sha256(path: Path) -> str:
    with path.open("rb") as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()


def make_unused(folder: Path, mode: int) -> None:
    """Create an attempt's folder, and in it the folders of Hadoop's committer: Hadoop may start a process for each.

    An existing folder is refused, because two jobs in one folder would mix their files. It becomes the folder of an
    epoch, so it gets the permissions that Hadoop would set, regardless of the umask of this process.
    """
    folder.mkdir()
    folder.chmod(mode | folder.stat().st_mode & _SET_IDS)
    inner = str(folder)
    for name in _PENDING:  # one by one: `mkdir(parents=True)` would try the deepest one first
        inner = f"{inner}/{name}"
        os.mkdir(inner)  # noqa: PTH102 - at each epoch


def _rows_in(folder: Path, found: Sequence[Path], df: DataFrame, options: Mapping[str, str]) -> int:
    """Count the rows of Parquet files from their footers. Spark reads files with an encrypted footer.

    All files that readers would read are counted, regardless of their names: an epoch without rows is removed.
    """
    from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an extra, slow to import, for this format only

    try:
        files = (path for path in found if not path.name.startswith(("_", ".")) and path.is_file())
        return sum(parquet.read_metadata(path).num_rows for path in files)
    except (ArrowException, OSError):
        return int(df.sparkSession.read.options(**options).parquet(hadoop_address(folder)).count())


def key_record(folder: Path, key: EpochKey, handle: Mapping[str, Any], sink: str) -> KeyRecord:
    """Return the record of an attempt's files; raise if it is missing, or is not the one that the handle names."""
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
    """Return the record of an attempt's files after checking that the folder holds them, undamaged, and no others."""
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
    """Compares the files of an attempt with its record; raises `StagedDamaged`, which names the file."""

    sink: str
    folder: Path
    key: EpochKey

    def sizes(self, files: Mapping[str, int]) -> None:
        """Require every file, with the recorded size."""
        for name, size in files.items():
            try:
                found = (self.folder / name).stat().st_size
            except FileNotFoundError:
                raise self._missing(name) from None
            if found != size:
                raise self._damaged(
                    name, f"it has {figures.number(found)} bytes, but {figures.number(size)} were staged"
                )

    def no_others(self, files: Mapping[str, int]) -> None:
        """Require that readers would find only these files.

        Hidden names are allowed: readers skip them, and a file system or a late Spark task may have left them.
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
        """Require that each file with an expected digest has that digest."""
        try:
            found = digests(self.folder, {name: size for name, size in sizes.items() if name in expected})
        except FileNotFoundError as error:
            raise self._missing(str(Path(error.filename).relative_to(self.folder))) from None
        for name, digest in found.items():
            if digest != expected[name]:
                raise self._damaged(name, "its SHA-256 is not the one that was recorded when it was staged")

    def _missing(self, name: str) -> StagedGone | StagedDamaged:
        if not self.folder.exists():  # another driver has removed it after its commit
            return StagedGone(sink=self.sink, epoch=self.key.epoch)
        return self._damaged(name, "it is missing")

    def _damaged(self, name: str, why: str, **advice: str) -> StagedDamaged:
        return StagedDamaged(sink=self.sink, epoch=self.key.epoch, path=str(self.folder / name), why=why, **advice)


def _is_hidden(name: str) -> bool:
    """Whether Spark's readers skip a file or folder of this name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _shape(df: DataFrame, format: str, options: Mapping[str, str], partition_by: Sequence[str]) -> str:
    """Return a digest of columns and options: files with the same digest may be merged."""
    apart = {name.lower() for name in partition_by}
    columns = [(field.name, field.dataType.json()) for field in df.schema.fields if field.name.lower() not in apart]
    given = sorted((name.lower(), str(value)) for name, value in options.items())
    return hashlib.sha256(json.dumps([format, columns, list(partition_by), given]).encode()).hexdigest()[:16]

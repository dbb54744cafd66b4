"""Files: parquet, json, csv or orc, in a folder on a local disk or one that every machine sees alike.

Spark writes an attempt into a folder beside the target. Two layouts make it visible:

- `epochs` (default): one rename to `hf_epoch=t<timeline>-<epoch>/`. A reader sees all of an epoch or nothing.
- `flat`: the files are linked into the folder and its partitions one by one, under names that begin with timeline and
  epoch. No extra column; a reader may see a part of the epoch that is being committed.

Rules:
- The folder has one owner, written at `_holdfast/owner.key`. Names that begin with `_` are hidden from Spark's readers,
  and `.key` from those that look for `*.json` or `*.parquet`.
- Each attempt has a `_holdfast.key` with its key, its row count and its files with their sizes. In the layout `epochs`
  it moves with them: an existing target counts only if its key is the one of the handle. In the layout `flat` it is
  linked to `_holdfast/` last: that is the ledger.
- An epoch without rows leaves no trace.
- A compaction may merge old epochs into the folder of a later one, and swap the whole folder for another: commits hold
  the gate open meanwhile. A key that a merged folder holds is done already, unless the epochs behind it show that
  another copy of the repository has written them.
- A folder with `_spark_metadata` is refused: Spark reads only the files that are listed there.
- Append only: other output modes would leave several versions of a row side by side.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import BadValue, NotSupported, SinkForeign, StagedGone, StreamChanged
from holdfast.formats.sealed_json import digest_of
from holdfast.repository.files import local_path, make_folder, sync_folder
from holdfast.sinks.base import (
    EpochKey,
    Link,
    Sink,
    SinkContext,
    SinkPosition,
    Staged,
    StreamIdentity,
    decided_elsewhere,
    failing,
    handle_digest,
    is_past,
    refuse_mode,
)
from holdfast.sinks.files.epoch_folders import (
    EPOCH_COLUMN,
    EPOCH_FOLDER,
    FORMATS,
    KEY_FILE,
    LAYOUTS,
    LEDGER,
    LEDGER_FILE,
    Format,
    KeyRecord,
    LastEpoch,
    Layout,
    folder_name,
    last_epoch_in,
    link_at,
    merged_over,
    place,
    places_in,
    shape_of,
)
from holdfast.sinks.files.gate import Gate
from holdfast.sinks.owners import claim, owner_of
from holdfast.sinks.places import FILES
from holdfast.sinks.rows import default_name
from holdfast.sinks.staged_files import proven, require_seen_by_all, stage
from holdfast.sinks.staging import SUFFIX, Staging, names_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPARK_METADATA = "_spark_metadata"
_FLAT_TYPES_ONLY = ("struct", "array", "map", "binary", "interval", "variant")


class FileSink(Sink):
    """Writes a stream into a folder of Parquet, JSON, CSV or ORC files, every epoch exactly once.

        hf.FileSink("out/orders", partition_by=["day"])

    `path` is a folder on a local disk, or on a file system that every machine mounts. Object stores are refused: they
    have no atomic rename. One stream owns the folder, from its first start on. Spark, DuckDB and pandas read it like
    any other folder of files; an epoch that is not decided yet waits beside it, in `<path>.staging`.

    - `format`: "parquet" (default), "json", "csv" or "orc".
    - `layout`: with "epochs" (default), each epoch is a subfolder `hf_epoch=t<timeline>-<epoch>/` that appears by one
      rename. A reader sees all of an epoch or nothing, and `hf_epoch` is a column. With "flat", the files are linked
      into the folder one by one: no extra column, but a reader may see part of the epoch that is being committed.
    - `partition_by`: columns that become subfolders, such as `day=2025-01-31/`.
    - `options`: options for Spark's writer, such as `{"compression": "zstd"}`.
    - `changelog`: files are only ever appended, so the output modes "update" and "complete" are refused unless
      `changelog=True` asks for every version of a row to be kept.
    - `name`: the sink's name in decisions, errors and checkpoints; by default made from the path.

    Format, layout and partitioning cannot change once the stream has run. `holdfast compact` merges the small files of
    old epochs. Not guaranteed: that a file system without atomic rename is detected if it looks like a local one.
    """

    one_action = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: Format = "parquet",
        layout: Layout = "epochs",
        partition_by: str | Sequence[str] = (),
        options: dict[str, str] | None = None,
        changelog: bool = False,
        name: str | None = None,
    ) -> None:
        self.path = local_path("sink path", _refuse_stores(path))
        super().__init__(name or default_name("files", self.path.name))
        if format not in FORMATS:
            raise BadValue(what="format", value=format, expected=f"one of {', '.join(FORMATS)}")
        if layout not in LAYOUTS:
            raise BadValue(what="layout", value=layout, expected=f"one of {', '.join(LAYOUTS)}")
        self.format = format
        self.layout = layout
        self.partition_by = [partition_by] if isinstance(partition_by, str) else list(partition_by)
        self.options = dict(options or {})
        self.changelog = changelog
        self.target = f"{FILES}{os.path.realpath(self.path)}"
        self._staging = Staging(self.path.with_name(self.path.name + SUFFIX))
        self._gate = Gate(self.path)
        self._held = LastEpoch(self.path)

    def __repr__(self) -> str:
        return f"FileSink({str(self.path)!r}, format={self.format!r}, layout={self.layout!r})"

    # --- before the first epoch ---

    def open(self, setting: SinkContext) -> None:
        """Check the columns and the place, make the folder, and write the owner into it if it has none."""
        super().open(setting)
        refuse_mode(self, setting.output_mode, self.changelog, "use a table: SqliteSink or PostgresSink")
        if self.path.exists() and not self.path.is_dir():
            raise BadValue(what="sink path", value=str(self.path), why="there is a file", do="choose a folder")
        self._refuse_sparks_folder()
        require_seen_by_all(self.name, setting)
        self._check_columns(setting)
        with self._failing("make its folder"):
            self._staging.make()
            make_folder(self.path)
            if self.path.stat().st_dev != self._staging.root.stat().st_dev:
                why = "it is on another file system than the folder above it, so nothing can be renamed into it"
                raise NotSupported(what=f"sink path {self.path}", why=why, do="choose a folder below it")
            if self.layout == "epochs":
                self._refuse_loose_files()
            self._claim(setting.owner)

    def _check_columns(self, setting: SinkContext) -> None:
        columns = {each.name.lower(): each.dataType.typeName() for each in setting.schema.fields}
        missing = [each for each in self.partition_by if each.lower() not in columns]
        if missing:
            raise BadValue(what="partition_by", value=missing, why=f"the stream has no such column: {sorted(columns)}")
        hidden = [each for each in self.partition_by if each.startswith(".")]
        if hidden:
            why = "readers pass over folders that begin with a dot"
            raise BadValue(what="partition_by", value=hidden, why=why, do="rename the column")
        if len(self.partition_by) >= len(columns):
            raise BadValue(what="partition_by", value=self.partition_by, why="no column would be left for the files")
        if self.layout == "epochs" and EPOCH_COLUMN in columns:
            why = f"the layout 'epochs' adds a column {EPOCH_COLUMN}"
            raise BadValue(what="column", value=EPOCH_COLUMN, why=why, do="rename it, or use layout='flat'")
        if self.format == "csv":
            nested = [name for name, kind in columns.items() if any(kind.startswith(t) for t in _FLAT_TYPES_ONLY)]
            if nested:
                raise BadValue(what="columns", value=nested, why="csv cannot hold them", do="use to_json(), or parquet")

    def _refuse_sparks_folder(self) -> None:
        """Refuse a folder that Spark's own file sink has written: readers would not see what is added to it."""
        if (self.path / SPARK_METADATA).exists():
            raise NotSupported(
                what=f"a FileSink in {self.path}",
                why=f"it holds {SPARK_METADATA}, the log of Spark's own sink, and Spark reads only files listed there",
                do="choose another folder; to have all rows in one place, copy the old ones into it with layout='flat'",
            )

    def _refuse_loose_files(self) -> None:
        """Refuse a folder in which files lie already: beside `hf_epoch=` folders, Spark could not read either."""
        for name in os.listdir(self.path):  # noqa: PTH208 - thousands of them
            if not EPOCH_FOLDER.fullmatch(name) and not name.startswith(("_", ".")):
                raise NotSupported(
                    what=f"the layout 'epochs' in {self.path}",
                    why=f"there is {name!r} already, and readers could not tell the two layouts apart",
                    do="choose an empty folder, or layout='flat'",
                )

    def _claim(self, owner: StreamIdentity) -> None:
        ledger = self.path / LEDGER
        make_folder(ledger)
        shape = shape_of(self.layout, self.format, self.partition_by)
        with self._passing():
            found = claim(ledger, owner, shape)
        if found.uid == owner.uid and found.shape != shape:
            raise StreamChanged(what=f"sink {self.name!r}", before=found.shape, now=shape)

    # --- an epoch ---

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Let Spark write into the attempt's folder."""
        with self._failing("prepare"):
            return stage(
                df,
                key,
                self._staging,
                self.setting,
                format=self.format,
                options=self.options,
                partition_by=self.partition_by,
            )

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Rename the attempt's folder into place, or link its files, as the layout says."""
        if handle["rows"]:
            with self._failing(f"commit epoch {key.epoch}"), self._passing():
                if self.layout == "epochs":
                    self._rename(key, handle)
                else:
                    self._link(key, handle)
        self._staging.sweep(key)

    def _rename(self, key: EpochKey, handle: dict[str, Any]) -> None:
        source, target = self._staging.folder(key), self.path / folder_name(*key.place)
        if not self._stands(target / KEY_FILE, key, handle):
            try:
                if key.before is not None:
                    self._is_past(target / KEY_FILE, key, handle)  # raises where another copy has written
                proven(self.name, self._staging, key, handle)
                self.setting.reach("committing")
                source.rename(target)
                self._held.renamed(key.timeline, Link(key.epoch, handle_digest(handle)))
            except (StagedGone, OSError) as error:
                # else another driver was faster with the same one, and it may be merged by now
                if not self._stands(target / KEY_FILE, key, handle) and not self._is_merged(
                    key, merged_over(self.path, *key.place)
                ):
                    if isinstance(error, OSError) and not source.exists():
                        raise StagedGone(sink=self.name, epoch=key.epoch) from error
                    raise
        sync_folder(self.path)  # found or made: whoever made it may have died before this
        sync_folder(self._staging.root)

    def _link(self, key: EpochKey, handle: dict[str, Any]) -> None:
        entry = self.path / LEDGER / f"{place(*key.place)}.key"
        source = self._staging.folder(key)
        if not self._is_linked(entry, key, handle):
            try:
                record = proven(self.name, self._staging, key, handle)
            except StagedGone:
                if self._is_linked(entry, key, handle):
                    return  # another driver was faster
                raise
            folders = {self.path}
            for number, name in enumerate(record.files):
                target = self.path / _flat_name(name, key)
                self._make_partition(target.parent, folders)
                if number == 1:
                    self.setting.reach("committing")
                try:
                    os.link(source / name, target)
                except FileExistsError:
                    pass  # linked by a driver that died, or that is as fast
                except FileNotFoundError:
                    if self._last(key.timeline) < key.epoch:
                        raise StagedGone(sink=self.name, epoch=key.epoch) from None
                    return  # others have gone on, and cleared it
            for folder in folders:
                sync_folder(folder)
            try:
                os.link(source / KEY_FILE, entry)
            except FileExistsError:
                self._stands(entry, key, handle)  # raises if it is not the same
        sync_folder(entry.parent)
        self._forget_older(key)

    def _is_linked(self, entry: Path, key: EpochKey, handle: dict[str, Any]) -> bool:
        return self._stands(entry, key, handle) or self._is_past(entry, key, handle)

    def _is_past(self, entry: Path, key: EpochKey, handle: dict[str, Any]) -> bool:
        """Whether the folder holds a later epoch; raise where another copy of the repository wrote what it holds."""
        if self.layout == "epochs":
            held = self._held.last(key.timeline)
        else:
            last = self._last(key.timeline)
            held = link_at(self.path / LEDGER / f"{place(key.timeline, last)}.key", last)
        if held.epoch == key.epoch:  # another driver has put it there just now
            return self._stands(entry, key, handle)
        return is_past(self, key, held, str(self.path))

    def _make_partition(self, folder: Path, made: set[Path]) -> None:
        if folder not in made:
            make_folder(folder)
            made.add(folder)

    def _forget_older(self, key: EpochKey) -> None:
        """Remove ledger entries before the last two: the highest one says it all."""
        for timeline, epoch in self._ledger():
            if (timeline, epoch) < (key.timeline, key.epoch - 1):
                (self.path / LEDGER / f"{place(timeline, epoch)}.key").unlink(missing_ok=True)

    def _is_merged(self, key: EpochKey, found: KeyRecord | None) -> bool:
        """Whether this is the record of a merged folder that holds the epoch; raise if another copy has written it.

        A merged folder does not tell by which handle an epoch was decided. But a compaction leaves the last two epochs
        as they are, so there are later ones, and `is_past` refuses those that do not follow from the key's decision.
        """
        if found is None or not found.holds(*key.place):
            return False
        if (found.uid, found.stream) != (key.owner.uid, key.owner.stream):
            return False
        held = self._held.last(key.timeline)
        return held.epoch == key.epoch or is_past(self, key, held, str(self.path))

    def _stands(self, path: Path, key: EpochKey, handle: dict[str, Any]) -> bool:
        """Whether the key file at `path` is the handle's. One of somebody else's is never taken for ours.

        A merged folder counts if it holds the epoch.
        """
        data = _bytes(path)
        if data is None and path.parent.name.startswith(EPOCH_COLUMN) and names_in(path.parent):
            data = _bytes(path)  # another driver may have put it there this moment
            if data is None:
                raise SinkForeign(sink=self.name, place=str(path.parent), owner="nobody that it names")
        if data is None:
            return False
        found = KeyRecord.unsealed(data, str(path))
        if digest_of(data) != handle["digest"]:
            if self._is_merged(key, found):
                return True
            if (found.uid, found.stream, found.timeline, found.epoch) == (key.owner.uid, key.owner.stream, *key.place):
                raise decided_elsewhere(self, key, str(self.path))
            owner = f"pipeline {found.pipeline!r} (uid {found.uid}), lease {found.lease}"
            raise SinkForeign(sink=self.name, place=str(path), owner=owner)
        return True

    def abort(self, key: EpochKey) -> None:
        """Remove the attempt's folder."""
        self._staging.clear(key)

    # --- what is there ---

    def inspect(self, owner: StreamIdentity, timeline: int) -> SinkPosition:
        """Look at the owner and at the last epoch in the folder or in its ledger."""
        with self._failing("be inspected"):
            found = owner_of(self.path / LEDGER)
            if found is None:
                return SinkPosition()
            if not found.is_of(owner):
                return SinkPosition(foreign=found.summary)
            return SinkPosition(self._last(timeline))

    def _last(self, timeline: int) -> int:
        if self.layout == "epochs":
            return last_epoch_in(self.path, timeline)
        return max((epoch for found, epoch in self._ledger() if found == timeline), default=0)

    def _ledger(self) -> list[tuple[int, int]]:
        return places_in(self.path / LEDGER, LEDGER_FILE)

    def _passing(self) -> contextlib.AbstractContextManager[None]:
        """Keep a compaction from swapping the folder. Between machines, where locks hold nobody, it needs the lease."""
        return contextlib.nullcontext() if self.setting.shared else self._gate.passing()

    def _failing(self, action: str) -> contextlib.AbstractContextManager[None]:
        return failing(self.name, action)


def _refuse_stores(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    if isinstance(path, str) and re.match(r"(s3[an]?|gs|abfss?|wasbs?|hdfs|oss|cosn?)://", path):
        raise NotSupported(
            what=f"a FileSink in a store ({path.split(':')[0]}:)",
            why="object stores have no atomic rename",
            do="use a folder on a local or mounted disk, a table (PostgresSink), or your own writer (ForeachSink)",
        )
    return path


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _flat_name(name: str, key: EpochKey) -> Path:
    """Return a file's name in the flat layout. A checksum file keeps the name that Hadoop looks for."""
    path = Path(name)
    if path.name.startswith("."):
        return path.with_name(f".{place(*key.place)}-{path.name[1:]}")
    return path.with_name(f"{place(*key.place)}-{path.name}")

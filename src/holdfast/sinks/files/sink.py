"""Files as a sink: Parquet, JSON, CSV or ORC, in a folder on a local disk or on one that every machine mounts.

Spark writes an attempt into a folder next to the target. There are two layouts, which differ in how it becomes visible:

- `epochs` (default): one rename to `hf_epoch=t<timeline>-<epoch>/`. A reader sees all of an epoch or nothing.
- `flat`: the files are linked into the folder and its partitions one by one, under names that begin with timeline and
  epoch. There is no extra column, but a reader may see part of the epoch that is being committed.

Rules:
- The folder has one owner, recorded in `_holdfast/owner.key`. Spark's readers skip names that begin with `_`. Readers
  that look for `*.json` or `*.parquet` skip `.key`.
- Each attempt has a `_holdfast.key` with its key, its row count and its files with their sizes. In the layout `epochs`
  it moves with the files: an existing target counts only if its key file is the one that the handle names. In the
  layout `flat` it is linked into `_holdfast/` last: that is the ledger.
- An epoch without rows leaves no trace.
- A compaction may merge old epochs into the folder of a later one, and swap the whole folder for another. Commits hold
  the gate open, so that no swap happens during a commit. An epoch in a merged folder is already committed, unless the
  epochs after it show that another copy of the repository wrote them.
- A rewind writes a stamp, `_holdfast/position.key`, and moves later epochs out: see `taking_back.py`. A commit of an
  older timeline than the stamp's is refused.
- A folder with `_spark_metadata` is refused: Spark reads only the files that are listed there.
- Append only: other output modes would store several versions of a row side by side.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import (
    BadValue,
    NotSupported,
    OutcomeUnknown,
    SinkFailed,
    SinkForeign,
    StagedGone,
    StorageFailed,
    StreamChanged,
)
from holdfast.formats.sealed_json import digest_of
from holdfast.repository.files import is_there, local_path, make_folder, sync_folder
from holdfast.sinks import base
from holdfast.sinks.base import CannotTakeBack, EpochKey, EpochPlace, Link, SinkContext, Staged, TakeBack, failing
from holdfast.sinks.files.checks import check_columns, refuse_object_store, refuse_other_files, refuse_spark_sink
from holdfast.sinks.files.epoch_folders import (
    EPOCH_COLUMN,
    FORMATS,
    KEY_FILE,
    LAYOUTS,
    LEDGER,
    Format,
    KeyRecord,
    Layout,
    folder_name,
    link_at,
    merged_over,
    shape_of,
)
from holdfast.sinks.files.gate import Gate
from holdfast.sinks.files.last_epoch import LastEpoch
from holdfast.sinks.files.position import PositionStamp
from holdfast.sinks.files.taking_back import FolderRewind
from holdfast.sinks.held_epochs import decided_elsewhere, is_past
from holdfast.sinks.key_files import KeyFiles, place
from holdfast.sinks.owners import claim, position_in
from holdfast.sinks.places import FILES
from holdfast.sinks.staged_files import proven, refuse_file, require_seen_by_all, stage
from holdfast.sinks.staging import SUFFIX, Staging, names_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FLAT = CannotTakeBack(
    why="with layout='flat', its ledger does not record which files belong to which epoch",
    do="write a new folder with layout='epochs'",
)


class FileSink(base.Sink):
    """Writes a stream into a folder of Parquet, JSON, CSV or ORC files, every epoch exactly once.

        hf.FileSink("out/orders", partition_by=["day"])

    `path` is a folder on a local disk, or on a file system that every machine mounts. Object stores are refused: they
    have no atomic rename. One stream owns the folder, from its first start on. Spark, DuckDB and pandas read it like
    any other folder of files. Rows of an epoch that is not yet decided are kept next to it, in `<path>.staging`.

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
    old epochs. A rewind moves the folders of later epochs to `.<name>.aside/` next to the folder, and an undo moves
    them back; with the layout "flat" this is not possible. Not guaranteed: that a file system without atomic rename is
    detected if it looks like a local one.
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
        self.path = local_path("sink path", refuse_object_store(path))
        super().__init__(name or base.default_name("files", self.path.name))
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
        self._stamp = PositionStamp(self.path / LEDGER)
        self._held = LastEpoch(self.path)
        self._ledger = KeyFiles(self.path / LEDGER)  # of the layout `flat`

    def __repr__(self) -> str:
        return f"FileSink({str(self.path)!r}, format={self.format!r}, layout={self.layout!r})"

    def describe(self) -> dict[str, Any]:
        """Return the format, the layout and the partitioning."""
        return {"format": self.format, "layout": self.layout, "partition_by": self.partition_by}

    # --- before the first epoch ---

    def open(self, context: SinkContext) -> None:
        """Check the columns and the path, create the folder, and record its owner if it has none."""
        super().open(context)
        base.refuse_mode(self, context.output_mode, self.changelog, "use a table: SqliteSink or PostgresSink")
        with failing(self.name, "be opened"):
            refuse_file("sink path", self.path)
            refuse_spark_sink(self.path)
        require_seen_by_all(self.name, context)
        check_columns(context.schema, format=self.format, layout=self.layout, partition_by=self.partition_by)
        with failing(self.name, "create its folder"):
            self._staging.make()
            make_folder(self.path)
            if self.path.stat().st_dev != self._staging.root.stat().st_dev:
                why = "it is the mount point of a file system, so folders next to it cannot be renamed into it"
                raise NotSupported(what=f"writing to {self.path}", why=why, do="choose a subfolder of it")
            if self.layout == "epochs" and not self._held.unchanged():
                refuse_other_files(self.path)
            self._claim(context.owner)

    def _claim(self, owner: base.StreamIdentity) -> None:
        make_folder(self._ledger.folder)
        shape = shape_of(self.layout, self.format, self.partition_by)
        with self._passing():
            found = claim(self._ledger.folder, owner, shape)
        if found.uid == owner.uid and found.shape != shape:
            raise StreamChanged(what=f"sink {self.name!r}", before=found.shape, now=shape)

    # --- an epoch ---

    def prepare(self, df: DataFrame, key: EpochKey) -> Staged:
        """Write the rows into the attempt's folder with Spark."""
        with failing(self.name, "prepare"):
            return stage(
                df,
                key,
                self._staging,
                self.context,
                format=self.format,
                options=self.options,
                partition_by=self.partition_by,
            )

    def commit(self, key: EpochKey, handle: dict[str, Any]) -> None:
        """Rename the attempt's folder into place, or link its files, depending on the layout."""
        if handle["rows"]:
            with failing(self.name, f"commit epoch {key.epoch}"), self._passing():
                if not self._stamp.covers(key):
                    self._make_visible(key, handle)
        self._staging.sweep(key)

    def _make_visible(self, key: EpochKey, handle: dict[str, Any]) -> None:
        try:
            if self.layout == "epochs":
                self._rename(key, handle)
            else:
                self._link(key, handle)
        except (StagedGone, OSError):
            self._stamp.covers(key)  # raises if a rewind has ended the timeline and removed the staged files
            raise

    def _rename(self, key: EpochKey, handle: dict[str, Any]) -> None:
        source, target = self._staging.folder(key), self.path / folder_name(*key.place)
        if not self._is_there(target / KEY_FILE, key, handle):
            try:
                self._is_past(target / KEY_FILE, key, handle)  # raises if another copy has written to the folder
                proven(self.name, self._staging, key, handle)
                self._reach("committing")
                self._held.add(key, source)
            except (StagedGone, OSError) as error:
                # Another driver may have committed the same attempt first, and a compaction may have merged it.
                if not self._is_there(target / KEY_FILE, key, handle) and not self._is_merged(
                    key, merged_over(self.path, *key.place)
                ):
                    if isinstance(error, OSError) and not source.exists():
                        raise StagedGone(sink=self.name, epoch=key.epoch) from error
                    raise
        sync_folder(self.path)  # also if it was found: the driver that renamed it may have died before it synced
        sync_folder(self._staging.root)

    def _link(self, key: EpochKey, handle: dict[str, Any]) -> None:
        entry = self._ledger.path(*key.place)
        source = self._staging.folder(key)
        if not self._is_linked(entry, key, handle):
            try:
                record = proven(self.name, self._staging, key, handle)
            except StagedGone:
                if self._is_linked(entry, key, handle):
                    return  # another driver has committed it first
                raise
            folders = {self.path}
            for number, name in enumerate(record.files):
                target = self.path / _flat_name(name, key)
                self._make_partition(target.parent, folders)
                if number == 1:
                    self._reach("committing")
                try:
                    os.link(source / name, target)
                except FileExistsError:
                    pass  # linked by a driver that died, or by a concurrent one
                except FileNotFoundError:
                    if self._last(key.timeline) < key.epoch:
                        raise StagedGone(sink=self.name, epoch=key.epoch) from None
                    return  # another driver has committed it and removed the staged files
            for folder in folders:
                sync_folder(folder)
            try:
                os.link(source / KEY_FILE, entry)
            except FileExistsError:
                self._is_there(entry, key, handle)  # raises if it is not the same
        sync_folder(entry.parent)
        self._ledger.remove_older(key)

    def _is_linked(self, entry: Path, key: EpochKey, handle: dict[str, Any]) -> bool:
        return self._is_there(entry, key, handle) or self._is_past(entry, key, handle)

    def _is_past(self, entry: Path, key: EpochKey, handle: dict[str, Any]) -> bool:
        """Whether the folder holds a later epoch; raise if another copy of the repository has written to it."""
        held = self._last_link(key.timeline)
        if held.epoch == key.epoch:  # another driver has just committed it
            return self._is_there(entry, key, handle)
        return is_past(self, key, held, str(self.path))

    def _make_partition(self, folder: Path, made: set[Path]) -> None:
        if folder not in made:
            make_folder(folder)
            made.add(folder)

    def _is_merged(self, key: EpochKey, found: KeyRecord | None) -> bool:
        """Whether this is the record of a merged folder that holds the epoch; raise if another copy has written it.

        A merged folder does not contain the handles of its epochs. But a compaction leaves the last two epochs as they
        are, so there are later ones, and `is_past` refuses those that do not follow from the key's decision.
        """
        if found is None or not found.holds(*key.place):
            return False
        if (found.uid, found.stream) != (key.owner.uid, key.owner.stream):
            return False
        held = self._last_link(key.timeline)
        return held.epoch == key.epoch or is_past(self, key, held, str(self.path))

    def _is_there(self, path: Path, key: EpochKey, handle: dict[str, Any]) -> bool:
        """Whether the key file at `path` is the one that the handle names; raise if it belongs to another writer.

        A merged folder counts if it holds the epoch.
        """
        data = _bytes(path)
        if data is None and path.parent.name.startswith(EPOCH_COLUMN) and names_in(path.parent):
            data = _bytes(path)  # another driver may have renamed the folder into place between the two reads
            if data is None:
                owner = f"an unknown writer: it has no {KEY_FILE}"
                raise SinkForeign(sink=self.name, place=str(path.parent), owner=owner)
        if data is None:
            return False
        found = KeyRecord.unsealed(data, str(path))
        if digest_of(data) != handle["digest"]:
            if self._is_merged(key, found):
                return True
            if (found.uid, found.stream, found.timeline, found.epoch) == (key.owner.uid, key.owner.stream, *key.place):
                raise decided_elsewhere(self, key, str(self.path))
            owner = f"{found.owner.summary}, under lease {found.lease}"
            raise SinkForeign(sink=self.name, place=str(path), owner=owner)
        return True

    def abort(self, key: EpochKey) -> None:
        """Remove the attempt's folder."""
        self._staging.clear(key)

    def is_missing(self) -> bool:
        """Whether the folder does not exist."""
        with failing(self.name, "be inspected"):
            return not is_there(self.path)

    def inspect(self, owner: base.StreamIdentity, timeline: int) -> base.SinkPosition:
        """Return the last epoch in the folder, or in its ledger, and a foreign owner if there is one."""
        with failing(self.name, "be inspected"):
            return position_in(self._ledger.folder, owner, lambda: self._last(timeline))

    def _last(self, timeline: int) -> int:
        found = self._held.number(timeline) if self.layout == "epochs" else self._ledger.last(timeline)
        return max(found, self._stamped(timeline))

    def _last_link(self, timeline: int) -> Link:
        """Return the last epoch of a timeline: one in the folder, or the stamp with which a rewind began it."""
        if self.layout == "epochs":
            found = self._held.last(timeline)
        else:
            last = self._ledger.last(timeline)
            found = link_at(self._ledger.path(timeline, last), last)
        return max(found, Link(self._stamped(timeline), None), key=lambda link: link.epoch)

    def _stamped(self, timeline: int) -> int:
        stamp = self._stamp.read()
        return stamp[1] if stamp[0] == timeline else 0

    def _reach(self, point: str) -> None:
        if self._context is not None:
            self._context.reach(point)

    def _passing(self) -> contextlib.AbstractContextManager[None]:
        """Keep a compaction from swapping the folder. Locks do not work between machines: there it takes the lease."""
        shared = self._context is not None and self._context.shared
        return contextlib.nullcontext() if shared else self._gate.passing()

    # --- going back ---

    def can_take_back(self, owner: base.StreamIdentity, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Return what would be moved aside. With the layout `flat`, nothing can be."""
        with self._going_back("be inspected"):
            if self.layout == "epochs":
                return self._rewind(owner).found(base)
            return TakeBack(0, 0, "") if max(self._ledger.places(), default=(0, 0)) <= base else _FLAT

    def cannot_be_taken_back(self) -> CannotTakeBack | None:
        """With the layout `flat`, no epoch can be."""
        return _FLAT if self.layout == "flat" else None

    def take_back(self, owner: base.StreamIdentity, base: EpochPlace, into: int) -> None:
        """Move the folders of later epochs to `.<name>.aside/t<into>/`, next to the sink's folder."""
        if self.layout == "flat" and isinstance(self.can_take_back(owner, base), CannotTakeBack):
            super().take_back(owner, base, into)
        with self._going_back("be taken back"):
            self._rewind(owner).take_back(base, into)

    def put_back(self, owner: base.StreamIdentity, base: EpochPlace, into: int, taken: int) -> None:
        """Move the folders back from `.<name>.aside/t<taken>/`."""
        with self._going_back("be put back"):
            self._rewind(owner).put_back(base, into, taken)

    def set_aside(self, owner: base.StreamIdentity) -> list[base.RowsAside]:
        """Return the epochs in `.<name>.aside/`."""
        with self._going_back("be inspected"):
            return self._rewind(owner).set_aside()

    def discard_aside(self, owner: base.StreamIdentity, timeline: int) -> None:
        """Delete `.<name>.aside/t<timeline>/`."""
        with self._going_back("discard rows"):
            self._rewind(owner).discard(timeline)

    def stamp(self, owner: base.StreamIdentity, base: EpochPlace, into: int) -> None:
        """Write the stamp, and remove what earlier timelines staged. This works in both layouts."""
        with self._going_back("be stamped"):
            self._rewind(owner).stamp(base, into)

    @contextlib.contextmanager
    def _going_back(self, action: str) -> Iterator[None]:
        try:
            with failing(self.name, action):
                yield
        except (StorageFailed, OutcomeUnknown) as error:
            raise SinkFailed(sink=self.name, action=action, why=error.summary) from error

    def _rewind(self, owner: base.StreamIdentity) -> FolderRewind:
        shape = shape_of(self.layout, self.format, self.partition_by)
        return FolderRewind(self.name, self.path, self._staging, owner, shape, self._reach)


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _flat_name(name: str, key: EpochKey) -> Path:
    """Return a file's name in the layout `flat`. A checksum file keeps the form of name that Hadoop looks for."""
    path = Path(name)
    if path.name.startswith("."):
        return path.with_name(f".{place(*key.place)}-{path.name[1:]}")
    return path.with_name(f"{place(*key.place)}-{path.name}")

"""The plan of a compaction: which epochs of a FileSink's folder would be merged. It needs neither Spark nor a lease.

`runs.py` states which epochs may be merged. This module reads the folder and the repository, and refuses folders that
cannot be compacted.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from holdfast import _figures as figures
from holdfast._html import preformatted
from holdfast._validation import checked_positive
from holdfast.errors import BadValue, NotSupported, SinkFailed, SinkForeign, SinkMissing
from holdfast.formats.sealed_json import plain
from holdfast.repository import Checkpoints, Identity, Repository
from holdfast.repository.files import local_path
from holdfast.sinks.compaction._errors import failed, os_errors
from holdfast.sinks.compaction.runs import KEEP_LAST, MergeRun, closed_runs, cuts_of, run_of
from holdfast.sinks.files.epoch_folders import (
    LEDGER,
    EpochFolder,
    KeyRecord,
    compression_of,
    epochs_in,
    folder_of,
    is_data,
    layout_and_format,
)
from holdfast.sinks.files.gate import LOCK, beside
from holdfast.sinks.owners import OwnerRecord, owner_of
from holdfast.sinks.staging import names_in

TARGET_BYTES = 128 << 20
_ENTRY = re.compile(r"\d+(\.compact)?")
_BY_SPARK = ("parquet", "orc")
_TEXT_COMPRESSIONS = ("", "gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactPlan:
    """The plan of a compaction: a value to review before it is applied."""

    path: str
    stream: str
    format: str
    target_bytes: int
    runs: tuple[MergeRun, ...]
    folders: int  # all folders of epochs
    files: int  # with rows, in all of these folders
    leftovers: tuple[str, ...] = ()  # next to the folder: from a compaction that died, or that is running
    notes: tuple[str, ...] = ()  # which epochs are left out, and why
    blocked: str | None = None  # why nothing is merged

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.runs or self.leftovers)

    @property
    def by_spark(self) -> bool:
        """Whether applying the plan needs Spark."""
        return self.format in _BY_SPARK and bool(self.runs)

    @property
    def files_after(self) -> int:
        """The approximate number of files afterwards."""
        return self.files - sum(run.files - run.into for run in self.runs)

    def summary(self) -> str:
        """Return a summary of several lines."""
        files, folders = figures.number(self.files), figures.number(self.folders)
        lines = [f"{self.path}: {files} files of stream {self.stream!r} in {folders} epoch folders"]
        lines += [f"  {run.summary()}" for run in self.runs]
        lines += [f"  {note}" for note in self.notes]
        if self.leftovers:
            lines.append(f"  left by a compaction that died or is still running: {', '.join(self.leftovers)}")
        if self.blocked:
            lines.append(f"nothing is merged: {self.blocked}")
        elif not self.runs:
            lines.append("nothing to merge")
        else:
            lines.append(f"files afterwards: about {figures.number(self.files_after)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the plan as text, for notebooks."""
        return preformatted(self.summary())

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {**plain(self), "files_after": self.files_after}


def plan_compact(
    repository: Repository,
    path: str | os.PathLike[str],
    *,
    target_bytes: int = TARGET_BYTES,
    keep_last: int = KEEP_LAST,
) -> CompactPlan:
    """Plan a compaction. This changes nothing, and needs no lease, Spark or Java.

    `keep_last` is how many epochs of each timeline stay as they are: two or more.

    1. Check the owner of the folder.  2. List its epochs.  3. Read the cuts, after step 2: see the rules in `runs.py`.
    4. Form the runs.  5. Check that all files of the runs are complete.
    """
    checked_positive("target_bytes", target_bytes)
    if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < KEEP_LAST:
        raise BadValue(what="keep_last", value=keep_last, expected=f"{KEEP_LAST} or more")
    folder = local_path("sink path", path)
    while True:
        before = _inode(folder)
        try:
            return _planned(repository, folder, target_bytes, keep_last)
        except (SinkFailed, OSError):
            if _inode(folder) == before:
                raise  # otherwise another compaction has swapped the folder in the meantime: read it again


def _planned(repository: Repository, folder: Path, target_bytes: int, keep_last: int) -> CompactPlan:
    identity = Identity.load(repository)
    owner = _owner(folder, identity)  # 1
    layout, form = layout_and_format(owner.shape) or ("", "")
    _refuse_layout(folder, layout, form)
    _refuse_streamed(repository, folder)
    found = folders_in(folder, owner)  # 2
    cuts, ceilings, blocked = cuts_of(Checkpoints(repository).all(), owner.stream)  # 3
    notes: list[str] = []
    runs: tuple[MergeRun, ...] = ()
    if not blocked:
        apart = {each.name for each in found if not _is_fit(each, form, notes)}
        groups = closed_runs(found, cuts, ceilings, form=form, apart=apart, keep_last=keep_last)  # 4
        runs = tuple(run for group in groups if (run := run_of(group, target_bytes)) is not None)
        _require_whole(folder, {each.name: each.record for each in found}, runs)  # 5
    return CompactPlan(
        path=str(folder),
        stream=owner.stream,
        format=form,
        target_bytes=target_bytes,
        runs=runs,
        folders=len(found),
        files=sum(len([name for name in each.record.files if is_data(name)]) for each in found),
        leftovers=tuple(name for name in names_in(beside(folder)) if name != LOCK),
        notes=tuple(dict.fromkeys(notes)),
        blocked=blocked,
    )


def _inode(folder: Path) -> int | None:
    try:
        return folder.stat().st_ino
    except OSError:
        return None


def _owner(folder: Path, identity: Identity) -> OwnerRecord:
    if not folder.is_dir():
        raise SinkMissing(path=str(folder), why="it is a file" if folder.exists() else "there is no such folder")
    with os_errors(folder):
        found = owner_of(folder / LEDGER)
    if found is None:
        raise SinkMissing(path=str(folder), why=f"no owner is recorded in {LEDGER}/")
    if (found.pipeline, found.uid) != (identity.pipeline, identity.uid):
        raise SinkForeign(sink=folder.name, place=str(folder), owner=found.owner.summary)
    return found


def _refuse_layout(folder: Path, layout: str, form: str) -> None:
    if layout == "flat":
        raise NotSupported(
            what=f"compacting {folder} with the layout 'flat'",
            why="its ledger keeps only the last two epochs, so the row counts of older epochs are not known",
            do="use the layout 'epochs', or rewrite the folder with a batch job while the pipeline is stopped",
        )
    if layout != "epochs" or not form:
        raise NotSupported(what=f"compacting {folder}", why=f"its layout {layout!r} is unknown to this version")


def _refuse_streamed(repository: Repository, folder: Path) -> None:
    """Refuse a folder that a stream of this pipeline reads as a file source: merged files would look new to it."""
    address = f"file://{quote(os.path.realpath(folder))}/"
    for timeline in repository.list("timelines"):
        for stream in repository.list(f"timelines/{timeline}streams"):
            sources = f"timelines/{timeline}streams/{stream}spark/sources"
            for source in repository.list(sources):
                entries = [name for name in repository.list(f"{sources}/{source}") if _ENTRY.fullmatch(name)]
                if not entries:
                    continue
                newest = max(entries, key=lambda name: int(name.partition(".")[0]))
                if address.encode() in repository.read(f"{sources}/{source}{newest}"):
                    raise NotSupported(
                        what=f"compacting {folder}",
                        why=f"stream {stream[:-1]!r} reads it as a file source, and would read rows again",
                        do="connect the two streams with pipeline.read(), or do not compact the folder",
                    )


def folders_in(folder: Path, owner: OwnerRecord) -> list[EpochFolder]:
    """Return the folders of all epochs with their records, after checking that each belongs to the owner."""
    with os_errors(folder):
        found = [folder_of(folder, timeline, epoch) for timeline, epoch in epochs_in(folder)]
    for each in found:
        if (each.record.uid, each.record.stream) != (owner.uid, owner.stream):
            raise SinkForeign(sink=folder.name, place=str(folder / each.name), owner=each.record.owner.summary)
    return found


def _is_fit(folder: EpochFolder, form: str, notes: list[str]) -> bool:
    """Whether a folder's files can be merged; raise if no folder of this sink can be."""
    record, options = folder.record, folder.record.options
    if form in _BY_SPARK:
        hidden = sorted(name for name in options or {} if "encrypt" in name)
        if hidden:
            raise NotSupported(
                what="compacting encrypted files",
                why=f"the values of the options {hidden} are not recorded, so the merged files would not be encrypted",
            )
        return True
    if options is None and form == "csv":
        notes.append("epochs whose records do not state whether their csv has a header stay as they are")
        return False
    recorded = options or {}
    if form == "csv" and recorded.get("header", "false").lower() == "true":
        raise NotSupported(
            what="compacting csv with a header",
            why="files are concatenated, and every header but the first would become a row",
            do="write without a header, or parquet",
        )
    encoding = recorded.get("encoding") or recorded.get("charset") or "UTF-8"
    if encoding.upper().replace("-", "") != "UTF8" or "linesep" in recorded:
        raise NotSupported(
            what=f"compacting {form} with another encoding or line separator than the default",
            why="files are concatenated at the ends of lines",
            do="write UTF-8 with the default line separator, or parquet",
        )
    pressed = {compression_of(name, form) for name in record.files if is_data(name)}
    if not pressed <= set(_TEXT_COMPRESSIONS):
        raise NotSupported(
            what=f"compacting {form} compressed as {', '.join(sorted(pressed))}",
            why="files are concatenated, and readers of this compression may stop after the first part",
            do="write it with gzip or without compression, or parquet",
        )
    return True


def _require_whole(folder: Path, records: Mapping[str, KeyRecord], runs: Iterable[MergeRun]) -> None:
    for name in itertools.chain.from_iterable(run.folders for run in runs):
        require_whole(folder, name, records[name])


def require_whole(folder: Path, name: str, record: KeyRecord) -> None:
    """Refuse an epoch if one of its files with rows is missing or has another size than recorded."""
    for file, size in record.files.items():
        if not is_data(file):
            continue
        path = folder / name / file
        try:
            found = path.stat().st_size
        except OSError as error:
            why = f"{path}: {error.strerror}"
            raise failed(folder, why) from error
        if found != size:
            raise failed(folder, f"{path} has {figures.number(found)} bytes, but {figures.number(size)} were written")

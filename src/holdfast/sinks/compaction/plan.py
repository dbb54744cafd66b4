"""What a compaction of a FileSink's folder would merge: decided from names and records alone, without Spark.

Rules:
- A run is of consecutive epochs of one timeline, written alike. It becomes one folder with the name of the last one.
- The last two epochs of each timeline stay as they are: recovery, replay and late commits look at them.
- No run crosses the cut of a checkpoint or a savepoint that is kept, of whatever timeline: whoever goes back to it
  moves what is behind it aside, folder by folder. Where one is damaged, nobody knows its cut, and nothing is merged.
- A checkpoint that is begun after the folder was listed cuts at the last epoch but one, or later: so it needs no rule.
  One that is open already may have its cut anywhere behind the newest one that is kept: nothing there is merged.
- Files of half the target or more stay as they are and get a new name; a run that would not make fewer files is none.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from holdfast import _figures as figures
from holdfast._validation import checked_positive
from holdfast.errors import BadValue, NotSupported, SinkFailed, SinkForeign, SinkMissing
from holdfast.formats.sealed_json import plain
from holdfast.repository import Checkpoints, Identity, Repository, Status, Summary
from holdfast.repository.files import local_path
from holdfast.sinks.compaction._errors import failed, of_system
from holdfast.sinks.files.epoch_folders import (
    LEDGER,
    EpochFolder,
    KeyRecord,
    compression_of,
    epochs_in,
    folder_of,
    is_data,
    layout_and_format,
    leaves,
)
from holdfast.sinks.files.gate import LOCK, beside
from holdfast.sinks.owners import OwnerRecord, owner_of
from holdfast.sinks.staging import names_in

TARGET_BYTES = 128 << 20
KEEP_LAST = 2
_ENTRY = re.compile(r"\d+(\.compact)?")
_BY_SPARK = ("parquet", "orc")
_TEXT_COMPRESSIONS = ("", "gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRun:
    """Epochs that become one folder."""

    timeline: int
    first: int
    last: int
    folders: tuple[str, ...]
    digests: tuple[str, ...]  # of their records: what was planned for is what is there
    epochs: int
    rows: int
    files: int  # with rows
    into: int
    bytes: int

    def summary(self) -> str:
        """Say it."""
        what = f"epochs {self.first} to {self.last}" if self.first < self.last else f"epoch {self.last}"
        files = f"{figures.number(self.files)} files, {figures.size(self.bytes)}, into {figures.number(self.into)}"
        return f"{what} of timeline {self.timeline}: {files}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactPlan:
    """What a compaction would do: a value, to be looked at before it is applied."""

    path: str
    stream: str
    format: str
    target_bytes: int
    runs: tuple[MergeRun, ...]
    folders: int  # of epochs, all that there are
    files: int  # with rows, in all of them
    leftovers: tuple[str, ...] = ()  # beside the folder: of a compaction that died, or that is at work
    notes: tuple[str, ...] = ()  # what stays as it is, and why
    blocked: str | None = None  # why nothing is merged

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.runs or self.leftovers)

    @property
    def by_spark(self) -> bool:
        """Whether Spark is needed to apply it."""
        return self.format in _BY_SPARK and bool(self.runs)

    @property
    def files_after(self) -> int:
        """How many files there will be, about."""
        return self.files - sum(run.files - run.into for run in self.runs)

    def summary(self) -> str:
        """Say it."""
        files, folders = figures.number(self.files), figures.number(self.folders)
        lines = [f"{self.path}: {files} files of stream {self.stream!r} in {folders} folders of epochs"]
        lines += [f"  {run.summary()}" for run in self.runs]
        lines += [f"  {note}" for note in self.notes]
        if self.leftovers:
            lines.append(f"  left by a compaction that died, or of one at work: {', '.join(self.leftovers)}")
        if self.blocked:
            lines.append(f"nothing is merged: {self.blocked}")
        elif not self.runs:
            lines.append("nothing to merge")
        else:
            lines.append(f"files afterwards: about {figures.number(self.files_after)}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**plain(self), "files_after": self.files_after}


def plan_compact(
    repository: Repository,
    path: str | os.PathLike[str],
    *,
    target_bytes: int = TARGET_BYTES,
    keep_last: int = KEEP_LAST,
) -> CompactPlan:
    """Say what a compaction would do; changes nothing, needs no lease, no Spark and no Java.

    `keep_last` leaves more than the last two epochs of each timeline as they are.

    1. Whose is the folder?  2. Which epochs are there?  3. Where are cuts? After 2: see the rules above.
    4. Which runs?  5. Is every file of theirs there in full?
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
                raise  # else another compaction has swapped the folder while we looked: look again


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
        made = (run for group in groups if (run := run_of(group, target_bytes)) is not None)
        runs = tuple(made)
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


# --- pure ------------------------------------------------------------------------------------------------------------


def closed_runs(
    folders: Iterable[EpochFolder],
    cuts: Mapping[int, Sequence[int]],
    ceilings: Mapping[int, int],
    *,
    form: str = "parquet",
    apart: Collection[str] = (),
    keep_last: int = KEEP_LAST,
) -> list[list[EpochFolder]]:
    """Return the epochs that may be merged, as runs, in order. Cuts and ceilings are by timeline.

    `apart` names folders that stay as they are: they end a run.
    """
    runs: list[list[EpochFolder]] = []
    ordered = sorted(folders, key=lambda each: (each.timeline, each.epoch))
    for timeline, group in itertools.groupby(ordered, key=lambda each: each.timeline):
        closed = list(group)[:-keep_last]
        ceiling = ceilings.get(timeline)
        before: EpochFolder | None = None
        for each in closed:
            if ceiling is not None and each.epoch > ceiling:
                break
            if each.name in apart:
                before = None
                continue
            cut = before is not None and any(before.epoch <= cut < each.epoch for cut in cuts.get(timeline, ()))
            if before is None or cut or _form(before, form) != _form(each, form):
                runs.append([])
            runs[-1].append(each)
            before = each
    return runs


def run_of(folders: Sequence[EpochFolder], target_bytes: int) -> MergeRun | None:
    """Return what merging these makes, or `None` where that is no fewer files."""
    sizes = sizes_by_leaf([each.record for each in folders])
    files = sum(map(len, sizes.values()))
    into = sum(_files_after(leaf, target_bytes) for leaf in sizes.values())
    if into >= files:
        return None
    return MergeRun(
        timeline=folders[0].timeline,
        first=folders[0].first,
        last=folders[-1].epoch,
        folders=tuple(each.name for each in folders),
        digests=tuple(each.digest for each in folders),
        epochs=sum(each.record.epochs for each in folders),
        rows=sum(each.record.rows for each in folders),
        files=files,
        into=into,
        bytes=sum(map(sum, sizes.values())),
    )


def sizes_by_leaf(records: Iterable[KeyRecord]) -> dict[str, list[int]]:
    """Return the sizes of all files with rows, by the partition's folder that they are in."""
    found: dict[str, list[int]] = {}
    for record in records:
        for leaf, names in leaves(record.files).items():
            found.setdefault(leaf, []).extend(record.files[name] for name in names)
    return found


def is_small(size: int, target_bytes: int) -> bool:
    """Whether a file is worth rewriting."""
    return 2 * size < target_bytes


def _files_after(sizes: Sequence[int], target_bytes: int) -> int:
    small = [size for size in sizes if is_small(size, target_bytes)]
    return len(sizes) - len(small) + min(len(small), math.ceil(max(sum(small), 1) / target_bytes))


def _form(folder: EpochFolder, form: str) -> tuple[object, ...]:
    record = folder.record
    pressed = {compression_of(name, form) for name in record.files if is_data(name)}
    return record.shape, sorted((record.options or {}).items()), record.options is None, pressed


def cuts_of(found: Iterable[Summary], stream: str) -> tuple[dict[int, list[int]], dict[int, int], str | None]:
    """Return where a stream is cut, by timeline; up to where merging is safe; and why nothing can be merged."""
    cuts: dict[int, list[int]] = {}
    opened: set[int] = set()
    blocked = None
    for each in found:
        if each.status is Status.DAMAGED:
            blocked = f"{_named(each)} is damaged, {each.why}, and nobody knows where it cuts; mend it, or delete it"
        elif each.status is Status.OPEN:
            opened.add(each.timeline)
        elif each.status is Status.RESTORABLE and stream in (each.epochs or {}):
            cuts.setdefault(each.timeline, []).append((each.epochs or {})[stream])
    ceilings = {timeline: max(cuts.get(timeline, ()), default=0) for timeline in opened}
    return cuts, ceilings, blocked


def _named(each: Summary) -> str:
    return f"savepoint {each.savepoint!r}" if each.savepoint else f"checkpoint {each.checkpoint}"


# --- the folder ------------------------------------------------------------------------------------------------------


def _owner(folder: Path, identity: Identity) -> OwnerRecord:
    if not folder.is_dir():
        raise SinkMissing(path=str(folder), why="there is a file" if folder.exists() else "there is no such folder")
    with of_system(folder):
        found = owner_of(folder / LEDGER)
    if found is None:
        raise SinkMissing(path=str(folder), why=f"no owner is written in {LEDGER}/")
    if (found.pipeline, found.uid) != (identity.pipeline, identity.uid):
        raise SinkForeign(sink=folder.name, place=str(folder), owner=found.summary)
    return found


def _refuse_layout(folder: Path, layout: str, form: str) -> None:
    if layout == "flat":
        raise NotSupported(
            what=f"compacting {folder}, of the layout 'flat'",
            why="its ledger forgets all but the last two epochs, so nothing tells how many rows the older ones had",
            do="use the layout 'epochs', or rewrite the folder by a batch job while the pipeline is stopped",
        )
    if layout != "epochs" or not form:
        raise NotSupported(what=f"compacting {folder}", why=f"its layout {layout!r} is not known here")


def _refuse_streamed(repository: Repository, folder: Path) -> None:
    """Refuse a folder that a stream of this pipeline reads file by file: it would take merged files for new ones."""
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
                        why=f"stream {stream[:-1]!r} reads it as a source of files, and would read rows again",
                        do="join the two streams with pipeline.read(), or leave the folder as it is",
                    )


def folders_in(folder: Path, owner: OwnerRecord) -> list[EpochFolder]:
    """Return all epochs' folders with their records, each proven to be the owner's."""
    with of_system(folder):
        found = [folder_of(folder, timeline, epoch) for timeline, epoch in epochs_in(folder)]
    for each in found:
        if (each.record.uid, each.record.stream) != (owner.uid, owner.stream):
            whose = f"pipeline {each.record.pipeline!r} (uid {each.record.uid}), stream {each.record.stream!r}"
            raise SinkForeign(sink=folder.name, place=str(folder / each.name), owner=whose)
    return found


def _is_fit(folder: EpochFolder, form: str, notes: list[str]) -> bool:
    """Whether a folder's files can be merged; refuse what this sink can never have merged."""
    record, options = folder.record, folder.record.options
    if form in _BY_SPARK:
        hidden = sorted(name for name in options or {} if "encrypt" in name)
        if hidden:
            raise NotSupported(
                what="compacting encrypted files",
                why=f"the options {hidden} are not kept, and the merged ones would be in clear",
            )
        return True
    if options is None and form == "csv":
        notes.append("epochs whose record does not tell whether their csv has a header stay as they are")
        return False
    told = options or {}
    if form == "csv" and told.get("header", "false").lower() == "true":
        raise NotSupported(
            what="compacting csv with a header",
            why="files are joined byte by byte, and each header but the first would become a row",
            do="write without a header, or parquet",
        )
    encoding = told.get("encoding") or told.get("charset") or "UTF-8"
    if encoding.upper().replace("-", "") != "UTF8" or "linesep" in told:
        raise NotSupported(
            what=f"compacting {form} with an encoding or a line separator of its own",
            why="files are joined byte by byte, at the ends of lines",
            do="write UTF-8 with the usual ends of lines, or parquet",
        )
    pressed = {compression_of(name, form) for name in record.files if is_data(name)}
    if not pressed <= set(_TEXT_COMPRESSIONS):
        raise NotSupported(
            what=f"compacting {form} compressed as {', '.join(sorted(pressed))}",
            why="files are joined byte by byte, and readers of this compression may stop after the first part",
            do="write it with gzip or without compression, or parquet",
        )
    return True


def _require_whole(folder: Path, records: Mapping[str, KeyRecord], runs: Iterable[MergeRun]) -> None:
    for name in itertools.chain.from_iterable(run.folders for run in runs):
        require_whole(folder, name, records[name])


def require_whole(folder: Path, name: str, record: KeyRecord) -> None:
    """Refuse an epoch of which a file with rows is missing, or has not its size."""
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
            raise failed(folder, f"{path} has {figures.number(found)} bytes where {figures.number(size)} were written")

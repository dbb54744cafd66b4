"""Which epochs of a FileSink's folder may be merged: pure functions of names, records and cuts.

Rules:
- A run consists of consecutive epochs of one timeline, written in the same way. It becomes one folder with the name of
  its last epoch.
- The last two epochs of each timeline stay as they are: recovery, replay and late commits read them.
- No run crosses the cut of a checkpoint or savepoint, of any timeline: a rewind moves the epochs after the cut aside,
  folder by folder. The cut of a damaged checkpoint is not known, so then nothing is merged.
- A checkpoint that begins after the folder was listed cuts at the last epoch but one, or later, so it needs no rule.
  One that is already open may cut anywhere after the newest complete one: no epoch there is merged.
- Files of half the target size or more are kept and linked under a new name. A run that would not reduce the number of
  files is dropped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast import _figures as figures
from holdfast.repository import Status, Summary
from holdfast.sinks.files.epoch_folders import EpochFolder, KeyRecord, compression_of, is_data, leaves

KEEP_LAST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRun:
    """Consecutive epochs that become one folder."""

    timeline: int
    first: int
    last: int
    folders: tuple[str, ...]
    digests: tuple[str, ...]  # of their records: `apply` refuses folders that have changed
    epochs: int
    rows: int
    files: int  # with rows
    into: int
    bytes: int

    def summary(self) -> str:
        """Return a one-line summary."""
        what = f"epochs {self.first} to {self.last}" if self.first < self.last else f"epoch {self.last}"
        files = f"{figures.number(self.files)} files, {figures.size(self.bytes)}, into {figures.number(self.into)}"
        return f"{what} of timeline {self.timeline}: {files}"


def closed_runs(
    folders: Iterable[EpochFolder],
    cuts: Mapping[int, Sequence[int]],
    ceilings: Mapping[int, int],
    *,
    form: str = "parquet",
    apart: Collection[str] = (),
    keep_last: int = KEEP_LAST,
) -> list[list[EpochFolder]]:
    """Return the epochs that may be merged, as runs, in order. Cuts and ceilings are given by timeline.

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
    """Return the run that merges these folders, or `None` if it would not reduce the number of files."""
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
    """Return the sizes of all files with rows, grouped by the folder of their partition."""
    found: dict[str, list[int]] = {}
    for record in records:
        for leaf, names in leaves(record.files).items():
            found.setdefault(leaf, []).extend(record.files[name] for name in names)
    return found


def is_small(size: int, target_bytes: int) -> bool:
    """Whether a file is small enough to be rewritten."""
    return 2 * size < target_bytes


def _files_after(sizes: Sequence[int], target_bytes: int) -> int:
    small = [size for size in sizes if is_small(size, target_bytes)]
    return len(sizes) - len(small) + min(len(small), math.ceil(max(sum(small), 1) / target_bytes))


def _form(folder: EpochFolder, form: str) -> tuple[object, ...]:
    record = folder.record
    pressed = {compression_of(name, form) for name in record.files if is_data(name)}
    return record.shape, sorted((record.options or {}).items()), record.options is None, pressed


def cuts_of(found: Iterable[Summary], stream: str) -> tuple[dict[int, list[int]], dict[int, int], str | None]:
    """Return the cuts of a stream by timeline, the last epochs up to which merging is safe, and why none may merge.

    After a rewind of other streams, a checkpoint of a later timeline cuts a stream in an earlier one: in its own.
    """
    cuts: dict[int, list[int]] = {}
    opened = 0
    blocked = None
    for each in found:
        if each.status is Status.DAMAGED:
            blocked = f"{_named(each)} is damaged ({each.why}), so its cut is not known; repair it, or delete it"
        elif each.status is Status.OPEN:
            opened = max(opened, each.timeline)
        elif each.status is Status.RESTORABLE and stream in (each.epochs or {}):
            own = (each.timelines or {}).get(stream, each.timeline)
            cuts.setdefault(own, []).append((each.epochs or {})[stream])
    ceilings = {timeline: max(cuts.get(timeline, ()), default=0) for timeline in range(1, opened + 1)}
    return cuts, ceilings, blocked


def _named(each: Summary) -> str:
    return f"savepoint {each.savepoint!r}" if each.savepoint else f"checkpoint {each.checkpoint}"

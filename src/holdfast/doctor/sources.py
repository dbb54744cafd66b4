"""Offsets and logs of the sources: where the last batch ends, and whether the files that Spark reads are there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from holdfast.doctor.examination import SourcePosition
from holdfast.doctor.files import CheckpointFiles
from holdfast.doctor.findings import CheckpointFinding, Code, finding
from holdfast.doctor.logs import Logs
from holdfast.doctor.offsets import UNKNOWN, described, goes_back
from holdfast.sparkfiles.records import OffsetEntry
from holdfast.sparkfiles.sourcelog import ENTRY, compacted, entries_up_to, log_of, log_offset
from holdfast.sparkfiles.torn_writes import is_source_entry

_INTERVAL = 10  # Spark's default: entries per compaction
_REPORTED = 3  # missing entries of one log


def offsets_of(entry: OffsetEntry) -> dict[str, str | None]:
    """Return the offsets of an entry by source: by its number, or from format v2 on by its name."""
    if entry.version == "v1":
        return {str(number): end for number, end in enumerate(entry.ends)}
    named = [(end or "").partition(":") for end in entry.ends]
    return {name: None if end == "-" else end for name, _, end in named}


def positions(files: CheckpointFiles, entry: OffsetEntry) -> tuple[SourcePosition, ...]:
    """Return where the batch of an entry ends in each source."""
    found = []
    for source, end in offsets_of(entry).items():
        kind, words = described(end)
        entries = len(_entries(files.names(f"sources/{source}"))) if kind == "files" else None
        found.append(SourcePosition(source, kind, end, words, entries))
    return tuple(found)


def checks(files: CheckpointFiles, logs: Logs, *, gaps_are_normal: bool) -> Iterator[CheckpointFinding]:
    """Check the offsets of the last two batches, and the files in `sources`."""
    newest = logs.newest
    if newest is None:
        return
    before = logs.offsets.get(max(logs.offsets) - 1)
    if before is not None:
        yield from _compared(max(logs.offsets), offsets_of(before.entry), offsets_of(newest), newest.version)
    ends = offsets_of(newest)
    for folder in files.folders():
        if folder.startswith("sources/") and folder.count("/") == 1:
            last = log_offset(ends.get(folder.removeprefix("sources/")))
            if last is None:
                yield from _whole(files, folder, files.names(folder))
            else:
                yield from _file_source(files, folder, last, gaps_are_normal=gaps_are_normal)
    for source, end in ends.items():
        last = log_offset(end)
        if last is not None and last >= 0 and f"sources/{source}" not in files.folders():
            yield _without_log(files, ends, source, last)


def _without_log(files: CheckpointFiles, ends: dict[str, str | None], source: str, last: int) -> CheckpointFinding:
    """Return the finding for a file source whose log does not exist: it may share the log of an equal source."""
    names = list(ends)
    log = log_of(names.index(source), list(ends.values()), lambda each: f"sources/{names[each]}" in files.folders())
    where = f"sources/{source}"
    if names[log] != source:
        message = f"{where} does not exist, and source {names[log]} has the same offset"
        return finding(Code.SOURCE_SHARED, message, where)
    return finding(Code.SOURCE_MISSING, f"{where} is missing, the log of a file source up to entry {last}", where)


def _file_source(
    files: CheckpointFiles, folder: str, last: int, *, gaps_are_normal: bool
) -> Iterator[CheckpointFinding]:
    names = files.names(folder)
    newest = max(_entries(names), default=-1)
    if newest > last + 1 and not gaps_are_normal:
        message = f"{folder} has entries up to {newest}, but the offsets end at entry {last}"
        yield finding(Code.SOURCE_AHEAD, message, folder)
    latest, present = max(last, newest), set(names)
    interval = _interval(compacted(names))
    missing = (name for name in entries_up_to(latest, names) if name not in present)
    for name in islice(missing, _REPORTED):
        is_compaction = (int(name) + 1) % interval == 0
        wanted = f"{folder}/{name}.compact" if is_compaction else f"{folder}/{name}"
        code = Code.SOURCE_COMPACTION if is_compaction else Code.SOURCE_MISSING
        yield finding(code, f"{wanted} is missing, which the offsets of the last batch need", wanted)
    base = (latest + 1) // interval * interval - 1
    if len(compacted(names)) > 1 and 0 <= base < compacted(names)[-1] and f"{base}.compact" not in present:
        wanted = f"{folder}/{base}.compact"
        message = f"{wanted} is missing, which Spark reads first because it compacts every {interval} entries"
        yield finding(Code.SOURCE_COMPACTION, message, wanted)
    needed = islice(entries_up_to(latest, names), len(present) + _REPORTED)
    yield from _whole(files, folder, [name for name in needed if name in present])


def _whole(files: CheckpointFiles, folder: str, names: list[str]) -> Iterator[CheckpointFinding]:
    for name in names:
        path = f"{folder}/{name}"
        fault = None if name.startswith(".") else files.fault(path, is_source_entry)
        if fault is not None:
            yield finding(fault.code(Code.SOURCE_TORN), f"{path} is damaged: {fault.why}", path)


def _interval(compacts: list[int]) -> int:
    """Return after how many entries Spark compacts, as Spark itself derives it from the compacted entries."""
    if len(compacts) > 1:
        return compacts[-1] - compacts[-2]
    if not compacts:
        return _INTERVAL
    size = compacts[0] + 1
    if size <= _INTERVAL or size // 2 <= _INTERVAL:
        return size
    return next((each for each in range(_INTERVAL, min(size // 2, 10**6) + 1) if size % each == 0), size)


def _compared(
    batch: int, before: dict[str, str | None], after: dict[str, str | None], version: str
) -> Iterator[CheckpointFinding]:
    where = f"offsets/{batch}"
    if version == "v1" and len(before) != len(after):
        message = f"batch {batch} has {len(after)} sources, the batch before it {len(before)}"
        yield finding(Code.SOURCES_CHANGED, message, where)
        return
    for source in before.keys() & after.keys():
        (kind, earlier), (later_kind, later) = described(before[source]), described(after[source])
        if UNKNOWN not in (kind, later_kind) and kind != later_kind:
            message = f"source {source} of batch {batch} is of the kind {later_kind}, before it {kind}"
            yield finding(Code.SOURCES_CHANGED, message, where)
        elif goes_back(before[source], after[source]):
            message = f"source {source} goes back in batch {batch}: from {earlier} to {later}"
            yield finding(Code.BACKWARDS, message, where)


def _entries(names: list[str]) -> set[int]:
    return {int(match[1]) for name in names if (match := ENTRY.fullmatch(name))}

"""Examine a checkpoint folder: read it, and report only what is certain.

A query may be writing while the folder is read. If the first look finds anything, the folder is looked at again after a
pause, and only what both looks found is reported: a file that appears, changes or vanishes in between is not a finding.

Not guaranteed: that Spark starts if nothing is found. The program, the sources and the sinks are not examined. Files of
up to 4 MB are compared with their checksums; of larger ones only the length and the end are checked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.doctor import logs as logs_
from holdfast.doctor import sources
from holdfast.doctor.examination import Examination, FolderSize, StateSize
from holdfast.doctor.files import CheckpointFiles, FileFacts
from holdfast.doctor.findings import CheckpointFinding, Code, FindingSeverity, finding
from holdfast.doctor.leftovers import leftovers, merged, refused_start
from holdfast.doctor.logs import Logs, read_logs
from holdfast.doctor.modes import Mode, mode_of, note_of
from holdfast.doctor.state import StateLook
from holdfast.doctor.targets import checkpoint_folder, repository_of
from holdfast.errors import BadValue
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.sparkfiles.torn_writes import is_metadata

_ORDER = list(FindingSeverity)
PAUSE_S = 1.0


class _Metadata(msgspec.Struct):
    """The record of the query's id."""

    id: str


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look at the folder found."""

    files: CheckpointFiles
    logs: Logs
    mode: Mode
    query: str | None
    operators: tuple[StateSize, ...]
    findings: list[CheckpointFinding]

    def certain(self, before: _Look) -> list[CheckpointFinding]:
        """Return the findings that an earlier look has too, of files that have not changed since."""
        earlier = {(each.code, each.where, each.message, before.facts(each)) for each in before.findings}
        return [each for each in self.findings if (each.code, each.where, each.message, self.facts(each)) in earlier]

    def facts(self, finding: CheckpointFinding) -> FileFacts | None:
        """Return the size and time of the file that a finding is about."""
        return self.files.facts.get(finding.where)


def examine(
    path: str | os.PathLike[str], *, pause: float = PAUSE_S, sleep: Callable[[float], object] = time.sleep
) -> Examination:
    """Examine a checkpoint folder of Spark 3.5 to 4.3 without Spark; nothing is written.

    `pause` is the time in seconds between two looks. Raises `SparkCheckpointMissing` if the path is not a checkpoint
    folder, and `NotSupported` for an address that is not local.
    """
    if isinstance(pause, bool) or not isinstance(pause, int | float) or not 0 <= pause <= 3600:
        raise BadValue(what="pause", value=pause, expected="a number of seconds from 0 to 3600")
    folder = checkpoint_folder(path)
    look = _look(folder)
    if all(each.code in _ALWAYS for each in look.findings):
        return _examination(look, look.findings, live=None, looks=1)
    sleep(pause)
    again = _look(checkpoint_folder(folder))
    return _examination(again, again.certain(look), live=again.files.facts != look.files.facts, looks=2)


_ALWAYS = (Code.OF_HOLDFAST, Code.ASYNCHRONOUS, Code.CONTINUOUS, Code.REAL_TIME)  # not about one moment


def _look(folder: Path) -> _Look:
    files = CheckpointFiles(folder)
    logs = read_logs(files)
    mode = mode_of(files, logs)
    state = StateLook(files, logs, may_be_ahead=mode is Mode.REAL_TIME)
    query, metadata = _query(files, logs)
    gaps = mode in (Mode.ASYNCHRONOUS, Mode.CONTINUOUS)
    found = [*metadata, *logs.damage, *_beginning(files, logs, mode)]
    found += logs_.order_of(logs, gaps_are_normal=gaps) if logs.begun else []
    found += logs_.formats_of(logs)
    found += sources.checks(files, logs, gaps_are_normal=gaps)
    found += state.findings if logs.begun else []
    found += leftovers(files, logs)
    found += [note] if (note := note_of(mode, logs)) is not None else []
    repository = repository_of(folder)
    if repository is not None:
        found.append(finding(Code.OF_HOLDFAST, f"the folder belongs to the Holdfast repository {repository}", "."))
    return _Look(files, logs, mode, query, state.operators(), found)


def _query(files: CheckpointFiles, logs: Logs) -> tuple[str | None, list[CheckpointFinding]]:
    """Return the query's id, and what is wrong with its file."""
    data = files.read("metadata")
    if data is None:
        begun = logs.begun or logs.committed
        message = "the file `metadata`, which contains the query's id, is missing"
        return None, [finding(Code.METADATA_MISSING, message, "metadata")] if begun else []
    fault = files.fault("metadata", is_metadata)
    if fault is not None and fault.torn:
        return None, [finding(Code.METADATA_UNREADABLE, f"metadata is damaged: {fault.why}", "metadata")]
    try:
        query = from_json(data, _Metadata).id
    except Undecodable as error:
        return None, [finding(Code.METADATA_UNREADABLE, f"metadata has no id of a query: {error}", "metadata")]
    if fault is None:
        return query, []
    return query, [finding(Code.CHECKSUM_STALE, f"metadata and its .crc file disagree: {fault.why}", "metadata")]


def _beginning(files: CheckpointFiles, logs: Logs, mode: Mode) -> Iterator[CheckpointFinding]:
    if logs.begun or mode is not Mode.MICRO_BATCH:
        return
    refused = refused_start(files)
    yield refused or finding(Code.NOTHING_COMMITTED, "no batch was begun in this folder", "offsets")


def _examination(look: _Look, findings: list[CheckpointFinding], *, live: bool | None, looks: int) -> Examination:
    logs, newest = look.logs, look.logs.newest
    offsets, commits = logs.seen()
    in_doubt = logs.last_begun if any(each.code == Code.IN_DOUBT for each in findings) else None
    found = merged(findings)
    broken = any(each.severity is FindingSeverity.ERROR for each in found)
    return Examination(
        path=str(look.files.folder),
        query=look.query,
        mode=look.mode,
        committed=logs.committed[-1] if logs.committed else None,
        in_doubt=in_doubt,
        next_batch=None if broken else in_doubt if in_doubt is not None else logs.last_committed + 1,
        offsets=offsets,
        commits=commits,
        watermark_ms=newest.watermark_ms or None if newest else None,
        begun_at_ms=newest.begun_at_ms or None if newest else None,
        written_at_ms=max((each.changed_ns for each in look.files.facts.values()), default=0) // 10**6 or None,
        live=live,
        looks=looks,
        sources=sources.positions(look.files, newest) if newest else (),
        operators=look.operators,
        folders=_folders(look.files),
        settings=dict(sorted(newest.confs.items())) if newest else {},
        findings=tuple(sorted(found, key=lambda each: _ORDER.index(each.severity))),
    )


def _folders(files: CheckpointFiles) -> tuple[FolderSize, ...]:
    found: dict[str, list[int]] = {}
    for path, facts in files.facts.items():
        found.setdefault(path.partition("/")[0] if "/" in path else ".", []).append(facts.size)
    return tuple(FolderSize(folder, len(sizes), sum(sizes)) for folder, sizes in sorted(found.items()))

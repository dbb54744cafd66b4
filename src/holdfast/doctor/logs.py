"""The offset log and the commit log: which batches they have, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from holdfast.doctor.examination import LogEntries
from holdfast.doctor.files import CheckpointFiles, numbers
from holdfast.doctor.findings import CheckpointFinding, Code, finding
from holdfast.errors import HoldfastError, UnsupportedVersion
from holdfast.sparkfiles.records import CommitEntry, OffsetEntry
from holdfast.sparkfiles.torn_writes import is_commit, is_offsets

_READ = 200  # the newest entries; older ones are not read
_NO_RECORD = "\n\n"  # continuous processing has an empty line in place of the record about the batch
FEW = 10  # entries: with fewer, a backup of a running query finds files missing


@dataclass(frozen=True, slots=True)
class Begun:
    """An entry of the offset log, and whether it has a record about its batch."""

    entry: OffsetEntry
    has_record: bool


@dataclass(frozen=True, slots=True)
class Logs:
    """Both logs: the batches that exist, and the entries that could be read."""

    begun: list[int]  # batches in the offset log, in order
    committed: list[int]  # batches in the commit log, in order
    offsets: dict[int, Begun]
    commits: dict[int, CommitEntry]
    damage: list[CheckpointFinding]

    @property
    def last_begun(self) -> int:
        """The newest batch of the offset log; -1 if it is empty."""
        return self.begun[-1] if self.begun else -1

    @property
    def last_committed(self) -> int:
        """The newest batch of the commit log; -1 if it is empty."""
        return self.committed[-1] if self.committed else -1

    @property
    def newest(self) -> OffsetEntry | None:
        """The newest entry of the offset log that could be read."""
        return self.offsets[max(self.offsets)].entry if self.offsets else None

    def holes(self) -> tuple[set[int], set[int]]:
        """Return the batches that are missing between the first and the last one: of offsets, of commits."""
        return _missing(self.begun), _missing(self.committed)

    def seen(self) -> tuple[LogEntries, LogEntries]:
        """Return both logs as values."""
        offsets = {each.entry.version for each in self.offsets.values()}
        return _seen(self.begun, offsets), _seen(self.committed, {each.version for each in self.commits.values()})


def read_logs(files: CheckpointFiles) -> Logs:
    """Read both logs."""
    found = Logs(sorted(numbers(files.names("offsets"))), sorted(numbers(files.names("commits"))), {}, {}, [])
    needed = {f"offsets/{found.last_begun}", f"offsets/{found.last_begun - 1}", f"commits/{found.last_committed}"}
    for log, batches in (("offsets", found.begun), ("commits", found.committed)):
        for batch in batches[-_READ:]:
            path = f"{log}/{batch}"
            code = Code.LOG_TORN if path in needed else Code.OLD_LOG_TORN
            try:
                damage = _read_entry(files, found, log, batch, code)
            except UnsupportedVersion as error:
                damage = finding(Code.FORMAT_UNKNOWN, f"{path} has an unknown format: {error.summary}", path)
            except HoldfastError as error:
                damage = finding(code, f"{path} cannot be read: {error.summary}", path)
            found.damage.extend([damage] if damage else [])
    return found


def _read_entry(files: CheckpointFiles, found: Logs, log: str, batch: int, code: Code) -> CheckpointFinding | None:
    path = f"{log}/{batch}"
    fault = files.fault(path, _is_offsets if log == "offsets" else is_commit)
    if fault is not None and fault.torn:
        return finding(code, f"{path} is damaged: {fault.why}", path)
    data = files.read(path)
    if data is not None and log == "offsets":
        text = data.decode("utf-8", "replace")
        blank = _is_blank(text)
        found.offsets[batch] = Begun(
            OffsetEntry(text.replace(_NO_RECORD, "\n{}\n", 1).encode() if blank else data, str(files.folder / path)),
            not blank,
        )
    elif data is not None:
        found.commits[batch] = CommitEntry(data, str(files.folder / path))
    if fault is None:
        return None
    stale = fault.code(code) if code is Code.LOG_TORN else code
    return finding(stale, f"{path} and its .crc file disagree: {fault.why}", path)


def _is_blank(text: str) -> bool:
    version, _, rest = text.partition("\n")
    return version in ("v1", "v2") and rest.startswith("\n")


def _is_offsets(text: str) -> bool:
    return is_offsets(text.replace(_NO_RECORD, "\n{}\n", 1) if _is_blank(text) else text)


def order_of(logs: Logs, *, gaps_are_normal: bool) -> Iterator[CheckpointFinding]:
    """Compare the batches of both logs."""
    begun, committed = logs.last_begun, logs.last_committed
    no_offsets, no_commits = logs.holes()
    if begun == committed + 1:
        message = f"batch {begun} was begun and is not committed"
        yield finding(Code.IN_DOUBT, message, f"offsets/{begun}")
    if committed > begun >= 0:
        message = f"the last commit is batch {committed}, but the last entry of the offset log is batch {begun}"
        yield finding(Code.COMMITS_AHEAD, message, f"commits/{committed}")
    if gaps_are_normal:
        return
    if begun > committed + 1:
        last = f"the last commit is batch {committed}" if committed >= 0 else "there is no commit"
        message = f"the last entry of the offset log is batch {begun}, but {last}"
        yield finding(Code.OFFSETS_AHEAD, message, f"offsets/{begun}")
    if begun > 0 and begun - 1 not in logs.begun:
        where = f"offsets/{begun - 1}"
        yield finding(Code.OFFSETS_PREVIOUS, f"{where} is missing, before the last entry {begun}", where)
    for log, code, missing in (
        ("offsets", Code.OFFSETS_HOLE, no_offsets - {begun - 1}),
        ("commits", Code.COMMITS_HOLE, no_commits),
    ):
        if missing:
            yield finding(code, f"{log} has no entry for {batches(missing)}", f"{log}/{min(missing)}")
    if logs.begun and logs.begun[0] > 0 and len(logs.begun) < FEW and not no_offsets:
        message = f"only {len(logs.begun)} entries of the offset log are retained"
        yield finding(Code.FEW_BATCHES, message, "offsets")


def formats_of(logs: Logs) -> Iterator[CheckpointFinding]:
    """Report logs that contain more than one format."""
    offsets, commits = logs.seen()
    for log, code, seen in (("offsets", Code.OFFSETS_MIXED, offsets), ("commits", Code.COMMITS_MIXED, commits)):
        if len(seen.versions) > 1:
            yield finding(code, f"{log} has entries of the formats {' and '.join(seen.versions)}", log)


def batches(missing: set[int]) -> str:
    """Return batches as text: ranges, at most three of them."""
    ranges: list[tuple[int, int]] = []
    for batch in sorted(missing):
        if ranges and ranges[-1][1] == batch - 1:
            ranges[-1] = (ranges[-1][0], batch)
        else:
            ranges.append((batch, batch))
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in ranges]
    more = f" and {len(shown) - 3} more ranges" if len(shown) > 3 else ""
    return f"{'batch' if len(missing) == 1 else 'batches'} {', '.join(shown[:3])}{more}"


def _missing(found: list[int]) -> set[int]:
    near = found[-10 * _READ :]  # a damaged name must not ask for countless others
    return {batch for before, after in pairwise(near) for batch in range(before + 1, min(after, before + _READ))}


def _seen(found: list[int], versions: set[str]) -> LogEntries:
    return LogEntries(found[0] if found else None, found[-1] if found else None, len(found), tuple(sorted(versions)))

"""Files that an interrupted write left behind: temporary files, and checksum files without a file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.doctor.files import CheckpointFiles, checksum_name, numbers
from holdfast.doctor.findings import CheckpointFinding, Code, finding
from holdfast.doctor.logs import Logs
from holdfast.sparkfiles.sourcelog import ENTRY

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}-[0-9a-f-]{27}(?:\.TID\d+)?\.tmp")
_CHECKSUM = re.compile(r"\.(.+)\.crc")
_STATE = re.compile(r"(\d+)\.(?:delta|snapshot|changelog|zip)")
MERGED = (Code.TEMPORARY, Code.CHECKSUM_ORPHAN)
"""Findings of which there may be many: one is reported per folder."""


def leftovers(files: CheckpointFiles, logs: Logs) -> Iterator[CheckpointFinding]:
    """Report what writes left behind."""
    for folder in files.folders():
        names = set(files.names(folder))
        for name in sorted(names):
            path = f"{folder}/{name}" if folder else name
            checksum = _CHECKSUM.fullmatch(name)
            if _TEMPORARY.fullmatch(name):
                yield finding(Code.TEMPORARY, f"{path} is a temporary file", path)
            elif checksum is not None and checksum[1] not in names and path != ".metadata.crc":
                blocks = _will_be_written(files, logs, folder, checksum[1])
                code = Code.CHECKSUM_BLOCKS if blocks else Code.CHECKSUM_ORPHAN
                yield finding(code, f"{path} is the checksum of a file that does not exist", path)


def refused_start(files: CheckpointFiles) -> CheckpointFinding | None:
    """Return the finding if Spark would refuse to begin here. The offset log is empty."""
    for path in files.facts:
        name = path.rpartition("/")[2]
        if path.startswith(("offsets/", "commits/", "state/")) and not _CHECKSUM.fullmatch(name):
            return finding(Code.START_REFUSED, f"the offset log is empty, but {path} exists", path)
    return None


def merged(found: list[CheckpointFinding]) -> list[CheckpointFinding]:
    """Merge the findings of which there may be many, by folder."""
    kept = [each for each in found if each.code not in MERGED]
    reported = {checksum_name(each.where) for each in kept}  # a file that is missing is enough
    groups: dict[tuple[str, str], list[CheckpointFinding]] = {}
    for each in found:
        if each.code in MERGED and each.where not in reported:
            groups.setdefault((each.code, each.where.rpartition("/")[0]), []).append(each)
    for (code, folder), members in groups.items():
        what = "temporary files" if code == Code.TEMPORARY else "checksum files without a file"
        many = f"{len(members)} {what} were left in {folder or '.'}, such as {members[0].where.rpartition('/')[2]}"
        kept.append(members[0] if len(members) == 1 else finding(Code(code), many, folder or "."))
    return kept


def _will_be_written(files: CheckpointFiles, logs: Logs, folder: str, name: str) -> bool:
    """Whether Spark will write a file of this name: with a number that no batch has reached yet."""
    top = folder.split("/", maxsplit=1)[0]
    number = next(numbers([name]), -1)
    if top == "offsets":
        return number > logs.last_begun
    if top == "commits":
        return number > logs.last_committed
    if top == "sources" and (entry := ENTRY.fullmatch(name)):
        return int(entry[1]) > max(
            (int(each[1]) for each in map(ENTRY.fullmatch, files.names(folder)) if each), default=-1
        )
    if top == "state" and (version := _STATE.fullmatch(name)):
        return int(version[1]) > logs.last_committed + 1
    return False

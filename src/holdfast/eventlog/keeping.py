"""How long the events of a log are kept, and where the kept ones begin.

<log>/keep.json      how long events are kept at least; a log without it is never trimmed
<log>/floor.json     the first sequence that is kept
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import Corrupt, LogCorrupt
from holdfast.formats.sealed_json import Record
from holdfast.repository import files

KEEP = "keep.json"
FLOOR = "floor.json"


class LogKeep(Record, frozen=True, kw_only=True):
    """How long the events of a log are kept at least."""

    seconds: float


class LogFloor(Record, frozen=True, kw_only=True):
    """The first sequence of a log that is kept, stored in `floor.json`: the segments before it were removed."""

    first: int


@dataclass(frozen=True, slots=True)
class LogTrim:
    """What can be removed from one log: all segments before a sequence."""

    path: str  # of the log
    floor: int  # the first sequence that is kept
    segments: int  # number of files to remove
    bytes: int  # their total size


def set_keep(folder: Path, seconds: float | None) -> None:
    """Record how long events are kept at least, unless the record has it already; `None`: forever."""
    if read_keep(folder) == seconds:
        return
    if seconds is None:
        with files.failing_as("remove", str(folder / KEEP)):
            (folder / KEEP).unlink(missing_ok=True)
    else:
        files.replace_durably(folder / KEEP, LogKeep(seconds=seconds).sealed(), KEEP)


def read_keep(folder: Path) -> float | None:
    """Return how long events are kept at least, in seconds; `None`: forever."""
    with files.failing_as("read", str(folder / KEEP)):
        try:
            data = (folder / KEEP).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
    try:
        return LogKeep.unsealed(data, str(folder / KEEP)).seconds
    except Corrupt as error:
        raise LogCorrupt(path=str(folder), part=KEEP, why=error.summary) from error


def read_floor(folder: Path) -> int:
    """Return the first sequence that is kept; 0: nothing was removed."""
    with files.failing_as("read", str(folder / FLOOR)):
        try:
            data = (folder / FLOOR).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return 0
    try:
        return LogFloor.unsealed(data, str(folder / FLOOR)).first
    except Corrupt as error:
        raise LogCorrupt(path=str(folder), part=FLOOR, why=error.summary) from error

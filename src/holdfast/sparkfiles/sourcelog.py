"""The log of a source, `sources/<n>/`: an entry per batch of files; every few entries, all are merged into one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence

from holdfast.sparkfiles.folder import SparkFolder

ENTRY = re.compile(r"(\d+)(?:\.compact)?")
_COMPACT = re.compile(r"(\d+)\.compact")


SOURCES = "sources"
_INTERVAL = 10  # by default, Spark compacts every tenth entry


def entry_names(number: int) -> tuple[str, str]:
    """Return the names that an entry of a source's log may have, plain or compacted, the likelier one first."""
    plain, merged = str(number), f"{number}.compact"
    return (merged, plain) if (number + 1) % _INTERVAL == 0 else (plain, merged)


def entry_of(folder: SparkFolder, source: str, number: int) -> str | None:
    """Return the name of one entry of a source's log, compacted or not, or `None` if there is none."""
    return next((name for name in entry_names(number) if folder.exists(f"{SOURCES}/{source}/{name}")), None)


def log_offset(end: str | None) -> int | None:
    """Return the last log entry that an offset of a file source names; `None` for other sources."""
    try:
        match json.loads(end or "null"):
            case {"logOffset": int(last)}:
                return last
    except (ValueError, RecursionError):
        pass  # an offset of another source, in its own form
    return None


def log_of(number: int, ends: Sequence[str | None], exists: Callable[[int], bool]) -> int:
    """Return the number of the source whose log a source has: its own, or that of an equal one before it.

    A query that uses one DataFrame twice has two equal offsets, and one log.
    """
    if exists(number):
        return number
    same = (each for each in range(number) if ends[each] == ends[number] and exists(each))
    return next(same, number)


def compacted(names: Collection[str]) -> list[int]:
    """Return the numbers of the compacted entries, in order."""
    return sorted(int(match[1]) for name in names if (match := _COMPACT.fullmatch(name)))


def entries_up_to(last: int, names: Collection[str]) -> Iterator[str]:
    """Yield the entries of a source's log up to `last`: the newest compacted one, and those that follow it."""
    base = max((each for each in compacted(names) if each <= last), default=-1)
    if base >= 0:
        yield f"{base}.compact"
    yield from (str(each) for each in range(base + 1, last + 1))

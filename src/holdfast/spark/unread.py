"""How many input files a stream has not read yet, counted only when a status is requested.

Spark reports no lag for its file source. The files that it has taken are in the source's own log, `sources/<n>/`. The
files that exist are listed here by the rules of Spark's reader: no hidden files, and only partitions as subfolders.

Not counted, because the rules of Spark's reader cannot be repeated cheaply: folders on other file systems, folders that
Spark's own file sink has written, patterns with braces, and the options `modifiedBefore` and `modifiedAfter`.
"""

from __future__ import annotations

import glob
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.errors import NotFound
from holdfast.policy import seconds_of
from holdfast.sparkfiles.folder import SparkFolder
from holdfast.sparkfiles.sourcelog import SOURCES, entry_of, log_offset

_MOST = 200_000  # files: with more, nothing is counted
_FRESH_S = 5.0  # how long a count is kept
_SHARE = 20  # a slow count is kept for this many times its duration
_UNCOUNTABLE = {"modifiedbefore", "modifiedafter"}
_MAX_AGE = "7d"  # Spark's default for `maxFileAge`


@dataclass(frozen=True, slots=True)
class Unread:
    """Input files that no sink has yet."""

    files: int  # how many
    bytes: int  # their size


@dataclass(frozen=True, slots=True)
class FileInput:
    """What a file source reads: its number in the query, the path, and the reader's options by lower-case name."""

    number: int
    path: str
    options: Mapping[str, str]


@dataclass(slots=True)
class _SeenFiles:
    """The files that a source has taken, up to an entry of its log."""

    entry: int = -1
    names: set[str] = field(default_factory=set)
    latest_ms: int = 0


class UnreadFiles:
    """Counts the unread files of one stream's file sources. A count is kept for some seconds."""

    def __init__(
        self, spark: SparkFolder, inputs: Sequence[FileInput], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._spark = spark
        self._inputs = inputs
        self._clock = clock
        self._seen = {each.number: _SeenFiles() for each in inputs}
        self._found: Unread | None = None
        self._good_until = float("-inf")

    def count(self, ends: Sequence[str | None]) -> Unread | None:
        """Return what the sources have after the offsets of the last epoch; `None` where that cannot be counted."""
        began = self._clock()
        if began >= self._good_until:
            try:
                self._found = self._counted(ends)
            finally:
                now = self._clock()
                self._good_until = now + max(_FRESH_S, _SHARE * (now - began))
        return self._found

    def _counted(self, ends: Sequence[str | None]) -> Unread | None:
        files = size = 0
        for each in self._inputs:
            end = ends[each.number] if each.number < len(ends) else None
            last = log_offset(end)
            seen = self._read_log(each.number, -1 if last is None else last)
            found = _new_files(each, seen)
            if found is None:
                return None
            files, size = files + found.files, size + found.bytes
        return Unread(files, size) if self._inputs else None

    def _read_log(self, number: int, last: int) -> _SeenFiles:
        """Read a source's log up to an entry; the first time, from the last compacted entry on."""
        seen, source = self._seen[number], str(number)
        if last < seen.entry:
            seen = self._seen[number] = _SeenFiles()
        first = seen.entry + 1
        if seen.entry < 0 and last >= 0:
            compacted = (n for n in range(last, -1, -1) if self._spark.exists(f"{SOURCES}/{source}/{n}.compact"))
            first = next(compacted, 0)
        for entry in range(first, last + 1):
            name = entry_of(self._spark, source, entry)
            data = self._spark.read(f"{SOURCES}/{source}/{name}")
            if data is None:
                raise NotFound(key=f"{SOURCES}/{source}/{entry}", where=self._spark.where)
            for line in data.decode("utf-8", "surrogateescape").splitlines()[1:]:
                taken = json.loads(line)
                seen.names.add(unquote(urlsplit(taken["path"]).path))
                seen.latest_ms = max(seen.latest_ms, taken["timestamp"])
            seen.entry = entry
        return seen


def _new_files(source: FileInput, seen: _SeenFiles) -> Unread | None:
    options = source.options
    if _UNCOUNTABLE & options.keys() or "{" in source.path:
        return None
    oldest_ms = 0.0
    if seen.latest_ms and options.get("latestfirst", "false").lower() != "true":
        oldest_ms = seen.latest_ms - seconds_of("maxFileAge", options.get("maxfileage", _MAX_AGE)) * 1000
    by_name = options.get("filenameonly", "false").lower() == "true"
    known = {each.rpartition("/")[2] for each in seen.names} if by_name else seen.names
    files = size = 0
    for number, entry in enumerate(_listed(source.path, options)):
        if entry is None or number > _MOST:
            return None
        if (entry.name if by_name else os.fspath(entry)) in known:
            continue
        about = entry.stat()
        if about.st_mtime_ns // 1_000_000 >= oldest_ms:
            files, size = files + 1, size + about.st_size
    return Unread(files, size)


def _listed(path: str, options: Mapping[str, str]) -> Iterator[os.DirEntry[str] | Path | None]:
    """Yield the files that Spark's reader would list; `None` for a folder that it reads by other rules."""
    pattern = options.get("pathglobfilter", "*")
    everywhere = options.get("recursivefilelookup", "false").lower() == "true"
    matches = glob.glob(path) if glob.has_magic(path) else [path]  # noqa: PTH207 - of a whole path, not in a folder
    found = [Path(each) for each in matches]
    yield from (each for each in found if each.is_file() and fnmatchcase(each.name, pattern))
    pending = [str(each) for each in found if each.is_dir()]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for each in entries:
                if each.name == "_spark_metadata":
                    yield None
                elif each.name.startswith(".") or (each.name.startswith("_") and "=" not in each.name):
                    continue
                elif each.is_dir():
                    pending += [each.path] if everywhere or "=" in each.name else []
                elif fnmatchcase(each.name, pattern):
                    yield each

"""Spark's own checkpoint folder of one stream: read and made durable, but never edited once a batch was begun.

Spark does not fsync its files. Before a decision refers to a batch, `harden` makes everything durable that a replay of
the batch needs. A file that lost its bytes in a power loss is removed if no decision needs it: Spark would fail on it
at every start.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.errors import SparkFileDamaged, SparkLogMismatch, UnsupportedVersion
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.recovery import SparkPosition
from holdfast.repository.files import failing_as, sync_all
from holdfast.sparkfiles.sourcelog import ENTRY, entry_path, log_of, log_offset
from holdfast.sparkfiles.torn_writes import (
    Form,
    checksum_file,
    is_commit,
    is_metadata,
    is_offsets,
    is_source_entry,
    is_torn,
)

_AHEAD = 8  # entries that may be missing before one that exists
_MANY_FOLDERS = 64  # of state: to search more of them costs more than to sync the file system


@dataclass(frozen=True, slots=True)
class Offsets:
    """One entry of the offset log: where each source's batch ends, verbatim, and the watermark."""

    ends: tuple[str | None, ...]
    digest: str
    watermark_ms: int


class _OffsetsRecord(msgspec.Struct):
    """The part of the line about the batch that is read."""

    batchWatermarkMs: int = 0  # noqa: N815 - Spark's name


class SparkLog:
    """The checkpoint folder of one stream."""

    def __init__(self, folder: Path, stream: str) -> None:
        self.folder = folder
        self._stream = stream
        self._durable: set[str] = set()  # state files that were synced
        self._children: set[str] = set()  # names in the folder when it was synced

    def position(self) -> SparkPosition:
        """Return the last entries of the logs."""
        with failing_as("list", str(self.folder)):
            return SparkPosition(str(self.folder), self._last("offsets"), self._last("commits"))

    def require(self, decided: int, ends: Sequence[str | None], source_log: Mapping[str, int]) -> list[str]:
        """Raise if a file that the last decision builds upon is missing or damaged; nothing is changed.

        1. The query's id, and the offsets of that epoch and of the one before it.  2. The last entry of each source's
        log. Spark would not report it as missing: it would write the entry again, with unread files, and skip them as
        done.  3. Of a file source, also the entries before that one, back to the last compacted one.

        Return the entries of file sources that were checked, for `require_digests`: the form of an entry and Hadoop's
        checksums, which need not exist, do not detect every damage.
        """
        of_file_sources: list[str] = []
        with failing_as("read", str(self.folder)):
            metadata = self.folder / "metadata"  # 1
            self._require_whole(metadata, is_metadata)
            if not metadata.exists() and self._last("offsets"):
                raise SparkFileDamaged(stream=self._stream, path=str(metadata), why="it is missing")
            for batch in range(max(decided - 2, 0), decided):
                offsets = self.folder / "offsets" / str(batch)
                self._require_whole(offsets, is_offsets)
                if not offsets.exists() and self._last("offsets") > batch:  # otherwise the log is too short: see `plan`
                    raise SparkFileDamaged(stream=self._stream, path=str(offsets), why="it is missing")
            for name, last in source_log.items():
                source = self.folder / "sources" / name
                of_files = _is_of_files(name, ends)
                for number in range(last, -1, -1):
                    path = entry_path(source, number)
                    if path is None:
                        raise self._mismatch(f"sources/{name}/{number} is missing")  # 2
                    self._require_whole(path, is_source_entry)
                    of_file_sources += [f"{name}/{path.name}"] if of_files else []
                    if path.name.endswith(".compact") or not of_files:
                        break  # 3
        return of_file_sources

    def require_digests(self, entries: Mapping[str, str]) -> None:
        """Raise if an entry of a source's log differs from what was decided; nothing is changed.

        An entry that does not exist is ignored: Spark deletes old ones, and `require` reports those that are needed.
        """
        for entry, decided in entries.items():
            if self.entry_digest(entry) not in (decided, None):
                why = "its bytes are not those that the epoch was decided with"
                raise SparkFileDamaged(stream=self._stream, path=str(self.folder / "sources" / entry), why=why)

    def _require_whole(self, path: Path, is_whole: Form) -> None:
        if path.exists() and is_torn(path, is_whole):
            raise SparkFileDamaged(stream=self._stream, path=str(path))

    def drop_torn(self, decided: int, source_log: dict[str, int]) -> list[str]:
        """Remove torn files that no decision needs, durably; return their names.

        1. Spark's commit of the last decided epoch: the epoch is replayed.  2. Before any decision, the query's id.
        3. Later entries of the sources' logs, from the first torn one on.  4. The offsets of the undecided epoch, which
        runs again. They are also removed if they are complete but the files that they build upon are gone: the query's
        id, an entry of a source's log, or that commit. Otherwise Spark would begin at these offsets.
        """
        commit, metadata = self.folder / "commits" / str(decided - 1), self.folder / "metadata"
        offsets = self.folder / "offsets" / str(decided)
        if not decided and self._last("commits"):
            return []  # the decisions are gone, so it is not known which files they need
        with failing_as("clear", str(self.folder)):
            torn = [commit] if decided and is_torn(commit, is_commit) else []  # 1
            torn += [metadata] if not decided and is_torn(metadata, is_metadata) else []  # 2
            for source in _folders(self.folder / "sources"):  # 3
                torn += _torn_on(source, source_log.get(source.name, -1))
            self._drop(torn)
            if is_torn(offsets, is_offsets) or (offsets.exists() and self._lacks_basis(decided)):  # 4
                self._drop([offsets])
                torn.append(offsets)
        return [str(path.relative_to(self.folder)) for path in torn]

    def _drop(self, paths: list[Path]) -> None:
        for path in paths:
            for each in _with_crc(path):
                each.unlink(missing_ok=True)
        sync_all({path.parent for path in paths})

    def _lacks_basis(self, decided: int) -> bool:
        """Whether a file is gone that the offsets of the undecided epoch build upon."""
        lost = self._last("commits") == decided - 1 if decided else not (self.folder / "metadata").exists()
        return lost or self._lacks_entry(decided)

    def _lacks_entry(self, batch: int) -> bool:
        """Whether the offsets of a batch name an entry that the log of a file source lacks."""
        ends, sources = self.offsets(batch).ends, self.folder / "sources"
        for number, end in enumerate(ends):
            log = log_of(number, ends, lambda each: (sources / str(each)).is_dir())
            source, last = sources / str(log), log_offset(end)
            if last is not None and last >= 0 and not entry_path(source, last):
                return True
        return False

    def clear_unbegun(self) -> None:
        """Remove the leftovers of a start that was killed before Spark recorded its first batch.

        Spark leaves a temporary file, and from then on refuses the folder as that of another query. No batch was begun,
        so nothing can be lost. Spark's setting to skip that check is not used: it is read from the shared session.
        """
        position = self.position()
        if position.offsets or position.commits:
            return
        with failing_as("clear", str(self.folder)):
            for log in ("offsets", "commits"):
                for path in self.folder.glob(f"{log}/.*"):
                    path.unlink(missing_ok=True)
            shutil.rmtree(self.folder / "state", ignore_errors=True)

    def offsets(self, batch: int) -> Offsets:
        """Read an entry of the offset log."""
        path = self.folder / "offsets" / str(batch)
        with failing_as("read", str(path)):
            try:
                data = path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                raise self._mismatch(f"offsets/{batch} is missing") from None
        lines = data.decode("utf-8", "replace").split("\n")
        if lines[0] not in ("v1", "v2"):
            found = int(lines[0][1:]) if re.fullmatch(r"v\d{1,9}", lines[0]) else 0
            raise UnsupportedVersion(what=f"Spark's offset log {path}", found=found, known="v1 and v2")
        try:
            watermark = from_json(lines[1].encode() if len(lines) > 1 else b"", _OffsetsRecord).batchWatermarkMs
        except Undecodable as error:
            raise self._mismatch(f"offsets/{batch} cannot be read: {error}") from None
        ends = tuple(None if line == "-" else line for line in lines[2:])
        return Offsets(ends, hashlib.sha256(data).hexdigest(), watermark)

    def source_entries(self, after: Mapping[str, int]) -> dict[str, str]:
        """Return the digests of the sources' log entries that are newer than `after`."""
        found: dict[str, str] = {}
        with failing_as("read", str(self.folder / "sources")):
            for source in _folders(self.folder / "sources"):
                last = after.get(source.name)
                names = _entries(source).values() if last is None else self._following(source, last)
                found |= {f"{source.name}/{name}": _digest(source / name) for name in names}
        return found

    def _following(self, source: Path, last: int) -> Iterator[str]:
        """Yield the entries after `last` without listing all: there may be thousands."""
        while path := entry_path(source, last := last + 1):
            yield path.name

    def entry_digest(self, entry: str) -> str | None:
        """Return the digest of one entry of a source's log, or `None` if it does not exist."""
        path = self.folder / "sources" / entry
        with failing_as("read", str(path)):
            try:
                return _digest(path)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def is_committed(self, batch: int) -> bool:
        """Whether Spark has written its own commit of a batch."""
        return (self.folder / "commits" / str(batch)).exists()

    def has_state(self) -> bool:
        """Whether the query has a state store."""
        return (self.folder / "state").is_dir()

    def harden(self, batch: int, entries: Iterable[str], staged: Iterable[Path]) -> None:
        """Make everything durable that a replay of the batch needs, and everything that the sinks staged."""
        folder = self.folder
        new = [*_with_crc(folder / "offsets" / str(batch)), folder / "offsets"]
        if batch:
            new += [*_with_crc(folder / "commits" / str(batch - 1)), folder / "commits"]
        for entry in entries:
            path = folder / "sources" / entry
            new += [*_with_crc(path), path.parent, path.parent.parent]
        children = {each.name for each in folder.iterdir()}
        if children != self._children:
            new += [*_with_crc(folder / "metadata"), folder, folder.parent]
        state = self._new_state()
        with failing_as("sync", str(folder)):
            sync_all([*new, *(state or ()), *staged], at_once=state is None)
        self._children = children
        self._durable.update(map(str, state or ()))

    def _new_state(self) -> list[Path] | None:
        """Return state files that were not synced yet: they never change. `None`: too many folders to search."""
        root = self.folder / "state"
        there: set[str] = set()  # as text: there may be thousands, and all but a few were synced before
        for number, (top, _, names) in enumerate(os.walk(root)):
            if number > _MANY_FOLDERS:
                return None
            there.update(f"{top}/{name}" for name in names)
        new = there - self._durable
        self._durable &= there  # Spark has deleted the others
        found = [Path(name) for name in new]
        above = {folder for path in found for folder in path.parents if folder.is_relative_to(root)}
        return [*found, *above]

    def _last(self, log: str) -> int:
        """Return the number of the last entry, plus one: a batch's epoch."""
        try:
            names = os.listdir(self.folder / log)  # noqa: PTH208 - several times at a start, of a hundred names or more
        except (FileNotFoundError, NotADirectoryError):
            return 0
        return max((int(name) for name in names if name.isdecimal()), default=-1) + 1

    def _mismatch(self, why: str) -> SparkLogMismatch:
        return SparkLogMismatch(stream=self._stream, path=str(self.folder), why=why)


def _folders(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []


def _entries(source: Path) -> dict[int, str]:
    """Return the names of a source's log entries by their numbers, in order; a compacted one under its own number."""
    found = {int(match[1]): each.name for each in source.iterdir() if (match := ENTRY.fullmatch(each.name))}
    return dict(sorted(found.items()))


def _torn_on(source: Path, last: int) -> list[Path]:
    """Return the entries of a source's log after `last` (-1: all), from the first torn one on.

    Return none if `last` itself is missing: Spark could not write the later entries again.
    """
    if last < 0:
        new = [source / name for name in _entries(source).values()]
    elif entry_path(source, last):
        new = list(_near(source, last))
    else:
        return []
    first = next((place for place, path in enumerate(new) if is_torn(path, is_source_entry)), len(new))
    return new[first:]


def _near(source: Path, last: int) -> Iterator[Path]:
    """Yield the entries after one without listing all; a few may be missing in between."""
    missing = 0
    while missing < _AHEAD:
        last += 1
        path = entry_path(source, last)
        missing = 0 if path else missing + 1
        if path:
            yield path


def _is_of_files(source: str, ends: Sequence[str | None]) -> bool:
    """Whether a source reads files, by the offsets of an epoch: in order, or from format v2 on by name."""
    named = (end.partition(":")[2] for end in ends if end and end.startswith(f"{source}:"))
    placed = ends[int(source)] if source.isdecimal() and int(source) < len(ends) else None
    return any(log_offset(end) is not None for end in (placed, *named))


def last_entries(entries: Iterable[str], before: Mapping[str, int]) -> dict[str, int]:
    """Return the last entry of each source's log, given the new entries and the last ones before them."""
    last = dict(before)
    for entry in entries:
        source, name = entry.split("/")
        last[source] = max(last.get(source, -1), int(name.removesuffix(".compact")))
    return last


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _with_crc(path: Path) -> tuple[Path, Path]:
    """Return a file and its checksum file: a stale or missing checksum would break the restart."""
    return path, checksum_file(path)

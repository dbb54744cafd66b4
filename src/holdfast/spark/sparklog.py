"""Spark's own logs of one stream: read and made durable, but never edited once a batch was begun.

Before a decision refers to a batch, `harden` makes everything durable that a replay of the batch needs. On a local
disk, a file that lost its bytes in a power loss is removed if no decision needs it: Spark would fail on it at every
start. On a store there are no such files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.errors import SparkFileDamaged, SparkLogMismatch, UnsupportedVersion
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.recovery import SparkPosition
from holdfast.sparkfiles.folder import SparkFolder, files_in, folders_in
from holdfast.sparkfiles.sourcelog import ENTRY, SOURCES, entry_names, entry_of, log_of, log_offset
from holdfast.sparkfiles.torn_writes import is_commit, is_metadata, is_offsets, is_source_entry

_AHEAD = 8  # entries that may be missing before one that exists
_BACK = 10  # entries back to the last compacted one, by default
_METADATA = "metadata"


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
    """The logs of one stream in Spark's checkpoint folder."""

    def __init__(self, folder: SparkFolder, stream: str) -> None:
        self.folder = folder
        self._stream = stream
        self._sources: list[str] = []  # the sources that have a log

    def position(self) -> SparkPosition:
        """Return the last entries of the logs."""
        return SparkPosition(self.folder.where, self._last("offsets"), self._last("commits"))

    def require(self, decided: int, ends: Sequence[str | None], source_log: Mapping[str, int]) -> list[str]:
        """Raise if a file that the last decision builds upon is missing or damaged; nothing is changed.

        1. The query's id, and the offsets of that epoch and of the one before it.  2. The last entry of each source's
        log. Spark would not report it as missing: it would write the entry again, with unread files, and skip them as
        done.  3. Of a file source, also the entries before that one, back to the last compacted one.

        Return the entries of file sources that were checked, for `require_digests`: the form of an entry and Hadoop's
        checksums, which need not exist, do not detect every damage.
        """
        folder, stream = self.folder, self._stream
        of_file_sources: list[str] = []
        folder.expect([_METADATA, *(f"offsets/{batch}" for batch in range(max(decided - 2, 0), decided))])
        if not folder.require_whole(_METADATA, is_metadata, stream) and self._last("offsets"):  # 1
            raise self._missing(_METADATA)
        for batch in range(max(decided - 2, 0), decided):
            there = folder.require_whole(f"offsets/{batch}", is_offsets, stream)
            if not there and self._last("offsets") > batch:  # otherwise the log is too short: see `plan`
                raise self._missing(f"offsets/{batch}")
        for source, last in source_log.items():
            of_files = _last_named(source, ends) is not None
            oldest = max(last - _BACK, -1) if of_files else last - 1
            folder.expect(f"{SOURCES}/{source}/{entry_names(number)[0]}" for number in range(last, oldest, -1))
            for number in range(last, -1, -1):
                name = entry_of(folder, source, number)
                if name is None:
                    raise self._mismatch(f"{SOURCES}/{source}/{number} is missing")  # 2
                folder.require_whole(f"{SOURCES}/{source}/{name}", is_source_entry, stream)
                of_file_sources += [f"{source}/{name}"] if of_files else []
                if name.endswith(".compact") or not of_files:
                    break  # 3
        return of_file_sources

    def require_digests(self, entries: Mapping[str, str]) -> None:
        """Raise if an entry of a source's log differs from what was decided; nothing is changed.

        An entry that does not exist is ignored: Spark deletes old ones, and `require` reports those that are needed.
        """
        for entry, decided in entries.items():
            if self.entry_digest(entry) not in (decided, None):
                why = "its bytes are not those that the epoch was decided with"
                raise SparkFileDamaged(stream=self._stream, path=self.folder.place(f"{SOURCES}/{entry}"), why=why)

    def drop_torn(self, decided: int, source_log: dict[str, int]) -> list[str]:
        """Remove torn files that no decision needs, durably; return their names.

        1. Spark's commit of the last decided epoch: the epoch is replayed.  2. Before any decision, the query's id.
        3. Later entries of the sources' logs, from the first torn one on.  4. The offsets of the undecided epoch, which
        runs again. They are also removed if they are complete but the files that they build upon are gone: the query's
        id, an entry of a source's log, or that commit. Otherwise Spark would begin at these offsets.
        """
        folder = self.folder
        commit, offsets = f"commits/{decided - 1}", f"offsets/{decided}"
        if not decided and self._last("commits"):
            return []  # the decisions are gone, so it is not known which files they need
        torn: list[str] = []
        if folder.loses_bytes:
            torn += [commit] if decided and folder.is_torn(commit, is_commit) else []  # 1
            torn += [_METADATA] if not decided and folder.is_torn(_METADATA, is_metadata) else []  # 2
            for source in folders_in(folder, SOURCES):  # 3
                torn += self._torn_on(source, source_log.get(source, -1))
            folder.drop(torn)
        if folder.is_torn(offsets, is_offsets) or (folder.exists(offsets) and self._lacks_basis(decided)):  # 4
            folder.drop([offsets])
            torn.append(offsets)
        return torn

    def _torn_on(self, source: str, last: int) -> list[str]:
        """Return the entries of a source's log after `last` (-1: all), from the first torn one on.

        Return none if `last` itself is missing: Spark could not write the later entries again.
        """
        if last < 0:
            names = self._entries(source)
        elif entry_of(self.folder, source, last):
            names = list(self._near(source, last))
        else:
            return []
        new = [f"{SOURCES}/{source}/{name}" for name in names]
        first = next((n for n, path in enumerate(new) if self.folder.is_torn(path, is_source_entry)), len(new))
        return new[first:]

    def _near(self, source: str, last: int) -> Iterator[str]:
        """Yield the entries after one without listing all; a few may be missing in between."""
        missing = 0
        while missing < _AHEAD:
            last += 1
            name = entry_of(self.folder, source, last)
            missing = 0 if name else missing + 1
            if name:
                yield name

    def _lacks_basis(self, decided: int) -> bool:
        """Whether a file is gone that the offsets of the undecided epoch build upon."""
        lost = self._last("commits") == decided - 1 if decided else not self.folder.exists(_METADATA)
        return lost or self._lacks_entry(decided)

    def _lacks_entry(self, batch: int) -> bool:
        """Whether the offsets of a batch name an entry that the log of a file source lacks."""
        ends = self.offsets(batch).ends
        for number, end in enumerate(ends):
            log = log_of(number, ends, lambda each: self.folder.exists(f"{SOURCES}/{each}"))
            last = log_offset(end)
            if last is not None and last >= 0 and not entry_of(self.folder, str(log), last):
                return True
        return False

    def clear_unbegun(self) -> None:
        """Remove the leftovers of a start that was killed before Spark recorded its first batch.

        Spark leaves a temporary file, and from then on refuses the folder as that of another query. No batch was begun,
        so nothing can be lost. Spark's setting to skip that check is not used: it is read from the shared session.
        """
        position = self.position()
        if not position.offsets and not position.commits:
            self.folder.clear_unbegun()

    def offsets(self, batch: int) -> Offsets:
        """Read an entry of the offset log."""
        path = f"offsets/{batch}"
        data = self.folder.read(path)
        if data is None:
            raise self._mismatch(f"{path} is missing")
        lines = data.decode("utf-8", "replace").split("\n")
        if lines[0] not in ("v1", "v2"):
            found = int(lines[0][1:]) if re.fullmatch(r"v\d{1,9}", lines[0]) else 0
            raise UnsupportedVersion(
                what=f"Spark's offset log {self.folder.place(path)}", found=found, known="v1 and v2"
            )
        try:
            watermark = from_json(lines[1].encode() if len(lines) > 1 else b"", _OffsetsRecord).batchWatermarkMs
        except Undecodable as error:
            raise self._mismatch(f"{path} cannot be read: {error}") from None
        ends = tuple(None if line == "-" else line for line in lines[2:])
        return Offsets(ends, hashlib.sha256(data).hexdigest(), watermark)

    def expect(self, batch: int) -> None:
        """Request the entries of the logs that an epoch reads, at once where that is faster."""
        earlier = [f"offsets/{batch - 1}", f"commits/{batch - 1}"] if batch else []
        self.folder.expect([f"offsets/{batch}", *earlier])

    def source_entries(self, after: Mapping[str, int], ends: Sequence[str | None] = ()) -> dict[str, str]:
        """Return the digests of the sources' log entries that are newer than `after`.

        `ends` are the offsets of the batch. Those of a file source name its last entry, so no later one is looked for.
        """
        found: dict[str, str] = {}
        if not self._sources or len(self._sources) < len(ends) or not ends:
            self._sources = folders_in(self.folder, SOURCES)  # a source creates it with its first entry
        through = {source: _last_named(source, ends) for source in self._sources}
        self.folder.expect(
            f"{SOURCES}/{source}/{entry_names(number)[0]}"
            for source, last in through.items()
            if last is not None and source in after
            for number in range(after[source] + 1, last + 1)
        )
        for source in self._sources:
            last = after.get(source)
            names = self._entries(source) if last is None else self._following(source, last, through[source])
            for name in names:
                digest = self.entry_digest(f"{source}/{name}")
                if digest is None:
                    raise self._mismatch(f"{SOURCES}/{source}/{name} is missing")
                found[f"{source}/{name}"] = digest
        return found

    def _entries(self, source: str) -> list[str]:
        """Return the names of a source's log entries, in the order of their numbers."""
        names = files_in(self.folder, f"{SOURCES}/{source}")
        found = {int(match[1]): name for name in names if (match := ENTRY.fullmatch(name))}
        return [name for _, name in sorted(found.items())]

    def _following(self, source: str, last: int, through: int | None) -> Iterator[str]:
        """Yield the entries after `last`, up to `through` if that is known, without listing all: there may be many."""
        while through is None or last < through:
            name = entry_of(self.folder, source, last := last + 1)
            if name is None:
                break
            yield name

    def entry_digest(self, entry: str) -> str | None:
        """Return the digest of one entry of a source's log, or `None` if it does not exist."""
        data = self.folder.read(f"{SOURCES}/{entry}")
        return None if data is None else hashlib.sha256(data).hexdigest()

    def is_committed(self, batch: int) -> bool:
        """Whether Spark has written its own commit of a batch."""
        return self.folder.exists(f"commits/{batch}")

    def has_state(self) -> bool:
        """Whether the query has a state store."""
        return self.folder.exists("state")

    def begin(self) -> None:
        """Note that a query is about to start, which may run a batch again and replace its state files."""
        self.folder.begin()

    def harden(self, batch: int, entries: Iterable[str], staged: Iterable[Path]) -> None:
        """Make everything durable that a replay of the batch needs, and everything that the sinks staged."""
        logs = [f"offsets/{batch}", *([f"commits/{batch - 1}"] if batch else [])]
        self.folder.make_durable([*logs, *(f"{SOURCES}/{entry}" for entry in entries)], staged)

    def _last(self, log: str) -> int:
        """Return the number of the last entry, plus one: a batch's epoch."""
        names = (name.removesuffix("/") for name in self.folder.list(log))  # a folder counts as a damaged entry
        return max((int(name) for name in names if name.isdecimal()), default=-1) + 1

    def _missing(self, path: str) -> SparkFileDamaged:
        return SparkFileDamaged(stream=self._stream, path=self.folder.place(path), why="it is missing")

    def _mismatch(self, why: str) -> SparkLogMismatch:
        return SparkLogMismatch(stream=self._stream, path=self.folder.where, why=why)


def _last_named(source: str, ends: Sequence[str | None]) -> int | None:
    """Return the last entry of a file source by the offsets of an epoch: in order, or from format v2 on by name.

    `None` for another source.
    """
    named = (end.partition(":")[2] for end in ends if end and end.startswith(f"{source}:"))
    placed = ends[int(source)] if source.isdecimal() and int(source) < len(ends) else None
    return next((last for end in (placed, *named) if (last := log_offset(end)) is not None), None)


def last_entries(entries: Iterable[str], before: Mapping[str, int]) -> dict[str, int]:
    """Return the last entry of each source's log, given the new entries and the last ones before them."""
    last = dict(before)
    for entry in entries:
        source, name = entry.split("/")
        last[source] = max(last.get(source, -1), int(name.removesuffix(".compact")))
    return last

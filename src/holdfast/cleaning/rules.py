"""What may be deleted from the Spark checkpoint folder of one stream on an object store. Pure.

A file is never deleted only because nothing names it. A driver that is paused may still commit a batch whose state
files are not named yet, and Spark uploads snapshots and SST files after the commit, and uses SST files again. Rules:

1. The base is the newest kept checkpoint that is at least `retain` epochs older than the last decided epoch and has all
   of its files. Without one, nothing goes. For each state store, T is the version of the snapshot in the base. A store
   without a snapshot there has T = 0.
2. No version at or above T goes. Below T, a version goes if no kept checkpoint names its file.
3. Entries of the offset log and the commit log below the lowest T - 2 go. Checkpoints have copies of them. For a stream
   without state, T is the epoch of the base.
4. Entries of a source's log below the last but one compacted entry of the base go. Checkpoints have copies of them.
5. An SST file goes if no remaining snapshot lists it and if it is older, by the clock of the store, than every file
   that a remaining snapshot of its state store lists. In addition a snapshot above T must remain: an executor that
   loaded an older snapshot before T was uploaded may still use the files of that one in its next snapshot.
   If it is not known what a remaining snapshot lists, or if a file that it lists is missing, none goes.
6. Files of any other kind stay, and so does every file that a kept checkpoint names in place.

A plan that is carried out late, or in part, or twice, is as safe as at once: T never falls, and later checkpoints name
nothing below it that the plan deletes, because every later version descends from the base.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from holdfast import _figures as figures
from holdfast.cleaning.names import (
    LogEntry,
    SharedFile,
    SourceEntry,
    SparkFileKind,
    StateVersion,
    kind_of,
    store_of,
)

_LOGS_KEPT = 2  # entries of Spark's logs below the lowest T: they name the ids of that version


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file in Spark's checkpoint folder, as the store lists it."""

    path: str  # in the folder
    size: int
    modified: float  # in seconds, by the clock of the store


@dataclass(frozen=True, slots=True)
class KeptCut:
    """The cut of this stream in a checkpoint that is kept."""

    checkpoint: int
    epoch: int
    in_place: frozenset[str]  # files that it needs in the folder
    copied: frozenset[str]  # files that it has copies of


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """Everything that a clean-up of one folder depends on."""

    files: Sequence[ListedFile]
    cuts: Sequence[KeptCut]
    epoch: int  # the last decided epoch of the stream
    retain: int  # epochs that Spark may still need
    listed: Mapping[str, frozenset[str]]  # by the path of a snapshot: the files beside it that it lists


@dataclass(frozen=True, slots=True)
class Deletion:
    """A file to delete, and the reason."""

    path: str
    size: int
    why: str


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The files to delete from one folder."""

    deletes: tuple[Deletion, ...]
    base: int | None  # the checkpoint that sets the versions T; `None`: there is none, and nothing goes

    @property
    def bytes(self) -> int:
        """The total size of the files."""
        return sum(each.size for each in self.deletes)


class FolderCleaning:
    """The rules, applied to one folder. Each method is one rule."""

    def __init__(self, facts: FolderFacts) -> None:
        self._facts = facts
        self._kinds = {each.path: kind for each in facts.files if (kind := kind_of(each.path)) is not None}
        self._modified = {each.path: each.modified for each in facts.files}

    def plan(self) -> Cleaning:
        """Return the files to delete, each with its reason."""
        if self.base is None:
            return Cleaning((), None)
        sizes = {each.path: each.size for each in self._facts.files}
        found = {path: why for path, why in self._reasons() if path not in self._named}
        deletes = tuple(Deletion(path, sizes[path], found[path]) for path in sorted(found))
        return Cleaning(deletes, self.base.checkpoint)

    def remaining_snapshots(self) -> frozenset[str]:
        """Return the snapshots that stay. What they list must be known before files beside them can go."""
        versions = dict(self._versions())
        return frozenset(
            path
            for path, kind in self._kinds.items()
            if isinstance(kind, StateVersion) and kind.is_snapshot and path not in versions
        )

    @cached_property
    def base(self) -> KeptCut | None:
        """Rule 1: the newest checkpoint that is old enough."""
        whole = [each for each in self._facts.cuts if each.in_place <= self._modified.keys()]
        return newest_base(whole, self._facts.epoch - self._facts.retain)

    @cached_property
    def bounds(self) -> dict[str, int]:
        """Rule 1: T of each state store; 0 for a store without a snapshot in the base."""
        stores = {kind.store for kind in self._kinds.values() if isinstance(kind, StateVersion | SharedFile)}
        found = dict.fromkeys(stores, 0)
        for path in self.base.in_place if self.base else ():
            kind = kind_of(path)
            if isinstance(kind, StateVersion):
                found[kind.store] = max(found.get(kind.store, 0), kind.version if kind.is_snapshot else 0)
        return found

    @cached_property
    def _named(self) -> frozenset[str]:
        return frozenset(path for cut in self._facts.cuts for path in cut.in_place)

    def _reasons(self) -> Iterator[tuple[str, str]]:
        yield from self._versions()
        yield from self._log_entries()
        yield from self._source_entries()
        yield from self._shared_files()

    def _versions(self) -> Iterator[tuple[str, str]]:
        """Rule 2."""
        if self.base is None:
            return
        for path, kind in self._kinds.items():
            if isinstance(kind, StateVersion) and kind.version < self.bounds[kind.store] and path not in self._named:
                yield path, f"version {kind.version} is below {self.bounds[kind.store]}, and no checkpoint names it"

    def _log_entries(self) -> Iterator[tuple[str, str]]:
        """Rule 3."""
        if self.base is None:
            return
        first = min(self.bounds.values(), default=self.base.epoch) - _LOGS_KEPT
        for path, kind in self._kinds.items():
            if isinstance(kind, LogEntry) and kind.batch < first:
                yield path, f"batch {kind.batch} is below {first}"

    def _source_entries(self) -> Iterator[tuple[str, str]]:
        """Rule 4."""
        if self.base is None:
            return
        entries: dict[str, dict[str, SourceEntry]] = defaultdict(dict)
        for path, kind in self._kinds.items():
            if isinstance(kind, SourceEntry):
                entries[kind.source][path] = kind
        for source, found in entries.items():
            newest = max(_compacts(map(kind_of, self.base.copied), source), default=0)
            first = max((each for each in _compacts(found.values(), source) if each < newest), default=0)
            for path, each in found.items():
                if each.number < first:
                    yield path, f"entry {each.number} is below {first}.compact"

    def _shared_files(self) -> Iterator[tuple[str, str]]:
        """Rule 5."""
        snapshots: dict[str, set[str]] = defaultdict(set)
        for path in self.remaining_snapshots():
            snapshots[store_of(path)].add(path)
        firsts = {store: self._oldest_listed(store, paths) for store, paths in snapshots.items()}
        listed = {name for paths in snapshots.values() for path in paths for name in self._facts.listed.get(path, ())}
        for path, kind in self._kinds.items():
            first = firsts.get(kind.store) if isinstance(kind, SharedFile) else None
            if first is None or path in listed or not self._modified[path] < first:
                continue
            yield path, "no remaining snapshot lists it, and all files that one lists are newer"

    def _oldest_listed(self, store: str, snapshots: Iterable[str]) -> float | None:
        """Return the time of the oldest file that a remaining snapshot lists; `None`: no file of the store may go."""
        paths = set(snapshots)
        if not self.bounds[store] or not self._is_followed(store, paths) or not paths <= self._facts.listed.keys():
            return None
        names = {name for path in paths for name in self._facts.listed[path]}
        if not names or not names <= self._modified.keys():
            return None
        return min(self._modified[name] for name in names)

    def _is_followed(self, store: str, snapshots: Iterable[str]) -> bool:
        kinds = (self._kinds[path] for path in snapshots)
        return any(isinstance(kind, StateVersion) and kind.version > self.bounds[store] for kind in kinds)


def newest_base(cuts: Iterable[KeptCut], last: int) -> KeptCut | None:
    """Return the newest cut that has epochs, up to this one."""
    old = [each for each in cuts if 0 < each.epoch <= last]
    return max(old, key=lambda each: (each.epoch, each.checkpoint), default=None)


def _compacts(kinds: Iterable[SparkFileKind | None], source: str) -> Iterator[int]:
    for kind in kinds:
        if isinstance(kind, SourceEntry) and kind.source == source and kind.is_compact:
            yield kind.number


def summary(cleaning: Cleaning) -> str:
    """Return a one-line summary."""
    return f"{figures.number(len(cleaning.deletes))} files, {figures.size(cleaning.bytes)}"

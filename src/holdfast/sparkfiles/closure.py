"""The closure of a committed batch: exactly the files that Spark needs to start after it.

The closure of batch N contains the following files, never hidden ones:
- `metadata`, `offsets/N-1`, `offsets/N`, `commits/N`; everything in `_metadata` and `_stateSchema` folders.
- Of a file source, with L its log offset in `offsets/N`: the newest `k.compact` up to L, then k+1 to L. Of a source
  without such a log: all of its files.
- Of each state store: the files of version N + 1, as `statefiles` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from holdfast.sparkfiles.folder import SparkFolder, files_in
from holdfast.sparkfiles.records import CommitEntry, OffsetEntry
from holdfast.sparkfiles.sourcelog import SOURCES, entries_up_to, log_of, log_offset
from holdfast.sparkfiles.statefiles import (
    StateReader,
    Vanished,
    VersionNames,
    descriptions_in,
    listed_in_zip,
    stores_in,
)


class ClosureKeeper(StateReader, Protocol):
    """Keeps files of a folder, as links or copies. All content is read from what it keeps, never from the folder."""

    def add(self, paths: Iterable[str]) -> None:
        """Keep files; raise `Vanished` if one does not exist."""

    def read(self, path: str) -> bytes:
        """Return the content of a file that is kept."""


@dataclass(frozen=True, slots=True)
class Closure:
    """Facts about a batch from Spark's records."""

    offsets: OffsetEntry
    commit: CommitEntry
    formats: tuple[str, ...]  # providers and formats of the state stores, such as `rocksdb-2`; empty: no state


def keep_closure(folder: SparkFolder, batch: int, keeper: ClosureKeeper) -> Closure:
    """Keep the closure of a committed batch; raise `Vanished` if a file of it does not exist."""
    logs = [f"offsets/{each}" for each in (batch - 1, batch) if each >= 0] + [f"commits/{batch}"]
    keeper.add(["metadata", *logs])
    offsets = OffsetEntry(keeper.read(f"offsets/{batch}"), folder.place(f"offsets/{batch}"))
    commit = CommitEntry(keeper.read(f"commits/{batch}"), folder.place(f"commits/{batch}"))
    now = folder.listed()
    stores = list(stores_in(now))
    names = VersionNames(keeper, batch, commit)
    chosen = [f"{store.path}/{name}" for store in stores for name in store.chain(batch + 1, names)]
    zips = [path for path in chosen if path.endswith(".zip")]
    keeper.add(zips)
    inside = [
        f"{path.rpartition('/')[0]}/{name}"
        for path in zips
        for name in listed_in_zip(keeper.read(path), folder.place(path))
    ]
    keeper.add([*chosen, *inside, *source_entries(now, offsets), *descriptions_in(now)])
    formats = {f"{store.kind}-{2 if commit.ids else 1}" for store in stores}
    return Closure(offsets, commit, tuple(sorted(formats)))


def source_entries(folder: SparkFolder, offsets: OffsetEntry) -> Iterator[str]:
    """Yield the entries of each source's log up to its offset; for a source without a log, all of its files."""
    for number, offset in enumerate(offsets.ends):
        if log_of(number, offsets.ends, lambda each: folder.exists(f"{SOURCES}/{each}")) != number:
            continue
        names = frozenset(files_in(folder, f"{SOURCES}/{number}"))
        last = log_offset(offset)
        chosen = sorted(names) if last is None else entries_up_to(last, names)
        for name in chosen:
            if name not in names:
                raise Vanished(f"{SOURCES}/{number}/{name}")  # before a damaged offset requests countless others
            yield f"{SOURCES}/{number}/{name}"

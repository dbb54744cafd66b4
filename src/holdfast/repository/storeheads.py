"""Records that change, on an object store, where nothing is overwritten.

    heads/<record>/<number, 8 digits>.json     a record: each change is an object with the next number
    heads/<level>/<level, 20 digits>.json      a number that only rises: its name is its value
    heads/lease/…  heads/timelines/<n>/lineage.json    what is looked at together with them

Rules:
- Each object is written with `put_if_absent`. The highest number counts.
- A number that was won counts only if no higher one is listed afterwards. (The number may have been used and removed
  while its writer was paused.) Otherwise the change is made again, from the value of the highest one.
- The writer of n removes n-2 and all older ones, so a reader that has listed n-1 still finds it.
- One listing of `heads/` answers who leads, what was pruned and which timeline is current.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from holdfast.errors import NotFound, StorageFailed
from holdfast.repository.base import Data, StoredObject
from holdfast.repository.contracts import HeadChange, Put

HEADS = "heads"
_TRIES = 100
_FRESH_S = 1.0


class Store(Protocol):
    """What the parts of a repository on a store need of it."""

    @property
    def where(self) -> str:
        """The address."""

    def read(self, key: str) -> bytes:
        """Return an object, or raise `NotFound`."""

    def read_all(self, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Return many objects."""

    def put_if_absent(self, key: str, data: Data) -> Put:
        """Write an object if there is none."""

    def overwrite(self, key: str, body: bytes) -> None:
        """Write an object, whether it exists or not."""

    def delete_all(self, keys: Iterable[str]) -> None:
        """Delete objects."""

    def flat(self, folder: str = "") -> list[StoredObject]:
        """List all objects below a folder."""


class StoreHeads:
    """The records of a repository on a store that change."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def fresh_s(self) -> float:
        """An epoch that is paused for longer, or takes longer to commit, looks again."""
        return _FRESH_S

    def look(self) -> StoreHeadsView:
        """List `heads/` once."""
        return StoreHeadsView(self._store, self._store.flat(HEADS))

    def folder(self, name: str) -> str:
        """Return the folder of this name below `heads/`."""
        return f"{HEADS}/{name}"

    def read(self, key: str) -> bytes:
        """Return the value with the highest number, or raise `NotFound`."""
        return self._newest(key)[1]

    def create(self, key: str, data: bytes) -> Put:
        """Write the first value if there is none."""
        for _ in range(_TRIES):
            number, present = self._newest_or_none(key)
            if present is not None:
                return Put(won=False, data=present)
            if self._add(key, number + 1, data):
                return Put(won=True, data=data)
        raise _changing(key)

    def change(self, key: str, change: HeadChange) -> bytes:
        """Write the next number.

        1. Find the highest number and its value.  2. Make the new value; the same one changes nothing.  3. Write it
        under the next number.  4. It counts if no higher number is listed.  5. Otherwise begin again.
        """
        for _ in range(_TRIES):
            number, present = self._newest_or_none(key)  # 1
            new = change(present)  # 2
            if new == present or self._add(key, number + 1, new):  # 3, 4
                return new
        raise _changing(key)  # 5

    def rise(self, key: str, level: int, data: bytes) -> None:
        """Write an object whose name is the level, and remove all but the two highest."""
        self._store.put_if_absent(f"{_folder(key)}/{level:020}.json", data)
        self._remove_old(self._versions(key))

    def _newest(self, key: str) -> tuple[int, bytes]:
        for _ in range(_TRIES):
            versions = self._versions(key)
            if not versions:
                raise NotFound(key=key, where=self._store.where)
            newest = max(versions)
            try:
                return newest, self._store.read(versions[newest])
            except NotFound:  # two newer ones were written between the two requests
                continue
        raise _changing(key)

    def _newest_or_none(self, key: str) -> tuple[int, bytes | None]:
        try:
            return self._newest(key)
        except NotFound:
            return 0, None

    def _add(self, key: str, number: int, data: bytes) -> bool:
        """Write a number; return whether it counts. One that does not is removed: a higher one is there."""
        name = f"{_folder(key)}/{number:08}.json"
        if not self._store.put_if_absent(name, data).won:
            return False
        versions = self._versions(key)
        if max(versions, default=0) > number:
            self._store.delete_all([name])
            return False
        self._remove_old(versions)
        return True

    def _versions(self, key: str) -> dict[int, str]:
        return _numbered(self._store.flat(_folder(key)), _folder(key))

    def _remove_old(self, versions: Mapping[int, str]) -> None:
        if old := sorted(versions)[:-2]:
            self._store.delete_all(versions[number] for number in old)


class StoreHeadsView:
    """What one listing of `heads/` has found."""

    def __init__(self, store: Store, found: Sequence[StoredObject]) -> None:
        self._store = store
        self.found = {each.key: each for each in found}

    def names(self, folder: str) -> list[str]:
        """Return the names directly inside a folder below `heads/`, sorted; folders end with a slash."""
        prefix = f"{HEADS}/{folder}/"
        inside = (key.removeprefix(prefix).partition("/") for key in self.found if key.startswith(prefix))
        return sorted({name + slash for name, slash, _ in inside})

    def holds(self, key: str, data: bytes) -> bool:
        """Compare the size and the ETag. It is read only if its ETag is not an MD5, as in some encrypted buckets."""
        found = self.found.get(key)
        if found is None or found.size != len(data):
            return False
        if found.etag == hashlib.md5(data, usedforsecurity=False).hexdigest():
            return True
        try:
            return self._store.read(key) == data
        except NotFound:
            return False

    def level(self, key: str, of: Callable[[bytes], int]) -> int:
        """Return the highest level that is listed: the name shows it."""
        del of
        return max(_numbered(self.found.values(), _folder(key)), default=0)


def _folder(key: str) -> str:
    """Return the folder of a record, which is named by its key."""
    return f"{HEADS}/{key.removesuffix('.json')}"


def _numbered(found: Iterable[StoredObject], folder: str) -> dict[int, str]:
    names = re.compile(re.escape(folder) + r"/(\d{8,20})\.json", re.ASCII)
    return {int(match[1]): each.key for each in found if (match := names.fullmatch(each.key))}


def _changing(key: str) -> StorageFailed:
    return StorageFailed(action="change", key=key, why=f"other processes have changed it {_TRIES} times meanwhile")

"""A journal on an object store: one object per entry, `<name>/<number, 8 digits>.json`. None is ever removed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from holdfast.errors import RecordCorrupt, StorageFailed
from holdfast.repository.contracts import Line
from holdfast.repository.storeheads import Store

_TRIES = 100
_NAME = re.compile(r"(\d{8,})\.json", re.ASCII)


class StoreJournal:
    """The entries of a journal on a store, numbered from 1."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._folder = name

    def lines(self) -> list[Line]:
        """Return all entries, oldest first, or raise `RecordCorrupt` if one is missing."""
        numbers = self._numbers()
        missing = next((at for at, number in enumerate(numbers, 1) if at != number), None)
        if missing is not None:
            raise RecordCorrupt(key=self._key(missing), why="the entry is missing, and a later one is there")
        return self._read(numbers)

    def remains(self) -> list[Line]:
        """Return the entries that are there."""
        try:
            return self._read(self._numbers())
        except (RecordCorrupt, StorageFailed):
            return []

    def add(self, make: Callable[[Sequence[Line]], bytes]) -> None:
        """Write the entry with the next number; if another process writes it first, begin again."""
        for _ in range(_TRIES):
            lines = self.lines()
            if self._store.put_if_absent(self._key(len(lines) + 1), make(lines)).won:
                return
        why = f"other processes have added {_TRIES} entries meanwhile"
        raise StorageFailed(action="add to", key=self._folder, why=why)

    def _key(self, number: int) -> str:
        return f"{self._folder}/{number:08}.json"

    def _numbers(self) -> list[int]:
        names = (each.key.removeprefix(f"{self._folder}/") for each in self._store.flat(self._folder))
        return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))

    def _read(self, numbers: Sequence[int]) -> list[Line]:
        found = self._store.read_all(self._key(number) for number in numbers)
        return [Line(key, data) for key, data in found.items() if data is not None]

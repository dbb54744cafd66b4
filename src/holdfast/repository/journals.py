"""Lists to which entries are only added: the history of a pipeline.

In a repository on this machine a journal is one file of lines, rewritten atomically under a lock. On an object store
each entry is an object of its own (`storejournal.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from holdfast.errors import Locked, NotFound, RecordCorrupt, StorageFailed
from holdfast.repository.base import FileRepository
from holdfast.repository.contracts import Line, Lock

_LOCK_TIMEOUT_S = 2.0
_PAUSE_S = 0.01


class FileJournal:
    """A journal in one file, `<name>.jsonl`."""

    def __init__(self, repository: FileRepository, name: str) -> None:
        self._repository = repository
        self._key = f"{name}.jsonl"
        self._lock = f"{name}.lock"

    def lines(self) -> list[Line]:
        """Return the lines of the file."""
        try:
            data = self._repository.read(self._key)
        except NotFound:
            return []
        lines = data.split(b"\n")
        if lines.pop():
            raise RecordCorrupt(key=f"{self._key}:{len(lines) + 1}", why="the last line is incomplete")
        return [Line(f"{self._key}:{number}", line) for number, line in enumerate(lines, 1)]

    def remains(self) -> list[Line]:
        """Return the lines of the file, complete or not."""
        try:
            return [Line(self._key, line) for line in self._repository.read(self._key).split(b"\n")]
        except (NotFound, StorageFailed):
            return []

    def add(self, make: Callable[[Sequence[Line]], bytes]) -> None:
        """Rewrite the file with one more line. If it is locked for two seconds, raise `Locked`."""
        with self._locked():
            lines = self.lines()
            data = [*(line.data for line in lines), make(lines)]
            self._repository.put(self._key, b"".join(line + b"\n" for line in data))

    def _locked(self) -> Lock:
        until = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                return self._repository.lock(self._lock)
            except Locked:
                if time.monotonic() > until:
                    raise
            time.sleep(_PAUSE_S)

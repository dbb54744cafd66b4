"""Reading the files of checkpoints for verification: each file is read once, even if checkpoints share it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeAlias

from holdfast.repository import Held, Repository

_THREADS = min(4, os.cpu_count() or 1)
_LARGE = 1 << 16
_CHUNK = 64  # small files between two progress reports

Progress: TypeAlias = Callable[[int, int], None]
"""Called while files are read, with the bytes read so far and the total."""


class FileReader:
    """Hashes files and remembers the results by key."""

    def __init__(self, repository: Repository, progress: Progress | None) -> None:
        self._repository = repository
        self._progress = progress
        self._found: dict[str, Held | None] = {}

    def digests(self, sizes: Mapping[str, int]) -> dict[str, Held | None]:
        """Return the actual size and SHA-256 by key; `None` if the file is missing. `sizes` has the expected sizes."""
        self._read({key: size for key, size in sizes.items() if key not in self._found})
        return {key: self._found[key] for key in sizes}

    def _read(self, sizes: Mapping[str, int]) -> None:
        """Read files: large ones on a few threads, because hashing releases Python's global lock.

        Small ones are read in this thread at the same time: for them, switching threads would cost more than it gains.
        """
        total, done = sum(sizes.values()), 0
        small = [key for key, size in sizes.items() if size < _LARGE]
        with ThreadPoolExecutor(_THREADS) as pool:
            large = pool.map(self._repository.digests, ([key] for key, size in sizes.items() if size >= _LARGE))
            here = (self._repository.digests(small[at : at + _CHUNK]) for at in range(0, len(small), _CHUNK))
            for found in chain(here, large):
                self._found |= found
                done += sum(sizes[key] for key in found)
                if self._progress is not None:
                    self._progress(done, total)

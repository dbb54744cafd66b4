"""The lock of a folder's tree: a compaction holds it, and so does a rewind, because both replace folders of epochs.

It is the file `lock` in the work folder of compactions, next to the sink's folder. The last holder removes the work
folder if nothing else is in it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import Locked, StorageFailed
from holdfast.repository.files import make_folder
from holdfast.repository.oslock import OsLock
from holdfast.sinks.files.gate import LOCK, beside
from holdfast.sinks.staging import names_in

_TRIES = 10
_PAUSE_S = 0.01


@contextlib.contextmanager
def tree_locked(root: Path, what: str, wait_s: float = 0.0) -> Iterator[Path]:
    """Hold the lock, and yield the work folder. Raise `Locked` if another process holds it for longer than `wait_s`."""
    work = beside(root)
    with _acquired(work, f"{what} of {root}", wait_s):
        try:
            yield work
        finally:
            with contextlib.suppress(OSError):
                if names_in(work) == [LOCK]:
                    (work / LOCK).unlink()  # a process that waits for it detects that the file was replaced
                    work.rmdir()


def _acquired(work: Path, what: str, wait_s: float) -> OsLock:
    until = time.monotonic() + wait_s
    while True:
        try:
            return _tried(work, what)
        except Locked:
            if time.monotonic() > until:
                raise
        time.sleep(_PAUSE_S)


def _tried(work: Path, what: str) -> OsLock:
    """Take the lock; retry, because a holder that ends removes the folder of the lock."""
    for _ in range(_TRIES):
        make_folder(work)
        try:
            return OsLock.acquire(work / LOCK, what)
        except StorageFailed:
            if work.exists():
                raise
    raise Locked(what=what, pid=0)

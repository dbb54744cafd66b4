"""The gate of a FileSink's folder: commits pass it concurrently; a compaction closes it while it swaps two trees.

It is a lock on `_holdfast/gate.lock` (`flock`: commits take it shared, a compaction takes it exclusively). The file is
linked into the new tree, so it is the same lock before and after the swap, regardless of the path to the folder.

Rules:
- A commit changes the folder only while it holds the gate open, so a swap cannot lose the change.
- The lock of a killed process is released. A paused commit keeps the gate open: the compaction raises `CommitOpen`.
- A paused compaction blocks commits for at most `PATIENCE_S`. Then a commit moves the new tree away, so that the swap
  can no longer happen, replaces the lock file that the compaction holds, and passes.
- If the file system does not support such locks, commits pass without one, and a compaction is refused.

Not guaranteed: any of this on a network file system, whose locks may not be reliable.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import CommitOpen, NotSupported
from holdfast.repository.files import TEMP_PREFIX
from holdfast.sinks.files.epoch_folders import LEDGER

PATIENCE_S = 10.0
GATE = "gate.lock"
SUFFIX = ".compact"
NEW = "new"  # the tree to be swapped in
LOCK = "lock"  # held by the running compaction
PASSED = "passed-"  # prefix of a new tree that a commit has moved away
_PAUSE_S = 0.002
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)


def beside(folder: Path) -> Path:
    """Return the work folder of compactions: next to the real path of the sink's folder, on the same file system."""
    real = Path(os.path.realpath(folder))
    return real.with_name(real.name + SUFFIX)


class Gate:
    """The gate of one folder."""

    def __init__(self, folder: Path, patience_s: float = PATIENCE_S) -> None:
        self.folder = folder
        self.file = folder / LEDGER / GATE
        self._patience_s = patience_s

    def make(self) -> None:
        """Create the lock file."""
        os.close(self._opened(os.O_CREAT))

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Hold the gate open: no compaction swaps the folder in the meantime."""
        descriptor = self._entered()
        try:
            yield
        finally:
            _release(descriptor)

    @contextlib.contextmanager
    def closed(self, seconds: float) -> Iterator[None]:
        """Block commits; raise `CommitOpen` if one does not end in time."""
        until = time.monotonic() + seconds
        try:
            while (descriptor := self._tried(fcntl.LOCK_EX)) is None:
                if time.monotonic() > until:
                    raise CommitOpen(path=str(self.folder), seconds=seconds)
                time.sleep(_PAUSE_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            why = "its file system has no locks, so commits cannot be blocked"
            do = "move the sink to a local disk"
            raise NotSupported(what=f"compacting {self.folder}", why=why, do=do) from error
        try:
            yield
        finally:
            _release(descriptor)

    def _entered(self) -> int | None:
        until = 0.0
        try:
            while (descriptor := self._tried(fcntl.LOCK_SH, os.O_CREAT)) is None:
                until = until or time.monotonic() + self._patience_s
                if time.monotonic() > until:
                    self._pass_over()
                time.sleep(_PAUSE_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return None
        return descriptor

    def _tried(self, how: int, flags: int = 0) -> int | None:
        """Return a descriptor that holds the lock, or `None` if another process holds it."""
        descriptor = self._opened(flags)
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        if self._is_current(descriptor):
            return descriptor
        os.close(descriptor)  # replaced between open and lock
        return None

    def _opened(self, flags: int) -> int:
        return os.open(self.file, os.O_RDONLY | os.O_CLOEXEC | flags, 0o666)

    def _is_current(self, descriptor: int) -> bool:
        ours = os.fstat(descriptor)
        try:
            theirs = self.file.stat()
        except FileNotFoundError:
            return False
        return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)

    def _pass_over(self) -> None:
        """Make the swap of a paused compaction impossible, then replace its lock.

        1. One commit at a time; return if another has done it: its new lock is in use.  2. Move the new tree away. If
        it was already swapped in, this is the old tree, and moving it is harmless.  3. Replace the lock file that the
        compaction holds.
        """
        ledger = os.open(self.file.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)  # 1
            descriptor = self._tried(fcntl.LOCK_SH, os.O_CREAT)
            if descriptor is not None:
                _release(descriptor)
                return
            work = beside(self.folder)
            with contextlib.suppress(FileNotFoundError):
                (work / NEW).rename(work / f"{PASSED}{uuid.uuid4().hex}")  # 2
            fresh = self.file.with_name(f"{TEMP_PREFIX}{uuid.uuid4().hex}")
            os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            fresh.replace(self.file)  # 3
        except BlockingIOError:
            return
        finally:
            os.close(ledger)


def _release(descriptor: int | None) -> None:
    """Unlock explicitly, not only by closing: a forked child may have a copy of the descriptor."""
    if descriptor is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)

"""The gate of a FileSink's folder: commits pass it side by side; a compaction closes it while it swaps two trees.

It is a lock on `_holdfast/gate.lock` (`flock`, shared and exclusive). The file is linked into the new tree, so that it
is the same lock before and after the swap, by whatever path the folder is reached.

Rules:
- What a commit changes in the folder, it changes while it passes. What a compaction would lose by it, cannot happen.
- A killed process frees its lock. A commit that is paused keeps the gate open: the compaction gives up, typed.
- A compaction that is paused keeps nobody out for long: after `PATIENCE_S` a commit moves the new tree away, with which
  the swap cannot happen any more, puts a new lock in the place of the held one, and passes.

- Where the file system has no such locks, commits pass all the same, and a compaction is refused.

Not promised: any of this over a network disk, whose locks are not to be relied upon.
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
NEW = "new"  # the tree that is to be swapped in
LOCK = "lock"  # held by the one compaction that is at work
PASSED = "passed-"  # one that a commit has moved away
_PAUSE_S = 0.002
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)


def beside(folder: Path) -> Path:
    """Return where compactions of a folder work: beside it, by its real path, on its file system."""
    real = Path(os.path.realpath(folder))
    return real.with_name(real.name + SUFFIX)


class Gate:
    """The gate of one folder."""

    def __init__(self, folder: Path, patience_s: float = PATIENCE_S) -> None:
        self.folder = folder
        self.file = folder / LEDGER / GATE
        self._patience_s = patience_s

    def make(self) -> None:
        """Make the lock file."""
        os.close(self._opened(os.O_CREAT))

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Hold the gate open: nobody swaps the folder meanwhile."""
        descriptor = self._entered()
        try:
            yield
        finally:
            _released(descriptor)

    @contextlib.contextmanager
    def closed(self, seconds: float) -> Iterator[None]:
        """Keep commits out, or raise `CommitOpen` where one does not end in time."""
        until = time.monotonic() + seconds
        try:
            while (descriptor := self._tried(fcntl.LOCK_EX)) is None:
                if time.monotonic() > until:
                    raise CommitOpen(path=str(self.folder), seconds=seconds)
                time.sleep(_PAUSE_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            why = "its file system has no locks, so commits could not be kept out"
            do = "move the sink to a local disk"
            raise NotSupported(what=f"compacting {self.folder}", why=why, do=do) from error
        try:
            yield
        finally:
            _released(descriptor)

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
        """Return a descriptor that holds the lock, or `None` where others do."""
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
        """Take the swap out of a paused compaction's hands, then the lock.

        1. One at a time, and not if another has done it by now: its lock is in use.  2. Move the new tree away. Where
        it was swapped in already, this is the old one, and harmless to move.  3. Put a new lock in the place of the
        held one.
        """
        ledger = os.open(self.file.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)  # 1
            descriptor = self._tried(fcntl.LOCK_SH, os.O_CREAT)
            if descriptor is not None:
                _released(descriptor)
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


def _released(descriptor: int | None) -> None:
    """Let go in so many words: a forked child may have a copy of the descriptor."""
    if descriptor is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)

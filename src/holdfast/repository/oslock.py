"""A lock between processes of one machine that ends with its process: a POSIX record lock.

A JVM takes the same lock with `FileChannel.tryLock`, so Python and Java keep each other out, and the refused one learns
the holder's pid.

Rules that POSIX makes necessary:
- Such a lock belongs to the process, not to the open file: a second one in the same process would succeed. So a table
  of this process's own locks is asked first.
- Closing *any* descriptor of the file drops the lock. So the file is never opened while this process holds it, and
  nothing else is kept in it.
- A forked child does not inherit it. The table remembers which process an entry is of.
- A lock file is never removed: a new file under the same name would be another lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
from pathlib import Path
from types import TracebackType

from holdfast.errors import Locked, StorageFailed

_FLOCK = struct.Struct("@hhqqi")  # struct flock of Linux: type, whence, start, length, pid
_TRIES = 3

_table = threading.Lock()
_held: dict[tuple[int, int], int] = {}


class OsLock:
    """A held lock. Make one with `acquire`."""

    def __init__(self, path: Path, descriptor: int, inode: tuple[int, int]) -> None:
        self.path = path
        self._descriptor: int | None = descriptor
        self._inode = inode

    @classmethod
    def acquire(cls, path: Path, what: str | None = None) -> OsLock:
        """Take the lock on `path`, making the file if need be, or raise `Locked` at once with the holder's pid."""
        name = what or str(path)
        pid = 0
        with _table:
            for _ in range(_TRIES):
                pid = _own_pid(path)
                if pid:
                    raise Locked(what=name, pid=pid, own=True)
                try:
                    lock = cls._try(path)
                except OSError as error:
                    raise StorageFailed(action="lock", key=name, why=error.strerror or str(error)) from error
                if isinstance(lock, OsLock):
                    return lock
                pid = lock
                if pid:
                    break
        raise Locked(what=name, pid=pid)

    @classmethod
    def _try(cls, path: Path) -> OsLock | int:
        """Return the lock, or the pid of its holder (0 where it cannot be told, or the holder has just gone)."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = _holder(descriptor)
            os.close(descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            return pid
        inode = _inode_of(os.fstat(descriptor))
        with contextlib.suppress(FileNotFoundError):
            if _inode_of(path.stat()) == inode:
                _held[inode] = os.getpid()
                return cls(path, descriptor, inode)
        os.close(descriptor)  # the file was replaced between open and lock: this is not the lock that others see
        return 0

    def release(self) -> None:
        """Let go; harmless when done twice."""
        with _table:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
                if _held.get(self._inode) == os.getpid():
                    del _held[self._inode]

    def __enter__(self) -> OsLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _own_pid(path: Path) -> int:
    """Return this process's pid if it holds the lock itself, else 0. Does not open the file: see the rules."""
    try:
        inode = _inode_of(path.stat())
    except OSError:
        return 0
    return _held[inode] if _held.get(inode) == os.getpid() else 0


def _inode_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _holder(descriptor: int) -> int:
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return 0 if kind == fcntl.F_UNLCK else max(pid, 0)

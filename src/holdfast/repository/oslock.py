"""A lock between the processes of one machine, released when its process ends: a record lock on a file.

It is an open file description lock (`F_OFD_SETLK`): it conflicts with every other lock on the file, even in the same
process, and is released only by its own release or the end of its process. The traditional POSIX lock, which a JVM
takes with `FileChannel.tryLock`, belongs to a process and is lost when *any* descriptor of the file is closed, for
example by a backup. The two kinds conflict with each other, so Python and Java keep each other out.

Rules:
- `Locked` contains the holder's pid. It is read from the OS if a JVM holds the lock, otherwise from the lock file, into
  which the holder writes it.
- A forked child does not hold its parent's locks: its copies of the descriptors are closed at once.
- A lock file is never deleted: a new file under the same name would be another lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
from pathlib import Path

from holdfast.errors import Locked, StorageFailed

_FLOCK = struct.Struct("@hhqqi")  # struct flock of Linux: type, whence, start, length, pid
_TRIES = 20
_PAUSE_S = 0.002

_mutex = threading.Lock()  # held while a lock file is opened or closed, and during a fork
_held: dict[int, OsLock] = {}


class OsLock:
    """A held lock, created by `acquire`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, path: Path, what: str | None = None) -> OsLock:
        """Take the lock on `path`, creating the file if necessary, or raise `Locked` at once with the holder's pid."""
        name = what or str(path)
        pid = 0
        for _ in range(_TRIES):
            try:
                with _mutex:
                    found = cls._try(path)
            except OSError as error:
                raise StorageFailed(action="lock", key=name, why=error.strerror or str(error)) from error
            if isinstance(found, OsLock):
                return found
            pid = found
            if pid:
                break
            time.sleep(_PAUSE_S)  # the holder has just taken or just released it: try again
        raise Locked(what=name, pid=pid, own=pid == os.getpid())

    @classmethod
    def _try(cls, path: Path) -> OsLock | int:
        """Return the lock, or the pid of its holder, or 0 if the pid is not known yet."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                return _holder(descriptor)
            if not _is_same(descriptor, path):
                return 0  # the file was replaced between open and lock: other processes see another file
            os.pwrite(descriptor, f"{os.getpid():<20}".encode(), 0)
            lock = cls(path, descriptor)
            _held[descriptor] = lock
            descriptor = -1
            return lock
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    @classmethod
    def holder(cls, path: Path) -> int | None:
        """Return the pid of the process that holds the lock on `path`, 0 if it is unknown, `None` if the lock is free.

        The lock is not taken, not even briefly.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageFailed(action="open", key=str(path), why=error.strerror or str(error)) from error
        try:
            return _holder(descriptor) if _kind(descriptor)[0] != fcntl.F_UNLCK else None
        finally:
            os.close(descriptor)

    @staticmethod
    def lives(pid: int) -> bool:
        """Whether this machine has a process with this pid."""
        return _lives(pid)

    @staticmethod
    def started_s(pid: int) -> float | None:
        """Return the start time of a process on this machine, in Unix seconds; `None` if there is no such process."""
        try:
            state, *fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            return None
        if state in "ZX":
            return None
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + int(fields[18]) / os.sysconf("SC_CLK_TCK")

    @property
    def held(self) -> bool:
        """Whether this process still holds the lock."""
        return self._descriptor is not None

    def release(self) -> None:
        """Release the lock; idempotent. Closing the file is not enough: a child may have a copy of the descriptor."""
        with _mutex:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                del _held[descriptor]
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)
                    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, 0, 0, 0))
                os.close(descriptor)

    def __enter__(self) -> OsLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _forget_in_child() -> None:
    """Close a forked child's copies of the descriptors; otherwise the lock would last as long as the child."""
    for descriptor, lock in list(_held.items()):
        lock._descriptor = None
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()
    _mutex.release()


os.register_at_fork(before=_mutex.acquire, after_in_parent=_mutex.release, after_in_child=_forget_in_child)


def _is_same(descriptor: int, path: Path) -> bool:
    ours = os.fstat(descriptor)
    try:
        theirs = path.stat()
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


def _kind(descriptor: int) -> tuple[int, int]:
    """Return the type of the conflicting lock, and its pid if the OS knows it."""
    wanted = _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted))
    return int(kind), int(pid)


def _holder(descriptor: int) -> int:
    kind, pid = _kind(descriptor)
    if kind == fcntl.F_UNLCK:
        return 0
    if pid > 0:
        return _driver(int(pid))  # a traditional POSIX lock: the OS knows the pid
    written = os.pread(descriptor, 20, 0).strip()
    return int(written) if written.isdigit() and _lives(int(written)) else 0


def _driver(pid: int) -> int:
    """Return the Python process that started a JVM, if there is one: that is the process to stop."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        python = b"python" in Path(f"/proc/{parent}/cmdline").read_bytes().partition(b"\0")[0]
    except (OSError, ValueError, IndexError):
        return pid
    return parent if python else pid


def _lives(pid: int) -> bool:
    """Whether there is such a process: the file may still contain the pid of a killed holder."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True

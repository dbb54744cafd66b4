"""The lock of a running pipeline: the driver's JVM holds it."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from holdfast.errors import Locked, StorageFailed
from holdfast.repository.oslock import OsLock

_TRIES = 20  # the holder may release the lock between two looks at it
_mutex = threading.Lock()
_held: set[Path] = set()  # paths that this process's JVM has locked


class JvmLock:
    """A lock that the driver's JVM holds, because the JVM may write for seconds after its Python process was killed."""

    def __init__(self, channel: Any, pid: int, path: Path) -> None:
        self._channel = channel
        self._path = path
        self._pid = pid  # of this Python process: a forked child does not have the lock

    @classmethod
    def acquire(cls, spark: SparkSession, path: Path, what: str) -> JvmLock:
        """Take the lock on `path`, or raise `Locked` at once with the holder's pid."""
        jvm: Any = spark._jvm
        pid = int(jvm.java.lang.ProcessHandle.current().pid())
        real = path.resolve()
        with _mutex:
            if real in _held:  # opening and closing the file again would release the lock that is held
                raise Locked(what=what, pid=pid, own=True)
            for _ in range(_TRIES):
                channel = cls._locked_channel(jvm, real, what, pid)
                if channel is not None:
                    _held.add(real)
                    return cls(channel, os.getpid(), real)
                OsLock.acquire(real, what).release()  # raises with the holder's pid, unless it was released just now
        raise Locked(what=what, pid=0)

    @staticmethod
    def _locked_channel(jvm: Any, path: Path, what: str, pid: int) -> Any:
        """Open a file and lock it; return `None` if another process has locked it."""
        channel = None
        try:
            channel = jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
            if channel.tryLock() is not None:
                return channel
        except Py4JJavaError as error:
            why = str(error.java_exception)
            if "OverlappingFileLockException" in why:  # closing the channel would release the lock that this JVM has
                raise Locked(what=what, pid=pid, own=True) from error
            if channel is not None:
                channel.close()
            raise StorageFailed(action="lock", key=what, why=why) from error
        channel.close()
        return None

    @property
    def held(self) -> bool:
        """Whether this process's JVM still holds the lock."""
        return self._channel is not None and os.getpid() == self._pid

    def release(self) -> None:
        """Release the lock; harmless when called twice, or when the JVM has ended."""
        channel, self._channel = self._channel, None
        if channel is not None and os.getpid() == self._pid:
            with contextlib.suppress(Exception):
                channel.close()
            with _mutex:
                _held.discard(self._path)

    def __enter__(self) -> JvmLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

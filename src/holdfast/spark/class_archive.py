"""An archive of Spark's classes, from which the JVM of an embedded session starts in about half the time.

Rules:
- The first JVM writes the names of the classes that it loads to a list, which costs it almost nothing. At the clean
  exit of a process that has run a pipeline, another process makes the archive (class-data sharing) from the list, in
  the background and at a low priority. Nothing waits for it. A process that is killed leaves its list, and the next
  start makes the archive from it: a program that is only ever killed starts faster from its third start on.
- An archive is code. It is used only if it and its folder belong to this user, and no other user can write to them.
- An archive gets its name when it is complete and durable. The name contains its size and modification time. A file
  that no longer matches its name is deleted, and a new archive is written.
- An error here never fails a start or an exit: Java starts without the archive.

Not guaranteed: Java itself decides whether it uses the archive, and reports nothing if it does not.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home

from holdfast._error_text import one_line
from holdfast.repository.oslock import OsLock
from holdfast.spark import adapter, class_dump
from holdfast.spark.class_archive_key import JvmFacts, reason_against
from holdfast.spark.java_environment import GATEWAY, OPTIONS, find_java, with_variable

VARIABLE = "HOLDFAST_CLASS_ARCHIVE"
OFF = "off"
KEPT = 3  # archives, each of about 200 MB
_ROOM = 1 << 30  # bytes that must be free on the disk
_LISTED_S = 86_400.0  # after this time, a list that no start has used is deleted
_PRIVATE = 0o700
_NAME = re.compile(r"([0-9a-f]+)-(\d+)-(\d+)\.jsa")
_LIST = ".classlist"
_LISTED_BY = re.compile(rf"[0-9a-f]+-(\d+)-[0-9a-f]+{re.escape(_LIST)}")
_STREAMING = b"/MicroBatchExecution\n"  # the end of a class name that is listed once a query was started
_OWN = re.compile(r"-Xshare|-Xlog|-XX:(DumpLoadedClassList|SharedArchiveFile)|-agent|-javaagent|-Xrun|-Xdebug")
_QUIET = "-Xlog:cds*=off -Xlog:class+path=off"  # of Java's messages, only those about archives
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for JVMs with one key."""

    folder: Path
    key: str
    path: Path | None  # `None`: to be made
    names: Path | None = None  # the list of classes that it is made from

    @classmethod
    def find(cls, folder: Path, key: str) -> ClassArchive:
        """Find the newest archive for a key in a private folder; delete those that were changed."""
        valid = []
        for path in folder.glob(f"{key}-*.jsa"):
            if is_intact(path):
                valid.append(path)
            else:
                _log.debug("the class archive %s was changed since it was written; it is made again", path)
                with contextlib.suppress(OSError):  # a read-only folder
                    path.unlink()
        newest = max(valid, key=lambda path: path.stat().st_mtime_ns, default=None)
        if newest is not None:
            with contextlib.suppress(OSError):
                os.utime(newest, ns=(time.time_ns(), newest.stat().st_mtime_ns))  # the archives used last are kept
        return cls(folder, key, newest, None if newest else _new_list(folder, key))

    @property
    def java_options(self) -> str:
        """The options for a JVM that uses the archive, or lists the classes for one."""
        if self.path is None:
            return f'"-XX:DumpLoadedClassList={self.names}" {_QUIET}'
        return f'-Xshare:auto "-XX:SharedArchiveFile={self.path}" {_QUIET}'

    def make(self) -> int | None:
        """Start a process that makes the archive from the list of this JVM; return its pid, or `None` if none is made.

        None is made if the JVM has run no pipeline, because its archive would lack most classes; if the disk is full;
        or if there is an archive by now.
        """
        return self._make_from(self.names) if adapter.has_started_queries() else None

    def make_from_left(self) -> int | None:
        """Start a process that makes the archive from the list of a killed process, if there is one."""
        with contextlib.suppress(OSError):
            return self._make_from(_claimed_list(self.folder, self.key))
        return None

    def _make_from(self, names: Path | None) -> int | None:
        jvm: Any = SparkContext._jvm
        if jvm is None or names is None:
            return None
        try:
            if shutil.disk_usage(self.folder).free < _ROOM or ClassArchive.find(self.folder, self.key).path is not None:
                names.unlink(missing_ok=True)
                return None
            prune(self.folder, keep=KEPT - 1)
            program = [sys.executable, "-I", class_dump.__file__, str(self.folder), self.key, str(names)]
            opened = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
            command = [*program, *_java_command(jvm)]
            return os.posix_spawn(sys.executable, command, os.environ, file_actions=opened, setsid=True)
        except Exception as error:  # the JVM may have ended
            _log.debug("no class archive is made: %s", one_line(error))
            return None


def _new_list(folder: Path, key: str) -> Path:
    return folder / f"{key}-{os.getpid()}-{uuid.uuid4().hex}{_LIST}"


def _claimed_list(folder: Path, key: str) -> Path | None:
    """Return the list of a killed process that had run a pipeline, under a name of this process, or `None`.

    The rename has one winner if several processes start at the same moment. A pid that is in use again delays the list
    until it is deleted as too old.
    """
    for path in folder.glob(f"{key}-*{_LIST}"):
        by = _LISTED_BY.fullmatch(path.name)
        if by is None or OsLock.lives(int(by[1])) or _STREAMING not in path.read_bytes():
            continue
        claimed = _new_list(folder, key)
        with contextlib.suppress(FileNotFoundError):
            return path.rename(claimed)
    return None


def _java_command(jvm: Any) -> list[str]:
    """Return how this JVM was started: an archive is used only by a JVM with the same class path and memory layout."""
    system = jvm.java.lang.System
    given = map(str, jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    options = [each for each in given if each.startswith("-X") and not _OWN.match(each)]
    return [f"{system.getProperty('java.home')}/bin/java", *options, "-cp", str(system.getProperty("java.class.path"))]


@contextlib.contextmanager
def archived_classes() -> Iterator[ClassArchive | None]:
    """Let a JVM that is started in this block use the archive, or list its classes to make one at a clean exit.

    Yields the archive, or `None` if none can be used here.
    """
    archive = None if SparkContext._gateway is not None or GATEWAY in os.environ else _find(os.environ)
    if archive is None:
        yield None
        return
    with with_variable(OPTIONS, f"{archive.java_options} {os.environ.get(OPTIONS, '')}".strip()):
        yield archive
    if archive.path is None:
        atexit.register(_at_exit, archive, os.getpid())
        archive.make_from_left()


def _at_exit(archive: ClassArchive, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has the connection to the JVM, but not the JVM
        archive.make()


def _find(environment: Mapping[str, str]) -> ClassArchive | None:
    """Return the archive for a JVM that is started in this environment; `None` if none can be used or made."""
    try:
        folder = chosen_folder(environment)
        if folder is None:
            return None
        java, spark_home = find_java(environment), Path(_find_spark_home())
        why = reason_against(environment, spark_home) or (None if java else "there is no Java")
        if why is None and java is not None:
            key = JvmFacts.read(environment, java, spark_home).key()
            why = reason_against_folder(folder)
            if why is None:
                found = ClassArchive.find(folder, key)
                if found.path is not None or os.access(folder, os.W_OK):
                    return found
                why = f"{folder} is not writable"
    except (OSError, RuntimeError) as error:  # no home folder, a read-only disk, a Java without archives
        why = one_line(error)
    level = logging.WARNING if environment.get(VARIABLE) else logging.DEBUG
    _log.log(level, "Spark starts without an archive of its classes: %s", why)
    return None


def chosen_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of the archives; `None` if they are turned off. Raises `RuntimeError` without a home folder."""
    given = environment.get(VARIABLE, "").strip()
    if given.lower() == OFF:
        return None
    if given:
        return Path(given).expanduser().absolute()
    cache = Path(environment.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "holdfast"


def reason_against_folder(folder: Path) -> str | None:
    """Create the folder of the archives; return why it cannot be used, or `None` if it can."""
    if re.search(r'[:"\\\s*]', str(folder)):
        return f"Java cannot be given the path {str(folder)!r}: it contains a colon, a quote or a space"
    folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    found = folder.stat()
    if not _is_private(found):
        return f"{folder} belongs to another user, or other users can write to it; make it private: chmod 700"
    return None


def is_intact(path: Path) -> bool:
    """Whether an archive is a private file of this user, and has the size and time that its name contains."""
    name = _NAME.fullmatch(path.name)
    try:
        found = path.lstat()
    except OSError:
        return False
    return (
        name is not None
        and stat.S_ISREG(found.st_mode)
        and _is_private(found)
        and found.st_size == int(name[2])
        and found.st_mtime_ns // 1_000_000 in _times(int(name[3]))
    )


def _times(ms: int) -> tuple[int, int]:
    """Return the times in milliseconds that a file may have: in the image of a container, whole seconds are left."""
    return ms, ms - ms % 1000


def _is_private(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def prune(folder: Path, *, keep: int) -> None:
    """Delete all archives but those used last, and the incomplete files and lists of processes that have ended.

    A JVM that uses a deleted archive is not affected: it has mapped the file.
    """
    archives = [path for path in folder.glob("*.jsa") if _NAME.fullmatch(path.name)]
    for path in sorted(archives, key=lambda path: path.stat().st_atime_ns, reverse=True)[keep:]:
        path.unlink(missing_ok=True)
    limits = {f"*{class_dump.PART}*": class_dump.STALE_S, f"*{_LIST}": _LISTED_S}
    for pattern, limit in limits.items():
        for path in folder.glob(pattern):
            if time.time() - path.stat().st_mtime > limit:
                path.unlink(missing_ok=True)

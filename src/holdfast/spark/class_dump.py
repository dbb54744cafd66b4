"""Writes an archive of classes from a list of their names: a program of its own, in the background.

    python class_dump.py FOLDER KEY LIST JAVA OPTION...

Rules:
- It imports nothing of Holdfast, runs at a low priority, and prints nothing.
- The archive is written under a name that ends with `.part`, made durable, and then renamed to
  `<key>-<size>-<time>.jsa`. The list is deleted, whether or not an archive was made.
- It does nothing if there is an archive by now, or if another process is writing one.
- The JVM that wrote the list may have been killed in the middle of a line: such a line is left out.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

PART = ".part"
STALE_S = 600.0  # after this time, an incomplete file belongs to a process that has ended


def main(folder: Path, key: str, names: Path, command: list[str]) -> None:
    """Write the archive, and delete the list."""
    part = folder / f"{key}{PART}"
    try:
        _lower_priority()
        if any(folder.glob(f"{key}-*.jsa")) or not _claimed(part):
            return
        listed = part.with_name(f"{part.name}.names")
        try:
            names.rename(listed)  # another start takes only lists that still have their names
            _drop_partial_line(listed)
            _dump(part, listed, command)
            _publish(part, folder, key)
        finally:
            part.unlink(missing_ok=True)
            listed.unlink(missing_ok=True)
    finally:
        names.unlink(missing_ok=True)


def _lower_priority() -> None:
    """Yield to all other processes. Linux may schedule each session as a group, with a priority of its own.

    The priority of a session that has other processes is not changed.
    """
    with contextlib.suppress(OSError):
        os.nice(19)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text("19")


def _claimed(part: Path) -> bool:
    """Create the incomplete file; `False` if another process is writing it."""
    with contextlib.suppress(FileNotFoundError):
        if time.time() - part.stat().st_mtime > STALE_S:
            part.unlink(missing_ok=True)
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _drop_partial_line(names: Path) -> None:
    data = names.read_bytes()
    names.write_bytes(data[: data.rfind(b"\n") + 1])


def _dump(part: Path, names: Path, command: list[str]) -> None:
    java, *options = command
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    written = part.with_name(f"{part.name}.jsa")
    arguments = [java, "-Xshare:dump", f"-XX:SharedClassListFile={names}", f"-XX:SharedArchiveFile={written}", *options]
    try:
        subprocess.run(arguments, check=True, timeout=STALE_S, **quiet)  # type: ignore[call-overload]
        written.rename(part)
    finally:
        written.unlink(missing_ok=True)


def _publish(part: Path, folder: Path, key: str) -> None:
    part.chmod(0o444)
    descriptor = os.open(part, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # before it is visible under its name: Java would map a file with missing pages
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    part.rename(folder / f"{key}-{found.st_size}-{found.st_mtime_ns // 1_000_000}.jsa")


if __name__ == "__main__":
    with contextlib.suppress(Exception):  # there is no archive then, and the next process tries again
        main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:])

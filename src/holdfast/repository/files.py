"""Durable writes on a local disk: what is written here survives the loss of power.

The order is always the same: a temporary file of the same file system, its bytes, fsync, a link or rename into place,
fsync of the folder. A folder that is new is itself made durable first, up to one that stood before.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from holdfast._redaction import redacted_text
from holdfast.errors import BadValue, OutcomeUnknown, StorageFailed
from holdfast.repository.base import Data, buffers

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
TEMP_PREFIX = ".tmp-"
TEMP_MAX_AGE_S = 24 * 3600.0
_SYNC_EACH = 12
_READ_AT_ONCE = 1 << 18
_syncfs: Any = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)  # Python has no call of its own for it
_renameat2: Any = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV, errno.EBUSY)  # not here: no use to try again
_NO_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP)


def local_path(what: str, address: str | os.PathLike[str]) -> Path:
    """Return the path that an address names: a plain one, `~` expanded, or a `file:` URL. Others are refused."""
    try:
        text = os.fsdecode(address)
    except TypeError:
        raise BadValue(what=what, value=address, expected="a path") from None
    if not text or "\0" in text:
        raise BadValue(what=what, value=text, why="it is no path")
    try:
        if _SCHEME.match(text) is None:
            return Path(text).expanduser().absolute()
        parts = urlsplit(text)
    except (RuntimeError, ValueError) as error:  # no such user; no such address
        raise BadValue(what=what, value=redacted_text(text), why=str(error)) from error
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise BadValue(what=what, value=redacted_text(text), why="only a folder, file: and, for a repository, memory:")
    if not path or "\0" in path:
        raise BadValue(what=what, value=text, why="it is no path")
    return Path(path).absolute()


def hadoop_address(path: Path) -> str:
    """Return a local path as Hadoop takes it: with its scheme, and not percent-encoded, which Hadoop would not undo."""
    return f"file:{path}"


def exchange(one: Path, other: Path) -> None:
    """Let two files or folders change places in one step, so that nobody ever finds either missing.

    Raises an `OSError` with a number of `NO_EXCHANGE` where the system or the file system cannot. Not durable until the
    folders that they are in are synced.
    """
    if _renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if _renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Iterable[Path], *, at_once: bool = False) -> None:
    """Make files and folders durable that somebody else wrote: each by itself, or, where they are many, all at once.

    `syncfs` flushes a whole file system; it pays from about a dozen files on. What is not there is passed over: whoever
    needs it will find out.
    """
    found = list(dict.fromkeys(paths))
    if _syncfs is None or (len(found) <= _SYNC_EACH and not at_once):
        for path in found:
            _sync(path, os.fsync)
        return
    devices: dict[int, Path] = {}
    for path in found:
        with contextlib.suppress(FileNotFoundError):
            devices.setdefault(path.stat().st_dev, path)
    for path in devices.values():
        _sync(path, _sync_file_system)


def _sync(path: Path, how: Callable[[int], None]) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        how(descriptor)
    finally:
        os.close(descriptor)


def _sync_file_system(descriptor: int) -> None:
    if _syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def make_folder(folder: Path) -> None:
    """Make a folder and all above it, durably. One that another process has just made is made durable too."""
    if folder.is_dir():
        with contextlib.suppress(PermissionError):  # a folder that we may not list, we have not just made
            sync_folder(folder.parent)
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def make_folders(folder: Path) -> set[Path]:
    """Make a folder and all above it; return what is still to be synced, the folder itself among it."""
    found = {folder}
    while not folder.is_dir():
        folder = folder.parent
        found.add(folder)
    max(found, key=lambda each: len(each.parts)).mkdir(parents=True, exist_ok=True)
    return found


def write_all(descriptor: int, data: Data) -> None:
    """Write every byte of one or several buffers."""
    for buffer in buffers(data):
        view = buffer
        while view:
            view = view[os.write(descriptor, view) :]


def temporary_name(folder: Path) -> Path:
    """Return a name for a temporary file that nobody else has."""
    return folder / f"{TEMP_PREFIX}{os.getpid()}-{uuid.uuid4().hex}"


def digest_of_file(path: Path | str) -> str:
    """Return the SHA-256 of a file."""
    return measured(path)[1]


def measured(path: Path | str) -> tuple[int, str]:
    """Return how many bytes a file has, and their SHA-256.

    Most are small: the standard library's own way clears a large buffer for each.
    """
    found, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while data := os.read(descriptor, _READ_AT_ONCE):
            found.update(data)
            size += len(data)
    finally:
        os.close(descriptor)
    return size, found.hexdigest()


@contextlib.contextmanager
def temporary(folder: Path, data: Data) -> Iterator[Path]:
    """Give a temporary file in `folder` that holds `data` durably; what is left of it at the end is removed."""
    pieces = buffers(data)  # refused before a file is made
    path = temporary_name(folder)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            write_all(descriptor, pieces)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def failing_as(action: str, key: str, *, unknown: bool = False) -> Iterator[None]:
    """Translate the operating system's errors: before the change took effect, or, with `unknown`, after it might."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if unknown:
            raise OutcomeUnknown(action=action, key=key, why=why) from error
        raise StorageFailed(action=action, key=key, why=why) from error


def replace_durably(path: Path, data: Data, key: str, via: Path | None = None) -> None:
    """Write a file, replacing what was there; a reader sees the old bytes or the new ones.

    The temporary file is made in the folder `via`, of the same file system, or else beside the target.
    """
    with failing_as("write", key), temporary(via or path.parent, data) as temp:
        temp.replace(path)
        with failing_as("write", key, unknown=True):
            sync_folder(path.parent)


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a link to `source`, or a durable copy where the file system allows no link. Never overwrites."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        _copy_durably(source, target)


def copy_new(source: Path, target: Path) -> None:
    """Make `target` a copy of `source` that is not durable yet. Never overwrites."""
    with source.open("rb") as reader, target.open("xb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)


def _copy_durably(source: Path, target: Path) -> None:
    with temporary(target.parent, b"") as temp:
        with source.open("rb") as reader, temp.open("r+b") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
            writer.flush()
            os.fsync(writer.fileno())
        os.link(temp, target)


def sweep_temporaries(folder: Path) -> int:
    """Remove temporary files that writers left behind when they were killed, a day after. Returns how many."""
    swept = 0
    for path in folder.glob(f"{TEMP_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > TEMP_MAX_AGE_S:
                path.unlink()
                swept += 1
    return swept

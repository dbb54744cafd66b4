"""Durable writes on a local disk: files written here survive a power failure.

The order is always the same: create a temporary file on the same file system, write it, fsync it, link or rename it
into place, fsync the folder. A new folder is made durable first, and so are its new parent folders.
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
_syncfs: Any = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)  # not in Python's standard library
_renameat2: Any = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV, errno.EBUSY)  # not supported here: do not retry
_NO_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP)


def local_path(what: str, address: str | os.PathLike[str]) -> Path:
    """Return the path of an address: a plain path, with `~` expanded, or a `file:` URL. Others raise `BadValue`."""
    try:
        text = os.fsdecode(address)
    except TypeError:
        raise BadValue(what=what, value=address, expected="a path") from None
    if not text or "\0" in text:
        raise BadValue(what=what, value=text, expected="a path")
    try:
        if _SCHEME.match(text) is None:
            return Path(text).expanduser().absolute()
        parts = urlsplit(text)
    except (RuntimeError, ValueError) as error:  # an unknown user in `~user`; a malformed URL
        raise BadValue(what=what, value=redacted_text(text), why=str(error)) from error
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        expected = "a path on a local disk or a mounted file system"
        raise BadValue(what=what, value=redacted_text(text), expected=expected)
    if not path or "\0" in path:
        raise BadValue(what=what, value=text, expected="a path")
    return Path(path).absolute()


def file_to_hold(source: str | os.PathLike[str]) -> Path:
    """Return the path of a regular file that is to be stored; a link or a folder raises `BadValue`."""
    path = local_path("file to hold", source)
    if path.is_symlink() or not path.is_file():
        raise BadValue(what="file to hold", value=str(path), expected="a regular file")
    return path


def hadoop_address(path: Path) -> str:
    """Return a local path as a Hadoop address: with its scheme, but not percent-encoded (Hadoop does not decode)."""
    return f"file:{path}"


def exchange(one: Path, other: Path) -> None:
    """Exchange two files or folders atomically: no reader finds either one missing.

    If the system or the file system does not support this, raise an `OSError` whose errno is in `NO_EXCHANGE`. Not
    durable until their parent folders are synced.
    """
    if _renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if _renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))


def is_there(path: Path) -> bool:
    """Whether a file or folder exists. Unlike `os.path.exists`, this raises an error if the disk cannot tell."""
    try:
        os.stat(path)  # noqa: PTH116 - at each commit
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Iterable[Path], *, at_once: bool = False) -> None:
    """Make files and folders durable that another program wrote: one by one, or with one `syncfs` if there are many.

    `syncfs` flushes a whole file system; it is faster from about a dozen files on. Missing files are skipped: the code
    that needs them reports the error.
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
    """Create a folder and its parents durably. A folder that another process has just created is made durable too."""
    if folder.is_dir():
        with contextlib.suppress(PermissionError):  # this user cannot have created a folder that it may not list
            sync_folder(folder.parent)
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def make_folders(folder: Path) -> set[Path]:
    """Create a folder and its parents; return the folders that must still be synced, including this one."""
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
    """Return a unique name for a temporary file."""
    return folder / f"{TEMP_PREFIX}{os.getpid()}-{uuid.uuid4().hex}"


def digest_of_file(path: Path | str) -> str:
    """Return the SHA-256 of a file."""
    return measured(path)[1]


def measured(path: Path | str) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file.

    Most files are small, and `hashlib.file_digest` would clear a large buffer for each.
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
    """Yield a temporary file in `folder` that contains `data` durably; at the end, delete it if it still exists."""
    pieces = buffers(data)  # invalid data is rejected before the file is created
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
    """Translate OS errors to `StorageFailed`, or, with `unknown`, to `OutcomeUnknown`: the change may have happened."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if unknown:
            raise OutcomeUnknown(action=action, key=key, why=why) from error
        raise StorageFailed(action=action, key=key, why=why) from error


def replace_durably(path: Path, data: Data, key: str, via: Path | None = None) -> None:
    """Write a file, replacing any previous one; a reader sees the old bytes or the new ones.

    The temporary file is created in the folder `via` on the same file system, by default beside the target.
    """
    with failing_as("write", key), temporary(via or path.parent, data) as temp:
        temp.replace(path)
        with failing_as("write", key, unknown=True):
            sync_folder(path.parent)


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a link to `source`, or a durable copy if a link is not possible. Never overwrites."""
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
    """Delete temporary files of killed writers that are older than a day; return their number."""
    swept = 0
    for path in folder.glob(f"{TEMP_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > TEMP_MAX_AGE_S:
                path.unlink()
                swept += 1
    return swept

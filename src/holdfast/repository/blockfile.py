"""A block device in a preallocated file on a local disk."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast._validation import checked_positive
from holdfast.errors import AlreadyExists, BadValue, BlocksCut, BlocksMissing, Closed
from holdfast.formats.blocks import BLOCK_SIZE
from holdfast.repository import files
from holdfast.repository.files import local_path
from holdfast.repository.oslock import OsLock


class FileBlocks:
    """A file of fixed size, open in one process at a time. The lock file beside it is `<name>.lock`."""

    def __init__(self, path: Path, descriptor: int, num_blocks: int, lock: OsLock) -> None:
        self.path = path
        self._descriptor = descriptor
        self._num_blocks = num_blocks
        self._lock = lock

    @classmethod
    def create(cls, path: str | os.PathLike[str], num_blocks: int) -> FileBlocks:
        """Create a file durably and allocate all its space: a full disk is detected here, not at a checkpoint."""
        size = checked_positive("number of blocks", num_blocks) * BLOCK_SIZE
        if size >= 1 << 63:
            raise BadValue(what="number of blocks", value=num_blocks, why="a file cannot be that large")
        path = local_path("block file", path)
        with files.failing_as("create", str(path)):
            files.make_folder(path.parent)
            files.sweep_temporaries(path.parent)
            with cls.lock(path, str(path)), files.temporary(path.parent, b"") as temp:
                descriptor = os.open(temp, os.O_RDWR | os.O_CLOEXEC)
                try:
                    os.posix_fallocate(descriptor, 0, size)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                try:
                    os.link(temp, path)
                except FileExistsError:
                    raise AlreadyExists(what=str(path)) from None
                with files.failing_as("create", str(path), unknown=True):
                    files.sync_folder(path.parent)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], what: str | None = None) -> FileBlocks:
        """Open an existing file; `what` describes it in the error if another process has it open."""
        path = local_path("block file", path)
        with files.failing_as("open", str(path)):
            if not path.is_file():
                raise BlocksMissing(path=str(path))
            size = path.stat().st_size
        if not size or size % BLOCK_SIZE:
            raise BlocksCut(path=str(path), size=size)
        lock = cls.lock(path, what or str(path))
        try:
            with files.failing_as("open", str(path)):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except BaseException:
            lock.release()
            raise
        return cls(path, descriptor, size // BLOCK_SIZE, lock)

    @classmethod
    def open_or_create(cls, path: str | os.PathLike[str], num_blocks: int) -> FileBlocks:
        """Open a file with this many blocks, or create it if there is none."""
        try:
            blocks = cls.open(path)
        except BlocksMissing:
            try:
                return cls.create(path, num_blocks)
            except AlreadyExists:  # another process has just created it
                blocks = cls.open(path)
        if blocks.num_blocks != num_blocks:
            blocks.close()
            raise BadValue(what="number of blocks", value=num_blocks, why=f"the file has {blocks.num_blocks} blocks")
        return blocks

    @staticmethod
    def lock(path: Path, what: str) -> OsLock:
        """Take the lock of a block file that is to be created or replaced."""
        return OsLock.acquire(_lock_path(path), what)

    @property
    def num_blocks(self) -> int:
        """The number of blocks."""
        return self._num_blocks

    def read_block(self, index: int) -> bytes:
        """Return block `index`."""
        return self.read_blocks(index, 1)

    def write_block(self, index: int, data: bytes) -> None:
        """Replace block `index`."""
        self.write_blocks(index, data)

    def read_blocks(self, first: int, count: int) -> bytes:
        """Return `count` blocks, starting with `first`."""
        self._check(first, count)
        parts: list[bytes] = []
        at, end = first * BLOCK_SIZE, (first + count) * BLOCK_SIZE
        while at < end:
            part = os.pread(self._descriptor, end - at, at)
            if not part:
                break  # the caller detects that the result is short
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def write_blocks(self, first: int, data: bytes) -> None:
        """Replace consecutive blocks, starting with `first`, in one call."""
        if len(data) % BLOCK_SIZE:
            raise BadValue(what="data of length", value=len(data), expected=f"whole blocks of {BLOCK_SIZE} bytes")
        self._check(first, len(data) // BLOCK_SIZE)
        view = memoryview(data)
        at = first * BLOCK_SIZE
        while view:
            try:
                written = os.pwrite(self._descriptor, view, at)
            except OSError as error:
                error.block = at // BLOCK_SIZE  # type: ignore[attr-defined] # read where the failed block is named
                raise
            view = view[written:]
            at += written

    def flush(self) -> None:
        """Make all writes durable. The file size never changes, so it is enough to sync the data."""
        self._check(0, 0)
        os.fdatasync(self._descriptor)

    @property
    def held(self) -> bool:
        """Whether this process still has the file open and locked; false in a forked child."""
        return self._descriptor >= 0 and self._lock.held

    def close(self) -> None:
        """Close the file and release its lock; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._lock.release()

    def __enter__(self) -> FileBlocks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, first: int, count: int) -> None:
        if not self.held:
            raise Closed(what=f"block file {self.path}")
        if first < 0 or first + count > self._num_blocks:
            raise BadValue(what="block", value=first, why=f"the device has {self._num_blocks} blocks")


def _lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")

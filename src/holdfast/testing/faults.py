"""Devices and repositories that fail on request."""

from __future__ import annotations

import builtins
import errno
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.formats.blocks import BLOCK_SIZE, BlockDevice
from holdfast.repository import Data, FileRepository, Held, Lock, Put
from holdfast.repository.base import read_one_by_one
from holdfast.repository.file_parts import FileParts


class FaultyBlocks:
    """A device that loses power: after `writes` block writes, every further write fails.

    With `tear`, the first failing write is torn: it replaces that many bytes at the start of the block.
    """

    def __init__(self, blocks: BlockDevice, writes: int, tear: int = 0) -> None:
        self._blocks = blocks
        self._left = writes
        self._tear = tear
        self.written = 0

    @property
    def num_blocks(self) -> int:
        """The number of blocks."""
        return self._blocks.num_blocks

    def read_block(self, index: int) -> bytes:
        """Return block `index`; reads never fail."""
        return self._blocks.read_block(index)

    def write_block(self, index: int, data: bytes) -> None:
        """Replace block `index`, or fail."""
        if self._left == 0:
            if self._tear:
                old = self._blocks.read_block(index)
                self._blocks.write_block(index, data[: self._tear] + old[self._tear : BLOCK_SIZE])
                self._tear = 0
            raise OSError(errno.EIO, "the device has lost power")
        self._left -= 1
        self.written += 1
        self._blocks.write_block(index, data)

    def flush(self) -> None:
        """Make all writes durable, or fail."""
        if self._left == 0:
            raise OSError(errno.EIO, "the device has lost power")
        self._blocks.flush()


class FaultyRepository(FileParts):
    """A repository that calls `fault(action, key)` before each operation; an exception raised there is the failure."""

    def __init__(self, repository: FileRepository, fault: Callable[[str, str], object]) -> None:
        self._repository = repository
        self._fault = fault

    @property
    def where(self) -> str:
        """The address of the underlying repository."""
        return self._repository.where

    def read(self, key: str) -> bytes:
        """Read, or fail."""
        self._fault("read", key)
        return self._repository.read(key)

    def put(self, key: str, data: Data) -> None:
        """Write, or fail."""
        self._fault("put", key)
        self._repository.put(key, data)

    def read_all(self, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Read, or fail at any one of them."""
        return read_one_by_one(self, keys)

    def put_new(self, key: str, data: Data) -> None:
        """Write, or fail."""
        self.put(key, data)

    def put_if_absent(self, key: str, data: Data) -> Put:
        """Write if there is no value, or fail."""
        self._fault("put_if_absent", key)
        return self._repository.put_if_absent(key, data)

    def list(self, folder: str = "") -> list[str]:
        """List, or fail."""
        self._fault("list", folder)
        return self._repository.list(folder)

    def delete(self, key: str) -> None:
        """Delete, or fail."""
        self._fault("delete", key)
        self._repository.delete(key)

    def delete_all(self, keys: Iterable[str]) -> None:
        """Delete, or fail before any one of them."""
        for key in keys:
            self.delete(key)

    def clear(self, folder: str) -> None:
        """Clear, or fail."""
        self._fault("clear", folder)
        self._repository.clear(folder)

    def sizes(self, keys: Iterable[str]) -> dict[str, int | None]:
        """Return the sizes, or fail."""
        self._fault("sizes", "")
        return self._repository.sizes(keys)

    def digest(self, key: str) -> str:
        """Read, or fail."""
        self._fault("digest", key)
        return self._repository.digest(key)

    def digests(self, keys: Iterable[str]) -> dict[str, Held | None]:
        """Read, or fail at any one of them."""
        wanted = list(keys)
        for key in wanted:
            self._fault("digest", key)
        return self._repository.digests(wanted)

    def hold_all(self, sources: Iterable[Path], folder: str, *, copy: bool = False) -> builtins.list[Held]:
        """Hold, or fail."""
        self._fault("hold_all", folder)
        return self._repository.hold_all(sources, folder, copy=copy)

    def hold(self, source: Path, key: str) -> None:
        """Hold, or fail."""
        self._fault("hold", key)
        self._repository.hold(source, key)

    def restore(self, key: str, target: Path) -> None:
        """Restore, or fail."""
        self._fault("restore", key)
        self._repository.restore(key, target)

    def restore_all(self, keys: Iterable[tuple[str, Path]], *, copy: bool = False) -> None:
        """Restore, or fail."""
        self._fault("restore_all", "")
        self._repository.restore_all(keys, copy=copy)

    def lock(self, key: str, what: str | None = None) -> Lock:
        """Lock, or fail."""
        self._fault("lock", key)
        return self._repository.lock(key, what)

    def locked_by(self, key: str) -> int | None:
        """Return the holder of a lock, or fail."""
        self._fault("locked_by", key)
        return self._repository.locked_by(key)

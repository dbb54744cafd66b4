"""An object of a store as a file: each read gets a range of it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any


class ObjectFile(io.RawIOBase):
    """An object of a known size, opened for reading. `get_range` returns the bytes from a start up to an end."""

    def __init__(self, get_range: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._get_range = get_range
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Return `True`."""
        return True

    def seekable(self) -> bool:
        """Return `True`."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, and return it."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"negative position: {start + offset}")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Get as many bytes as fit into the buffer, or fewer at the end."""
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        data = self._get_range(self._at, end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

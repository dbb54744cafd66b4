"""The files of a checkpoint folder, as one look found them. Nothing is written.

The folders are listed in the reverse of the order in which Spark writes them: commits first, state last. So the files
that a commit refers to are listed after the commit, but were written before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.doctor.findings import Code
from holdfast.repository.files import failing_as
from holdfast.sparkfiles.lz4 import END, MAGIC, has_end
from holdfast.sparkfiles.torn_writes import Form, sums_agree, sums_fit

_FIRST = ("metadata", "commits", "offsets", "sources", "state")
_SMALL = 1 << 22  # files up to this size are read completely
_DIGITS = 18  # of a batch: a 64-bit number
_GONE = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The size and the time of a file: together with its name, they identify its content."""

    size: int
    changed_ns: int


class CheckpointFiles:
    """All files below a checkpoint folder. A file that vanished since it was listed reads as missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: dict[str, FileFacts] = {}
        self._in: dict[str, list[str]] = {}
        with failing_as("list", str(folder)):
            self._list("")

    def names(self, folder: str) -> list[str]:
        """Return the names of the files directly in a folder, with hidden ones."""
        return self._in.get(folder, [])

    def folders(self) -> list[str]:
        """Return all folders that were listed, in order; the checkpoint folder itself is empty."""
        return list(self._in)

    def has(self, path: str) -> bool:
        """Whether a file exists."""
        return path in self.facts

    def size(self, path: str) -> int:
        """Return the size of a file; 0 if it does not exist."""
        return self.facts[path].size if path in self.facts else 0

    def read(self, path: str, limit: int = -1) -> bytes | None:
        """Return the content of a file, or its first bytes; `None` if it does not exist."""
        with failing_as("read", str(self.folder / path)):
            try:
                with (self.folder / path).open("rb") as file:
                    return file.read(limit)
            except (*_GONE, IsADirectoryError):
                return None

    def fault(self, path: str, is_whole: Form) -> Fault | None:
        """Return what is wrong with a file, or `None`. Of a large file only the size and the end are compared."""
        data = self.read(path, _SMALL)
        if data is None:
            return None
        if not data.strip(b"\0"):
            return Fault(torn=True, why="it contains only zero bytes" if data else "it is empty")
        sums = self.read(checksum_name(path)) or b""
        if len(data) == _SMALL or self.size(path) > _SMALL:
            fits = sums_fit(self.size(path), sums)
            return Fault(torn=True, why="its length does not match its checksum file") if fits is False else None
        agree = sums_agree(data, sums)
        if not is_whole(data.decode("utf-8", "replace")):
            return Fault(torn=True, why="it is cut off or overwritten")
        return Fault(torn=False, why="its content does not match its checksum file") if agree is False else None

    def state_fault(self, path: str) -> Fault | None:
        """Return what is wrong with a file of the state: besides the checksums, a compressed stream has an end."""
        found = self.fault(path, _any_form)
        if found is not None:
            return Fault(torn=True, why=found.why)
        head = self.read(path, len(MAGIC))
        if head == MAGIC and not has_end(self._tail(path)):
            return Fault(torn=True, why="its end is missing")
        return None

    def _tail(self, path: str) -> bytes:
        with failing_as("read", str(self.folder / path)), (self.folder / path).open("rb") as file:
            file.seek(max(self.size(path) - END, 0))
            return file.read()

    def _list(self, inside: str) -> None:
        try:
            with os.scandir(self.folder / inside) as found:
                entries = sorted(found, key=_order)
        except _GONE:
            return
        self._in[inside] = []
        for each in entries:
            path = f"{inside}/{each.name}" if inside else each.name
            try:
                if each.is_dir(follow_symlinks=not inside):  # `state` may be on another disk
                    self._list(path)
                    continue
                stat = each.stat()
            except _GONE:
                continue
            self._in[inside].append(each.name)
            self.facts[path] = FileFacts(stat.st_size, stat.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the content of a file."""

    torn: bool  # if not, only the checksum file disagrees
    why: str

    def code(self, torn: Code) -> Code:
        """Return the code of the finding."""
        return torn if self.torn else Code.CHECKSUM_STALE


def checksum_name(path: str) -> str:
    """Return the name of Hadoop's checksum file for a file."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc" if folder else f".{name}.crc"


def numbers(names: list[str]) -> Iterator[int]:
    """Yield the batches of a log, from the names of its files."""
    return (int(name) for name in names if name.isascii() and name.isdecimal() and len(name) <= _DIGITS)


def _order(entry: os.DirEntry[str]) -> tuple[int, str]:
    return (_FIRST.index(entry.name) if entry.name in _FIRST else len(_FIRST), entry.name)


def _any_form(text: str) -> bool:
    return bool(text)

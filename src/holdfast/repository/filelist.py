"""The list of files that one stream's cut needs, stored as an object under its own digest."""

from __future__ import annotations

import re

import msgspec

from holdfast.formats.decoding import from_json

DIGEST = re.compile(r"[0-9a-f]{64}")
# An empty part, `.`, `..`, or a character that is not allowed in a path.
_UNSOUND_PATH = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)|[\0\\]")


class HeldFile(msgspec.Struct, frozen=True, array_like=True):
    """One of Spark's files in a cut: its path in the stream's checkpoint folder, its size and its SHA-256."""

    path: str
    size: int
    sha256: str


class FileList(msgspec.Struct, frozen=True):
    """The files that one stream's cut needs, sorted by path."""

    files: list[HeldFile]

    def to_bytes(self) -> bytes:
        """Return the list as JSON, one file per line."""
        lines = b",\n".join(msgspec.json.encode(each) for each in sorted(self.files, key=lambda each: each.path))
        return b'{"files":[\n' + lines + b"\n]}\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> FileList:
        """Decode a list, or raise `Undecodable`."""
        return from_json(data, cls)

    @property
    def bytes(self) -> int:
        """The total size of the files."""
        return sum(each.size for each in self.files)

    def unsound(self) -> str | None:
        """Return what is wrong with the list, if anything: a path outside its folder, a duplicate, a bad digest."""
        folders = _above({each.path.rpartition("/")[0] for each in self.files})
        seen: set[str] = set()
        for each in self.files:
            if _UNSOUND_PATH.search(each.path):
                return f"path {each.path!r} leads out of its folder"
            if each.path in seen or each.path in folders:
                return f"path {each.path!r} is listed twice"
            if each.size < 0 or not DIGEST.fullmatch(each.sha256):
                return f"path {each.path!r} has no valid size and digest"
            seen.add(each.path)
        return None


def _above(folders: set[str]) -> set[str]:
    """Return the folders and all their parent folders."""
    found = set(folders)
    for folder in folders:
        while (folder := folder.rpartition("/")[0]) and folder not in found:
            found.add(folder)
    return found

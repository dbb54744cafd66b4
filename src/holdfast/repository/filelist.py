"""The list of files that one stream's cut needs, stored as an object under its own digest.

On a local disk the files are objects too, each under its digest. On an object store they are listed in place: state
files stay in Spark's folder, and the list has their ETags; entries of logs, which a clean-up removes, are copied.
"""

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
    etag: str = ""  # of a file that stays in Spark's folder on an object store


class FileList(msgspec.Struct, frozen=True):
    """The files that one stream's cut needs, sorted by path."""

    files: list[HeldFile]
    live: str = ""  # on an object store: the key of the Spark folder that contains the files with an ETag
    copies: str = ""  # on an object store: the key of the folder that contains the others

    def to_bytes(self) -> bytes:
        """Return the list as JSON, one file per line."""
        files = sorted(self.files, key=lambda each: each.path)
        if not self.is_placed:
            lines = (msgspec.json.encode((each.path, each.size, each.sha256)) for each in files)
            return b'{"files":[\n' + b",\n".join(lines) + b"\n]}\n"
        head = msgspec.json.encode({"live": self.live, "copies": self.copies})[:-1]
        return head + b',"files":[\n' + b",\n".join(map(msgspec.json.encode, files)) + b"\n]}\n"

    @property
    def is_placed(self) -> bool:
        """Whether the files are listed in place, as on an object store."""
        return bool(self.copies)

    def placed_key(self, file: HeldFile) -> str:
        """Return the key of a file that is listed in place."""
        return f"{self.live if file.etag else self.copies}/{file.path}"

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
            if each.etag and not self.live:
                return f"path {each.path!r} is in a folder that it does not name"
            seen.add(each.path)
        return None


def _above(folders: set[str]) -> set[str]:
    """Return the folders and all their parent folders."""
    found = set(folders)
    for folder in folders:
        while (folder := folder.rpartition("/")[0]) and folder not in found:
            found.add(folder)
    return found

"""Opening a repository by its address."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from holdfast.errors import BadValue
from holdfast.redaction import redacted_text
from holdfast.repository.base import Repository
from holdfast.repository.local import LocalRepository
from holdfast.repository.memory import MemoryRepository

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def open_repository(address: str | os.PathLike[str]) -> Repository:
    """Open a folder (`./checkpoints`, `file:///data/checkpoints`) or a new repository in memory (`memory:`)."""
    text = os.fspath(address)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return LocalRepository(text)
    match scheme[1].lower():
        case "file":
            parts = urlsplit(text)
            if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
                raise BadValue(what="repository address", value=redacted_text(text), why="a file: address is a path")
            return LocalRepository(unquote(parts.path))
        case "memory":
            return MemoryRepository()
    raise BadValue(
        what="repository address", value=redacted_text(text), why="only a folder, file: and memory: are known"
    )

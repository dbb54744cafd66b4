"""The history of a pipeline: who did what, when and why.

Each entry is one sealed line with the digest of the line before it, so a line that was changed, removed or moved is
detected. Not guaranteed: that missing lines at the end are detected. `journals.py` describes how the lines are stored:
on a local disk in `history.jsonl`.
"""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.errors import (
    Corrupt,
    HoldfastError,
    RecordCorrupt,
    StorageFailed,
    UnsupportedVersion,
)
from holdfast.formats.sealed_json import Record, SealBroken, digest_of
from holdfast.repository.base import Repository, checked_repository, read_each
from holdfast.repository.contracts import Line

NAME = "history"


class Entry(Record, frozen=True, kw_only=True):
    """One recorded action."""

    at: str
    who: str
    what: str
    why: str = ""
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    previous: str | None = None


class History:
    """The history of one pipeline."""

    def __init__(self, repository: Repository, clock: Callable[[], float] = time.time) -> None:
        self._journal = checked_repository(repository).journal(NAME)
        self._clock = clock

    def add(self, what: str, why: str = "", facts: dict[str, Any] | None = None, who: str | None = None) -> Entry:
        """Add an entry durably. If another process keeps the file locked for two seconds, raise `Locked`."""
        entry = Entry(
            at=datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds"),
            who=who or current_user(),
            what=what,
            why=why,
            facts=facts or {},
        )

        def after(lines: Sequence[Line]) -> bytes:
            nonlocal entry
            previous = _checked(lines)
            entry = msgspec.structs.replace(entry, previous=previous[-1] if previous else None)
            return entry.sealed(one_line=True)

        self._journal.add(after)
        return entry

    def entries(self) -> list[Entry]:
        """Return all entries, oldest first, or raise `RecordCorrupt` with the line number."""
        lines = self._journal.lines()
        _checked(lines)
        return [Entry.unsealed(line.data, line.key) for line in lines]

    def seen(self) -> tuple[list[Entry], list[HoldfastError]]:
        """Return the readable entries, oldest first, and the error if the history is damaged."""
        try:
            return self.entries(), []
        except (Corrupt, UnsupportedVersion, StorageFailed) as error:
            first = error
        return read_each(lambda line: Entry.unsealed(line.data, line.key), self._journal.remains())[0], [first]


def _checked(lines: Sequence[Line]) -> list[str]:
    """Return the digests of all lines after verifying each line and the chain."""
    digests: list[str] = []
    for line in lines:
        try:
            digest = digest_of(line.data)
        except SealBroken as broken:
            raise RecordCorrupt(key=line.key, why=str(broken)) from broken
        if Entry.unsealed(line.data, line.key).previous != (digests[-1] if digests else None):
            raise RecordCorrupt(key=line.key, why="the line before it was changed, removed or moved")
        digests.append(digest)
    return digests


def current_user() -> str:
    """Return the user and host of this process, for display."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a uid without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"

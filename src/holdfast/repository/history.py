"""`history.jsonl`: who did what to a pipeline, when and why.

Each entry is one sealed line with the digest of the line before it, so a line that was changed, removed or moved is
detected. Not guaranteed: that missing lines at the end are detected. The file is small and rarely written: to add an
entry, the whole file is rewritten atomically, under a lock.
"""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.errors import (
    Corrupt,
    HoldfastError,
    Locked,
    NotFound,
    RecordCorrupt,
    StorageFailed,
    UnsupportedVersion,
)
from holdfast.formats.sealed_json import Record, SealBroken, digest_of
from holdfast.repository.base import Lock, Repository, checked_repository, read_each

KEY = "history.jsonl"
LOCK = "history.lock"
_LOCK_TIMEOUT_S = 2.0
_PAUSE_S = 0.01


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
        self._repository = checked_repository(repository)
        self._clock = clock

    def add(self, what: str, why: str = "", facts: dict[str, Any] | None = None, who: str | None = None) -> Entry:
        """Add an entry durably. If another process keeps the file locked for two seconds, raise `Locked`."""
        with self._locked():
            lines = self._lines()
            previous = _checked(lines)
            entry = Entry(
                at=datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds"),
                who=who or current_user(),
                what=what,
                why=why,
                facts=facts or {},
                previous=previous[-1] if previous else None,
            )
            self._repository.put(KEY, b"".join(line + b"\n" for line in [*lines, entry.sealed(one_line=True)]))
        return entry

    def _locked(self) -> Lock:
        until = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                return self._repository.lock(LOCK)
            except Locked:
                if time.monotonic() > until:
                    raise
            time.sleep(_PAUSE_S)

    def entries(self) -> list[Entry]:
        """Return all entries, oldest first, or raise `RecordCorrupt` with the line number."""
        lines = self._lines()
        _checked(lines)
        return [Entry.unsealed(line, f"{KEY}:{number}") for number, line in enumerate(lines, 1)]

    def seen(self) -> tuple[list[Entry], list[HoldfastError]]:
        """Return the readable entries, oldest first, and the error if the history is damaged."""
        try:
            return self.entries(), []
        except (Corrupt, UnsupportedVersion, StorageFailed) as error:
            first = error
        try:
            lines = self._repository.read(KEY).split(b"\n")
        except (NotFound, StorageFailed):
            return [], [first]
        return read_each(lambda line: Entry.unsealed(line, KEY), lines)[0], [first]

    def _lines(self) -> list[bytes]:
        try:
            data = self._repository.read(KEY)
        except NotFound:
            return []
        lines = data.split(b"\n")
        if lines.pop():
            raise RecordCorrupt(key=f"{KEY}:{len(lines) + 1}", why="the last line is incomplete")
        return lines


def _checked(lines: list[bytes]) -> list[str]:
    """Return the digests of all lines after verifying each line and the chain."""
    digests: list[str] = []
    for number, line in enumerate(lines, 1):
        key = f"{KEY}:{number}"
        try:
            digest = digest_of(line)
        except SealBroken as broken:
            raise RecordCorrupt(key=key, why=str(broken)) from broken
        if Entry.unsealed(line, key).previous != (digests[-1] if digests else None):
            raise RecordCorrupt(key=key, why="the line before it was changed, removed or moved")
        digests.append(digest)
    return digests


def current_user() -> str:
    """Return the user and host of this process, for display."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a uid without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"

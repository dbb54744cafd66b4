"""Where a durable cursor is kept, and how one owner keeps another out.

On a local disk, `cursors/<name>.ckpt` is replaced at each commit, and the owner holds the lock `cursors/<name>.lock`.

On an object store nothing is replaced, and there is no lock:

- Each commit is an object with the next number, `cursors/<name>/<number, 20 digits>.ckpt`, written by `put_if_absent`.
  The highest number counts.
- An owner that loses its number, or finds a higher one after it has written its own, has been replaced: `CursorFenced`.
  (A number may be free again because newer owners have used and removed it.)
- The owner of n removes n-2 and older ones, some at a time.
"""

from __future__ import annotations

import re
from typing import Protocol, cast

from holdfast._validation import checked_name, is_name
from holdfast.errors import CursorFenced, NotFound, StorageFailed
from holdfast.eventlog._cursor_file import FOLDER, SUFFIX, CursorRecord
from holdfast.repository import FileRepository, Lock, Repository

_NUMBER = re.compile(rf"(\d{{20}}){re.escape(SUFFIX)}")
_REMOVED_AT_ONCE = 16
_TRIES = 10


class CursorSlot(Protocol):
    """The place of one cursor, for its owner. Release it."""

    @property
    def held(self) -> bool:
        """Whether this process may still use it."""

    def read(self) -> CursorRecord | None:
        """Return the cursor as it was last saved, or `None` if it does not exist."""

    def write(self, record: CursorRecord) -> None:
        """Save the cursor durably."""

    def release(self) -> None:
        """Let another owner use it; idempotent."""


class LockedCursor:
    """A cursor in a repository on this machine: a file, and a lock that its owner holds."""

    def __init__(self, repository: FileRepository, name: str) -> None:
        self._repository = repository
        self._name = name
        self._lock: Lock = repository.lock(lock_key(name), f"cursor {name!r} in {repository.where}")

    @property
    def held(self) -> bool:
        """Whether this process holds the lock; a forked child does not hold its parent's."""
        return self._lock.held

    def read(self) -> CursorRecord | None:
        """Read the file."""
        return _read_file(self._repository, self._name)

    def write(self, record: CursorRecord) -> None:
        """Replace the file."""
        self._repository.put(cursor_key(self._name), record.to_bytes())

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()


class NumberedCursor:
    """A cursor on an object store: one object per commit."""

    held = True

    def __init__(self, repository: Repository, name: str) -> None:
        self._repository = repository
        self._name = name
        self._number = 0

    def read(self) -> CursorRecord | None:
        """Read the highest number. From here on, only the number after it is this owner's."""
        self._number, data = _newest(self._repository, self._name)
        return None if data is None else CursorRecord.from_bytes(data, self._name, self._repository.where)

    def write(self, record: CursorRecord) -> None:
        """1. Write the next number.  2. It counts if no higher one is listed.  3. Remove old ones."""
        number = self._number + 1
        won = self._repository.put_if_absent(_numbered_key(self._name, number), record.to_bytes()).won  # 1
        numbers = _numbers(self._repository, self._name)  # 2
        newer = max(numbers, default=number)
        if not won or newer > number:
            raise CursorFenced(cursor=self._name, number=number, newer=newer, where=self._repository.where)
        self._number = number
        if len(numbers) > _REMOVED_AT_ONCE:
            self._repository.delete_all(_numbered_key(self._name, each) for each in numbers if each < number - 1)  # 3

    def release(self) -> None:
        """Do nothing: the next owner does not wait."""


def open_slot(repository: Repository, name: str) -> CursorSlot:
    """Return the place of a cursor. In a repository on this machine, raise `Locked` if a process is using it."""
    if _has_locks(repository):
        return LockedCursor(cast("FileRepository", repository), name)
    return NumberedCursor(repository, name)


def read_cursor(repository: Repository, name: str) -> CursorRecord | None:
    """Return a cursor as it was last saved, or `None` if it does not exist. Takes no lock."""
    checked_name("cursor", name)
    return _read_file(repository, name) if _has_locks(repository) else NumberedCursor(repository, name).read()


def cursor_names(repository: Repository) -> list[str]:
    """Return the sorted names of all saved cursors; a folder in place of a cursor file is included."""
    names = repository.list(FOLDER)
    if not _has_locks(repository):
        folders = [name.removesuffix("/") for name in names if name.endswith("/")]
        return [name for name in folders if is_name(name) and not name.endswith(".quarantine")]
    names = [name.removesuffix("/") for name in names]
    return [stem for name in names if name.endswith(SUFFIX) and is_name(stem := name.removesuffix(SUFFIX))]


def owner_of_cursor(repository: Repository, name: str) -> int | None:
    """Return the pid of the process that is using a cursor, 0 if it is unknown; `None` if there is none, or no lock."""
    return cast("FileRepository", repository).locked_by(lock_key(name)) if _has_locks(repository) else None


def cursor_key(name: str) -> str:
    """Return the key of a cursor file."""
    return f"{FOLDER}/{checked_name('cursor', name)}{SUFFIX}"


def lock_key(name: str) -> str:
    """Return the key of the lock that the owner of a cursor holds."""
    return f"{FOLDER}/{name}.lock"


def _has_locks(repository: Repository) -> bool:
    return hasattr(repository, "lock")


def _read_file(repository: Repository, name: str) -> CursorRecord | None:
    key = cursor_key(name)
    try:
        data = repository.read(key)
    except NotFound:
        return None
    return CursorRecord.from_bytes(data, name, repository.where)


def _numbered_key(name: str, number: int) -> str:
    return f"{FOLDER}/{checked_name('cursor', name)}/{number:020}{SUFFIX}"


def _numbers(repository: Repository, name: str) -> list[int]:
    found = (_NUMBER.fullmatch(each) for each in repository.list(f"{FOLDER}/{name}"))
    return [int(match[1]) for match in found if match]


def _newest(repository: Repository, name: str) -> tuple[int, bytes | None]:
    for _ in range(_TRIES):
        newest = max(_numbers(repository, name), default=0)
        if not newest:
            return 0, None
        try:
            return newest, repository.read(_numbered_key(name, newest))
        except NotFound:  # its owner has written two more since the listing
            continue
    raise StorageFailed(action="read", key=f"{FOLDER}/{name}", why="its owner replaces it faster than it can be read")

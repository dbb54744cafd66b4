"""The contract of a repository, which stores everything that must survive a crash.

Keys are relative paths whose parts are validated. Every backend guarantees:

- `put` and `put_if_absent` are durable on return: the value survives a power failure.
- `put_if_absent` has exactly one winner across all processes. The loser receives the winner's value, which is durable
  too.
- A reader sees a complete value or none, never a part of one.
- A failure before the change could take effect raises `StorageFailed`: nothing was changed. A failure after that point
  raises `OutcomeUnknown`.

Not guaranteed: that a value that was just read is durable, if its writer has not returned yet (`put_if_absent` of the
same key makes it durable).

There are two contracts, so that the types show which code needs a local disk. Every backend fulfils `Repository`. A
backend on this machine also fulfils `FileRepository`: it replaces values, stores and places local files, and has locks.
On an object store nothing is replaced: records that change are reached through `Repository.heads`.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar, cast

from holdfast.errors import (
    BadValue,
    Corrupt,
    HoldfastError,
    NotFound,
    NotSupported,
    StorageFailed,
    UnsupportedVersion,
)
from holdfast.repository.contracts import Guard, Heads, Journal, Lock, Put

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R", bound="Repository")

Data: TypeAlias = bytes | bytearray | memoryview | Sequence[memoryview]
"""What can be written: one buffer, or several that are written one after another without being joined in memory."""


def buffers(data: Data) -> list[memoryview]:
    """Return data as views of its bytes, or raise `BadValue`."""
    pieces = [data] if isinstance(data, bytes | bytearray | memoryview) else data
    if not isinstance(pieces, list | tuple) or not all(
        isinstance(each, bytes | bytearray | memoryview) for each in pieces
    ):
        raise BadValue(what="data", value=data, expected="bytes or a list of bytes")
    try:
        return [memoryview(each).cast("B") for each in pieces]
    except TypeError as error:
        raise BadValue(what="data", value=data, why=str(error)) from error  # memory that is not contiguous


def joined(data: Data) -> bytes:
    """Return the data as one `bytes` object."""
    return b"".join(buffers(data))


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of a store, as a listing reports it."""

    key: str  # relative to the repository
    size: int
    etag: str
    modified_s: float  # by the clock of the store, in seconds since 1970


@dataclass(frozen=True, slots=True)
class Held:
    """A file that is stored under its own digest."""

    key: str
    size: int
    sha256: str


def held_key(folder: str, sha256: str) -> str:
    """Return the key of a file that is stored in `folder` under its digest."""
    return f"{folder}/{sha256[:2]}/{sha256}"


def checked_repository(value: R) -> R:
    """Return `value` if it is a repository; an address, a frequent mistake, raises `BadValue`."""
    if not hasattr(value, "put_if_absent"):
        do = "pass open_repository(address), or an instance of a repository class"
        why = f"its type is {type(value).__name__}"
        raise BadValue(what="repository", value=value, expected="a repository", why=why, do=do)
    return value


class Repository(Protocol):
    """A store of immutable values by key. A write is durable on return, and `put_if_absent` has exactly one winner."""

    @property
    def where(self) -> str:
        """The address of the repository, for display."""

    @property
    def heads(self) -> Heads:
        """The records that change."""

    @property
    def guard(self) -> Guard:
        """What keeps a second writer out while the holder of the lease is alive."""

    def journal(self, name: str) -> Journal:
        """Return the list of this name to which entries are only added."""

    def read(self, key: str) -> bytes:
        """Return the value, or raise `NotFound`."""

    def read_all(self, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Return each value; `None` if there is none. On a store, many are read at a time."""

    def put_if_absent(self, key: str, data: Data) -> Put:
        """Write the value if there is none; return whether this call won, and the stored value."""

    def put_new(self, key: str, data: Data) -> None:
        """Write a value under a name that is used once: no other writer, and no other value, ever has this key.

        After a failure the same value may be written again.
        """

    def list(self, folder: str = "") -> list[str]:
        """Return the names directly inside `folder`, sorted; folders end with a slash. A missing folder is empty."""

    def delete(self, key: str) -> None:
        """Delete the value; no error if there is none. Only the lease holder deletes."""

    def delete_all(self, keys: Iterable[str]) -> None:
        """Delete many values, in any order; durable on return. Missing values are no error."""

    def clear(self, folder: str) -> None:
        """Delete a folder and everything in it; no error if there is none. After an interruption, call it again."""

    def sizes(self, keys: Iterable[str]) -> dict[str, int | None]:
        """Return the size of each value in bytes; `None` if there is no value."""

    def digest(self, key: str) -> str:
        """Return the SHA-256 of a value without loading all of it into memory, or raise `NotFound`."""

    def digests(self, keys: Iterable[str]) -> dict[str, Held | None]:
        """Return the size and SHA-256 of each value as read; `None` if there is no value."""


class FileRepository(Repository, Protocol):
    """A repository on this machine: it also replaces values, stores and places local files, and has locks.

    Not guaranteed: any order between two concurrent calls of `put` (the last one wins).
    """

    def put(self, key: str, data: Data) -> None:
        """Write the value, replacing any previous one."""

    def hold(self, source: Path, key: str) -> None:
        """Store an external file durably, by link where possible. An existing value is not replaced."""

    def hold_all(self, sources: Iterable[Path], folder: str, *, copy: bool = False) -> builtins.list[Held]:
        """Store external files in `folder`, each under its SHA-256; durable on return. Linked unless `copy`.

        Each file is linked first and hashed through the link, so the stored bytes are the hashed ones. A missing file
        raises `NotFound`.
        """

    def restore(self, key: str, target: Path) -> None:
        """Place a held file at `target`, which must not exist."""

    def restore_all(self, keys: Iterable[tuple[str, Path]], *, copy: bool = False) -> None:
        """Place many held files at their targets, none of which may exist; durable on return. Linked unless `copy`.

        A missing file raises `NotFound`. Files placed before a failure are not removed.
        """

    def lock(self, key: str, what: str | None = None) -> Lock:
        """Take the lock of this name, or raise `Locked` at once; `what` describes the locked thing in that error."""

    def locked_by(self, key: str) -> int | None:
        """Return the pid of the process that holds this lock, 0 if the pid is unknown, `None` if the lock is free."""


def on_this_machine(repository: Repository, what: str) -> FileRepository:
    """Return a repository that replaces values and has locks; for one on a store, raise `NotSupported`."""
    if not hasattr(repository, "lock"):
        why = f"the repository {repository.where} is on an object store"
        raise NotSupported(what=what, why=why, do="use a repository on a local disk")
    return cast("FileRepository", repository)


def now_ms(clock: Callable[[], float] = time.time) -> int:
    """Return the time of a clock in milliseconds, as records store it."""
    return int(clock() * 1000)


def read_one_by_one(repository: Repository, keys: Iterable[str]) -> dict[str, bytes | None]:
    """Return each value, read one after another; `None` if there is none."""
    found: dict[str, bytes | None] = {}
    for key in keys:
        try:
            found[key] = repository.read(key)
        except NotFound:
            found[key] = None
    return found


def read_each(read: Callable[[K], T], keys: Iterable[K]) -> tuple[list[T], list[HoldfastError]]:
    """Read many values: return those that can be read, and an error for each that is damaged or unreadable.

    A value that is deleted between listing and reading is left out.
    """
    found: list[T] = []
    bad: list[HoldfastError] = []
    for key in keys:
        try:
            found.append(read(key))
        except NotFound:
            pass
        except (Corrupt, UnsupportedVersion, StorageFailed) as error:
            bad.append(error)
    return found, bad

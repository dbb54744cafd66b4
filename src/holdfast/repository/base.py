"""The contract of a repository: where everything that must last is kept.

Keys are relative paths of checked parts. What a backend promises:

- `put` and `put_if_absent` are durable on return: what they wrote survives the loss of power.
- `put_if_absent` has exactly one winner over all processes. The loser gets what the winner wrote, and may rely on it:
  it is durable too.
- A reader sees a whole value or none, never a part of one.
- A failure before the change could take effect is `StorageFailed`: nothing was changed. One after it is
  `OutcomeUnknown`.

Not promised: that a value just read is durable already, if its writer is still at work. `put_if_absent` of the same
key settles that. Nor any order between two writers of `put`: the last one stands.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar, cast

from holdfast.errors import BadValue, Corrupt, HoldfastError, NotFound, StorageFailed, UnsupportedVersion

K = TypeVar("K")
T = TypeVar("T")

Data: TypeAlias = bytes | bytearray | memoryview | Sequence[memoryview]
"""What can be written: one buffer, or several behind one another, which are not joined in memory first."""


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
        raise BadValue(what="data", value=data, why=str(error)) from error  # bytes that do not lie in one piece


def joined(data: Data) -> bytes:
    """Return everything in one piece."""
    return b"".join(buffers(data))


@dataclass(frozen=True, slots=True)
class Put:
    """The outcome of `put_if_absent`: who won, and what stands."""

    won: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class Held:
    """A file that is kept under its own digest."""

    key: str
    size: int
    sha256: str


def held_key(folder: str, sha256: str) -> str:
    """Return the key of a file that is kept in `folder` under its digest."""
    return f"{folder}/{sha256[:2]}/{sha256}"


class Lock(Protocol):
    """A lock that is held until it is released, or its process ends."""

    @property
    def held(self) -> bool:
        """Whether this process still has it."""

    def release(self) -> None:
        """Let go; harmless when done twice."""

    def __enter__(self) -> Lock:
        """Return the lock, held already."""

    def __exit__(self, *_: object) -> None:
        """Let go."""


def checked_repository(value: object) -> Repository:
    """Return `value` if it is a repository, and not, as easily happens, its address."""
    if not hasattr(value, "put_if_absent"):
        do = "pass open_repository(address), or one of the repository classes"
        raise BadValue(what="repository", value=value, why=f"it is {type(value).__name__}", do=do)
    return cast("Repository", value)


class Repository(Protocol):
    """A store of immutable values by key; see the rules above."""

    @property
    def where(self) -> str:
        """The repository's address, for people."""

    def read(self, key: str) -> bytes:
        """Return the value, or raise `NotFound`."""

    def put(self, key: str, data: Data) -> None:
        """Write the value, replacing what was there."""

    def put_if_absent(self, key: str, data: Data) -> Put:
        """Write the value if there is none; say who won and what stands."""

    def list(self, folder: str = "") -> list[str]:
        """Return the names directly inside `folder`, sorted; folders end with a slash. A missing folder is empty."""

    def delete(self, key: str) -> None:
        """Remove the value; harmless when there is none. Only the holder of the lease deletes."""

    def delete_all(self, keys: Iterable[str]) -> None:
        """Remove many values; harmless where there is none. All are gone durably on return, in no certain order."""

    def clear(self, folder: str) -> None:
        """Remove a folder and all in it; harmless when there is none, and again when it was cut off."""

    def sizes(self, keys: Iterable[str]) -> dict[str, int | None]:
        """Return how many bytes each value has; `None` where there is none."""

    def digest(self, key: str) -> str:
        """Return the SHA-256 of a value, without taking it into memory whole; `NotFound` where there is none."""

    def digests(self, keys: Iterable[str]) -> dict[str, Held | None]:
        """Return the size and SHA-256 of each value, as they are read; `None` where there is none."""

    def hold(self, source: Path, key: str) -> None:
        """Keep a file that somebody else made: durable, by link where possible. A key that is there stays as it is."""

    def hold_all(self, sources: Iterable[Path], folder: str, *, copy: bool = False) -> builtins.list[Held]:
        """Keep files of somebody else's in `folder`, each under its SHA-256; durable on return. By link unless `copy`.

        Each is linked first and read from the link, so what is kept is what was read. One that is gone is `NotFound`.
        """

    def restore(self, key: str, target: Path) -> None:
        """Put a held file at `target`, which must not exist."""

    def restore_all(self, keys: Iterable[tuple[str, Path]], *, copy: bool = False) -> None:
        """Put many held files at their targets, none of which may exist; durable on return. By link unless `copy`.

        One that is gone is `NotFound`. What was put before a failure stays.
        """

    def lock(self, key: str, what: str | None = None) -> Lock:
        """Take the lock of this name, or raise `Locked` at once; `what` is what the lock is of, for people."""

    def locked_by(self, key: str) -> int | None:
        """Return the pid of whoever holds this lock, 0 where it cannot be told, `None` where nobody does."""


def read_each(read: Callable[[K], T], keys: Iterable[K]) -> tuple[list[T], list[HoldfastError]]:
    """Read values for a list: return those that can be read, and an error for each that is damaged or unreadable.

    A value that is removed between the list and the read is left out.
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

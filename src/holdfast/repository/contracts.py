"""The contracts of the parts of a repository that its backends store in different ways.

- `Heads`: records that change, and the folders that are looked at together with them (`heads.py`, `storeheads.py`).
- `Journal`: a list to which entries are only added (`journals.py`, `storejournal.py`).
- `Guard`: what keeps a second writer out (`guards.py`, `storeguard.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Put:
    """The outcome of `put_if_absent`: whether this call wrote the value, and the stored value."""

    won: bool
    data: bytes


class Lock(Protocol):
    """A lock that is held until it is released or its process ends."""

    @property
    def held(self) -> bool:
        """Whether this process still holds the lock."""

    def release(self) -> None:
        """Release the lock; idempotent."""

    def __enter__(self) -> Lock:
        """Return the lock, which is already held."""

    def __exit__(self, *_: object) -> None:
        """Release the lock."""


HeadChange: TypeAlias = Callable[[bytes | None], bytes]
"""The new value of a record from its present one (`None`: there is none). It may be called more than once, also with a
value that already contains the change."""


class HeadsView(Protocol):
    """What one look at the heads has found."""

    def names(self, folder: str) -> list[str]:
        """Return the names directly inside `Heads.folder(folder)`, sorted; folders end with a slash."""

    def holds(self, key: str, data: bytes) -> bool:
        """Whether a key inside a folder of the heads still has this value."""

    def level(self, key: str, of: Callable[[bytes], int]) -> int:
        """Return a level, 0 if it was never set; `of` decodes its record where the name does not show the number."""


class Heads(Protocol):
    """The records of a repository that change, and the folders that are looked at together with them."""

    @property
    def fresh_s(self) -> float:
        """How old a look may be when another one would only avoid wasted work: on a store each is a round trip."""

    def look(self) -> HeadsView:
        """Look at all of them: one listing on a store."""

    def folder(self, name: str) -> str:
        """Return the folder for records of this name that are written once, such as leases."""

    def read(self, key: str) -> bytes:
        """Return the present value of a record, or raise `NotFound`."""

    def create(self, key: str, data: bytes) -> Put:
        """Write the first value of a record if it has none; return whether this call won, and the stored value."""

    def change(self, key: str, change: HeadChange) -> bytes:
        """HeadChange a record durably, and return its value. Only for the lease holder."""

    def rise(self, key: str, level: int, data: bytes) -> None:
        """Raise a level durably, and store the record that states it. A lower one changes nothing on a store.

        Only for the lease holder.
        """


@dataclass(frozen=True, slots=True)
class Line:
    """One entry, and the key that identifies it in errors."""

    key: str
    data: bytes


class Journal(Protocol):
    """A list of lines without line breaks."""

    def lines(self) -> list[Line]:
        """Return all entries, oldest first, or raise `RecordCorrupt` if one is missing or incomplete."""

    def remains(self) -> list[Line]:
        """Return what can be found in a damaged journal."""

    def add(self, make: Callable[[Sequence[Line]], bytes]) -> None:
        """Add the entry that `make` returns for the entries before it. It may be called more than once."""


class Guard(Protocol):
    """How a backend keeps a second writer out."""

    def enter(self, *, take_over: bool = False) -> Lock:
        """Make sure that no other writer is alive, or raise an error that names it.

        `take_over` goes on at once where only time can show whether the holder has ended.
        """

    def begin(self, number: int, lock: Lock | None) -> Lock | None:
        """Show from now on that the holder of lease `number` is alive. `lock` is what `enter` returned."""

    def holder(self) -> int | None:
        """Return the pid of the process that keeps others out, 0 if it is unknown, `None` if there is none."""

"""What keeps a second writer out while the holder of a pipeline's lease is alive.

On this machine it is an OS lock. On an object store there is no lock: the holder of a lease writes a beat every ten
seconds (`storeguard.py`). Neither is needed for safety, which rests on `put_if_absent` of decisions alone.
"""

from __future__ import annotations

from holdfast.repository.base import FileRepository
from holdfast.repository.contracts import Lock

LEASES = "lease"  # the folder of the leases
LOCK = f"{LEASES}/os.lock"


class FileGuard:
    """An OS lock, which ends with its process."""

    def __init__(self, repository: FileRepository) -> None:
        self._repository = repository

    def enter(self, *, take_over: bool = False) -> Lock:
        """Take the lock, or raise `Locked` at once. A lock that is held belongs to a live process."""
        del take_over
        return self._repository.lock(LOCK, f"the lease of {self._repository.where}")

    def begin(self, number: int, lock: Lock | None) -> Lock | None:
        """Return the lock: it shows by itself that its holder is alive."""
        del number
        return lock

    def holder(self) -> int | None:
        """Return the process that holds the lock."""
        return self._repository.locked_by(LOCK)

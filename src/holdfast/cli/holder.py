"""The process that holds the lease of a pipeline, as far as this machine can know it."""

from __future__ import annotations

import msgspec

from holdfast.errors import Corrupt, StorageFailed, UnsupportedVersion
from holdfast.repository import LocalRepository
from holdfast.repository.lease import held_lease, newest_lease


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds the lease of a pipeline."""

    lease: int  # number of the lease
    host: str  # host name of its machine
    pid: int  # its process id there
    taken_at_ms: int  # when it took the lease
    certain: bool  # whether it is known to be alive; false for a shared pipeline last started on another machine
    shared: bool = False  # runs without an OS lock: only a process on this machine can be checked


def holder_of(repository: LocalRepository) -> Holder | None:
    """Return the process that holds the lease; `None` if no process on this machine holds it.

    Not guaranteed for a shared pipeline: that the process still runs it. The run may be over while the process lives.
    """
    held = held_lease(repository)
    lease = held or newest_lease(repository)
    if lease is None or not (held or lease.shared):
        return None
    alive = True if held else lease.is_alive()
    if alive is False:
        return None
    return Holder(
        lease=lease.number,
        host=lease.host,
        pid=lease.pid,
        taken_at_ms=lease.taken_at_ms,
        certain=alive is True,
        shared=lease.shared,
    )


def readable_holder(repository: LocalRepository) -> tuple[Holder | None, str | None]:
    """Return the holder, or the reason why it cannot be read. The caller still reports everything else."""
    try:
        return holder_of(repository), None
    except (Corrupt, UnsupportedVersion, StorageFailed) as error:
        return None, error.summary

"""The process that holds the lease of a pipeline, as far as this machine can know it."""

from __future__ import annotations

import msgspec

from holdfast.control.observing import stopped_by
from holdfast.control.records import is_closed
from holdfast.errors import Corrupt, NotFound, StorageFailed, UnsupportedVersion
from holdfast.repository import Repository
from holdfast.repository.lease import BACKFILL, RUN, held_lease, newest_lease


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds the lease of a pipeline."""

    lease: int  # number of the lease
    host: str  # host name of its machine
    pid: int  # its process id there
    taken_at_ms: int  # when it took the lease
    certain: bool  # whether it is known to be alive; false for a shared pipeline last started on another machine
    stopping: str | None = None  # who requested from another process that it stops, and why
    shared: bool = False  # runs without an OS lock: only a process on this machine can be checked
    why: str = ""  # what it does: run, backfill, or a command such as prune or rewind; empty: not recorded

    @property
    def runs(self) -> bool:
        """Whether it runs the pipeline; otherwise, a maintenance command holds the lease of a stopped one.

        A program that takes the lease itself need not record why.
        """
        return self.why in (RUN, BACKFILL, "")


def holder_of(repository: Repository) -> Holder | None:
    """Return the process that holds the lease; `None` if no process on this machine holds it.

    Not guaranteed for a shared pipeline: that the process still runs it. A run that ended gracefully is recognised.
    """
    held = held_lease(repository)
    lease = held or newest_lease(repository)
    if lease is None or not (held or lease.shared):
        return None
    alive = True if held else lease.is_alive()
    if alive is False or (held is None and is_closed(repository, lease.number)):
        return None
    return Holder(
        lease=lease.number,
        host=lease.host,
        pid=lease.pid,
        taken_at_ms=lease.taken_at_ms,
        certain=alive is True,
        stopping=_stopping(repository, lease.number),
        shared=lease.shared,
        why=lease.why,
    )


def _stopping(repository: Repository, lease: int) -> str | None:
    request = stopped_by(repository, lease)
    if request is None:
        return None
    return f"{request.asker}: {request.reason}" if request.reason else request.asker


def readable_holder(repository: Repository) -> tuple[Holder | None, str | None]:
    """Return the holder, or the reason why it cannot be read. The caller still reports everything else."""
    try:
        return holder_of(repository), None
    except (Corrupt, NotFound, UnsupportedVersion, StorageFailed) as error:
        return None, error.summary


def check_elsewhere(holder: Holder, does: str) -> str:
    """Return the next step if it is not known from here whether the holder still runs; `does`: what a start does."""
    check = f"check on {holder.host} whether process {holder.pid} still runs"
    return f"{check}; only if it has ended, start the pipeline, which {does}"

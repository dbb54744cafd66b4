"""The lease of a pipeline that must be stopped."""

from __future__ import annotations

from holdfast.control.records import is_closed
from holdfast.errors import NotSupported
from holdfast.repository import Lease, Repository
from holdfast.repository.lease import newest_lease
from holdfast.repository.rewinds import require_finished


def lease_of(repository: Repository, why: str, *, take_over: bool = False) -> Lease:
    """Take the lease; raise `Locked` if the pipeline is running, and `RewindUnfinished` if a rewind was interrupted.

    A `shared` pipeline has no lock that would show this: unless it was stopped gracefully, `take_over` confirms that
    its driver is gone.
    """
    newest = newest_lease(repository)
    shared = newest is not None and newest.shared
    if newest is not None and shared and not take_over and not is_closed(repository, newest.number):
        raise NotSupported(
            what=f"taking the lease of {repository.where}",
            why="the pipeline is shared by several machines, so a driver on another one may be running",
            do="stop the pipeline (holdfast stop), then confirm with --take-over",
        )
    lease = Lease.take(repository, shared=shared, why=why)
    try:
        require_finished(repository)
    except BaseException:
        lease.release()
        raise
    return lease

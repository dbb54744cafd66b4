"""Which process runs a pipeline, as far as another process can see it. Nothing is written here."""

from __future__ import annotations

from holdfast.control.protocol import RequestState
from holdfast.control.records import (
    REQUEST_NAME,
    ControlRequest,
    RequestKind,
    channel_folder,
    is_closed,
    read_request,
    read_state,
)
from holdfast.errors import NotFound, RecordCorrupt, UnsupportedVersion
from holdfast.repository import LeaseRecord, Repository
from holdfast.repository.lease import held_lease, newest_lease


def running_driver(repository: Repository) -> LeaseRecord | None:
    """Return the lease of the process that runs the pipeline, or `None` if no process is known to run it.

    Not guaranteed for a `shared` pipeline on another machine: that its driver is alive. One that ended gracefully is
    recognised.
    """
    held = held_lease(repository)
    lease = held or newest_lease(repository)
    if lease is None or held is not None:
        return lease
    if not lease.shared or lease.is_alive() is False or is_closed(repository, lease.number):
        return None
    return lease


def stopped_by(repository: Repository, lease: int) -> ControlRequest | None:
    """Return the request that a driver is being stopped for, or `None`. A request that cannot be read is left out."""
    for name in repository.list(channel_folder(lease)):
        match = REQUEST_NAME.fullmatch(name)
        try:
            if match and read_state(repository, lease, match[1])[0] is RequestState.TAKEN:
                request = read_request(repository, lease, match[1])
                if request.kind == RequestKind.STOP:
                    return request
        except (NotFound, RecordCorrupt, UnsupportedVersion):
            continue
    return None

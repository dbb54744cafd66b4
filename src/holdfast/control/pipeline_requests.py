"""Requests to a running pipeline from another process: checkpoint, savepoint, stop, cancel.

Any process that may write to the pipeline's folder may ask; there is no other permission.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast._validation import checked_name, checked_seconds
from holdfast.control.asking import (
    POLL_S,
    TIMEOUT_S,
    Asking,
    AskPhase,
    Watch,
    new_request_id,
    unwatched_request,
    wait_for,
    withdrawn_at_exit,
)
from holdfast.control.observing import running_driver
from holdfast.control.records import RequestKind
from holdfast.control.results import CheckpointCancelled, CheckpointTaken, PipelineStopped, result_of
from holdfast.errors import Absent, AlreadyExists, Corrupt, RequestLost, RequestUnanswered, UnsupportedVersion
from holdfast.formats.manifest import Manifest
from holdfast.repository import Checkpoints, Identity, Repository
from holdfast.repository.checkpoints import SAVEPOINT_EXISTS

DRAIN_S = 60.0  # how long a drain processes input that never pauses
_RECENT = 50  # checkpoints that are searched for the result of a lost request


def request_checkpoint(
    repository: Repository,
    *,
    why: str = "",
    timeout_s: float = TIMEOUT_S,
    poll_s: float = POLL_S,
    request_id: str | None = None,
    watch: Watch = unwatched_request,
) -> CheckpointTaken:
    """Ask the running pipeline to take a checkpoint now, and return it.

    Raises `NotRunning` if no process runs the pipeline, `RequestUnanswered` after the timeout, and `RequestFailed` if
    the checkpoint failed.

    - `why`: the reason, which is recorded in the history.
    - `timeout_s`: how long to wait. A request that the pipeline has not begun by then is withdrawn.
    - `poll_s`: how long to pause between two looks for the answer.
    - `request_id`: 32 hexadecimal digits; the default is a new id. A second call with the same id waits for the answer
      of the first.
    - `watch`: called at every look with the progress.
    """
    manner = _Manner(why, timeout_s, poll_s, request_id, watch)
    return _checkpoint(repository, RequestKind.CHECKPOINT, None, manner)


def request_savepoint(
    repository: Repository,
    name: str,
    *,
    why: str = "",
    timeout_s: float = TIMEOUT_S,
    poll_s: float = POLL_S,
    request_id: str | None = None,
    watch: Watch = unwatched_request,
) -> CheckpointTaken:
    """Ask the running pipeline to take a savepoint of this name, and return it.

    The savepoint records the id of its request. If the answer was lost, a second call with the same `request_id` and
    name returns the savepoint instead of `AlreadyExists`. The options are those of `request_checkpoint`.
    """
    manner = _Manner(why, timeout_s, poll_s, request_id, watch)
    existing = _existing(repository, name, request_id)
    if existing is not None:
        return CheckpointTaken.of(existing)
    return _checkpoint(repository, RequestKind.SAVEPOINT, name, manner)


def request_cancel(
    repository: Repository,
    *,
    why: str = "",
    timeout_s: float = TIMEOUT_S,
    poll_s: float = POLL_S,
    request_id: str | None = None,
    watch: Watch = unwatched_request,
) -> CheckpointCancelled:
    """Abort the checkpoint that the running pipeline is taking; the streams and the schedule continue.

    The options are those of `request_checkpoint`.
    """
    manner = _Manner(why, timeout_s, poll_s, request_id, watch)
    asking = manner.asking(repository, RequestKind.CANCEL, {})
    return result_of(CheckpointCancelled, wait_for(asking, poll_s).result, asking.request_id)


def request_stop(
    repository: Repository,
    *,
    drain: bool = False,
    savepoint: str | None = None,
    drain_timeout_s: float = DRAIN_S,
    why: str = "",
    timeout_s: float = TIMEOUT_S,
    poll_s: float = POLL_S,
    request_id: str | None = None,
    watch: Watch = unwatched_request,
) -> PipelineStopped:
    """Stop the running pipeline gracefully; return when its process has released the lease.

    Each stream finishes its epoch, and a last checkpoint is taken. With `drain`, the streams process the available
    input first, for at most `drain_timeout_s`. With `savepoint`, the last checkpoint is a savepoint of this name.

    1. Wait for the answer, which the driver writes when everything is done.  2. Wait until the lock is free; without an
    OS lock (a `shared` pipeline), until the driver has recorded its end.  A driver that dies meanwhile has stopped,
    too; if a savepoint or a drain was requested and not completed, `RequestLost` is raised.  The other options are
    those of `request_checkpoint`.
    """
    checked_seconds("drain_timeout", drain_timeout_s)
    if savepoint is not None and (existing := _existing(repository, savepoint, request_id)):
        driver = running_driver(repository)
        if driver is None or driver.number != existing.lease:  # otherwise the stop is under way: wait for its answer
            taken = CheckpointTaken.of(existing)
            return PipelineStopped(taken=taken, epochs=taken.epochs, last_checkpoint=taken.checkpoint)
    arguments = {"drain": bool(drain), "savepoint": savepoint, "drain_timeout_s": float(drain_timeout_s)}
    manner = _Manner(why, timeout_s, poll_s, request_id, watch)
    asking = manner.asking(repository, RequestKind.STOP, arguments)
    try:
        answer = wait_for(asking, poll_s)  # 1
    except RequestLost:
        recognised = _recognised(repository, asking.request_id, savepoint)
        if recognised is None and (drain or savepoint):
            raise
        return PipelineStopped(taken=recognised, answered=False)
    with withdrawn_at_exit(asking):
        while not asking.driver_ended():  # 2
            asking.report(AskPhase.ENDING)
            if asking.timed_out and asking.sent_to is not None:
                holder, shared = asking.sent_to.holder, asking.sent_to.shared
                raise RequestUnanswered(
                    request=asking.request_id,
                    holder=holder,
                    seconds=asking.timeout_s,
                    kind=asking.kind,
                    shared=shared,
                    taken=True,
                )
            time.sleep(poll_s)
    return result_of(PipelineStopped, answer.result, asking.request_id)


# --- internal --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Manner:
    """How to ask: the options that all requests have."""

    why: str
    timeout_s: float
    poll_s: float
    request_id: str | None
    watch: Watch

    def asking(self, repository: Repository, kind: RequestKind, arguments: Mapping[str, Any]) -> Asking:
        """Return a request that is not sent yet."""
        checked_seconds("poll_s", self.poll_s)
        Identity.load(repository)  # raises before anything is written into a folder that is not a repository
        return Asking(
            repository=repository,
            kind=kind,
            arguments=arguments,
            why=self.why,
            timeout_s=self.timeout_s,
            request_id=new_request_id() if self.request_id is None else self.request_id,
            watch=self.watch,
        )


def _checkpoint(repository: Repository, kind: RequestKind, savepoint: str | None, manner: _Manner) -> CheckpointTaken:
    arguments = {} if savepoint is None else {"savepoint": savepoint}
    asking = manner.asking(repository, kind, arguments)
    try:
        return result_of(CheckpointTaken, wait_for(asking, manner.poll_s).result, asking.request_id)
    except RequestLost:
        found = _recognised(repository, asking.request_id, savepoint)
        if found is None:
            raise
        return found


def _existing(repository: Repository, savepoint: str, request: str | None) -> Manifest | None:
    """Return the savepoint of this name if this request has made it; refuse the name of another one."""
    checked_name("savepoint", savepoint)
    try:
        found = Checkpoints(repository).read(savepoint)
    except Absent:
        return None
    except (Corrupt, UnsupportedVersion):
        found = None
    if found is None or request is None or found.request != request:
        raise AlreadyExists(what=f"savepoint {savepoint!r}", do=SAVEPOINT_EXISTS)
    return found


def _recognised(repository: Repository, request: str, savepoint: str | None) -> CheckpointTaken | None:
    """Return the checkpoint that a request has produced before its driver ended, if there is one."""
    checkpoints = Checkpoints(repository)
    names: list[int | str] = [savepoint] if savepoint else []
    if not savepoint:
        found = checkpoints.restorable()
        names = [each.checkpoint for each in reversed(found[-_RECENT:])]
    for name in names:
        manifest = _readable(checkpoints, name)
        if manifest is not None and manifest.request == request:
            return CheckpointTaken.of(manifest)
    return None


def _readable(checkpoints: Checkpoints, name: int | str) -> Manifest | None:
    try:
        return checkpoints.read(name)
    except (Absent, Corrupt, UnsupportedVersion):
        return None

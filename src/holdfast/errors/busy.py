"""Wait, or stop the other process: it holds the lock, the lease or the folder."""

from __future__ import annotations

from holdfast.errors.base import HoldfastError


class Busy(HoldfastError):
    """Another process or thread is using the resource."""


class Locked(Busy):
    """Another live process, or other code in this process, holds the lock. `pid` is 0 if the OS does not report it."""

    what: str
    pid: int
    own: bool = False  # this process holds the lock
    do: str = "close or release the existing object, or use that one"  # the next step if this process holds the lock
    says = "{e.what} is held by {e.holder}"
    next_step = "{e.advice}"

    @property
    def holder(self) -> str:
        """The process that holds the lock, as text."""
        if self.own:
            return f"process {self.pid}, which is this process"
        return f"process {self.pid}" if self.pid else "another process"

    @property
    def advice(self) -> str:
        """The next step."""
        if self.own:
            return self.do
        return "stop that process (a running pipeline: holdfast stop), or wait until it ends"


class SparkQueryLive(Busy):
    """Files in the checkpoint folder of a plain Spark query change: the query is running. Nothing was changed."""

    path: str
    file: str  # one that has changed
    files: int  # how many have
    says = "a query is running in {e.path}: {e.file}{e.others} changed while the folder was examined"
    next_step = "stop the query, and wait until its process has ended; then repeat the command"

    @property
    def others(self) -> str:
        """The number of other files that have changed, as text; empty if there is none."""
        return f" and {self.files - 1} other files" if self.files > 1 else ""


class AppendOpen(Busy):
    """Another append to this log is still open; a log has at most one at a time."""

    path: str
    says = "an append to event log {e.path} is already open"
    next_step = "commit or abort that append first"


class CommitOpen(Busy):
    """A commit into a sink's folder did not finish in time: its driver is paused. Nothing was changed."""

    path: str
    seconds: float
    says = "a commit into {e.path} did not finish within {e.seconds} s"
    next_step = "find the paused driver and resume or stop it; then compact again"


class LeaseHeld(Busy):
    """The holder of the lease shows that it is alive. Nothing was changed."""

    number: int
    holder: str
    where: str
    says = "lease {e.number} of {e.where} is held by {e.holder}, which is alive"
    next_step = "stop that process (a running pipeline: holdfast stop), or replace it: --take-over"


class LeaseTaken(Busy):
    """Another writer took this lease number at the same time."""

    number: int
    holder: str
    says = "lease {e.number} was taken by {e.holder} at the same time"
    next_step = "let that process run the pipeline; take the lease again only to replace it"


class Fenced(Busy):
    """A newer lease was taken: this writer has been replaced and must stop."""

    number: int
    newer: int
    holder: str
    says = "lease {e.number} was replaced by lease {e.newer}, held by {e.holder}"
    next_step = "stop this process; the newer one continues the pipeline"


class CursorFenced(Fenced):
    """Another process has saved this cursor since: this owner has been replaced and must stop. Nothing was changed."""

    cursor: str
    where: str
    holder: str = ""
    says = (
        "cursor {e.cursor!r} in {e.where} was saved by another process: number {e.newer} of its saves exists, and this "
        "process was to write number {e.number}"
    )
    next_step = "let only one process use the cursor, and open it again: it continues after the last saved position"


class RequestUnanswered(Busy):
    """The lease holder did not answer in time.

    If `taken` is false, the request was withdrawn: it is not carried out. If it is true, the holder is still working on
    it, and its result can be seen later.
    """

    request: str
    holder: str
    seconds: float
    kind: str = "prune"
    shared: bool = False
    taken: bool = False  # the holder had begun to carry it out
    says = "{e.kind} request {e.request} was not answered within {e.seconds:g} s by {e.holder}, which holds the lease"
    next_step = "{e.advice}"

    @property
    def advice(self) -> str:
        """The next step."""
        if self.taken:
            return "wait: it is being carried out; its result appears in holdfast log and holdfast ls"
        check = "check that this process is alive and not paused"
        if self.kind == "prune":
            check = "check that it takes checkpoints (it prunes between them)"
        text = f"{check}, then repeat: holdfast {self.kind} --timeout 30m"
        return f"{text}; if it has ended: holdfast prune --take-over" if self.shared and self.kind == "prune" else text


class EpochClosed(Busy):
    """The epoch was decided, and its slots pruned, while this writer was paused. Nothing was changed."""

    stream: str
    epoch: int
    floor: int
    says = (
        "epoch {e.epoch} of stream {e.stream!r} was closed earlier: decisions before epoch {e.floor} have been pruned"
    )
    next_step = "stop this process; a newer one has continued the pipeline"

"""Fix the storage, then try again: a read, a write or a server failed."""

from __future__ import annotations

from holdfast.errors.base import HoldfastError


class Storage(HoldfastError):
    """The storage or a server failed."""


class StorageFailed(Storage):
    """A read or write failed, and nothing was changed."""

    action: str
    key: str
    why: str
    says = "{e.action} {e.key!r} failed: {e.why}"
    next_step = "fix the storage (space, permissions, connection), then try again"


class StoreDenied(StorageFailed):
    """The object store refused the credentials, or they do not permit the request. Nothing was changed."""

    says = "{e.action} {e.key!r} was denied: {e.why}"
    next_step = (
        "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the role of this machine; it must be "
        "permitted to get, put, delete and list objects of this bucket"
    )


class StoreUnreachable(StorageFailed):
    """The object store could not be reached, or cannot answer requests now. A running pipeline waits."""

    says = "{e.action} {e.key!r} failed, because the object store is unavailable: {e.why}"
    next_step = "check AWS_ENDPOINT_URL, the network and the server, then try again"


class BucketMissing(StorageFailed):
    """There is no bucket of this name. Nothing was changed."""

    says = "{e.action} {e.key!r} failed: {e.why}"
    next_step = "create the bucket, or correct its name or AWS_ENDPOINT_URL"


class WrongRegion(StorageFailed):
    """The bucket is in another region than the requests were sent to. Nothing was changed."""

    says = "{e.action} {e.key!r} failed, because the bucket is in another region: {e.why}"
    next_step = "set AWS_REGION to the region of the bucket"


class BucketUnsuitable(Storage):
    """The object store does not do what a repository needs, so no pipeline may use it. Nothing was started."""

    where: str
    why: str
    says = "{e.where} cannot hold a repository: {e.why}"
    next_step = "use Amazon S3, or a server with conditional writes (If-None-Match) and consistent listings"


class BlockFailed(Storage):
    """A block of a device could not be read or written; block 0 is the header."""

    stage: str
    action: str
    block: int
    why: str
    says = "stage {e.stage!r}: {e.step}: {e.why}"
    next_step = "fix the device, then restore the stage"

    @property
    def step(self) -> str:
        """The step that failed, such as `write block 3`; a flush concerns the whole device."""
        return self.action if self.action == "flush" else f"{self.action} block {self.block}"


class SinkFailed(Storage):
    """A sink or its server failed. Its change may have taken effect; the next try or start finds out."""

    sink: str
    action: str
    why: str
    do: str = "fix the sink (server, permissions, space), then run again: the epoch continues where it stopped"
    says = "sink {e.sink!r} could not {e.action}: {e.why}"
    next_step = "{e.do}"


class SinkUnavailable(SinkFailed):
    """A sink's server cannot be reached, or its storage is full, read-only or locked. A running pipeline waits.

    Raise it from a custom sink for a problem that ends without a change to the program, its rows or the table.
    """


class SourceFailed(Storage):
    """A source could not be compared with the position of its stream, so the stream was not started."""

    stream: str
    source: int
    why: str
    do: str = "fix the source or its options, then run again"
    says = "source {e.source} of stream {e.stream!r} cannot be read: {e.why}"
    next_step = "{e.do}"


class SourceUnavailable(SourceFailed):
    """The server of a source cannot be reached. A running pipeline waits."""

    do: str = "check the address in the options of the source, fix the server, then run again"
    says = "source {e.source} of stream {e.stream!r} cannot be reached: {e.why}"


class FrozenRowsLost(Storage):
    """Rows of an epoch were computed again while its sinks prepared, so the sinks may have different rows.

    Nothing is decided. The next attempt computes all rows before the sinks are called.
    """

    stream: str
    epoch: int
    computed: int
    given: int
    says = (
        "epoch {e.epoch} of stream {e.stream!r} was prepared from rows that were computed more than once: "
        "{e.computed} rows were computed, and each sink counted {e.given}"
    )
    next_step = (
        "run again, and make sure that no code unpersists the RDDs of a running stream; a sink of your own must return "
        "the number of its rows from prepare()"
    )


class InDoubt(Storage):
    """An epoch is decided, but a sink could not commit it yet. Nothing is lost: the next start commits it."""

    stream: str
    epoch: int
    sinks: tuple[str, ...]
    why: str
    says = (
        "epoch {e.epoch} of stream {e.stream!r} is decided but in doubt: not yet committed to {e.listed}: {e.why}; "
        "nothing is lost"
    )
    next_step = "fix the sink, then run the pipeline again, which commits the epoch first; show it: holdfast doubt"

    @property
    def listed(self) -> str:
        """The sinks in one line."""
        return ", ".join(self.sinks)


class OutcomeUnknown(Storage):
    """The change may or may not be durable: the failure came after the point at which it could take effect."""

    action: str
    key: str
    why: str
    says = "{e.action} {e.key!r} may or may not have taken effect: {e.why}"
    next_step = "read {e.key!r} back before you try again"

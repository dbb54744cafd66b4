"""`fork.json`: the pipeline and the checkpoint that a repository was forked from."""

from __future__ import annotations

from holdfast.errors import NotFound
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository

KEY = "fork.json"


class ForkRecord(Record, frozen=True, kw_only=True):
    """The origin of a fork."""

    pipeline: str  # the name of the original
    uid: str  # of the original
    base: str  # the checkpoint, in words
    manifest: str  # the digest of its manifest


def record_fork(repository: Repository, record: ForkRecord) -> None:
    """Write the origin of a new repository."""
    repository.put_if_absent(KEY, record.sealed())


def fork_of(repository: Repository) -> ForkRecord | None:
    """Return the origin of a repository; `None` if it is not a fork."""
    try:
        return ForkRecord.unsealed(repository.read(KEY), KEY)
    except NotFound:
        return None

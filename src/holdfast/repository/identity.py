"""`holdfast.json`: the pipeline that a repository belongs to, and the format version of the repository.

Version 2 means that the repository has more than one timeline. Programs that know only version 1 would continue the
first one, so they must refuse it. Which timeline is current is in `lineage.py`.
"""

from __future__ import annotations

import uuid
from typing import ClassVar

import msgspec

from holdfast._validation import checked_name
from holdfast.errors import AlreadyExists, NotFound, RepositoryMissing
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository, checked_repository

KEY = "holdfast.json"
SEVERAL_TIMELINES = 2  # the version of a repository that was rewound


class Identity(Record, frozen=True, kw_only=True):
    """The identity of a pipeline. Sinks store the uid, which distinguishes two pipelines with the same name."""

    KNOWN: ClassVar[tuple[int, ...]] = (1, SEVERAL_TIMELINES)

    pipeline: str  # name of the pipeline
    uid: str  # random, generated at creation

    def __post_init__(self) -> None:
        checked_name("pipeline", self.pipeline)

    @classmethod
    def create(cls, repository: Repository, pipeline: str) -> Identity:
        """Create the identity of a new pipeline in a repository, or raise `AlreadyExists`."""
        identity = cls(pipeline=pipeline, uid=uuid.uuid4().hex)
        if not checked_repository(repository).heads.create(KEY, identity.sealed()).won:
            raise AlreadyExists(what=f"a pipeline's repository at {repository.where}")
        return identity

    @classmethod
    def load(cls, repository: Repository) -> Identity:
        """Return the identity of a repository, or raise `RepositoryMissing`."""
        try:
            data = checked_repository(repository).heads.read(KEY)
        except NotFound:
            raise RepositoryMissing(key=KEY, where=repository.where) from None
        return cls.unsealed(data, KEY)

    def with_several_timelines(self, repository: Repository) -> Identity:
        """Write version 2, once: programs that know only version 1 refuse the repository from then on."""
        if self.version >= SEVERAL_TIMELINES:
            return self
        newer = msgspec.structs.replace(self, version=SEVERAL_TIMELINES)
        repository.heads.change(KEY, lambda _: newer.sealed())
        return newer

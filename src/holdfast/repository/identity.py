"""`holdfast.json`: which pipeline a repository belongs to, in which format, and its current timeline."""

from __future__ import annotations

import uuid

from holdfast._validation import checked_name, checked_positive
from holdfast.errors import AlreadyExists, BadValue, NotFound, RepositoryMissing
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository, checked_repository

KEY = "holdfast.json"


class Identity(Record, frozen=True, kw_only=True):
    """Who a repository is. The uid tells two pipelines of one name apart, where sinks remember what they were given."""

    pipeline: str  # its name
    uid: str  # made at random when it was created
    timeline: int = 1  # the current one

    def __post_init__(self) -> None:
        checked_name("pipeline", self.pipeline)
        checked_positive("timeline", self.timeline)

    @classmethod
    def create(cls, repository: Repository, pipeline: str) -> Identity:
        """Make a repository that of a new pipeline, or raise `AlreadyExists`."""
        identity = cls(pipeline=pipeline, uid=uuid.uuid4().hex)
        if not checked_repository(repository).put_if_absent(KEY, identity.sealed()).won:
            raise AlreadyExists(what=f"a pipeline's repository at {repository.where}")
        return identity

    @classmethod
    def load(cls, repository: Repository) -> Identity:
        """Return who a repository is; `RepositoryMissing` where it is none yet."""
        try:
            data = checked_repository(repository).read(KEY)
        except NotFound:
            raise RepositoryMissing(key=KEY, where=repository.where) from None
        return cls.unsealed(data, KEY)

    def begin_timeline(self, repository: Repository, timeline: int) -> Identity:
        """Make `timeline` the current one. For the holder of the lease; timelines only go up."""
        current = Identity.load(repository)  # ours may be old by now
        if current.uid != self.uid or timeline <= current.timeline:
            why = f"pipeline {current.uid} is at timeline {current.timeline} already"
            raise BadValue(what="timeline", value=timeline, why=why)
        identity = Identity(pipeline=self.pipeline, uid=self.uid, timeline=timeline)
        repository.put(KEY, identity.sealed())
        return identity

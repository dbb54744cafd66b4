"""`holdfast.json`: the pipeline that a repository belongs to, the format version, and the current timeline."""

from __future__ import annotations

import uuid

from holdfast._validation import checked_name, checked_positive
from holdfast.errors import AlreadyExists, BadValue, NotFound, RepositoryMissing
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository, checked_repository

KEY = "holdfast.json"


class Identity(Record, frozen=True, kw_only=True):
    """The identity of a pipeline. Sinks store the uid, which distinguishes two pipelines with the same name."""

    pipeline: str  # name of the pipeline
    uid: str  # random, generated at creation
    timeline: int = 1  # the current timeline

    def __post_init__(self) -> None:
        checked_name("pipeline", self.pipeline)
        checked_positive("timeline", self.timeline)

    @classmethod
    def create(cls, repository: Repository, pipeline: str) -> Identity:
        """Create the identity of a new pipeline in a repository, or raise `AlreadyExists`."""
        identity = cls(pipeline=pipeline, uid=uuid.uuid4().hex)
        if not checked_repository(repository).put_if_absent(KEY, identity.sealed()).won:
            raise AlreadyExists(what=f"a pipeline's repository at {repository.where}")
        return identity

    @classmethod
    def load(cls, repository: Repository) -> Identity:
        """Return the identity of a repository, or raise `RepositoryMissing`."""
        try:
            data = checked_repository(repository).read(KEY)
        except NotFound:
            raise RepositoryMissing(key=KEY, where=repository.where) from None
        return cls.unsealed(data, KEY)

    def begin_timeline(self, repository: Repository, timeline: int) -> Identity:
        """Make `timeline` the current one. Only for the lease holder; the number must be higher than the last."""
        current = Identity.load(repository)  # this object may be outdated
        if current.uid != self.uid or timeline <= current.timeline:
            why = f"pipeline {current.uid} is already at timeline {current.timeline}"
            raise BadValue(what="timeline", value=timeline, why=why)
        identity = Identity(pipeline=self.pipeline, uid=self.uid, timeline=timeline)
        repository.put(KEY, identity.sealed())
        return identity

"""The marker: the last epoch that a topic holds, as a consumer-group offset.

The offset is committed in the same transaction as the rows. Its number is the epoch, and its metadata is JSON: the
owner, the timeline, and the digests of the handles of this epoch and of the one before it.

Rules:
- The group, and the transactional id, are `holdfast.<topic>`. So a second owner finds the marker of the first one. A
  sink with `share=True` has a group of its own, which also names pipeline, stream and sink. Neither contains the uid or
  the timeline: a new repository must find the marker of an earlier one, and a rewind must fence the drivers of earlier
  timelines.
- Before the first epoch there is a claim: epoch 0 of timeline 0. So a missing marker means that it was lost.
- A stamp has no handle. It begins a timeline.
- Metadata that Holdfast did not write is refused: the offset was set by another program.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from holdfast.errors import RecordCorrupt
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.sinks.base import EpochKey, EpochPlace, Link, StreamIdentity
from holdfast.sinks.held_epochs import HeldEpochs

PARTITION = 0  # of the topic: the offset of this one is the marker
_VERSION = 1


class _MarkerMetadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The metadata of the offset. The server limits it to 4,096 bytes by default."""

    holdfast: int  # version of this format
    pipeline: str
    uid: str
    stream: str
    timeline: int
    handle: str | None = None
    before: tuple[int, str | None] | None = None  # the epoch before, and the digest of its handle


@dataclass(frozen=True, slots=True)
class EpochMarker:
    """The last epoch of a stream in a topic, and the one before it."""

    owner: StreamIdentity
    timeline: int  # 0: nothing was written yet
    last: Link
    before: Link | None = None  # in the same timeline

    @classmethod
    def claim(cls, owner: StreamIdentity) -> EpochMarker:
        """Return the marker of a stream that has written nothing."""
        return cls(owner, 0, Link(0, None))

    @classmethod
    def stamp(cls, owner: StreamIdentity, base: EpochPlace, into: int) -> EpochMarker:
        """Return the marker with which a rewind begins a timeline."""
        return cls(owner, into, Link(base[1], None))

    @property
    def place(self) -> EpochPlace:
        """Timeline and epoch."""
        return self.timeline, self.last.epoch

    def followed_by(self, key: EpochKey, digest: str) -> EpochMarker:
        """Return the marker of the next epoch."""
        before = self.last if self.timeline == key.timeline else None
        return EpochMarker(key.owner, key.timeline, Link(key.epoch, digest), before)

    def held(self, key: EpochKey) -> HeldEpochs:
        """Return what decides whether an epoch is committed."""
        if self.timeline != key.timeline:
            return HeldEpochs(self.timeline, None, Link(0, None))
        known = [each for each in (self.last, self.before) if each is not None and each.epoch == key.epoch]
        return HeldEpochs(self.timeline, known[0] if known and key.epoch else None, self.last)

    def metadata(self) -> str:
        """Return the metadata of the offset."""
        before = None if self.before is None else (self.before.epoch, self.before.handle)
        found = _MarkerMetadata(
            holdfast=_VERSION,
            pipeline=self.owner.pipeline,
            uid=self.owner.uid,
            stream=self.owner.stream,
            timeline=self.timeline,
            handle=self.last.handle,
            before=before,
        )
        return msgspec.json.encode(found).decode()

    @classmethod
    def read(cls, offset: int, metadata: str | None, place: str) -> EpochMarker:
        """Return the marker of an offset; `place` names it in errors."""
        try:
            found = from_json((metadata or "").encode(errors="replace"), _MarkerMetadata)
        except Undecodable as error:
            raise RecordCorrupt(key=place, why=f"another program has set it: {error}") from None
        if found.holdfast != _VERSION or offset < 0 or found.timeline < 0:
            raise RecordCorrupt(key=place, why=f"it has version {found.holdfast} and offset {offset}")
        before = None if found.before is None else Link(*found.before)
        owner = StreamIdentity(found.pipeline, found.uid, found.stream)
        return cls(owner, found.timeline, Link(offset, found.handle), before)


def ledger_name(topic: str, owner: StreamIdentity, sink: str, *, share: bool) -> str:
    """Return the consumer group of the marker, which is also the transactional id."""
    return f"holdfast.{topic}.{owner.pipeline}.{owner.stream}.{sink}" if share else f"holdfast.{topic}"

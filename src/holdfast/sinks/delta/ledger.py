"""What the log of a Delta table records for a stream: application transactions, written in the commit of the data.

    holdfast/<uid>/<stream>                 timeline and epoch of the last commit or stamp, in one number
    holdfast/<uid>/<stream>/handle          the digest of its handle; 0 for a stamp
    holdfast/<uid>/<stream>/mode            how rows are written: 0 append, 1 replace, 2 upsert
    holdfast/<uid>/<stream>/since           timeline and epoch of the first commit in this mode, if there was another
    holdfast/<uid>/<stream>/ended           timeline and epoch of the last commit before the last stamp
    holdfast/<uid>/<stream>/aside/<n>       the digest of the list of files that the rewind into timeline n took out
    holdfast/owner                          the stream that owns the table; 0 if several share it
    holdfast/name/<pipeline>/<stream>       the uid of the pipeline of this name

A table keeps the newest version of each application id, through checkpoints and the clean-up of its log, so reading
one costs the same after any number of epochs. Delta refuses the commit of a writer that has read an older version of
an id that it writes: check and commit are one step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from holdfast.sinks.base import EpochKey, EpochPlace, Link, SinkPosition, StreamIdentity
from holdfast.sinks.held_epochs import HeldEpochs

_EPOCH_BITS = 40
_SHARED = 0

Transactions: TypeAlias = dict[str, int]
"""Application ids, each with the version that a commit writes."""


class DeltaMode(IntEnum):
    """How an epoch changes a table."""

    APPEND = 0
    REPLACE = 1
    UPSERT = 2


@dataclass(frozen=True, slots=True)
class DeltaLedger:
    """The entries of one stream, in one version of a table."""

    owner: StreamIdentity
    version: Callable[[str], int | None]  # of an application id
    share: bool
    last_owner: Callable[[], str | None] = lambda: None  # the stream that wrote last, for errors

    @property
    def place(self) -> EpochPlace:
        """The last commit or stamp; (0, 0) if there is none."""
        return _place(self.version(self._own))

    @property
    def ended(self) -> EpochPlace:
        """The last commit before the last stamp."""
        return _place(self.version(f"{self._own}/ended"))

    @property
    def mode(self) -> DeltaMode:
        """How the last epoch was written."""
        return DeltaMode(self.version(f"{self._own}/mode") or 0)

    @property
    def handle(self) -> str | None:
        """The digest of the last handle, or `None` after a stamp."""
        found = self.version(f"{self._own}/handle") or 0
        return f"{found & ((1 << 64) - 1):016x}" if found else None

    @property
    def since(self) -> EpochPlace:
        """The first epoch that was written in this mode; (0, 0) if all of them were."""
        return _place(self.version(f"{self._own}/since"))

    def held(self, key: EpochKey) -> HeldEpochs:
        """Return what matters for one epoch."""
        timeline, epoch = self.place
        last = Link(epoch, self.handle)
        own = last if key.place == self.place else None
        return HeldEpochs(timeline, own, last if timeline == key.timeline else Link(0, None))

    def position(self, timeline: int) -> SinkPosition:
        """Return the position of the stream in a timeline, and another owner if there is one."""
        found = self.place
        return SinkPosition(found[1] if found[0] == timeline else 0, self.foreign())

    def foreign(self) -> str | None:
        """Return the owner of the table if it is not this stream."""
        found = self.version("holdfast/owner")
        if found == self._identity:
            return None
        named = self.version(self._name)
        if named is not None and named != _number(self.owner.uid):
            return self.last_owner() or f"another pipeline of the name {self.owner.pipeline!r}, with another uid"
        if found is None or (found == _SHARED and self.share):
            return None
        return "streams that share it" if found == _SHARED else self.last_owner() or "another stream of Holdfast"

    @property
    def is_claimed(self) -> bool:
        """Whether the table records this stream as its owner, or that it is shared, as the sink wants it."""
        wanted = _SHARED if self.share else self._identity
        return self.version("holdfast/owner") == wanted and self.version(self._name) is not None

    def claim(self) -> Transactions:
        """Return the entries that make this stream the owner."""
        wanted = _SHARED if self.share else self._identity
        return {"holdfast/owner": wanted, self._name: _number(self.owner.uid)}

    def committed(self, key: EpochKey, handle: str, mode: DeltaMode) -> Transactions:
        """Return the entries for an epoch; `handle` is the digest of its handle."""
        digest = int(handle, 16)
        signed = digest - (1 << 64) if digest >> 63 else digest
        found = {self._own: _packed(key.place), f"{self._own}/handle": signed, f"{self._own}/mode": int(mode)}
        if self.version(f"{self._own}/mode") not in (None, mode):
            found[f"{self._own}/since"] = _packed(key.place)
        return found | ({} if self.is_claimed else self.claim())

    def stamped(self, stamp: EpochPlace) -> Transactions:
        """Return the entries for a stamp."""
        ended = {f"{self._own}/handle": 0, f"{self._own}/ended": _packed(self.place)}
        return {self._own: _packed(stamp)} | ended | ({} if self.is_claimed else self.claim())

    def aside(self, timeline: int) -> int:
        """Return the number of the list of files that the rewind into a timeline took out; 0 if there is none."""
        return self.version(f"{self._own}/aside/{timeline}") or 0

    def with_aside(self, timeline: int, number: int) -> Transactions:
        """Return the entry for such a list; 0 if it was put back or discarded."""
        return {f"{self._own}/aside/{timeline}": number}

    @property
    def _own(self) -> str:
        return f"holdfast/{self.owner.uid}/{self.owner.stream}"

    @property
    def _name(self) -> str:
        return f"holdfast/name/{self.owner.pipeline}/{self.owner.stream}"

    @property
    def _identity(self) -> int:
        return _number(f"{self.owner.uid}/{self.owner.stream}")


def _number(text: str) -> int:
    """Return a positive number that identifies a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") + 1


def _packed(place: EpochPlace) -> int:
    return place[0] << _EPOCH_BITS | place[1]


def _place(version: int | None) -> EpochPlace:
    found = version or 0
    return found >> _EPOCH_BITS, found & ((1 << _EPOCH_BITS) - 1)

"""The ledger of a stream in an Iceberg table: one table property, changed in the same transaction as the rows.

    holdfast.<uid>.<stream> = {"digest": …, "timeline": 1, "held": [[40, "…"], [41, "…"]], …}

Rules:
- Each change of the ledger adds a snapshot to the branch `main`, even if no rows change. A catalog refuses a
  transaction if the branch has moved since the table was read, and it compares nothing else. So a change that is based
  on an outdated ledger is refused, too.
- The last two epochs are kept, with the digests of their handles. A rewind writes a stamp: the timeline that it begins,
  and its base without a handle.
- `aside` names the rewinds whose rows can be put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.formats.sealed_json import Record
from holdfast.sinks.base import EpochKey, EpochPlace, Link, StreamIdentity, handle_digest
from holdfast.sinks.held_epochs import HeldEpochs

PREFIX = "holdfast."


class TakenBack(msgspec.Struct, frozen=True):
    """What the rewind into a timeline took out of the table."""

    base: list[int]  # timeline and epoch
    epochs: int
    rows: int


class HeldEpoch(msgspec.Struct, frozen=True, array_like=True):
    """An epoch that the table holds."""

    epoch: int
    handle: str | None  # the digest of its handle; none after a rewind


class TableLedger(Record, frozen=True, kw_only=True):
    """The entry of one stream."""

    pipeline: str
    timeline: int = 0
    held: list[HeldEpoch] = msgspec.field(default_factory=list)  # the last epochs of the timeline
    ended: list[int] = msgspec.field(default_factory=lambda: [0, 0])  # the last epoch of the timeline before
    aside: dict[str, TakenBack] = msgspec.field(default_factory=dict)  # by the timeline that the rewind began

    @property
    def last(self) -> int:
        """The last epoch of the timeline, 0 for none."""
        return self.held[-1].epoch if self.held else 0

    @property
    def place(self) -> EpochPlace:
        """The last epoch."""
        return self.timeline, self.last

    def epoch_in(self, timeline: int) -> int:
        """Return the last epoch that the table holds in a timeline, 0 for none."""
        return self.last if timeline == self.timeline else 0

    def held_for(self, key: EpochKey) -> HeldEpochs:
        """Return what decides whether an epoch is committed."""
        if key.timeline != self.timeline:
            return HeldEpochs(self.timeline, None, Link(0, None))
        links = {each.epoch: Link(each.epoch, each.handle) for each in self.held}
        return HeldEpochs(self.timeline, links.get(key.epoch), links.get(self.last, Link(0, None)))

    def with_epoch(self, key: EpochKey, handle: Mapping[str, Any]) -> TableLedger:
        """Return the ledger after a commit."""
        before = self.held[-1:] if key.timeline == self.timeline else []
        now = HeldEpoch(key.epoch, handle_digest(handle))
        return msgspec.structs.replace(self, timeline=key.timeline, held=[*before, now])

    def stamped(self, base: EpochPlace, into: int) -> TableLedger:
        """Return the ledger after a stamp."""
        return msgspec.structs.replace(self, timeline=into, held=[HeldEpoch(base[1], None)], ended=list(self.place))

    def with_aside(self, into: int, taken: TakenBack) -> TableLedger:
        """Return the ledger with the rows of one more rewind set aside."""
        return msgspec.structs.replace(self, aside={**self.aside, str(into): taken})

    def without_aside(self, into: int) -> TableLedger:
        """Return the ledger without what a rewind has set aside."""
        left = {name: each for name, each in self.aside.items() if name != str(into)}
        return msgspec.structs.replace(self, aside=left)

    def property_of(self, owner: StreamIdentity) -> dict[str, str]:
        """Return the entry as a table property."""
        return {property_name(owner): self.sealed(one_line=True).decode()}


def property_name(owner: StreamIdentity) -> str:
    """Return the name of a stream's property."""
    return f"{PREFIX}{owner.uid}.{owner.stream}"


def ledger_in(properties: Mapping[str, str], owner: StreamIdentity) -> TableLedger | None:
    """Return the entry of a stream, or `None`; raise if it is damaged."""
    name = property_name(owner)
    return TableLedger.unsealed(properties[name].encode(), f"table property {name}") if name in properties else None


def foreign_owner(properties: Mapping[str, str], owner: StreamIdentity) -> str | None:
    """Return another stream that owns the table, as text."""
    for name in sorted(properties):
        uid, dot, stream = name.removeprefix(PREFIX).partition(".")
        if name.startswith(PREFIX) and dot and name != property_name(owner):
            other = TableLedger.unsealed(properties[name].encode(), f"table property {name}")
            return StreamIdentity(other.pipeline, uid, stream).summary
    return None

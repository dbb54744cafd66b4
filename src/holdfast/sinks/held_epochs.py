"""Whether a sink already holds an epoch, decided from its ledger.

Rules:
- An epoch that the ledger records with the same handle is committed. With another handle, another copy of the
  repository decided it: that is refused.
- If the ledger records a later timeline, a rewind has abandoned the epoch's own: the commit is refused, never skipped
  silently.
- Otherwise the last recorded epoch must be the one that the decision names as its predecessor. Every epoch is compared
  with the one before it, so comparing the last one covers the whole history.
- A handle that the ledger or the decision does not know is not compared: earlier versions recorded none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import SinkBehind, SinkForeign, TimelineEnded
from holdfast.sinks.base import EpochKey, Link, Sink, handle_digest

_ONE_COPY = (
    "run only the copy that wrote the sink's last epoch, and stop this one; for a second pipeline beside it, start "
    "with an empty repository and other targets"
)


@dataclass(frozen=True, slots=True)
class HeldEpochs:
    """The entries of a ledger that matter for one epoch of its owner."""

    timeline: int  # the latest one that the ledger records; 0: none
    own: Link | None  # the epoch itself
    last: Link  # the last epoch in the timeline of the key; epoch 0: none


def is_committed(sink: Sink, key: EpochKey, handle: Mapping[str, Any], held: HeldEpochs, place: str) -> bool:
    """Whether the sink holds the epoch.

    Raise if a rewind has abandoned it, or if another copy of the repository wrote it, or the one before it.
    """
    if held.timeline > key.timeline:
        raise TimelineEnded(stream=key.attempt.stream, timeline=key.timeline)
    if held.own is None:
        return is_past(sink, key, held.last, place)
    if held.own.handle not in (None, handle_digest(handle)):
        raise decided_elsewhere(sink, key, place)
    return True


def is_past(sink: Sink, key: EpochKey, held: Link, place: str) -> bool:
    """Whether the sink holds a later epoch; raise if this repository did not decide the epoch that the sink holds.

    `held` is the last epoch that the ledger records in the key's timeline; it is not the key's own. Only a driver that
    was replaced finds a later one there, and it is fenced whether or not this function raises.
    """
    before = key.before
    if before is None:
        return held.epoch > key.epoch
    if held.epoch < before.epoch:
        raise SinkBehind(stream=key.attempt.stream, sink=sink.name, holds=held.epoch, decided=before.epoch)
    if held.epoch > before.epoch or (held.handle != before.handle and None not in (held.handle, before.handle)):
        owner = f"another copy of this repository: in this one, epoch {key.epoch} follows epoch {before.epoch}"
        raise SinkForeign(sink=sink.name, place=f"epoch {held.epoch} in {place}", owner=owner, do=_ONE_COPY)
    return False


def decided_elsewhere(sink: Sink, key: EpochKey, place: str) -> SinkForeign:
    """Return the error for an epoch that the sink holds by another decision: two copies of one repository run."""
    owner = "another copy of this repository, which has decided it too"
    return SinkForeign(sink=sink.name, place=f"epoch {key.epoch} in {place}", owner=owner, do=_ONE_COPY)

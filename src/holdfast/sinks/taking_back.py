"""What all sinks that can go back have in common: the rules for stamps, and the points at which one may die.

Rules:
- A stamp never moves to an earlier timeline. A rewind that finds a later stamp is outdated: another rewind, or an undo,
  has followed it. It is refused with `TimelineEnded`, and moves nothing.
- A stamp of the same timeline may be of a rewind that was interrupted. So the rows are looked for again, unless stamp
  and rows are written in one transaction.
"""

from __future__ import annotations

from holdfast.errors import TimelineEnded
from holdfast.sinks.base import StreamIdentity

POINTS = {
    # the points at which a take-back or a put-back may die, in order, and what has changed then
    "stamping": "nothing",
    "stamped": "the stamp; in a database and in a log, the rows too, in the same transaction, which is not committed",
    "moving": "in a folder, after each epoch: part of the rows; what the old timelines staged is gone",
    "moved": "everything that readers see; in a database and in a log, staged data of old timelines is still there",
}


def refuse_outdated(owner: StreamIdentity, into: int, stamped: int) -> None:
    """Refuse a rewind into a timeline if the sink is stamped with a later one."""
    if stamped > into:
        raise TimelineEnded(stream=owner.stream, timeline=into)

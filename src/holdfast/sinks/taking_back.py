"""What all sinks that can be taken back have in common: the rules for stamps, and the points at which a sink may crash.

Rules:
- A stamp is never replaced by one of an earlier timeline. A rewind that finds a later stamp is outdated: another
  rewind, or an undo, has followed it. It is refused with `TimelineEnded`, and moves nothing.
- A stamp of the same timeline may come from a rewind that was interrupted before it moved all rows. So the rows are
  searched again, unless the stamp and the rows are written in one transaction.
"""

from __future__ import annotations

from holdfast.errors import TimelineEnded
from holdfast.sinks.base import StreamIdentity

POINTS = {
    # the points at which a take-back or a put-back may crash, in order, and what has changed by then
    "stamping": "nothing",
    "stamped": "the stamp; in a database and in a log, the rows too, in the same transaction, which is not committed",
    "moving": "in a folder, after each epoch: part of the rows; what the old timelines staged is gone",
    "moved": "everything that readers see; in a database and in a log, staged data of old timelines is still there",
}


def refuse_outdated(owner: StreamIdentity, into: int, stamped: int) -> None:
    """Refuse a rewind into a timeline if the sink is stamped with a later one."""
    if stamped > into:
        raise TimelineEnded(stream=owner.stream, timeline=into)

"""The epochs of a stream in the index of an event log: the keys of its appends, and the ranges that a rewind names.

The key of an append is `<uid>/<stream>/t<timeline>-<epoch in ten digits>/<digest of the handle>`. Earlier versions
wrote no digest. The key of a rewind is the same without a digest: its stamp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from holdfast.eventlog.index import Committed, Rewound
from holdfast.eventlog.log import EventLog
from holdfast.sinks.base import EpochKey, EpochPlace, StreamIdentity, handle_digest
from holdfast.sinks.key_files import place as place_name

_KEY = re.compile(r"(?P<uid>[^/]+)/(?P<stream>[^/]+)/t(?P<t>\d+)-(?P<e>\d{10})(/(?P<h>[0-9a-f]{16}))?")

RangeBounds: TypeAlias = tuple[int, int]
"""First sequence and count."""


def append_key(key: EpochKey, handle: dict[str, Any]) -> str:
    """Return the key of an epoch's append."""
    return f"{stamp_key(key.owner, key.place)}/{handle_digest(handle)}"


def stamp_key(owner: StreamIdentity, place: EpochPlace) -> str:
    """Return the key of a rewind: the timeline that it begins, and the last epoch that it keeps."""
    return f"{owner.uid}/{owner.stream}/{place_name(*place)}"


def mark_name(owner: StreamIdentity, timeline: int) -> str:
    """Return the name under which a store remembers the last key of a timeline."""
    return f"{owner.uid}/{owner.stream}/t{timeline}"


def place_in(key: str, owner: StreamIdentity) -> tuple[EpochPlace, str] | None:
    """Return the epoch in a key and the digest of its handle, or `None` if the key is not this owner's."""
    match = _KEY.fullmatch(key)
    if match is None or (match["uid"], match["stream"]) != (owner.uid, owner.stream):
        return None
    return (int(match["t"]), int(match["e"])), match["h"] or ""


def latest_timeline(log: EventLog, owner: StreamIdentity) -> int:
    """Return the latest timeline in which an owner has appended or stamped; 0 if there is none."""
    found = (place_in(key, owner) for key in log.known_keys(0))
    return max((each[0][0] for each in found if each is not None), default=0)


def later_ranges(log: EventLog, owner: StreamIdentity, base: EpochPlace, into: int | None = None) -> list[RangeBounds]:
    """Return an owner's ranges after a base, and before a timeline, that no rewind has abandoned."""
    return [
        (each.first, each.count)
        for place, each in _appends(log, owner)
        if place > base and (into is None or place < (into, 0)) and not log.is_abandoned(each)
    ]


def abandoned_ranges(log: EventLog, owner: StreamIdentity, taken: int) -> list[RangeBounds]:
    """Return the ranges that an owner's rewind into a timeline has abandoned, unless they are restored."""
    listed = [
        bounds
        for each in log.ranges()
        if isinstance(each, Rewound) and (found := place_in(each.key, owner)) is not None and found[0][0] == taken
        for bounds in each.abandoned
    ]
    return [(first, count) for first, count in listed if log.is_abandoned(Committed(first, count, ()))]


def _appends(log: EventLog, owner: StreamIdentity) -> Iterator[tuple[EpochPlace, Committed]]:
    for each in log.ranges():
        if isinstance(each, Committed) and (found := place_in(each.key, owner)) is not None:
            yield found[0], each

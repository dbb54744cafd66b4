"""Names of the tables in which a database sink keeps the rows that a rewind has taken back."""

from __future__ import annotations

import hashlib

from holdfast.sinks.base import StreamIdentity


def owner_digest(owner: StreamIdentity, sink: str, table: str) -> str:
    """Return sixteen hexadecimal digits that identify one sink of one stream."""
    parts = (owner.uid, owner.stream, sink, table)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def aside_table(owner: str, timeline: int | str) -> str:
    """Return the name of the table with the rows that the rewind into a timeline took back; `owner` is a digest."""
    return f"holdfast_aside_{owner}_{timeline}"

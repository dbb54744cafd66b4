"""Offsets as Spark writes them, JSON by source: compared value by value, and read where they stand in an event log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.formats.manifest import StreamCut


def differences(ended: str | None, begins: str | None) -> Iterator[tuple[str, str, str]]:
    """Compare two offsets of one source, partition by partition: where, where it ended, where the next one begins."""
    if ended == begins:
        return
    old, new = leaves(ended), leaves(begins)
    for where in sorted(old.keys() | new.keys()):
        if old.get(where) != new.get(where):
            yield where, old.get(where, "nothing"), new.get(where, "nothing")


def leaves(offset: str | None) -> dict[str, str]:
    """Return an offset's single values by where they stand in it."""
    found: dict[str, str] = {}

    def walk(value: Any, where: str) -> None:
        if isinstance(value, dict) and value:
            for name, each in value.items():
                walk(each, f"{where}/{name}" if where else str(name))
        else:
            found[where] = json.dumps(value)

    try:
        walk(json.loads(offset or "null"), "")
    except (ValueError, RecursionError):
        found[""] = str(offset)
    return found


@dataclass(frozen=True, slots=True)
class LogEdge:
    """A stream that reads what another writes, through an event log: how far each had come at a cut."""

    downstream: str
    upstream: str
    log: str  # the log's uid
    sequence: int  # the next one that downstream reads
    tail: int  # the next one that upstream writes

    @property
    def lag(self) -> int:
        """How many sequences lie between the two; below 0, downstream holds what its upstream has not."""
        return self.tail - self.sequence


def log_edges(streams: Mapping[str, StreamCut]) -> Iterator[LogEdge]:
    """Give the edges between the cuts of one checkpoint that go through an event log."""
    for name, cut in streams.items():
        read = dict(filter(None, map(log_position, cut.offsets)))
        for upstream in cut.reads:
            for note in streams[upstream].sinks.values() if upstream in streams else ():
                match note:
                    case {"log": str(log), "tail": int(tail)} if log in read:
                        yield LogEdge(name, upstream, log, read[log], tail)


def log_position(offset: str | None) -> tuple[str, int] | None:
    """Return an event log's uid and the next sequence to read of it, where an offset is one of an event log."""
    try:
        match json.loads(offset or "null"):
            case {"log": str(log), "sequence": int(sequence)}:
                return log, sequence
    except (ValueError, RecursionError):
        pass  # another source's, which has its own form
    return None

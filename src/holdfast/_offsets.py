"""Source offsets as Spark writes them (JSON): their comparison, and positions in event logs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.formats.manifest_parts import StreamCut


def differences(ended: str | None, begins: str | None) -> Iterator[tuple[str, str, str]]:
    """Yield (partition, end of the first offset, start of the second) wherever two offsets of one source differ."""
    if ended == begins:
        return
    old, new = leaves(ended), leaves(begins)
    for where in sorted(old.keys() | new.keys()):
        if old.get(where) != new.get(where):
            yield where, old.get(where, "nothing"), new.get(where, "nothing")


def leaves(offset: str | None) -> dict[str, str]:
    """Return the scalar values of an offset by their path inside it, such as `topic/0`."""
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
    """Two streams connected by an event log, and the position of each in the log at a cut."""

    downstream: str
    upstream: str
    log: str  # the log's uid
    sequence: int  # the next sequence that downstream reads
    tail: int  # the next sequence that upstream writes

    @property
    def lag(self) -> int:
        """How many sequences downstream has yet to read; negative if it has read more than upstream wrote."""
        return self.tail - self.sequence


def log_edges(streams: Mapping[str, StreamCut]) -> Iterator[LogEdge]:
    """Yield the pairs of streams in one checkpoint that are connected by an event log."""
    for name, cut in streams.items():
        read = dict(filter(None, map(log_position, cut.offsets)))
        for upstream in cut.reads:
            for note in streams[upstream].sinks.values() if upstream in streams else ():
                match note:
                    case {"log": str(log), "tail": int(tail)} if log in read:
                        yield LogEdge(name, upstream, log, read[log], tail)


def log_position(offset: str | None) -> tuple[str, int] | None:
    """Return the uid of an event log and the next sequence to read, or `None` for the offset of another source."""
    try:
        match json.loads(offset or "null"):
            case {"log": str(log), "sequence": int(sequence)}:
                return log, sequence
    except (ValueError, RecursionError):
        pass  # the offset of another source, in its own format
    return None

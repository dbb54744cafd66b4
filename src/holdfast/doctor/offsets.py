"""Offsets of sources, by the form of their JSON: each source has its own, and an unknown one is shown verbatim."""

from __future__ import annotations

from typing import Any

from holdfast.formats.decoding import Undecodable, from_json

UNKNOWN = "unknown"
_SHOWN = 4  # partitions of a topic


def described(end: str | None) -> tuple[str, str]:
    """Return the kind of a source and its position in words, by the form of its offset."""
    if end is None:
        return UNKNOWN, "its beginning"
    found = UNKNOWN, end
    match _parsed(end):
        case {"logOffset": int(last)}:
            found = "files", f"entry {last} of its log"
        case {"reservoirId": str(table), "reservoirVersion": int(version), **rest}:
            found = "delta", f"version {version}, index {rest.get('index')} of table {table}"
        case {"snapshot_id": int(snapshot), "position": int(place)}:
            found = "iceberg", f"snapshot {snapshot}, position {place}"
        case {"log": str(uid), "sequence": int(sequence)}:
            found = "holdfast log", f"sequence {sequence} of log {uid}"
        case dict(topics) if topics and all(_is_topic(each) for each in topics.values()):
            found = "kafka", "; ".join(_topic(str(name), each) for name, each in topics.items())
        case int(count) if not isinstance(count, bool):
            found = "number", str(count)
    return found


def goes_back(start: str | None, end: str | None) -> bool:
    """Whether a later offset of a source is before an earlier one, as far as their form is known."""
    before, after = _parsed(start), _parsed(end)
    match before, after:
        case bool(), _:
            return False
        case int(), int():
            return before > after >= 0
        case {"logOffset": int(old)}, {"logOffset": int(new)}:
            return old > new
        case {"reservoirId": old_id, "reservoirVersion": int(old)}, {
            "reservoirId": new_id,
            "reservoirVersion": int(new),
        }:
            return old_id != new_id or old > new
        case dict(), dict() if all(_is_topic(each) for each in (*before.values(), *after.values())):
            return any(
                0 <= place.get(partition, old) < old
                for topic, partitions in before.items()
                if (place := after.get(topic, {})) is not None
                for partition, old in partitions.items()
            )
    return False


def _is_topic(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            name.isdecimal() and isinstance(each, int) and not isinstance(each, bool) for name, each in value.items()
        )
    )


def _topic(name: str, partitions: dict[str, int]) -> str:
    if len(partitions) <= _SHOWN:
        places = ", ".join(f"{partition} at {place}" for partition, place in partitions.items())
        return f"topic {name}, partition {places}"
    low, high = min(partitions.values()), max(partitions.values())
    return f"topic {name}, {len(partitions)} partitions at {low} to {high}"


def _parsed(end: str | None) -> Any:
    try:
        return from_json((end or "null").encode("utf-8", "replace"), object)
    except Undecodable:
        return None

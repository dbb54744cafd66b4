"""Numbers and times as people read them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

_UNITS = ("B", "kB", "MB", "GB", "TB")
_SPANS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def size(count: int) -> str:
    """Return a number of bytes in three digits or so."""
    value = float(count)
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


def number(count: int) -> str:
    """Return a number with its thousands apart."""
    return f"{count:,}"


def span(seconds: float) -> str:
    """Return a span of time in its two largest units."""
    left = max(int(seconds), 0)
    parts: list[str] = []
    for length, unit in _SPANS:
        if left >= length or (unit == "s" and not parts):
            parts.append(f"{left // length}{unit}")
            left %= length
    return " ".join(parts[:2])


def age(timestamp_ms: int) -> str:
    """Return how long ago it was."""
    return span(time.time() - timestamp_ms / 1000) if timestamp_ms else "?"


def moment(timestamp_ms: int) -> str:
    """Return a point in time, in UTC."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def iso(timestamp_ms: int) -> str:
    """Return a point in time as the history writes it."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")

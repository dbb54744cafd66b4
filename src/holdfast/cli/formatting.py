"""Human-readable sizes and times. Counts, sizes and durations are formatted by `holdfast._figures`."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from holdfast._figures import counted, number, size, span
from holdfast.errors import BadValue

__all__ = ["age", "bytes_of", "counted", "harmless", "iso", "moment", "number", "size", "span"]
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    """Escape control characters and direction marks, so that text cannot control the terminal."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def bytes_of(what: str, text: str) -> int:
    """Parse a size: `64MB`, `1GB`, `512 MiB`, or a number of bytes."""
    found = _SIZE.fullmatch(text.strip())
    count = 0
    if found:
        power = " kmgt".index(found[2].lower() or " ")
        count = int(float(found[1]) * (1024 if found[3] else 1000) ** power)
    if count < 1:
        raise BadValue(what=what, value=text, expected="a size such as 64MB or 1GB")
    return count


def age(timestamp_ms: int) -> str:
    """Return how long ago a timestamp is."""
    return span(time.time() - timestamp_ms / 1000) if timestamp_ms else "?"


def moment(timestamp_ms: int) -> str:
    """Format a timestamp, in UTC."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def iso(timestamp_ms: int) -> str:
    """Format a timestamp as ISO 8601 in UTC, like the history does. One that is out of range is shown as a number."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"

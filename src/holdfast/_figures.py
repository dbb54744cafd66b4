"""The format of counts, sizes and durations in texts for people.

Rules:
- A count has thousands separators: 20,000. A size is in kB, MB, GB: 26.6 kB.
- A number that identifies something (epoch, checkpoint, timeline, lease, process, position in a log) has no separators,
  so that it can be copied and searched for.
- JSON contains plain numbers.
"""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")
_SPANS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def number(count: int) -> str:
    """Return a count with thousands separators."""
    return f"{count:,}"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: 1 row, 2 rows."""
    return f"{number(count)} {noun}" if count == 1 else f"{number(count)} {noun}s"


def size(count: int) -> str:
    """Return a number of bytes, rounded to about three digits."""
    value = float(count)
    for unit in _UNITS[:-1]:
        if round(abs(value)) < 1000:
            return f"{value:.0f} {unit}" if abs(value) >= 99.95 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} {_UNITS[-1]}"


def lag(rows: int | None, files: int | None, file_bytes: int | None = None, *, seconds: float | None = None) -> str:
    """Return what is not processed yet, in rows and seconds or in files; "-" if it is not known."""
    found = [] if rows is None else [counted(rows, "row")]
    found += [duration(round(seconds, 1))] if seconds else []
    if found:
        return ", ".join(found)
    if files is None:
        return "-"
    return counted(files, "file") + (f", {size(file_bytes)}" if file_bytes else "")


def duration(seconds: float) -> str:
    """Return a duration, to the millisecond if it is shorter than a minute."""
    return f"{round(seconds, 3):g} s" if seconds < 60 else span(seconds)


def span(seconds: float) -> str:
    """Return a duration in its two largest units."""
    left = max(int(seconds), 0)
    parts: list[str] = []
    for length, unit in _SPANS:
        if left >= length or (unit == "s" and not parts):
            parts.append(f"{left // length}{unit}")
            left %= length
    return " ".join(parts[:2])

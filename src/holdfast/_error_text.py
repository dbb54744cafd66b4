"""Errors in one line: Spark's are pages long, and may quote what nobody should read."""

from __future__ import annotations

import re

from holdfast import errors
from holdfast._redaction import redacted_text
from holdfast.errors import HoldfastError, in_words

_TELLING = re.compile(r"^(Caused by: |: )?[\w.]*(Error|Exception|Interrupt|Exit|Crashed)\b.*")
_OURS = re.compile(r"\bholdfast\.errors\.(\w+): .*")
_LONGEST = 600


def one_line(error: BaseException) -> str:
    """Return an error's first line and, where it holds a traceback, the line that says what went wrong."""
    text = redacted_text(in_words(error))
    if isinstance(error, HoldfastError):
        return text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines[1:] if _TELLING.match(line)]
    words = lines[0] if not telling else f"{lines[0]} ... {telling[-1]}"
    if ours := _OURS.search(text):
        words = ours[0]  # said in another process: it needs no words of Spark's around it
    words = words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."
    return " ".join([words, *(f"({note})" for note in getattr(error, "__notes__", []))])


def kind_told(error: BaseException) -> type[HoldfastError] | None:
    """Return the kind of our own error that an error of Spark's tells of, where it does: one of another process."""
    found = _OURS.search(str(error))
    kind = getattr(errors, found[1], None) if found else None
    return kind if isinstance(kind, type) and issubclass(kind, HoldfastError) else None

"""Errors in one line: Spark's are pages long, and may quote what nobody should read."""

from __future__ import annotations

import re

from holdfast.errors import HoldfastError, in_words
from holdfast.redaction import redacted_text

_TELLING = re.compile(r"^(Caused by: |: )?[\w.]*(Error|Exception|Interrupt|Exit|Crashed)\b.*")
_LONGEST = 600


def brief(error: BaseException) -> str:
    """Return an error's first line and, where it holds a traceback, the line that says what went wrong."""
    text = redacted_text(in_words(error))
    if isinstance(error, HoldfastError):
        return text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines[1:] if _TELLING.match(line)]
    words = lines[0] if not telling else f"{lines[0]} ... {telling[-1]}"
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."

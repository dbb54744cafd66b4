"""Errors in one line. Spark's errors are pages long and may contain secrets; both are removed here."""

from __future__ import annotations

import re

from holdfast import errors
from holdfast._redaction import redacted_text
from holdfast.errors import HoldfastError, describe_error

_CAUSE = re.compile(r"^(Caused by: |: )?[\w.]*(Error|Exception|Interrupt|Exit|Crashed)\b.*")
_OWN_ERROR = re.compile(r"\bholdfast\.errors\.(\w+): .*")
_MAX_LENGTH = 600


def one_line(error: BaseException) -> str:
    """Return the first line of an error and, if the error contains a traceback, the line with its cause."""
    text = redacted_text(describe_error(error))
    if isinstance(error, HoldfastError):
        return text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines[1:] if _CAUSE.match(line)]
    line = lines[0] if not causes else f"{lines[0]} ... {causes[-1]}"
    if own := _OWN_ERROR.search(text):
        line = own[0]  # raised in another process: complete without the text that Spark adds
    line = line if len(line) <= _MAX_LENGTH else f"{line[: _MAX_LENGTH - 3]}..."
    return " ".join([line, *(f"({note})" for note in getattr(error, "__notes__", []))])


def reported_kind(error: BaseException) -> type[HoldfastError] | None:
    """Return the type of the Holdfast error of another process that a Spark error contains, or `None`."""
    found = _OWN_ERROR.search(str(error))
    kind = getattr(errors, found[1], None) if found else None
    return kind if isinstance(kind, type) and issubclass(kind, HoldfastError) else None

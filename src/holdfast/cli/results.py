"""What `--json` prints: one envelope. The shape of its `result` stands beside the verb, in its module's `SHAPES`.

A field may be added; one is removed or changed only with a new `FORMAT`.
"""

from __future__ import annotations

from typing import Any

import msgspec

FORMAT = 1
LINES = ("run",)  # verbs that go on for a while: they print a document a line, the last of which is the envelope


class ErrorResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong: the class of the error, its text, and what to do next."""

    kind: str  # the class of the error
    message: str  # what is wrong, without the next step
    next: str  # what to do about it
    trace: str | None = None  # of the user's own program, their frames alone


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every answer. There is a `result` or an `error`, never both."""

    command: str  # the verb, as in `ls` or `cursor ls`
    exit: int  # the exit code
    repository: str | None = None  # where it was found
    result: Any = None  # there where the verb came to an answer; its shape is the verb's
    error: ErrorResult | None = None  # there where it failed
    # always there: a default that is made is not omitted
    format: int = msgspec.field(default_factory=lambda: FORMAT)  # of this document

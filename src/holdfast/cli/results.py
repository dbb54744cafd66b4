"""What `--json` prints: one envelope. The shape of its `result` stands beside the verb, in its module's `SHAPES`.

A field may be added; one is removed or changed only with a new `FORMAT`.
"""

from __future__ import annotations

from typing import Any

import msgspec

FORMAT = 1


class Failure(msgspec.Struct, frozen=True):
    """What went wrong: the class of the error, its text, and what to do next."""

    kind: str
    message: str
    next: str


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every answer. `exit` is the exit code; there is a `result` or an `error`, never both."""

    command: str
    exit: int
    repository: str | None = None  # where it was found
    result: Any = None
    error: Failure | None = None
    format: int = msgspec.field(default_factory=lambda: FORMAT)  # always there: a default that is made is not omitted

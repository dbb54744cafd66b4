"""The envelope that `--json` prints. The shape of its `result` is defined by each verb, in its module's `SHAPES`.

A field may be added. Removing or changing one requires a new `FORMAT`.
"""

from __future__ import annotations

from typing import Any

import msgspec

FORMAT = 1
LINES = ("run",)  # long-running verbs: they print one document per line, and the last one is the envelope


class ErrorResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error: its class, its text, and what to do next."""

    kind: str  # class of the error
    message: str  # what is wrong, without the next step
    next: str  # what to do about it
    trace: str | None = None  # traceback of a user program, reduced to its own frames


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every document. It has a `result` or an `error`, never both."""

    command: str  # the verb, such as `ls` or `cursor ls`
    exit: int  # the exit code
    repository: str | None = None  # the repository that was used
    result: Any = None  # present on success; each verb defines its shape
    error: ErrorResult | None = None  # present on failure
    # always present: a default that a factory makes is not omitted
    format: int = msgspec.field(default_factory=lambda: FORMAT)  # format version of this document

"""Epochs and their decisions.

An epoch has numbered attempts; each attempt has one slot, and a slot is closed once, with `commit` or `abort`. What
closed it stands for everybody. Epochs and attempts count from 1; 0 is never valid.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from holdfast.checked import checked_name, checked_positive
from holdfast.errors import BadValue
from holdfast.seal import Record


class Verdict(StrEnum):
    """How an attempt ended. After a commit there is only forward."""

    COMMIT = "commit"
    ABORT = "abort"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try at one epoch of one stream in one timeline: the address of a slot."""

    stream: str
    timeline: int
    epoch: int
    attempt: int

    def __post_init__(self) -> None:
        checked_name("stream", self.stream)
        for what in ("timeline", "epoch", "attempt"):
            checked_positive(what, getattr(self, what))

    def next(self) -> Attempt:
        """The attempt after this one."""
        return msgspec.structs.replace(self, attempt=self.attempt + 1)

    def __str__(self) -> str:
        return f"{self.stream} timeline {self.timeline} epoch {self.epoch} attempt {self.attempt}"


class Decision(Record, frozen=True, kw_only=True):
    """The durable record that closes an attempt, with the facts that a replay needs."""

    attempt: Attempt
    verdict: Verdict
    lease: int
    facts: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.lease, bool) or not isinstance(self.lease, int) or self.lease < 1:
            raise BadValue(what="lease", value=self.lease, why="leases count from 1")

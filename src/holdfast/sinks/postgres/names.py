"""Names in PostgreSQL, which identify the tables, transactions and ledger rows of an attempt.

- A staging table: `holdfast_stage_<owner>_<timeline>_<epoch>_<attempt>_<lease>`, at most 63 bytes.
- A prepared transaction: `holdfast:<owner>:<timeline>:<epoch>:<attempt>:<lease>:<nonce>`, below 200 bytes. Each task
  attempt has its own nonce, so a retried task never conflicts with the transaction of the earlier attempt.
- The ledger row that closes an epoch: `holdfast:<owner>:<timeline>:<epoch>:<digest of the handle>`. Earlier versions
  wrote no digest.
- The ledger row of an owner's claim: `holdfast:<owner>:0:0`.
- The ledger row of how an owner writes: `holdfast:<owner>:mode:<effect>:<epoch column>`.

`<owner>` is a digest of pipeline uid, stream, sink and table. So separators inside these names cannot make two owners
collide, and everything under an owner's digest may be removed by that owner.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

from holdfast.errors import NotSupported
from holdfast.sinks.base import EpochKey

LONGEST_TABLE = 63  # PostgreSQL silently truncates longer names
_TABLE = re.compile(r"holdfast_stage_([0-9a-f]{16})_(\d+)_(\d+)_(\d+)_(\d+)\Z")
_GID = re.compile(r"holdfast:([0-9a-f]{16}):(\d+):(\d+):(\d+):(\d+):[0-9a-f]+\Z")


def lock_number(what: str) -> int:
    """Return the number of an advisory lock: a signed 64-bit integer."""
    return int.from_bytes(hashlib.sha256(f"holdfast {what}".encode()).digest()[:8], "big", signed=True)


def nonce() -> int:
    """Return a random number for one task attempt. It has 52 bits, so every JSON parser reads it exactly."""
    return secrets.randbits(52)


def table_prefix(owner: str) -> str:
    """Return the prefix of an owner's staging tables."""
    return f"holdfast_stage_{owner}_"


def gid_prefix(owner: str) -> str:
    """Return the prefix of an owner's prepared transactions."""
    return f"holdfast:{owner}:"


def closing_gid(owner: str, place: tuple[int, int], handle: str) -> str:
    """Return the key of the ledger row that closes an epoch."""
    return f"{gid_prefix(owner)}{place[0]}:{place[1]}:{handle}"


def claiming_gid(owner: str) -> str:
    """Return the key of the ledger row of an owner's claim."""
    return f"{gid_prefix(owner)}0:0"


def mode_gid(owner: str, mode: str) -> str:
    """Return the key of the ledger row that records how an owner writes; its prefix if `mode` is empty."""
    return f"{gid_prefix(owner)}mode:{mode}"


def closed_handle(gid: str) -> str:
    """Return the digest of the handle that closed an epoch; an empty string if an earlier version wrote the row."""
    return "".join(gid.split(":", 4)[4:])


@dataclass(frozen=True, slots=True)
class Mark:
    """Identifies one attempt of an owner, under one lease, in the name of a table or transaction."""

    owner: str
    timeline: int
    epoch: int
    attempt: int
    lease: int

    @classmethod
    def of(cls, owner: str, key: EpochKey) -> Mark:
        """Return the mark of an attempt."""
        if key.lease is None:
            raise NotSupported(what="preparing without a lease", why="the names of staged data contain its number")
        return cls(owner, key.timeline, key.epoch, key.attempt.attempt, key.lease)

    @classmethod
    def read(cls, name: str) -> Mark | None:
        """Return the mark in the name of a staging table or prepared transaction, or `None` if it has none."""
        found = _TABLE.match(name) or _GID.match(name)
        if found is None:
            return None
        owner, *numbers = found.groups()
        return cls(owner, *map(int, numbers))

    @property
    def place(self) -> tuple[int, int]:
        """Timeline and epoch."""
        return self.timeline, self.epoch

    @property
    def table(self) -> str:
        """The name of the staging table."""
        name = f"{table_prefix(self.owner)}{self.timeline}_{self.epoch}_{self.attempt}_{self.lease}"
        if len(name) > LONGEST_TABLE:
            raise NotSupported(what=f"the name {name}", why=f"a table's name has at most {LONGEST_TABLE} bytes")
        return name

    def gid(self, number: int) -> str:
        """Return the name of the prepared transaction of a task attempt."""
        return f"{gid_prefix(self.owner)}{self.timeline}:{self.epoch}:{self.attempt}:{self.lease}:{number:013x}"

    def belongs_to(self, key: EpochKey) -> bool:
        """Whether this is the attempt of `key`: under its lease or, if that is `None`, under any lease."""
        return (self.timeline, self.epoch, self.attempt) == (key.timeline, key.epoch, key.attempt.attempt) and (
            key.lease is None or key.lease == self.lease
        )

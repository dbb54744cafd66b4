"""What one attempt leaves in PostgreSQL is found by its name.

- A staging table: `holdfast_stage_<owner>_<timeline>_<epoch>_<attempt>_<lease>`, at most 63 bytes.
- A prepared transaction: `holdfast:<owner>:<timeline>:<epoch>:<attempt>:<lease>:<nonce>`, below 200 bytes. The nonce is
  one task attempt's: a retried task never meets the transaction of its forerunner.
- The ledger row that closes an epoch: `holdfast:<owner>:<timeline>:<epoch>:<digest of the handle>`; without the digest
  where an older version wrote it. Without it too, at 0:0, an owner's claim.

`<owner>` is a digest of pipeline uid, stream, sink and table, so names cannot be forged into one another by characters
that separate their parts, and whatever is found under it is ours to clear.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

from holdfast.errors import NotSupported
from holdfast.sinks.base import EpochKey, StreamIdentity

LONGEST_TABLE = 63  # PostgreSQL cuts longer names in silence
_TABLE = re.compile(r"holdfast_stage_([0-9a-f]{16})_(\d+)_(\d+)_(\d+)_(\d+)\Z")
_GID = re.compile(r"holdfast:([0-9a-f]{16}):(\d+):(\d+):(\d+):(\d+):[0-9a-f]+\Z")


def owner_digest(owner: StreamIdentity, sink: str, table: str) -> str:
    """Return sixteen hexadecimal digits that stand for one sink of one stream."""
    parts = (owner.uid, owner.stream, sink, table)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def lock_number(what: str) -> int:
    """Return the number of an advisory lock: 64 bits with a sign."""
    return int.from_bytes(hashlib.sha256(f"holdfast {what}".encode()).digest()[:8], "big", signed=True)


def nonce() -> int:
    """Return a number for one task attempt. It has 52 bits, so that it is exact wherever JSON is read."""
    return secrets.randbits(52)


def table_prefix(owner: str) -> str:
    """Return how the staging tables of an owner begin."""
    return f"holdfast_stage_{owner}_"


def gid_prefix(owner: str) -> str:
    """Return how the prepared transactions of an owner begin."""
    return f"holdfast:{owner}:"


def closing_gid(owner: str, place: tuple[int, int], handle: str) -> str:
    """Return the ledger's key of a whole epoch."""
    return f"{gid_prefix(owner)}{place[0]}:{place[1]}:{handle}"


def claiming_gid(owner: str) -> str:
    """Return the ledger's key of an owner's claim."""
    return f"{gid_prefix(owner)}0:0"


def closed_handle(gid: str) -> str:
    """Return the digest of the handle with which an epoch was closed, or nothing: older versions did not tell."""
    return "".join(gid.split(":", 4)[4:])


@dataclass(frozen=True, slots=True)
class Mark:
    """Whose something is: one attempt of an owner, under one lease."""

    owner: str
    timeline: int
    epoch: int
    attempt: int
    lease: int

    @classmethod
    def of(cls, owner: str, key: EpochKey) -> Mark:
        """Return the mark under which `key` prepares."""
        if key.lease is None:
            raise NotSupported(what="preparing without a lease", why="what is staged carries its number")
        return cls(owner, key.timeline, key.epoch, key.attempt.attempt, key.lease)

    @classmethod
    def read(cls, name: str) -> Mark | None:
        """Return whose a staging table or a prepared transaction is, or `None` if it is none of ours."""
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
            raise NotSupported(what=f"staging table {name}", why=f"its name has more than {LONGEST_TABLE} characters")
        return name

    def gid(self, number: int) -> str:
        """Return the name of one task attempt's prepared transaction."""
        return f"{gid_prefix(self.owner)}{self.timeline}:{self.epoch}:{self.attempt}:{self.lease}:{number:013x}"

    def belongs_to(self, key: EpochKey) -> bool:
        """Whether it is of the attempt that `key` names, under its lease or, where that is `None`, under any."""
        return (self.timeline, self.epoch, self.attempt) == (key.timeline, key.epoch, key.attempt.attempt) and (
            key.lease is None or key.lease == self.lease
        )

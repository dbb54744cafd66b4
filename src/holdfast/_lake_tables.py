"""Delta and Iceberg tables as sources: the position of a stream, and whether the table still has the input after it.

Rules:
- A Delta offset has the id of the table and a version. The version is the next one to read, unless the index is not
  negative: then a part of it was read. A stream begins with all files of one version (`isStartingVersion`).
- An Iceberg offset has a snapshot, and the snapshots that follow it are its descendants. A table that was created again
  has other ids of snapshots.
- Not compared: the data files. Spark fails when it reads a file that VACUUM or another program has deleted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

DELTA, ICEBERG = "delta", "iceberg"  # names of Spark's sources
FAIL_ON_LOSS = "failOnDataLoss"  # the option of Delta's source
_NAMED = re.compile(r"[\w-]+:(?=\{)")  # a source by name, in Spark's offset log v2


class TableLossKind(StrEnum):
    """Why a table lacks input of a stream, or has other input."""

    GONE = "gone"
    RECREATED = "recreated"  # another table at the same place
    TRUNCATED = "truncated"  # the table ends before the position: an older copy of it was restored
    EXPIRED = "expired"  # versions after the position were removed from the log, or the snapshot expired
    NOT_IN_HISTORY = "not in history"  # the table was replaced, or rolled back to a snapshot before the position


@dataclass(frozen=True, slots=True)
class LostTableInput:
    """Why a stream cannot continue in a table."""

    kind: TableLossKind
    table: str  # its path or name
    text: str  # what is wrong with it
    details: Mapping[str, Any] = field(default_factory=dict)  # for a gap record

    @property
    def summary(self) -> str:
        """The table, and what is wrong with it."""
        return f"table {self.table!r}: {self.text}"

    def facts(self) -> dict[str, Any]:
        """Return the facts of a gap record. They do not change while the table only grows."""
        return {"kind": str(self.kind), "table": self.table, **self.details}


@dataclass(frozen=True, slots=True)
class DeltaPosition:
    """Where a stream is in a Delta table."""

    id: str
    version: int
    index: int = -1
    starting: bool = False  # the stream still reads the files of the version at which it began

    @classmethod
    def of(cls, offset: str | None) -> DeltaPosition | None:
        """Return the position in an offset of Delta's source; `None` for the offset of another source."""
        match _parsed(offset):
            case {"reservoirId": str(id_), "reservoirVersion": int(version), "index": int(index), **rest}:
                return cls(id_, version, index, rest.get("isStartingVersion") is True)
        return None

    @property
    def last_read(self) -> int:
        """The newest version that was read, at least in part."""
        return self.version if self.index >= 0 or self.starting else self.version - 1


@dataclass(frozen=True, slots=True)
class DeltaNow:
    """A Delta table as its log describes it: its id, and the versions that have an entry."""

    id: str
    versions: Collection[int]


def lost_in_delta(table: str, position: DeltaPosition, now: DeltaNow | None) -> LostTableInput | None:
    """Return why a Delta table lacks the input after a position, or `None`; `now` is `None` if it does not exist."""
    if now is None:
        return LostTableInput(TableLossKind.GONE, table, "it no longer exists")
    if now.id != position.id:
        text = f"it was created again: the stream has read the table with id {position.id}, but its id is now {now.id}"
        return LostTableInput(TableLossKind.RECREATED, table, text, {"ids": [position.id, now.id]})
    newest = max(now.versions, default=-1)
    if newest < position.last_read:
        text = f"the stream has read version {position.last_read}, but the table ends at version {newest}"
        return LostTableInput(TableLossKind.TRUNCATED, table, text, {"position": position.version})
    missing = sorted(set(range(position.version, newest + 1)) - set(now.versions))
    if missing:
        text = f"versions {missing[0]} to {missing[-1]} are no longer in its log"
        details = {"position": position.version, "versions": [missing[0], missing[-1]]}
        return LostTableInput(TableLossKind.EXPIRED, table, text, details)
    return None


@dataclass(frozen=True, slots=True)
class IcebergPosition:
    """Where a stream is in an Iceberg table."""

    snapshot: int

    @classmethod
    def of(cls, offset: str | None) -> IcebergPosition | None:
        """Return the position in an offset of Iceberg's source; `None` for another source, or before any snapshot."""
        match _parsed(offset):
            case {"snapshot_id": int(snapshot), "position": int()} if snapshot >= 0:
                return cls(snapshot)
        return None


@dataclass(frozen=True, slots=True)
class IcebergNow:
    """An Iceberg table as its metadata describes it, for one snapshot."""

    known: bool  # the table has the snapshot
    in_history: bool  # the current snapshot is a descendant of it


def lost_in_iceberg(table: str, position: IcebergPosition, now: IcebergNow | None) -> LostTableInput | None:
    """Return why an Iceberg table lacks the input after a position, or `None`; `now` is `None` if it does not exist."""
    details = {"snapshot": position.snapshot}
    if now is None:
        return LostTableInput(TableLossKind.GONE, table, "it no longer exists", details)
    if not now.known:
        text = f"snapshot {position.snapshot} does not exist: it has expired, or the table was created again"
        return LostTableInput(TableLossKind.EXPIRED, table, text, details)
    if not now.in_history:
        text = f"snapshot {position.snapshot} is not in its history: the table was replaced or rolled back"
        return LostTableInput(TableLossKind.NOT_IN_HISTORY, table, text, details)
    return None


def is_of_table(offset: str | None) -> bool:
    """Whether an offset is a position in a lake table."""
    return DeltaPosition.of(offset) is not None or IcebergPosition.of(offset) is not None


def _parsed(offset: str | None) -> Any:
    try:
        return json.loads(_NAMED.sub("", offset or "null", count=1))
    except (ValueError, RecursionError):
        return None

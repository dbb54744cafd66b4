"""The verdicts of verifications, one for each checkpoint, for people.

Rules:
- Any process may record verdicts; it needs no lease. Each record has a key that is used once, and is never changed:
  `activity/verdicts/<32 hex>.json`.
- A record contains all verdicts that its writer has found, with its own: the last one of each checkpoint that exists.
  The writer then deletes the records that it has read. So there is usually one record, bounded by the number of
  checkpoints. Two writers at the same moment leave two records, of which neither lacks anything.
- An error does not always show that the checkpoint cannot be restored: the storage may have failed for a moment. Such a
  verdict is not conclusive, and refuses nothing.
- The name of a savepoint may be used again. A verdict on an earlier one of the name does not count.
- A record that is damaged hides only itself. Nothing here is needed to recover.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

import msgspec

from holdfast._validation import is_name
from holdfast.errors import HoldfastError
from holdfast.formats.sealed_json import Record
from holdfast.repository.activity import FOLDER, Activity, ActivityEvent
from holdfast.repository.base import Repository, checked_repository, read_each
from holdfast.repository.checkpoint_records import CheckpointRecords

_VERDICTS = f"{FOLDER}/verdicts"
_NAME = re.compile(r"[0-9a-f]{32}\.json")
_GRADES = ("structure", "digests", "read data")  # the words of `verification.Grade`, which this layer does not know


class LastVerify(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the last recorded verification of one checkpoint."""

    checkpoint: str  # its id, or the name of a savepoint
    ok: bool  # whether it can be restored: no errors, although there may be warnings
    grade: str  # how thoroughly it was checked: structure, digests, read data
    at_ms: int  # when
    text: str = ""  # the first finding
    conclusive: bool = True  # false: there were errors, but none of them shows that it cannot be restored

    @property
    def is_unsound(self) -> bool:
        """Whether an error shows that the checkpoint cannot be restored."""
        return self.conclusive and not self.ok

    @property
    def word(self) -> str:
        """The verdict in one word."""
        return "sound" if self.ok else "unsound" if self.conclusive else "unknown"

    @property
    def finding(self) -> str:
        """The first finding, without its severity."""
        return self.text.removeprefix("error: ")

    @property
    def command(self) -> str:
        """The command that verifies the checkpoint again, no less thoroughly, and records the verdict."""
        option = " --read-data" if self.grade == _GRADES[-1] else ""
        return f"holdfast verify {self.checkpoint}{option} --record"


class VerdictsRecord(Record, frozen=True, kw_only=True):
    """The last verdict of each checkpoint, as far as its writer knew."""

    verdicts: list[LastVerify]


class Verdicts:
    """The recorded verdicts of one pipeline."""

    def __init__(self, repository: Repository) -> None:
        self._repository = checked_repository(repository)

    def all(self) -> tuple[dict[str, LastVerify], list[HoldfastError]]:
        """Return the last verdict of each checkpoint, by its id or name, and an error for each damaged record."""
        found, _, bad = self._read()
        return {name: each for name, each in found.items() if not self._is_on_earlier(each)}, bad

    def shown(self) -> dict[str, LastVerify]:
        """Return what can be read of the same, for people; nothing if the records cannot be listed."""
        try:
            return self.all()[0]
        except HoldfastError:
            return {}

    def record(self, verdicts: Iterable[LastVerify]) -> None:
        """Record verdicts. Those of checkpoints that no longer exist are dropped.

        1. Read all records.  2. Write one record with everything.  3. Delete those that were read.
        """
        known, keys, _ = self._read()  # 1
        merged = _newest_of([*known.values(), *verdicts])
        existing = self._existing()
        record = VerdictsRecord(verdicts=[each for name, each in sorted(merged.items()) if name in existing]).sealed()
        self._repository.put_new(f"{_VERDICTS}/{uuid.uuid4().hex}.json", record)  # 2
        self._repository.delete_all(keys)  # 3

    def _read(self) -> tuple[dict[str, LastVerify], list[str], list[HoldfastError]]:
        """Return the last verdict of each checkpoint, the keys of the readable records, and an error for each other."""
        records, bad = self._records()
        earlier = Activity(self._repository).verified()
        verdicts = [_of_event(each) for each in earlier.values()]
        verdicts += [each for _, record in records for each in record.verdicts]
        return _newest_of(verdicts), [*earlier, *(key for key, _ in records)], bad

    def _records(self, tries: int = 3) -> tuple[list[tuple[str, VerdictsRecord]], list[HoldfastError]]:
        names = [name for name in self._repository.list(_VERDICTS) if _NAME.fullmatch(name)]
        records, bad = read_each(self._read_record, (f"{_VERDICTS}/{name}" for name in names))
        replaced = len(records) + len(bad) < len(names)  # by a writer, just now: its record has them too
        return self._records(tries - 1) if replaced and tries > 1 else (records, bad)

    def _read_record(self, key: str) -> tuple[str, VerdictsRecord]:
        return key, VerdictsRecord.unsealed(self._repository.read(key), key)

    def _is_on_earlier(self, verdict: LastVerify) -> bool:
        """Whether the savepoint of this name was taken after the verdict. Ids of checkpoints are never used again."""
        if verdict.checkpoint.isdecimal() or not is_name(verdict.checkpoint):
            return False
        return CheckpointRecords(self._repository).savepoint(verdict.checkpoint).timestamp_ms > verdict.at_ms

    def _existing(self) -> set[str]:
        records = CheckpointRecords(self._repository)
        found = {str(number) for timeline in records.timelines() for number in records.live(timeline)}
        return found | set(records.finished_savepoints())


def _newest_of(verdicts: Iterable[LastVerify]) -> dict[str, LastVerify]:
    return {each.checkpoint: each for each in sorted(verdicts, key=lambda each: each.at_ms)}


def _of_event(event: ActivityEvent) -> LastVerify:
    return LastVerify(
        checkpoint=str(event.facts.get("checkpoint", "")),
        ok=event.facts.get("ok") is True,
        grade=str(event.facts.get("grade", "")),
        at_ms=event.at_ms,
        text=event.text,
    )

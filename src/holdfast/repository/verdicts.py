"""The verdicts of verifications, one for each checkpoint, for people.

Rules:
- Any process may record verdicts; it needs no lease. Each record has a key that is used once, and is never changed:
  `activity/verdicts/<32 hex>.json`.
- A record contains all verdicts that its writer has found, with its own: one for each checkpoint that exists.
  The writer then deletes the records that it has read. So there is usually one record, bounded by the number of
  checkpoints. Two writers at the same moment leave two records, of which neither lacks anything.
- The last verdict counts, with two exceptions, which may not have read the bytes that were found changed. One of a
  lower grade does not replace one with errors, unless it is worse. An inconclusive one does not replace one of damage.
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
GRADES = ("structure", "digests", "read data")  # the words of `verification.Grade`, which this layer does not know
_WORDS = ("sound", "unknown", "unsound")  # from the best verdict to the worst


class LastVerify(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the last recorded verification of one checkpoint, or of an earlier one that found more."""

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
        sound, unknown, unsound = _WORDS
        return sound if self.ok else unsound if self.conclusive else unknown

    def outlasts(self, later: LastVerify) -> bool:
        """Whether it counts although there is a later verdict."""
        if self.ok:
            return False
        if _thoroughness(later) < _thoroughness(self):
            return _WORDS.index(later.word) <= _WORDS.index(self.word)
        return self.is_unsound and not later.ok and not later.conclusive

    @property
    def finding(self) -> str:
        """The first finding, without its severity."""
        return self.text.removeprefix("error: ")

    @property
    def command(self) -> str:
        """The command that verifies the checkpoint again, no less thoroughly, and records the verdict."""
        option = " --read-data" if self.grade == GRADES[-1] else ""
        return f"holdfast verify {self.checkpoint}{option} --record"


class VerdictsRecord(Record, frozen=True, kw_only=True):
    """The verdict of each checkpoint that counts, as far as its writer knew."""

    verdicts: list[LastVerify]


class Verdicts:
    """The recorded verdicts of one pipeline."""

    def __init__(self, repository: Repository) -> None:
        self._repository = checked_repository(repository)

    def all(self) -> tuple[dict[str, LastVerify], list[HoldfastError]]:
        """Return the verdict of each checkpoint, by its id or name, and an error for each damaged record."""
        found, _, bad = self._read()
        return found, bad

    def shown(self) -> dict[str, LastVerify]:
        """Return what can be read of the same, for people; nothing if the records cannot be listed."""
        try:
            return self.all()[0]
        except HoldfastError:
            return {}

    def record(self, verdicts: Iterable[LastVerify]) -> None:
        """Record verdicts. Those of checkpoints that no longer exist are dropped.

        1. Read all records.  2. Write one record with everything.  3. Delete those that were read. A savepoint may have
        been taken on a machine whose clock is ahead: its verdict is as old as the savepoint then.
        """
        new = list(verdicts)
        known, keys, _ = self._read()  # 1
        taken = self._savepoints_taken(new)
        new = [msgspec.structs.replace(each, at_ms=max(each.at_ms, taken.get(each.checkpoint, 0))) for each in new]
        merged = _merged([*known.values(), *new])
        existing = self._existing()
        record = VerdictsRecord(verdicts=[each for name, each in sorted(merged.items()) if name in existing]).sealed()
        self._repository.put_new(f"{_VERDICTS}/{uuid.uuid4().hex}.json", record)  # 2
        self._repository.delete_all(keys)  # 3

    def _read(self) -> tuple[dict[str, LastVerify], list[str], list[HoldfastError]]:
        """Return the verdict of each checkpoint, the keys of the readable records, and an error for each other."""
        records, bad = self._records()
        earlier = Activity(self._repository).verified()
        verdicts = [_of_event(each) for each in earlier.values()]
        verdicts += [each for _, record in records for each in record.verdicts]
        taken = self._savepoints_taken(verdicts)
        current = [each for each in verdicts if taken.get(each.checkpoint, 0) <= each.at_ms]
        return _merged(current), [*earlier, *(key for key, _ in records)], bad

    def _records(self, tries: int = 3) -> tuple[list[tuple[str, VerdictsRecord]], list[HoldfastError]]:
        names = [name for name in self._repository.list(_VERDICTS) if _NAME.fullmatch(name)]
        records, bad = read_each(self._read_record, (f"{_VERDICTS}/{name}" for name in names))
        replaced = len(records) + len(bad) < len(names)  # by a writer, just now: its record has them too
        return self._records(tries - 1) if replaced and tries > 1 else (records, bad)

    def _read_record(self, key: str) -> tuple[str, VerdictsRecord]:
        return key, VerdictsRecord.unsealed(self._repository.read(key), key)

    def _savepoints_taken(self, verdicts: Iterable[LastVerify]) -> dict[str, int]:
        """Return by name when each savepoint was taken that has a verdict. Ids of checkpoints are never used again."""
        records, names = CheckpointRecords(self._repository), {each.checkpoint for each in verdicts}
        return {name: records.savepoint(name).timestamp_ms for name in names if not name.isdecimal() and is_name(name)}

    def _existing(self) -> set[str]:
        records = CheckpointRecords(self._repository)
        found = {str(number) for timeline in records.timelines() for number in records.live(timeline)}
        return found | set(records.finished_savepoints())


def _merged(verdicts: Iterable[LastVerify]) -> dict[str, LastVerify]:
    found: dict[str, LastVerify] = {}
    for each in sorted(verdicts, key=lambda each: each.at_ms):
        earlier = found.get(each.checkpoint)
        if earlier is None or not earlier.outlasts(each):
            found[each.checkpoint] = each
    return found


def _thoroughness(verdict: LastVerify) -> int:
    """Return the position of its grade; that of an unknown grade is the lowest."""
    return GRADES.index(verdict.grade) if verdict.grade in GRADES else 0


def _of_event(event: ActivityEvent) -> LastVerify:
    return LastVerify(
        checkpoint=str(event.facts.get("checkpoint", "")),
        ok=event.facts.get("ok") is True,
        grade=str(event.facts.get("grade", "")),
        at_ms=event.at_ms,
        text=event.text,
    )

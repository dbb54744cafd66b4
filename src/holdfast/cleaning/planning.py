"""What a prune deletes from Spark's folders on an object store, and which checkpoints it keeps for that.

See `rules` for the rules. Retention always keeps, for each stream, the checkpoint that decides what may go: the newest
one that is at least `retain` epochs old. Timelines that have ended are cleaned up only if a prune names abandoned ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.cleaning.folders import CleaningMemory, FolderCleaner, cuts_by_folder
from holdfast.cleaning.rules import Cleaning
from holdfast.repository import Decisions, FileList, Lineage, Summary
from holdfast.repository.decisions import streams_of
from holdfast.repository.objectstore import ObjectRepository
from holdfast.sparkfiles.places import spark_key

RETAINED = 100  # epochs that Spark may need, unless a session asks for more


@dataclass(frozen=True, slots=True)
class StoreCleaning:
    """The clean-up of the Spark folders of one repository."""

    repository: ObjectRepository
    lineage: Lineage
    epochs: Mapping[str, int]  # by stream: the last decided epoch
    retain: int
    memory: CleaningMemory

    @classmethod
    def of(
        cls, repository: ObjectRepository, lineage: Lineage, retain: int | None, memory: CleaningMemory | None
    ) -> StoreCleaning:
        """Read the last decided epoch of each stream."""
        streams = {name for timeline in lineage.timelines for name in streams_of(repository, timeline)}
        decisions = Decisions(repository)
        found = {name: decisions.seen(name, lineage.timeline_of(name)) for name in sorted(streams)}
        epochs = {name: decision.attempt.epoch for name, decision in found.items() if decision is not None}
        return cls(repository, lineage, epochs, retain or RETAINED, memory or CleaningMemory())

    def needed(self, checkpoints: Iterable[Summary]) -> dict[int, str]:
        """Return the checkpoints that decide what may go, each with the reason to keep it."""
        found: dict[int, str] = {}
        candidates = list(checkpoints)
        for stream, epoch in self.epochs.items():
            old = [each for each in candidates if self._holds(each, stream, epoch - self.retain)]
            if old:
                newest = max(old, key=lambda each: each.checkpoint).checkpoint
                found.setdefault(newest, f"the newest that is {self.retain} epochs of stream {stream!r} old")
        return found

    def garbage(self, lists: Iterable[tuple[Summary, FileList]], *, abandoned: bool) -> dict[str, int]:
        """Return the keys of the objects to delete, and their sizes; `lists` are those of all checkpoints that stay."""
        cleaner = FolderCleaner(self.repository, cuts_by_folder(lists), self.retain, self.memory)
        found: dict[str, int] = {}
        for stream, epoch in self.epochs.items():
            folder = spark_key(stream, self.lineage.timeline_of(stream))
            found |= _keys(folder, cleaner.plan(folder, epoch))
        for folder in self._ended() if abandoned else ():
            found |= _keys(folder, cleaner.plan_ended(folder))
        return found

    def _holds(self, each: Summary, stream: str, last: int) -> bool:
        timeline = (each.timelines or {}).get(stream)
        return timeline == self.lineage.timeline_of(stream) and 0 < (each.epochs or {}).get(stream, 0) <= last

    def _ended(self) -> list[str]:
        return [
            spark_key(stream, timeline)
            for timeline in self.lineage.timelines
            for stream in streams_of(self.repository, timeline)
            if self.lineage.timeline_of(stream) != timeline
        ]


def _keys(folder: str, cleaning: Cleaning) -> dict[str, int]:
    return {f"{folder}/{each.path}": each.size for each in cleaning.deletes}

"""The Spark folders of a repository on an object store, and what a clean-up of each one depends on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.cleaning.names import store_of
from holdfast.cleaning.rules import (
    Cleaning,
    Deletion,
    FolderCleaning,
    FolderFacts,
    KeptCut,
    ListedFile,
    newest_base,
)
from holdfast.errors import SparkFileDamaged, UnsupportedVersion
from holdfast.repository import FileList, Summary
from holdfast.repository.objectstore import ObjectRepository
from holdfast.sparkfiles.statefiles import listed_in_zip

_LIVE = re.compile(r"timelines/\d+/streams/([^/]+)/spark")
_ABANDONED = "its timeline has ended, and no checkpoint names it"


@dataclass(slots=True)
class CleaningMemory:
    """What a driver remembers between two clean-ups: the files that snapshots list, and the last base of a folder."""

    listed: dict[str, frozenset[str]] = field(default_factory=dict)  # by key of a snapshot
    bases: dict[str, int] = field(default_factory=dict)  # by key of a folder: the checkpoint


def cuts_by_folder(lists: Iterable[tuple[Summary, FileList]]) -> dict[str, list[KeptCut]]:
    """Return the cuts of kept checkpoints, by the key of the folder that they name files in."""
    found: dict[str, list[KeptCut]] = defaultdict(list)
    for each, listed in lists:
        stream = _LIVE.fullmatch(listed.live)
        if stream is not None:
            epoch = (each.epochs or {}).get(stream[1], 0)
            in_place = frozenset(file.path for file in listed.files if file.etag)
            copied = frozenset(file.path for file in listed.files if not file.etag)
            found[listed.live].append(KeptCut(each.checkpoint, epoch, in_place, copied))
    return found


class FolderCleaner:
    """Plans the clean-up of Spark folders: one LIST for each, and one read for each snapshot that stays."""

    def __init__(
        self, repository: ObjectRepository, cuts: Mapping[str, list[KeptCut]], retain: int, memory: CleaningMemory
    ) -> None:
        self._repository = repository
        self._cuts = cuts
        self._retain = retain
        self._memory = memory

    def plan(self, folder: str, epoch: int) -> Cleaning:
        """Return what may go from the folder of a stream, whose last decided epoch this is.

        If the checkpoint that decides about it has not changed since the last plan, nothing is looked at.
        """
        facts = FolderFacts(files=(), cuts=self._cuts.get(folder, ()), epoch=epoch, retain=self._retain, listed={})
        base = newest_base(facts.cuts, epoch - self._retain)
        if base is None or self._memory.bases.get(folder) == base.checkpoint:
            return Cleaning((), None)
        facts = replace(facts, files=self._files(folder))
        facts = replace(facts, listed=self._listed(folder, FolderCleaning(facts).remaining_snapshots()))
        self._memory.bases[folder] = base.checkpoint
        return FolderCleaning(facts).plan()

    def plan_ended(self, folder: str) -> Cleaning:
        """Return what may go from the folder of a stream in a timeline that has ended: all that no checkpoint names."""
        named = {path for cut in self._cuts.get(folder, ()) for path in cut.in_place}
        gone = [Deletion(each.path, each.size, _ABANDONED) for each in self._files(folder) if each.path not in named]
        return Cleaning(tuple(gone), None)

    def _files(self, folder: str) -> list[ListedFile]:
        inside = len(folder) + 1
        return [ListedFile(each.key[inside:], each.size, each.modified_s) for each in self._repository.flat(folder)]

    def _listed(self, folder: str, snapshots: Iterable[str]) -> dict[str, frozenset[str]]:
        """Return the files that each snapshot lists. One that is damaged is left out: no file beside it goes then."""
        known = self._memory.listed
        keys = {f"{folder}/{path}": path for path in snapshots}
        for key, data in self._repository.read_all(key for key in keys if key not in known).items():
            try:
                names = listed_in_zip(data or b"", key)
                known[key] = frozenset(f"{store_of(keys[key])}/{name}" for name in names)
            except (SparkFileDamaged, UnsupportedVersion):
                continue
        for key in [key for key in known if key.startswith(f"{folder}/") and key not in keys]:
            del known[key]
        return {path: known[key] for key, path in keys.items() if key in known}

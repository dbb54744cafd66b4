"""Taking the epochs of a FileSink's folder back, in the layout `epochs`, and putting them back.

    .<name>.aside/t<n>/hf_epoch=…    next to the folder: the epochs that the rewind into timeline n set aside
    .<name>.aside/t<n>.discarded/    what is being deleted: an undo must not find an epoch without its files

Rules:
- The lock of compactions is held for the whole operation: a tree that is swapped would bring epochs back.
- The order is the fence. 1. Write the stamp: commits that begin now are refused. 2. Move away what the old timelines
  staged: a commit that passed its check earlier has nothing left to rename. Each staged folder is renamed once, by that
  commit or by this step. 3. Move the epochs out, newest first, so that readers see no gap.
- An undo does the same, but step 3 moves the epochs in, oldest first.
- Every step can be repeated. Folders of the new timeline are never touched.

Not guaranteed: that readers see all of this at once. Each epoch disappears or appears by one rename.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.epoch import Reach
from holdfast.errors import SinkFailed, SinkForeign
from holdfast.repository.files import make_folder, sync_folder
from holdfast.sinks.base import CannotTakeBack, EpochPlace, RowsAside, StreamIdentity, TakeBack
from holdfast.sinks.files.epoch_folders import LEDGER, EpochFolder, epochs_in, folder_name, folder_of
from holdfast.sinks.files.position import PositionStamp
from holdfast.sinks.files.tree_lock import tree_locked
from holdfast.sinks.owners import OwnerRecord, claim, owner_of
from holdfast.sinks.staging import Staging, names_in

WAIT_S = 30.0  # for a compaction, or for another process that takes back the same folder
_DISCARDED = ".discarded"
_TIMELINE = re.compile(rf"t([1-9][0-9]{{0,18}})(?:{re.escape(_DISCARDED)})?")
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)


def aside_of(path: Path, timeline: int) -> Path:
    """Return the folder of the epochs that the rewind into a timeline set aside."""
    real = Path(os.path.realpath(path))
    return real.with_name(f".{real.name}.aside") / f"t{timeline}"


@dataclass(frozen=True, slots=True)
class FolderRewind:
    """What a rewind does with one folder, for one owner."""

    sink: str
    path: Path
    staging: Staging
    owner: StreamIdentity
    shape: str  # for the owner's record, if the folder has none
    reach: Reach

    def found(self, base: EpochPlace) -> TakeBack | CannotTakeBack:
        """Return what taking back would do, or why it is impossible."""
        owner = owner_of(self.path / LEDGER)
        if owner is not None and not self._is_ours(owner):
            return CannotTakeBack(why=f"its folder belongs to {owner.owner.summary}", do="choose another path")
        later = self._later(base)
        for each in later:
            if self._is_across(each, base):
                why = f"a compaction has merged epochs {each.first} to {each.epoch}, on both sides of epoch {base[1]}"
                do = "go back to a checkpoint that existed when the folder was compacted: no merge crosses its cut"
                return CannotTakeBack(why, do)
        rows = sum(each.record.rows for each in later)
        epochs = sum(each.record.epochs for each in later)
        return TakeBack(epochs, rows, str(aside_of(self.path, 0).parent))

    def take_back(self, base: EpochPlace, into: int) -> None:
        """Move all epochs between the base and the timeline `into` aside."""
        with tree_locked(self.path, "the compaction or rewind", WAIT_S):
            self._stamp(base, into)
            aside = aside_of(self.path, into)
            places = sorted(place for place in epochs_in(self.path) if base < place < (into, 0))
            if places and self._is_across(first := folder_of(self.path, *places[0]), base):  # no other one can be
                do = "restore the folder as it was before its epochs were merged, then run the same rewind again"
                raise self._failed(f"{first.name} also holds epochs up to epoch {base[1]}, which stay", do)
            self._move([folder_name(*place) for place in reversed(places)], self.path, aside)
        self.reach("moved")

    def put_back(self, base: EpochPlace, into: int, taken: int) -> None:
        """Move the epochs back that the rewind into the timeline `taken` set aside."""
        with tree_locked(self.path, "the compaction or rewind", WAIT_S):
            self._stamp(base, into)
            aside = aside_of(self.path, taken)
            self._move([folder_name(*place) for place in sorted(epochs_in(aside))], aside, self.path)
            for each in (aside, aside.parent):
                try:
                    each.rmdir()
                except OSError:  # it is not there, or not empty
                    break
        self.reach("moved")

    def set_aside(self) -> list[RowsAside]:
        """Return the epochs that are set aside, by timeline."""
        found = []
        for timeline in self._aside_timelines():
            aside = aside_of(self.path, timeline)
            rows = sum(folder_of(aside, *place).record.rows for place in epochs_in(aside))
            found.append(RowsAside(timeline, rows, str(aside)))
        return found

    def _aside_timelines(self) -> list[int]:
        owner = owner_of(self.path / LEDGER)
        if owner is None or not self._is_ours(owner):
            return []
        names = names_in(aside_of(self.path, 0).parent)
        return sorted({int(match[1]) for match in map(_TIMELINE.fullmatch, names) if match})

    def discard(self, timeline: int) -> None:
        """Delete the epochs that the rewind into a timeline set aside. What an interrupted try left is deleted too."""
        with tree_locked(self.path, "the compaction or rewind", WAIT_S):
            if timeline in self._aside_timelines():
                aside = aside_of(self.path, timeline)
                self._discard(aside, aside.with_name(aside.name + _DISCARDED))
                with contextlib.suppress(OSError):  # it is not empty
                    aside.parent.rmdir()

    @staticmethod
    def _discard(aside: Path, discarded: Path) -> None:
        """Rename, then delete: what an interrupted try has left of an epoch cannot be put back."""
        if discarded.exists():
            shutil.rmtree(discarded)
        if aside.exists():
            aside.rename(discarded)
            sync_folder(aside.parent)
            shutil.rmtree(discarded)

    def stamp(self, base: EpochPlace, into: int) -> None:
        """End all earlier timelines, and move nothing."""
        with tree_locked(self.path, "the compaction or rewind", WAIT_S):
            self._stamp(base, into)
        self.reach("moved")

    def _stamp(self, base: EpochPlace, into: int) -> None:
        """1. Write the stamp.  2. Move away what the old timelines staged."""
        make_folder(self.path / LEDGER)
        owner = claim(self.path / LEDGER, self.owner, self.shape)
        if not self._is_ours(owner):
            raise SinkForeign(sink=self.sink, place=str(self.path), owner=owner.owner.summary)
        self.reach("stamping")
        PositionStamp(self.path / LEDGER).write(self.owner, base, into)  # 1
        self.reach("stamped")
        self.staging.retire(self.owner, (into, 0))  # 2

    def _later(self, base: EpochPlace) -> list[EpochFolder]:
        return [folder_of(self.path, *place) for place in epochs_in(self.path) if place > base]

    def _is_ours(self, owner: OwnerRecord) -> bool:
        return (owner.uid, owner.stream) == (self.owner.uid, self.owner.stream)

    @staticmethod
    def _is_across(folder: EpochFolder, base: EpochPlace) -> bool:
        return folder.timeline == base[0] and folder.first <= base[1]

    def _move(self, names: Iterable[str], source: Path, target: Path) -> None:
        listed = list(names)
        if not listed:
            return
        make_folder(target)
        for name in listed:
            try:
                (source / name).rename(target / name)
            except FileNotFoundError:
                continue  # moved by another process, on a file system whose locks do not work
            except OSError as error:
                if error.errno not in _OCCUPIED:
                    raise
                do = "move the named folder to another place, then run the same rewind again: it continues"
                raise self._failed(f"{target / name} already exists", do) from error
            self.reach("moving")
        sync_folder(target)
        sync_folder(source)

    def _failed(self, why: str, do: str) -> SinkFailed:
        return SinkFailed(sink=self.sink, action="be taken back", why=why, do=do)

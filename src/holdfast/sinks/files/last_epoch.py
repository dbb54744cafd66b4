"""The last epoch in a folder of the layout `epochs`, found without listing the folder: it may hold 100,000 epochs.

`_holdfast/t<timeline>-<epoch>.key` are links to the key files of the last two epochs: the pointers.

Rules:
- A commit links the pointer of its epoch before it renames the epoch into place, and removes older pointers afterwards.
  So the highest pointer whose epoch is in the folder is the last epoch, wherever the commit was interrupted.
- Pointers are used only while `_holdfast` was modified at the same time as the folder, or later. Anything else that
  adds or removes a name in the folder makes the folder newer: a user, another program, a writer without pointers, a
  compaction, a restored copy. Then the folder is listed, until the next commit.
- Pointers are not synced. A power loss that takes a pointer away but not its epoch leaves the folder newer.

Not guaranteed: that a name is noticed which another program adds while a stream commits epochs, because the next commit
makes `_holdfast` newer. Nor one that is added after the clock was set back.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from holdfast.repository.files import is_there
from holdfast.sinks.base import EpochKey, Link
from holdfast.sinks.files.epoch_folders import KEY_FILE, LEDGER, folder_name, last_epoch_in, link_at
from holdfast.sinks.key_files import KeyFiles


class LastEpoch:
    """The last epoch in one folder. It keeps nothing in memory, so several processes may write to the folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pointers = KeyFiles(path / LEDGER)

    def unchanged(self) -> bool:
        """Whether no name in the folder was added or removed since the last commit, or since the folder was claimed."""
        try:
            return self._pointers.folder.stat().st_mtime_ns >= self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return False

    def last(self, timeline: int) -> Link:
        """Return the last epoch of a timeline, with the digest of its handle."""
        epoch = self.number(timeline)
        return link_at(self._path / folder_name(timeline, epoch) / KEY_FILE, epoch)

    def number(self, timeline: int) -> int:
        """Return the number of the last epoch of a timeline, or 0."""
        found = self._pointed(timeline) if self.unchanged() else 0
        return found or last_epoch_in(self._path, timeline)

    def _pointed(self, timeline: int) -> int:
        """Return the last epoch according to the pointers; 0 if they do not show it."""
        for epoch in sorted((epoch for found, epoch in self._pointers.places() if found == timeline), reverse=True):
            if self._holds(timeline, epoch):
                return 0 if self._holds(timeline, epoch + 1) else epoch  # then it was added without a pointer
        return 0

    def _holds(self, timeline: int, epoch: int) -> bool:
        return is_there(self._path / folder_name(timeline, epoch) / KEY_FILE)

    def add(self, key: EpochKey, source: Path) -> None:
        """Rename the folder of an attempt into place. The caller has compared the last epoch with the key's decision.

        1. Link the pointer.  2. Rename the folder.  3. Remove older pointers.
        """
        with contextlib.suppress(FileExistsError):  # of a commit that was interrupted
            os.link(source / KEY_FILE, self._pointers.path(*key.place))  # 1
        source.rename(self._path / folder_name(*key.place))  # 2
        self._pointers.remove_older(key)  # 3

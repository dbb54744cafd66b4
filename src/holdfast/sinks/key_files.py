"""A ledger of files: `t<timeline>-<epoch>.key` in a folder, one for each committed epoch. The last two are kept."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.sinks.base import EpochKey
from holdfast.sinks.staging import names_in

_NAME = re.compile(r"t(\d+)-(\d+)\.key")


def place(timeline: int, epoch: int) -> str:
    """Return timeline and epoch in the form used in file names."""
    return f"t{timeline}-{epoch:010}"


def places_in(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, int]]:
    """Return timeline and epoch of every name in a folder that matches."""
    return [(int(match[1]), int(match[2])) for name in names_in(folder) if (match := pattern.fullmatch(name))]


class KeyFiles:
    """The key files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, timeline: int, epoch: int) -> Path:
        """Return the path of an epoch's key file."""
        return self.folder / f"{place(timeline, epoch)}.key"

    def places(self) -> list[tuple[int, int]]:
        """Return timeline and epoch of every key file."""
        return places_in(self.folder, _NAME)

    def last(self, timeline: int) -> int:
        """Return the last epoch of a timeline, or 0."""
        return max((epoch for found, epoch in self.places() if found == timeline), default=0)

    def remove_older(self, key: EpochKey) -> None:
        """Remove all but the last two: the highest one implies the others."""
        for timeline, epoch in self.places():
            if (timeline, epoch) < (key.timeline, key.epoch - 1):
                self.path(timeline, epoch).unlink(missing_ok=True)

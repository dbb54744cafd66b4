"""Staging folders: one for each attempt, next to the target, out of sight of its readers.

A folder is named after its key. So no two attempts share a folder, and the name alone identifies the leftovers of a
driver that died.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.repository.files import make_folder, sync_folder
from holdfast.sinks.base import EpochKey, EpochPlace, StreamIdentity

SUFFIX = ".staging"
_RETIRED = ".retired-"
_NAME = re.compile(r"(?P<uid>[^.]+)\.(?P<stream>.+)\.t(?P<t>\d+)\.e(?P<e>\d+)\.a(?P<a>\d+)\.l(?P<l>\d+)")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StagingFolder:
    """The staging folder of one attempt."""

    path: Path
    place: tuple[int, int]
    attempt: int
    lease: int


class Staging:
    """The staging folders of one sink."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hashed: str | None = None  # digest of the last key file that was written here after `make`
        self.session: object = None  # the Spark session that was last configured to write here, after `make`

    def make(self) -> None:
        """Create the folder durably. Data that was staged before this call is checked again before it is committed."""
        make_folder(self.root)
        self.hashed = self.session = None

    def folder(self, key: EpochKey) -> Path:
        """Return the path of an attempt's folder."""
        tried = key.attempt
        name = f"{key.owner.uid}.{tried.stream}.t{tried.timeline}.e{tried.epoch:010}.a{tried.attempt}.l{key.lease}"
        return self.root / name

    def existing(self, owner: StreamIdentity) -> Iterator[StagingFolder]:
        """Yield the folders of this owner's attempts."""
        for name in names_in(self.root):
            match = _NAME.fullmatch(name)
            if match and (match["uid"], match["stream"]) == (owner.uid, owner.stream):
                place = int(match["t"]), int(match["e"])
                yield StagingFolder(self.root / name, place, int(match["a"]), int(match["l"]))

    def clear(self, key: EpochKey) -> None:
        """Remove the folder of one attempt: under the key's lease or, if that is `None`, under any lease."""
        for each in self.existing(key.owner):
            if each.place == key.place and each.attempt == key.attempt.attempt and key.lease in (None, each.lease):
                _remove(each.path)

    def sweep(self, key: EpochKey) -> None:
        """After a commit, remove the folders of earlier epochs and of other attempts at this one."""
        for each in self.existing(key.owner):
            other = (each.attempt, each.lease) != (key.attempt.attempt, key.lease)
            if each.place < key.place or (each.place == key.place and other):
                _remove(each.path)

    def retire(self, owner: StreamIdentity, before: EpochPlace) -> None:
        """Take away all folders of earlier places, so that a commit that is under way cannot rename or read them.

        Each is renamed first: a folder that is being removed could still be renamed into place, with a part of its
        files.
        """
        found = [each.path for each in self.existing(owner) if each.place < before]
        for path in found:
            with contextlib.suppress(FileNotFoundError):  # a commit has renamed it first
                path.rename(self.root / f"{_RETIRED}{uuid.uuid4().hex}")
        if found:
            sync_folder(self.root)
        for name in names_in(self.root):
            if name.startswith(_RETIRED):  # also those of a process that died here
                _remove(self.root / name)


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; an empty list if the folder does not exist."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - thousands of them
    except FileNotFoundError:
        return []


def below(folder: Path) -> Iterator[Path]:
    """Yield all files and subfolders of a folder, including hidden ones, and the folder itself last."""
    for top, _, names in os.walk(folder, topdown=False):
        for name in names:
            yield Path(top, name)
        yield Path(top)


def _remove(path: Path) -> None:
    """Remove a folder as far as possible. Remains only take up space: the next sweep removes them."""
    with contextlib.suppress(FileNotFoundError):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            _log.warning("could not remove the staging folder %s: %s", path, error)

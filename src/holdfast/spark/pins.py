"""Hard links to the files of one snapshot, and their durable copies in the repository.

Spark may delete a file once it is linked. The links are in `.pinned/` beside Spark's folder. A file that an earlier
snapshot has kept is neither linked nor read again.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from holdfast.repository import Checkpoints, FileRepository, Held, HeldFile
from holdfast.repository.checkpoint_keys import CheckpointPlace
from holdfast.repository.files import failing_as, link_or_copy
from holdfast.sparkfiles.statefiles import Vanished

PINS = ".pinned"
_PART = 1 << 26  # bytes that are read at a time


@dataclass(frozen=True, slots=True)
class SparkCut:
    """The files that were kept for one stream, and the settings that Spark's offset log records."""

    batch: int
    files: tuple[HeldFile, ...]
    confs: dict[str, str]
    state_format: str | None
    new_files: int
    new_bytes: int
    live: str = ""  # on an object store: see `FileList`
    copies: str = ""

    def stored(self, checkpoints: Checkpoints, place: CheckpointPlace) -> str:
        """Store the list of the files; return its digest."""
        return checkpoints.put_files(place, self.files, live=self.live, copies=self.copies)[0]


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """Facts about a batch from Spark's records."""

    batch: int
    confs: dict[str, str]
    state_format: str | None


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file that is kept, and the inode, size and time by which it is recognised."""

    identity: tuple[int, int, int]
    held: Held


@dataclass(frozen=True, slots=True)
class _Link:
    """A link to one of Spark's files, and the inode, size and time of that file."""

    path: Path
    identity: tuple[int, int, int]


class Pin(Protocol):
    """The files of a snapshot that is being taken."""

    def release(self) -> None:
        """Release what keeps the files; harmless when called twice."""


PinT = TypeVar("PinT", bound=Pin)


class StreamSnapshots(Protocol[PinT]):
    """Takes snapshots of one stream."""

    @property
    def kept(self) -> Iterator[str]:
        """The keys of files that a clean-up must spare, because they need not be read again."""

    def pin(self, batch: int, place: CheckpointPlace, *, copy: bool = False) -> PinT:
        """Make sure that the files of a committed batch stay; `copy`: for a savepoint."""

    def keep(self, pinned: PinT) -> SparkCut | None:
        """Keep some of the files; return the snapshot once all are kept."""

    def release_all(self) -> None:
        """Remove what drivers that have died left."""


class Links:
    """The files of one snapshot: those that are kept already, and links to the others."""

    def __init__(self, folder: Path, repository: FileRepository, known: Mapping[str, KnownFile]) -> None:
        self.kept: dict[str, Held] = {}
        self.linked: dict[str, _Link] = {}
        self._folder = folder
        self._repository = repository
        self._known = known
        self._place = folder.with_name(PINS) / uuid.uuid4().hex

    def add(self, paths: Iterable[str]) -> None:
        """Link the files that are neither linked nor kept yet."""
        wanted = [path for path in dict.fromkeys(paths) if path not in self.kept and path not in self.linked]
        found = {path: self._identity(path) for path in wanted}
        kept = {
            path: known.held for path in wanted if (known := self._known.get(path)) and known.identity == found[path]
        }
        there = self._repository.sizes(held.key for held in kept.values())
        self.kept |= {path: held for path, held in kept.items() if there[held.key] == held.size}
        for path in wanted:
            if path not in self.kept:
                self.linked[path] = _Link(self._link(path), found[path])

    def read(self, path: str) -> bytes:
        """Read a file from its link, or from the repository if it is kept."""
        if path in self.kept:
            return self._repository.read(self.kept[path].key)
        with failing_as("read", path):
            return self.linked[path].path.read_bytes()

    def path_of(self, path: str) -> str:
        """Return the path of one of Spark's files, for errors."""
        return str(self._folder / path)

    def changelog(self, path: str) -> bytes:
        """Link a changelog and return its bytes."""
        self.add([path])
        return self.read(path)

    def commit(self, batch: int) -> bytes | None:
        """Return an older entry of the commit log, or `None` if Spark has deleted it; it is not linked."""
        path = self._folder / "commits" / str(batch)
        with failing_as("read", str(path)):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def release(self) -> None:
        """Remove the links; harmless when called twice."""
        shutil.rmtree(self._place, ignore_errors=True)
        with contextlib.suppress(OSError):  # it contains the links of other snapshots
            self._place.parent.rmdir()

    def _link(self, path: str) -> Path:
        link = self._place / str(len(self.linked))
        with failing_as("pin", path):
            self._place.mkdir(parents=True, exist_ok=True)
            try:
                link_or_copy(self._folder / path, link)
            except (FileNotFoundError, NotADirectoryError):
                raise Vanished(path) from None
        return link

    def _identity(self, path: str) -> tuple[int, int, int]:
        with failing_as("look at", path):
            try:
                found = (self._folder / path).stat()
            except (FileNotFoundError, NotADirectoryError):
                raise Vanished(path) from None
        return found.st_ino, found.st_size, found.st_mtime_ns


class Pinned:
    """The linked files of one snapshot, kept in the repository one part at a time."""

    def __init__(
        self,
        links: Links,
        facts: SnapshotFacts,
        repository: FileRepository,
        place: CheckpointPlace,
        *,
        copy: bool,
        cut: SparkCut | None = None,
    ) -> None:
        self.copy = copy
        self.cut = cut  # once all files are kept
        self._links = links
        self._facts = facts
        self._repository = repository
        self._place = place
        self._new: list[Held] = []

    def keep_part(self) -> dict[str, KnownFile]:
        """Keep some of the linked files, durably; return them. When all are kept, `cut` is set."""
        part = self._part()
        held = self._repository.hold_all([link.path for link in part.values()], self._place.objects, copy=self.copy)
        now = dict(zip(part, held, strict=True))
        self._links.kept |= now
        self._new += held
        for path in part:
            del self._links.linked[path]
        if not self._links.linked:
            self.cut = self._complete()
        return {path: KnownFile(part[path].identity, now[path]) for path in part}

    def release(self) -> None:
        """Remove the links; harmless when called twice."""
        self._links.release()

    def _part(self) -> dict[str, _Link]:
        part: dict[str, _Link] = {}
        size = 0
        for path, link in self._links.linked.items():
            if size >= _PART:
                break
            part[path] = link
            size += link.identity[1]
        return part

    def _complete(self) -> SparkCut:
        return SparkCut(
            self._facts.batch,
            tuple(HeldFile(path, held.size, held.sha256) for path, held in sorted(self._links.kept.items())),
            self._facts.confs,
            self._facts.state_format,
            len(self._new),
            sum(held.size for held in self._new),
        )

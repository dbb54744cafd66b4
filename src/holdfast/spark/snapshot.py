"""The snapshot of one stream at one epoch: exactly the files that Spark needs to start there, kept by their digests.

This is how it is taken on a local disk; for object stores see `placed`.

Spark's files of a committed batch never change, and Spark retains them for a number of batches. They are therefore
linked from the live folder while the query continues, and all content is read from the links, never from the live
folder. Linking all files first is fast; then they are read, digested and kept, one part at a time.

The snapshot of a batch contains its closure, which `sparkfiles.closure` defines.

Not guaranteed: a snapshot of a batch that Spark is about to delete. A file that vanished is looked for again a few
times, then the snapshot fails.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.errors import NotFound, StorageFailed
from holdfast.repository import FileRepository, ObjectRepository, Repository
from holdfast.repository.checkpoint_keys import CheckpointPlace
from holdfast.repository.opening import local_repository
from holdfast.spark.pins import PINS, KnownFile, Links, Pinned, SnapshotFacts, SparkCut, StreamSnapshots
from holdfast.spark.placed import PlacedSnapshots
from holdfast.sparkfiles.closure import keep_closure
from holdfast.sparkfiles.localfolder import LocalSparkFolder
from holdfast.sparkfiles.places import spark_key
from holdfast.sparkfiles.statefiles import Vanished
from holdfast.sparkfiles.storefolder import StoreSparkFolder

_TRIES = 3


class Snapshots:
    """Takes snapshots of one stream. It remembers the files that it has kept, so each snapshot reads new files only."""

    def __init__(self, folder: Path, repository: FileRepository) -> None:
        self._folder = folder
        self._repository = repository
        self._known: dict[str, KnownFile] = {}
        self._last: SparkCut | None = None

    @property
    def kept(self) -> Iterator[str]:
        """The keys of files that need not be read again, including those of a checkpoint that failed since."""
        return (known.held.key for known in self._known.values())

    def pin(self, batch: int, place: CheckpointPlace, *, copy: bool = False) -> Pinned:
        """Link the files that Spark needs to start after a committed batch: from then on it may delete them."""
        last = self._last
        if last is not None and last.batch == batch and not copy and self._all_there(last, place):
            facts = SnapshotFacts(batch, last.confs, last.state_format)
            return Pinned(self._links({}), facts, self._repository, place, copy=False, cut=last)
        why = ""
        for _ in range(_TRIES):
            links = self._links({} if copy else self._known)
            try:
                facts = self._link(batch, links)
            except (Vanished, NotFound) as gone:
                links.release()
                why = gone.key if isinstance(gone, NotFound) else str(gone)
            except BaseException:
                links.release()
                raise
            else:
                if not copy:
                    self._known = {path: known for path, known in self._known.items() if path in links.kept}
                return Pinned(links, facts, self._repository, place, copy=copy)
        self._known = {path: known for path, known in self._known.items() if (self._folder / path).exists()}
        why = f"{why} no longer exists: Spark has processed more batches than it retains, or the file was removed"
        raise StorageFailed(action=f"keep batch {batch} of", key=str(self._folder), why=why)

    def keep(self, pinned: Pinned) -> SparkCut | None:
        """Keep some of the pinned files, durably; return the snapshot once all are kept."""
        if pinned.cut is None:
            known = pinned.keep_part()
            if not pinned.copy:
                self._known |= known
                self._last = pinned.cut or self._last
        return pinned.cut

    def release_all(self) -> None:
        """Remove the links of drivers that have died."""
        shutil.rmtree(self._folder.with_name(PINS), ignore_errors=True)

    def _links(self, known: dict[str, KnownFile]) -> Links:
        return Links(self._folder, self._repository, known)

    def _link(self, batch: int, links: Links) -> SnapshotFacts:
        found = keep_closure(LocalSparkFolder(self._folder), batch, links)
        return SnapshotFacts(batch, found.offsets.confs, ", ".join(found.formats) or None)

    def _all_there(self, cut: SparkCut, place: CheckpointPlace) -> bool:
        return None not in self._repository.sizes(place.object(each.sha256) for each in cut.files).values()


def snapshots_of(repository: Repository, stream: str, timeline: int) -> StreamSnapshots[Any]:
    """Return what takes the snapshots of a stream."""
    key = spark_key(stream, timeline)
    if isinstance(repository, ObjectRepository):
        return PlacedSnapshots(stream, StoreSparkFolder(repository, key), repository)
    local = local_repository(repository, "a checkpoint")
    return Snapshots(local.root / key, local)

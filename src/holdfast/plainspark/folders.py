"""Copies of a checkpoint folder, from which another query continues.

Rules:
- A folder is never copied as it is. Only the closure of the last committed batch is copied: state files of a later
  batch would be loaded once the copy reaches that batch again. Hidden files do not come along either.
- If the next batch had begun, its offsets and the entries of its source logs are copied too, and Spark runs it again
  with the same input.
- The copy has a query id of its own: two running queries with the same id stop each other.
- The copy shares no bytes with the original, and does not refer to it.
- Everything is durable when `copy_folder` returns. The id is written last, so a folder with an id is complete.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import SparkCheckpointDamaged
from holdfast.repository.files import copy_new, failing_as, hadoop_address, replace_durably, sync_all
from holdfast.sparkfiles.closure import Closure, keep_closure, source_entries
from holdfast.sparkfiles.localfolder import LocalSparkFolder
from holdfast.sparkfiles.records import OffsetEntry
from holdfast.sparkfiles.schema_paths import has_schema_paths, with_schema_paths
from holdfast.sparkfiles.statefiles import Vanished

METADATA = "metadata"
_DESCRIPTION = re.compile(r"state/\d+/_metadata/v2/(\d{1,18})")


@dataclass(frozen=True, slots=True)
class FolderCopy:
    """What to copy: a folder, and the batches that the copy has."""

    source: Path
    committed: int | None  # the last committed batch; None: there is none
    begun: int | None = None  # the batch after it, if it had begun


@dataclass(frozen=True, slots=True)
class CopiedFolder:
    """What was copied."""

    closure: Closure | None  # of the committed batch
    files: int
    bytes: int


@dataclass(slots=True)
class _Copies:
    """Copies files into a folder; reads them from there."""

    source: Path
    target: Path
    final: Path  # where the copy will be once it is renamed: paths in it refer to this
    last: int  # the last committed batch
    sizes: dict[str, int] = field(default_factory=dict)

    def add(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path not in self.sizes and path != METADATA and not self._is_later(path):
                self.sizes[path] = self._copy(path)

    def read(self, path: str) -> bytes:
        with failing_as("read", str(self.target / path)):
            return (self.target / path).read_bytes()

    def path_of(self, path: str) -> str:
        return str(self.source / path)

    def changelog(self, path: str) -> bytes:
        self.add([path])
        return self.read(path)

    def commit(self, batch: int) -> bytes | None:
        path = self.source / "commits" / str(batch)
        with failing_as("read", str(path)):
            return path.read_bytes() if path.is_file() else None

    def _is_later(self, path: str) -> bool:
        """Whether a later batch wrote a description of an operator: that batch writes it again."""
        found = _DESCRIPTION.fullmatch(path)
        return found is not None and int(found[1]) > self.last

    def _copy(self, path: str) -> int:
        source, target = self.source / path, self.target / path
        with failing_as("copy", str(source)):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                if has_schema_paths(path):
                    target.write_bytes(with_schema_paths(source.read_bytes(), path, hadoop_address(self.final)))
                else:
                    copy_new(source, target)
            except (FileNotFoundError, NotADirectoryError):
                raise Vanished(path) from None
            return target.stat().st_size


def copy_folder(what: FolderCopy, target: Path, final: Path) -> CopiedFolder:
    """Copy a checkpoint folder into `target`, a new folder that will be renamed to `final`.

    1. Copy the closure of the committed batch.  2. Copy the offsets and the source entries of the begun one.  3. Make
    all of it durable.  4. Write the new id.
    """
    source = LocalSparkFolder(what.source)
    copies = _Copies(what.source, target, final, -1 if what.committed is None else what.committed)
    with failing_as("create", str(target)):
        target.mkdir(parents=True)
    try:
        closure = None if what.committed is None else keep_closure(source, what.committed, copies)  # 1
        if what.begun is not None:  # 2
            offsets = f"offsets/{what.begun}"
            copies.add([offsets])
            copies.add(source_entries(source, OffsetEntry(copies.read(offsets), source.place(offsets))))
    except Vanished as gone:
        raise SparkCheckpointDamaged(path=str(what.source), why=f"{gone} is missing") from gone
    with failing_as("sync", str(target)):  # 3
        folders = {folder for path in copies.sizes for folder in (target / path).parents if target in folder.parents}
        sync_all([*(target / path for path in copies.sizes), *folders, target])
    replace_durably(target / METADATA, json.dumps({"id": str(uuid.uuid4())}).encode(), METADATA)  # 4
    return CopiedFolder(closure, len(copies.sizes) + 1, sum(copies.sizes.values()))

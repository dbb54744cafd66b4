"""Compaction: old epochs of a FileSink's folder become fewer files, and no reader sees a row twice or misses one.

    <path>.compact/lock        held by the running compaction, and by a rewind
    <path>.compact/new/        the new tree; after the swap, the old one
    <path>.compact/…           anything else is left over; the next compaction removes it

Rules:
- The folder is not changed in place. A complete new tree is built next to it, from merged folders and links to all
  other files, and made durable. Then the two trees are exchanged in one step (`RENAME_EXCHANGE`).
- Merging takes long and blocks no commit. The gate is closed only for the swap, after linking the epochs that were
  committed in the meantime. The compaction waits for a running commit. If that commit does not end, it fails.
- A merged folder has the name of its last epoch, which existed before. So a reader that has listed the old names and
  opens them later finds all rows of the run there, or a missing file. It never finds rows twice.
- The old tree is kept for a grace period, because a reader may be listing it.
- A compaction that is killed before the swap has changed nothing. After the swap, only the clean-up is missing.
- A folder without a gate was last written by a version that had none: then the compaction takes the lease. `shared`
  pipelines use no locks: there the caller must confirm that the pipeline has ended.

Not guaranteed: correct rows for a reader that lists one part of the folder, reads it, and then lists the next. Nor that
files which other programs add during the swap are in the new tree. Nor the entry in the history, if the process dies
right after the swap.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import _figures as figures
from holdfast._validation import checked_seconds, checked_type
from holdfast.epoch import Reach, unwatched
from holdfast.errors import CompactionOutdated, HoldfastError, NotSupported, SinkMissing
from holdfast.formats.sealed_json import plain
from holdfast.repository import Checkpoints, History, Identity, Lease, Repository
from holdfast.repository.files import sync_all, sync_folder
from holdfast.repository.lease import newest_lease
from holdfast.repository.rewinds import require_finished
from holdfast.sinks.compaction._errors import os_errors
from holdfast.sinks.compaction.merge import Merge, without_spark
from holdfast.sinks.compaction.plan import CompactPlan, require_whole
from holdfast.sinks.compaction.runs import cuts_of, run_of, sizes_by_leaf
from holdfast.sinks.compaction.trees import all_in, catch_up, like, require_able, swap
from holdfast.sinks.files.epoch_folders import LEDGER, EpochFolder, KeyRecord, epochs_in, folder_name, folder_of
from holdfast.sinks.files.gate import LOCK, NEW, PASSED, Gate, beside
from holdfast.sinks.files.tree_lock import tree_locked
from holdfast.sinks.owners import OWNER_FILE
from holdfast.sinks.staging import names_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINTS = {
    # the points at which a compaction may die, in order, and what is on disk then
    "compaction planned": "nothing has changed",
    "run merged": "after each run: part of a new tree is next to the folder",
    "tree built": "the new tree is next to the folder, complete and durable",
    "gate closed": "the same; commits wait until the OS releases the lock",
    "trees swapped": "readers see the new tree; the old one is next to it",
    "compacted": "everything is done",
}
BUSY_S = 30.0
GRACE_S = 10.0
_SCRATCH = "scratch"
Progress = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The result of a compaction."""

    path: str
    epochs: int  # merged epochs
    folders: int  # the folders that they became
    files_before: int  # with rows, of those epochs
    files_after: int
    rows: int
    bytes_before: int
    bytes_after: int

    def summary(self) -> str:
        """Return a one-line summary."""
        if not self.folders:
            return f"{self.path}: nothing to merge"
        epochs, rows, folders = figures.number(self.epochs), figures.number(self.rows), figures.number(self.folders)
        return (
            f"{self.path}: merged {epochs} epochs, {rows} rows, into {folders} folders: "
            f"{figures.number(self.files_before)} files became {figures.number(self.files_after)}, "
            f"{figures.size(self.bytes_before)} became {figures.size(self.bytes_after)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return plain(self)


def apply_compact(
    repository: Repository,
    plan: CompactPlan,
    spark: SparkSession | None = None,
    *,
    options: Mapping[str, str] | None = None,
    take_over: bool = False,
    busy_s: float = BUSY_S,
    grace_s: float = GRACE_S,
    progress: Progress = lambda _: None,
    reach: Reach = unwatched,
) -> Compacted:
    """Apply a plan. The pipeline may be running.

    `spark` is needed for parquet and orc (`plan.by_spark`); `options` are passed to its writer. `busy_s` is how long to
    wait for a running commit, `grace_s` how long the old files are kept for readers that are listing them. `take_over`
    confirms that a `shared` pipeline has ended; if it still runs, it is fenced.

    1. Lock out other compactions, and remove the leftovers of a dead one.  2. Refuse an outdated plan, and a file
    system that lacks the needed operations.  3. Merge, run by run.  4. Link all other files, and make the tree durable.
    5. Close the gate, link new epochs, and swap.  6. Record it in the history.  7. Wait, and clean up.
    """
    checked_type("plan", plan, CompactPlan)
    checked_seconds("busy_s", busy_s)
    if grace_s != 0:
        checked_seconds("grace_s", grace_s)
    if plan.by_spark and spark is None:
        raise without_spark(plan.format)
    root = Path(os.path.realpath(plan.path))
    if plan.empty:
        return _result(root, (), ())
    with os_errors(root), _lease_without_gate(repository, root, take_over):
        work = _Compaction(repository, plan, root, beside(root), spark, options or {}, progress, reach)
        with work.locked(grace_s):  # 1
            done = work.run(busy_s) if plan.runs else _result(root, (), ())
            work.clear(work.grace(grace_s))  # 7
        reach("compacted")
        return done


@contextlib.contextmanager
def _lease_without_gate(repository: Repository, root: Path, take_over: bool) -> Iterator[None]:
    """Hold the lease if the gate does not block commits."""
    newest = newest_lease(repository)
    shared = newest is not None and newest.shared
    if shared and not take_over:
        raise NotSupported(
            what=f"compacting {root} while its pipeline may be running",
            why="it is shared by several machines, and locks between machines are not reliable",
            do="stop the pipeline, then pass take_over=True",
        )
    if (root / LEDGER).is_dir() and (shared or not Gate(root).file.exists()):
        with Lease.take(repository, shared=shared, why="compact"):
            Gate(root).make()
            yield
    else:
        yield


@dataclass(slots=True)
class _Compaction:
    """One run of a compaction."""

    repository: Repository
    plan: CompactPlan
    root: Path
    work: Path
    spark: SparkSession | None
    options: Mapping[str, str]
    progress: Progress
    reach: Reach
    swapped: bool = False

    @property
    def new(self) -> Path:
        """The new tree; after the swap, the old one."""
        return self.work / NEW

    @contextlib.contextmanager
    def locked(self, grace_s: float) -> Iterator[None]:
        """Hold the lock of compactions. After an error, the work folder is cleaned up; after a kill, it is not."""
        if not self.root.is_dir():
            raise SinkMissing(path=str(self.root), why="there is no such folder")
        with tree_locked(self.root, "the compaction"):
            self.clear(grace_s)
            try:
                yield
            except Exception:
                with contextlib.suppress(OSError):
                    self.clear(self.grace(grace_s))
                raise

    def grace(self, grace_s: float) -> float:
        """Return how long to keep the trees in the work folder: no reader has listed one that was never swapped."""
        return grace_s if self.swapped else 0.0

    def clear(self, grace_s: float) -> None:
        """Remove everything but the lock. A tree that may be an old one is removed only after the grace period."""
        for name in names_in(self.work):
            path = self.work / name
            if name != LOCK:
                with contextlib.suppress(FileNotFoundError):
                    if name == NEW or name.startswith(PASSED):
                        self._wait_for_readers(path, grace_s)
                    shutil.rmtree(path)

    def _wait_for_readers(self, tree: Path, grace_s: float) -> None:
        rest = grace_s - max(time.time() - tree.stat().st_ctime, 0.0)  # a rename sets ctime
        if rest > 0:
            self.progress(f"wait {rest:.0f} s for readers that are listing the old files")
            time.sleep(rest)

    # --- the work ---

    def run(self, busy_s: float) -> Compacted:
        """Run steps 2 to 6."""
        groups = self._checked()  # 2
        require_able(self.root, self.work, self.root / LEDGER / OWNER_FILE)
        self.reach("compaction planned")
        like(self.root, self.new)
        merges = [merge for group in groups for merge in self._same_columns(group)]
        if not merges:  # nothing was planned, or Spark found no two epochs of the same columns
            return _result(self.root, (), ())
        results: list[KeyRecord] = []
        for number, merge in enumerate(merges, 1):
            first, last = merge.folders[0].first, merge.folders[-1].epoch
            self.progress(f"merge {number} of {len(merges)}: epochs {first} to {last}")
            results.append(merge.run())  # 3
            self.reach("run merged")
        gone = {each.name for merge in merges for each in merge.folders}
        made = {merge.target.name for merge in merges}
        linked = catch_up(self.root, self.new, gone, made)  # 4
        sync_all([*all_in(self.new, made), *linked, self.work], at_once=True)
        self.reach("tree built")
        self.progress("swap the trees")
        result = _result(self.root, merges, results)
        with Gate(self.root).closed(busy_s):  # 5
            self.reach("gate closed")
            self._require_same(merges)
            try:
                changed = catch_up(self.root, self.new, gone, made)
            except FileNotFoundError as error:
                raise self._outdated("the folder changed, or a commit that waited for too long cancelled it") from error
            sync_all(changed)
            swap(self.root, self.new)
            self.swapped = True
            sync_folder(self.root.parent)
            sync_folder(self.work)
        self.reach("trees swapped")
        self._record(result, merges)  # 6
        return result

    def _checked(self) -> list[list[EpochFolder]]:
        """Return the folders of each run as they are now; refuse a plan that no longer matches them.

        An unfinished rewind may still have to move epochs out. Its base is not needed to finish it, and may be gone.
        """
        require_finished(self.repository)
        identity = Identity.load(self.repository)
        cuts, ceilings, blocked = cuts_of(Checkpoints(self.repository).all(), self.plan.stream)
        if blocked:
            raise self._outdated(blocked)
        del ceilings  # checkpoints that began after the plan cut after all epochs that it merges
        there = set(epochs_in(self.root))
        groups = []
        for run in self.plan.runs:
            if any(run.first <= cut < run.last for cut in cuts.get(run.timeline, ())):
                raise self._outdated(f"a checkpoint now cuts between epochs {run.first} and {run.last}")
            group = [folder_of(self.root, t, e) for t, e in sorted(there) if folder_name(t, e) in run.folders]
            if tuple(each.digest for each in group) != run.digests or any(g.record.uid != identity.uid for g in group):
                raise self._outdated(f"epochs {run.first} to {run.last} have changed")
            for each in group:
                require_whole(self.root, each.name, each.record)
            groups.append(group)
        return groups

    def _same_columns(self, group: Sequence[EpochFolder]) -> list[Merge]:
        """Return the merges of a run: one, or several if records lack the columns and Spark finds that they differ."""
        whole = self._merge(group)
        if not self.plan.by_spark or all(each.record.shape for each in group):
            return [whole]
        parts: list[list[EpochFolder]] = []
        before = None
        for each in group:
            found = whole.columns_of(each)
            if found != before:
                parts.append([])
            parts[-1].append(each)
            before = found
        return [self._merge(part) for part in parts if run_of(part, self.plan.target_bytes) is not None]

    def _merge(self, group: Sequence[EpochFolder]) -> Merge:
        return Merge(
            root=self.root,
            folders=group,
            target=self.new / group[-1].name,
            scratch=self.work / _SCRATCH,
            format=self.plan.format,
            target_bytes=self.plan.target_bytes,
            spark=self.spark,
            options=self.options,
        )

    def _require_same(self, merges: Sequence[Merge]) -> None:
        """Refuse to swap if a merged folder has changed: the swap would undo the change."""
        for each in (each for merge in merges for each in merge.folders):
            try:
                found = folder_of(self.root, each.timeline, each.epoch)
            except (OSError, HoldfastError) as error:
                raise self._outdated(f"{each.name} has changed") from error
            if found.digest != each.digest:
                raise self._outdated(f"{each.name} has changed")

    def _outdated(self, why: str) -> CompactionOutdated:
        return CompactionOutdated(path=str(self.root), why=why)

    def _record(self, result: Compacted, merges: Sequence[Merge]) -> None:
        """Add an entry to the history."""
        runs = [[m.folders[-1].timeline, m.folders[0].first, m.folders[-1].epoch] for m in merges]
        facts = {**result.to_dict(), "stream": self.plan.stream, "runs": runs}
        History(self.repository).add("compact", "", facts)


def _result(root: Path, merges: Sequence[Merge], after: Sequence[KeyRecord]) -> Compacted:
    before = [each.record for merge in merges for each in merge.folders]
    return Compacted(
        path=str(root),
        epochs=sum(record.epochs for record in before),
        folders=len(after),
        files_before=len(_sizes(before)),
        files_after=len(_sizes(after)),
        rows=sum(record.rows for record in before),
        bytes_before=sum(_sizes(before)),
        bytes_after=sum(_sizes(after)),
    )


def _sizes(records: Sequence[KeyRecord]) -> list[int]:
    return [size for leaf in sizes_by_leaf(records).values() for size in leaf]

"""Compaction: closed epochs of a FileSink's folder become fewer files, and no reader sees a row twice or misses one.

    <path>.compact/lock        held by the one compaction that is at work
    <path>.compact/new/        the new tree; after the swap, the old one
    <path>.compact/…           anything else is left over, and removed by the next one

Rules:
- The folder is never changed, it is replaced: a complete tree is built beside it, of merged folders and of links to all
  that stays, made durable, and the two change places in one step (`RENAME_EXCHANGE`).
- Merging takes long and keeps nobody waiting. For the swap alone the gate is closed: what was committed meanwhile is
  linked first. A commit that is under way is waited for; one that does not end makes the compaction give up.
- A merged folder has the name of its last epoch, which was there before: so whoever has listed the old names and looks
  into them later finds the run's rows there, all of them, or finds a file gone. Never both.
- The old tree is left alone for a while: somebody may be listing it.
- Cut off before the swap, it has changed nothing; after it, it is done but for the clearing up.
- Where no gate is there, the folder was last written by a version without one: then the lease must be free. `shared`
  pipelines lock nothing: there the caller must say that the pipeline has ended.

Not promised: right rows for whoever lists a part, reads it, and lists the next. Nor that files which others put into
the folder by hand at the moment of the swap are in the new tree. Nor the entry in the history, if it dies right behind
the swap.
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
from holdfast.errors import CompactionOutdated, HoldfastError, Locked, NotSupported, SinkMissing, StorageFailed
from holdfast.formats.sealed_json import plain
from holdfast.repository import Checkpoints, History, Identity, Lease, Repository
from holdfast.repository.files import make_folder, sync_all, sync_folder
from holdfast.repository.lease import newest_lease
from holdfast.repository.oslock import OsLock
from holdfast.sinks.compaction._errors import of_system
from holdfast.sinks.compaction.merge import Merge, schema_of
from holdfast.sinks.compaction.plan import CompactPlan, cuts_of, require_whole, run_of, sizes_by_leaf
from holdfast.sinks.compaction.trees import all_in, catch_up, like, require_able, swap
from holdfast.sinks.files.epoch_folders import LEDGER, EpochFolder, KeyRecord, epochs_in, folder_name, folder_of
from holdfast.sinks.files.gate import LOCK, NEW, PASSED, Gate, beside
from holdfast.sinks.owners import OWNER_FILE
from holdfast.sinks.staging import names_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINTS = {
    # where a compaction may die, in its order, and what it leaves behind
    "compaction planned": "nothing has changed",
    "run merged": "after each: a part of a new tree lies beside the folder",
    "tree built": "the new tree lies beside the folder, complete and durable",
    "gate closed": "the same; commits wait, until the system frees the lock",
    "trees swapped": "readers see the new tree; the old one lies beside it",
    "compacted": "all is done",
}
BUSY_S = 30.0
GRACE_S = 10.0
_SCRATCH = "scratch"
_TRIES = 10
Progress = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a compaction has done."""

    path: str
    epochs: int  # that were merged
    folders: int  # that they became
    files_before: int  # with rows, of those epochs
    files_after: int
    rows: int
    bytes_before: int
    bytes_after: int

    def summary(self) -> str:
        """Say it."""
        if not self.folders:
            return f"{self.path}: nothing to merge"
        epochs, rows, folders = figures.number(self.epochs), figures.number(self.rows), figures.number(self.folders)
        return (
            f"{self.path}: merged {epochs} epochs, {rows} rows, into {folders} folders: "
            f"{figures.number(self.files_before)} files became {figures.number(self.files_after)}, "
            f"{figures.size(self.bytes_before)} became {figures.size(self.bytes_after)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
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
    """Carry a plan out, also while the pipeline runs.

    `spark` is needed for parquet and orc (`plan.by_spark`); `options` go to its writer. `busy_s` is how long a commit
    is waited for, `grace_s` how long the old files stay for those who are listing them. `take_over` says that a
    `shared` pipeline has ended; one that has not is fenced.

    1. Lock out other compactions, and clear what a dead one left.  2. Refuse a plan that does not hold any more, and a
    file system that cannot do this.  3. Merge, run by run.  4. Link all that stays, and make the tree durable.
    5. Close the gate: link what is new, and swap.  6. Write it into the history.  7. Wait, and clear up.
    """
    checked_type("plan", plan, CompactPlan)
    checked_seconds("busy_s", busy_s)
    if grace_s != 0:
        checked_seconds("grace_s", grace_s)
    if plan.by_spark and spark is None:
        raise NotSupported(
            what=f"merging {plan.format} without Spark", why="only Spark reads and writes it here", do="pass a session"
        )
    root = Path(os.path.realpath(plan.path))
    if plan.empty:
        return _result(root, (), ())
    with of_system(root), contextlib.ExitStack() as held:
        held.enter_context(_alone(repository, root, take_over))
        work = _Work(repository, plan, root, beside(root), spark, options or {}, progress, reach)
        with work.locked(grace_s):  # 1
            done = work.done(busy_s) if plan.runs else _result(root, (), ())
            work.clear(work.grace(grace_s))  # 7
        reach("compacted")
        return done


@contextlib.contextmanager
def _alone(repository: Repository, root: Path, take_over: bool) -> Iterator[None]:
    """Take the lease where the gate does not keep commits out."""
    newest = newest_lease(repository)
    shared = newest is not None and newest.shared
    if shared and not take_over:
        raise NotSupported(
            what=f"compacting {root} while its pipeline may run",
            why="it is shared by several machines, and no lock between them is to be relied upon",
            do="end the pipeline, then say so with take_over=True",
        )
    if (root / LEDGER).is_dir() and (shared or not Gate(root).file.exists()):
        with Lease.take(repository, shared=shared):
            Gate(root).make()
            yield
    else:
        yield


@dataclass(slots=True)
class _Work:
    """One compaction at work."""

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
        """Be the only compaction here. An ordinary failure clears up behind itself; a kill cannot."""
        if not self.root.is_dir():
            raise SinkMissing(path=str(self.root), why="there is no such folder")
        with self._lock():
            self.clear(grace_s)
            try:
                yield
            except Exception:
                with contextlib.suppress(OSError):
                    self.clear(self.grace(grace_s))
                raise
            finally:
                with contextlib.suppress(OSError):
                    if names_in(self.work) == [LOCK]:
                        (self.work / LOCK).unlink()  # whoever waits for it finds that it is another by then
                        self.work.rmdir()

    def _lock(self) -> OsLock:
        """Take the lock of compactions; one that ends at this moment removes the folder that it is in."""
        for _ in range(_TRIES):
            make_folder(self.work)
            try:
                return OsLock.acquire(self.work / LOCK, f"the compaction of {self.root}")
            except StorageFailed:
                if self.work.exists():
                    raise
        raise Locked(what=f"the compaction of {self.root}", pid=0)

    def grace(self, grace_s: float) -> float:
        """Return how long what lies beside must stay: what was never swapped, nobody has listed."""
        return grace_s if self.swapped else 0.0

    def clear(self, grace_s: float) -> None:
        """Remove everything but the lock; what may be an old tree, only after a while."""
        for name in names_in(self.work):
            path = self.work / name
            if name != LOCK:
                with contextlib.suppress(FileNotFoundError):
                    if name == NEW or name.startswith(PASSED):
                        self._wait_for_listers(path, grace_s)
                    shutil.rmtree(path)

    def _wait_for_listers(self, tree: Path, grace_s: float) -> None:
        rest = grace_s - max(time.time() - tree.stat().st_ctime, 0.0)  # a rename sets it
        if rest > 0:
            self.progress(f"wait {rest:.0f} s for those who are listing the old files")
            time.sleep(rest)

    # --- the work ---

    def done(self, busy_s: float) -> Compacted:
        """Do steps 2 to 6."""
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
                raise self._outdated("it changed, or a commit went ahead after waiting for too long") from error
            sync_all(changed)
            swap(self.root, self.new)
            self.swapped = True
            sync_folder(self.root.parent)
            sync_folder(self.work)
        self.reach("trees swapped")
        self._record(result, merges)  # 6
        return result

    def _checked(self) -> list[list[EpochFolder]]:
        """Return the folders of each run as they are now, or refuse: others may have been at work since the plan."""
        identity = Identity.load(self.repository)
        cuts, ceilings, blocked = cuts_of(Checkpoints(self.repository).all(), self.plan.stream)
        if blocked:
            raise self._outdated(blocked)
        del ceilings  # what was begun since the plan cuts behind all that it merges
        there = set(epochs_in(self.root))
        groups = []
        for run in self.plan.runs:
            if any(run.first <= cut < run.last for cut in cuts.get(run.timeline, ())):
                raise self._outdated(f"a checkpoint cuts between epochs {run.first} and {run.last} now")
            group = [folder_of(self.root, t, e) for t, e in sorted(there) if folder_name(t, e) in run.folders]
            if tuple(each.digest for each in group) != run.digests or any(g.record.uid != identity.uid for g in group):
                raise self._outdated(f"epochs {run.first} to {run.last} are not any more what they were")
            for each in group:
                require_whole(self.root, each.name, each.record)
            groups.append(group)
        return groups

    def _same_columns(self, group: Sequence[EpochFolder]) -> list[Merge]:
        """Return a run's merges: one, or more where records tell no columns and Spark finds that they differ."""
        whole = self._merge(group)
        if not self.plan.by_spark or all(each.record.shape for each in group):
            return [whole]
        parts: list[list[EpochFolder]] = []
        before = None
        for each in group:
            found = schema_of(whole, each)
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
        """Refuse if what was merged is not any more what lies there: nobody's work is undone by the swap."""
        for each in (each for merge in merges for each in merge.folders):
            try:
                found = folder_of(self.root, each.timeline, each.epoch)
            except (OSError, HoldfastError) as error:
                raise self._outdated(f"{each.name} is not any more what it was") from error
            if found.digest != each.digest:
                raise self._outdated(f"{each.name} is not any more what it was")

    def _outdated(self, why: str) -> CompactionOutdated:
        return CompactionOutdated(path=str(self.root), why=why)

    def _record(self, result: Compacted, merges: Sequence[Merge]) -> None:
        """Write it into the history."""
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

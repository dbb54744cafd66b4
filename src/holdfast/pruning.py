"""Pruning: delete the checkpoints that a retention does not keep, and the objects that no checkpoint needs.

Rules:
- Only the lease holder deletes, and never while a checkpoint is being taken. Only the lease holder adds objects, too.
  So an object that was garbage when the plan was made is still garbage, unless a checkpoint id was reserved since; in
  that case the plan is outdated and refused.
- Manifests are deleted first, oldest first, then objects. An interruption at any point leaves only garbage, never an
  incomplete checkpoint; the next prune continues.
- An object is garbage if no manifest of any timeline refers to it. If a manifest or a file list cannot be read, its
  references are unknown: no object is deleted, and the plan names that checkpoint.
- Retention applies to the restorable checkpoints of the current lineage whose files all exist. A checkpoint with
  missing files is kept, but does not count towards the retention. Abandoned branches are kept until a prune
  names them, and savepoints until they are deleted by name: retention never applies to either.
- On an object store, checkpoints name Spark's files in place. What may go there is decided by `cleaning`, and the
  checkpoints that it needs are kept.
- Event logs are trimmed last: see `log_needs` and `eventlog.trimming`. A checkpoint that is dropped no longer needs its
  events, and a savepoint does until it is deleted.
- An attempt that is open while no checkpoint is being taken was left by a driver that died: it is aborted.

Not guaranteed if the lease has no OS lock (`shared`): that a driver that is paused in the middle of a deletion, and
replaced, deletes nothing more. It checks its lease before each checkpoint, and before every hundred objects, on an
object store every thousand. There, what it still deletes is nothing that its successor needs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast import _figures as figures
from holdfast._html import preformatted
from holdfast._validation import checked_type
from holdfast.cleaning.folders import CleaningMemory
from holdfast.cleaning.planning import StoreCleaning
from holdfast.epoch import Reach, unwatched
from holdfast.errors import CheckpointMissing, PlanOutdated
from holdfast.eventlog.keeping import LogTrim
from holdfast.formats.sealed_json import plain
from holdfast.log_needs import plan_trims
from holdfast.policy import Retention
from holdfast.repository import Checkpoints, FileList, History, Lease, Lineage, Repository, Status, Summary
from holdfast.repository.base import held_key
from holdfast.repository.base import now_ms as clock_ms
from holdfast.repository.checkpoint_keys import OBJECTS, CheckpointPlace
from holdfast.repository.filesizes import FileSizes
from holdfast.repository.lineage import branches
from holdfast.repository.objectstore import DELETED_AT_ONCE, ObjectRepository
from holdfast.repository.rewinds import require_finished

__all__ = ["PrunePlan", "Pruned", "apply_prune", "plan_prune"]

POINTS = {
    # the crash points of a prune, in order, and what has been done by then
    "prune planned": "nothing has changed",
    "manifest dropped": "after each manifest: some checkpoints are deleted, and their objects are garbage",
    "object collected": "after every hundred objects: some garbage is deleted",
    "log trimmed": "after each event log: its oldest events are deleted",
    "pruned": "everything is done",
}
_OBJECT = re.compile(r"[0-9a-f]{64}")
_BATCH = 100
_INCOMPLETE = "damaged, some of its files are missing: kept for a repair, and not counted by the retention"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """The plan of a prune: a value that can be inspected before it is applied."""

    timeline: int  # the current one
    retention: str  # what is kept, as text
    highest: int  # the highest reserved id: the plan is outdated once a higher one is reserved
    drops: tuple[int, ...]  # ids of the checkpoints to delete, oldest first
    keeps: Mapping[int | str, str]  # by id, or name of a savepoint: why it is kept
    garbage: tuple[str, ...]  # keys of the objects to delete
    garbage_bytes: int  # their total size
    leftovers: tuple[int, ...]  # ids of attempts that were left unfinished
    blocked: str | None  # why no objects are deleted
    timelines: tuple[int, ...] = ()  # abandoned timelines to delete
    logs: tuple[LogTrim, ...] = ()  # the oldest events of event logs, which nothing needs
    logs_blocked: str | None = None  # why no events are deleted

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.drops or self.garbage or self.leftovers or self.timelines or self.logs)

    def summary(self) -> str:
        """Return the plan as text."""
        drops = ", ".join(map(str, self.drops)) or "none"
        lines = [f"keep {self.retention}", f"checkpoints to delete: {drops}"]
        lines += [f"  {name} is kept: {why}" for name, why in self.keeps.items()]
        if self.timelines:
            lines.append(f"abandoned timelines to delete: {', '.join(map(str, self.timelines))}")
        if self.leftovers:
            lines.append(f"unfinished attempts to abort: {', '.join(map(str, self.leftovers))}")
        if self.blocked:
            lines.append(f"no objects are deleted: {self.blocked}")
        else:
            garbage = f"{figures.number(len(self.garbage))}, {figures.size(self.garbage_bytes)}"
            lines.append(f"objects that no checkpoint will need: {garbage}")
        for each in self.logs:
            segments = f"{figures.number(each.segments)} segments, {figures.size(each.bytes)}"
            lines.append(f"event log {each.path}: {segments} before sequence {figures.number(each.floor)}")
        if self.logs_blocked:
            lines.append(f"no events of event logs are deleted: {self.logs_blocked}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the plan as text, for notebooks."""
        return preformatted(self.summary())

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict, with the number of garbage objects instead of their keys."""
        return {**plain(self), "garbage": len(self.garbage)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The result of a prune."""

    dropped: tuple[int, ...]  # ids of the deleted checkpoints
    closed: tuple[int, ...]  # ids of the aborted attempts
    objects: int  # number of deleted objects
    bytes: int  # their total size
    blocked: str | None = None  # why no objects were deleted
    segments: int = 0  # number of segments that were deleted from event logs
    segment_bytes: int = 0  # their total size

    def summary(self) -> str:
        """Return a one-line summary."""
        objects = f"{figures.number(self.objects)} objects, {figures.size(self.bytes)}"
        text = f"deleted {figures.number(len(self.dropped))} checkpoints and {objects}"
        if self.segments:
            text += f", and {figures.number(self.segments)} segments of event logs, {figures.size(self.segment_bytes)}"
        return f"{text}; no objects: {self.blocked}" if self.blocked else text

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return plain(self)


def plan_prune(
    repository: Repository,
    retention: Retention,
    *,
    now_ms: int | None = None,
    abandoned: bool = False,
    retain: int | None = None,
    memory: CleaningMemory | None = None,
) -> PrunePlan:
    """Return what a prune would do. This changes nothing and needs no lease.

    `abandoned`: delete the checkpoints of abandoned branches too, and timelines that are not part of the lineage.
    If a checkpoint is being taken, the plan lists its objects as garbage. Such a plan is outdated and is refused.
    On an object store, `retain` is how many epochs Spark may still need, by default 100, and `memory` that of earlier
    plans.
    """
    checked_type("retention", retention, Retention)
    checkpoints = Checkpoints(repository)
    lineage = Lineage.load(repository)
    highest = checkpoints.highest()  # first: an id that is reserved after this makes the plan outdated
    found = checkpoints.standing()
    ours = {each.checkpoint: each for each in found if _is_subject(each, lineage)}
    lists = _FileLists(checkpoints)
    store = StoreCleaning.of(repository, lineage, retain, memory) if isinstance(repository, ObjectRepository) else None
    kept, incomplete = _kept(lists, ours, retention, clock_ms() if now_ms is None else now_ms, store)
    left = {each.checkpoint for each in found if abandoned and _is_abandoned(each, lineage)}
    drops = tuple(sorted((ours.keys() - kept.keys() - incomplete.keys()) | left))
    remaining = [each for each in found if each.checkpoint not in drops]
    named, blocked = _named_lists(lists, remaining)
    logs, logs_blocked = plan_trims(repository, remaining)
    garbage: dict[str, int] = {}
    if not blocked:
        garbage = _garbage(repository, named) if store is None else store.garbage(named, abandoned=abandoned)
    return PrunePlan(
        timeline=lineage.current,
        retention=retention.summary(),
        highest=highest,
        drops=drops,
        keeps={each.name: (kept | incomplete).get(each.checkpoint) or _why_exempt(each) for each in remaining},
        garbage=tuple(garbage),
        garbage_bytes=sum(garbage.values()),
        leftovers=tuple(each.checkpoint_id for each in checkpoints.open_attempts(lineage.current)),
        blocked=blocked,
        timelines=_abandoned_timelines(repository, lineage) if abandoned else (),
        logs=logs,
        logs_blocked=logs_blocked,
    )


def apply_prune(
    repository: Repository, plan: PrunePlan, lease: Lease, *, why: str | None = "", reach: Reach = unwatched
) -> Pruned:
    """Apply a plan, as the lease holder between two checkpoints.

    1. Refuse if the lease was lost, if a rewind is unfinished (no compaction may merge across its base), or if an id
    was reserved or a timeline begun since the plan was made.  2. Record the prune in the
    history with `why`; `None` is for the routine prune after each checkpoint, which would fill the history.  3. Abort
    unfinished attempts.  4. Delete the manifests, oldest first, and abandoned timelines, and check the lease before
    each.  5. Delete the objects, and check the lease before every hundred (a thousand on an object store).  6. Delete
    the oldest segments of event logs.
    """
    lease.check()  # 1
    checkpoints = Checkpoints(repository)
    if checkpoints.highest() != plan.highest:
        now = checkpoints.highest()
        raise PlanOutdated(why=f"the highest checkpoint id was {plan.highest} when it was made, and is {now} now")
    require_finished(repository)
    current = Lineage.load(repository).current
    if current != plan.timeline:
        raise PlanOutdated(why=f"timeline {plan.timeline} was current when it was made, and timeline {current} is now")
    reach("prune planned")
    if why is not None and not plan.empty:
        _record(repository, plan, why)  # 2
    left = {each.checkpoint_id for each in checkpoints.open_attempts(plan.timeline)}.intersection(plan.leftovers)
    for number in sorted(left):
        checkpoints.abort(plan.timeline, number, lease.number, "it was left unfinished")  # 3
    for number in plan.drops:
        lease.check()
        with contextlib.suppress(CheckpointMissing):  # an interrupted prune has deleted its manifest
            checkpoints.drop(checkpoints.find(number)[1], number)  # 4
        reach("manifest dropped")
    for number in plan.timelines:
        lease.check()
        checkpoints.drop_timeline(number, lease.number)
    batch = DELETED_AT_ONCE if isinstance(repository, ObjectRepository) else _BATCH
    for start in range(0, len(plan.garbage), batch):
        lease.check()
        repository.delete_all(plan.garbage[start : start + batch])  # 5
        reach("object collected")
    for trim in plan.logs:
        from holdfast.eventlog.trimming import apply_trim  # noqa: PLC0415 - needs an extra

        lease.check()
        apply_trim(trim)  # 6
        reach("log trimmed")
    reach("pruned")
    return Pruned(
        dropped=plan.drops,
        closed=tuple(sorted(left)),
        objects=len(plan.garbage),
        bytes=plan.garbage_bytes,
        blocked=plan.blocked,
        segments=sum(each.segments for each in plan.logs),
        segment_bytes=sum(each.bytes for each in plan.logs),
    )


# --- internal --------------------------------------------------------------------------------------------------------


def _is_subject(each: Summary, lineage: Lineage) -> bool:
    held = lineage.holds_checkpoint(each.timeline, each.checkpoint)
    return held and each.status is Status.RESTORABLE and each.savepoint is None


def _is_abandoned(each: Summary, lineage: Lineage) -> bool:
    held = lineage.holds_checkpoint(each.timeline, each.checkpoint)
    return not held and each.status is Status.RESTORABLE and each.savepoint is None and each.timeline <= lineage.current


def _abandoned_timelines(repository: Repository, lineage: Lineage) -> tuple[int, ...]:
    """Return the timelines that were current once, are not on the lineage, and were not deleted yet.

    Numbers are never reused. On an object store, the record of a timeline remains when its folder was deleted.
    """
    there = set(Checkpoints(repository).timelines())
    return tuple(sorted((branches(repository).keys() & there) - set(lineage.timelines)))


class _FileLists:
    """The file lists of one plan. Checkpoints share most files: each list is read once, each file checked once."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._read: dict[str, FileList | str] = {}
        self._complete: dict[str, bool] = {}
        self._sizes = FileSizes(checkpoints.repository)

    def of(self, each: Summary, digest: str) -> FileList | str:
        """Return a file list of a checkpoint, or a description of what is wrong with it."""
        if digest not in self._read:
            self._read[digest] = self._checkpoints.file_list(self._place(each), digest)
        return self._read[digest]

    def is_complete(self, each: Summary, digest: str) -> bool:
        """Whether a file list can be read and all its files exist with their sizes."""
        if digest not in self._complete:
            listed = self.of(each, digest)
            self._complete[digest] = not isinstance(listed, str) and self._exist(self._place(each), listed)
        return self._complete[digest]

    def _exist(self, place: CheckpointPlace, listed: FileList) -> bool:
        found = self._sizes.of(place, listed)
        return all(found[place.key(listed, file)] == file.size for file in listed.files)

    def _place(self, each: Summary) -> CheckpointPlace:
        return self._checkpoints.place(each.timeline, each.checkpoint)


def _kept(
    lists: _FileLists, ours: Mapping[int, Summary], retention: Retention, now_ms: int, store: StoreCleaning | None
) -> tuple[dict[int, str], dict[int, str]]:
    """Return the checkpoints that retention keeps, and the incomplete ones, which are kept without being counted.

    Only checkpoints that would be kept are checked: one that is deleted need not be complete.
    """
    incomplete: dict[int, str] = {}
    while True:
        times = {number: each.timestamp_ms for number, each in ours.items() if number not in incomplete}
        kept = dict(retention.keeps(times, now_ms))
        if store is not None:
            kept = store.needed(ours[number] for number in times) | kept
        found = [
            number for number in kept if not all(lists.is_complete(ours[number], each) for each in ours[number].lists)
        ]
        if not found:
            return kept, incomplete
        incomplete |= dict.fromkeys(found, _INCOMPLETE)


def _why_exempt(each: Summary) -> str:
    """Return why retention does not apply to a checkpoint."""
    if each.savepoint is not None:
        return "a savepoint: kept until it is deleted by name"
    if each.status is Status.RESTORABLE:
        return f"of an abandoned branch, timeline {each.timeline}: not subject to retention"
    return "damaged: kept for a repair" if each.status is Status.DAMAGED else "in progress, or left unfinished"


def _named_lists(lists: _FileLists, remaining: list[Summary]) -> tuple[list[tuple[Summary, FileList]], str | None]:
    """Return all file lists that a checkpoint refers to, each once, or the reason why they are not known."""
    found: dict[str, tuple[Summary, FileList]] = {}
    for each in remaining:
        if each.savepoint is not None:
            continue  # it has its own copies
        if each.status is Status.DAMAGED:
            return [], _may_need_any(each, each.why or "")
        for digest in set(each.lists) - found.keys():
            listed = lists.of(each, digest)
            if isinstance(listed, str):
                return [], _may_need_any(each, listed)
            found[digest] = each, listed
    return list(found.values()), None


def _garbage(repository: Repository, named: Iterable[tuple[Summary, FileList]]) -> dict[str, int]:
    """Return the objects that no checkpoint refers to, and their sizes."""
    needed = {digest for each, listed in named for digest in (*each.lists, *(file.sha256 for file in listed.files))}
    keys = {held_key(OBJECTS, digest) for digest in needed}
    return {key: size or 0 for key, size in repository.sizes(_unneeded(repository, keys)).items()}


def _may_need_any(each: Summary, why: str) -> str:
    return f"checkpoint {each.checkpoint} is damaged ({why}) and may need any of them"


def _unneeded(repository: Repository, needed: set[str]) -> Iterator[str]:
    for top in repository.list(OBJECTS):
        for name in repository.list(f"{OBJECTS}/{top}") if top.endswith("/") else ():
            key = f"{OBJECTS}/{top}{name}"
            if _OBJECT.fullmatch(name) and key not in needed:  # any other file there is not from Holdfast
                yield key


def _record(repository: Repository, plan: PrunePlan, why: str) -> None:
    """Record a prune in the history."""
    facts = {key: value for key, value in plan.to_dict().items() if key in _FACTS}
    History(repository).add("prune", why, facts)


_FACTS = ("timeline", "retention", "drops", "timelines", "garbage", "garbage_bytes", "leftovers", "blocked", "logs")

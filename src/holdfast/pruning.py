"""Pruning: which checkpoints go by a retention, and which objects nobody names any more.

Rules:
- Only the holder of the lease deletes, and never while a checkpoint is being taken. Only the holder adds objects, too:
  so what was garbage when the plan was made is garbage still, as long as no id was taken since. One that was makes the
  plan outdated, and it is refused.
- Manifests go first, oldest first, then objects. Cut off anywhere, it leaves garbage and nothing that is half there;
  the same again, or the next one, takes it up.
- An object is garbage if no manifest names it, of whatever timeline. Where a manifest or a file list cannot be read,
  nobody knows what it names: then no object is collected, and the plan says because of which checkpoint.
- Retention chooses among the restorable checkpoints of the current timeline whose files are all there: one that lacks
  some stays, and takes nobody's place. Older timelines are what a rewind is
  undone with, and savepoints are kept until they are deleted by name: neither is chosen, ever.
- An attempt that is open while nobody is taking a checkpoint was left by a driver that died: it is given up.

Not promised, where no lock of the operating system holds the lease (`shared`): that a driver which is paused in the
middle of a deletion, and replaced, deletes nothing more. It looks at its lease before every hundred objects.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast import _figures as figures
from holdfast._validation import checked_type
from holdfast.epoch import Reach, unwatched
from holdfast.errors import PlanOutdated
from holdfast.formats.sealed_json import plain
from holdfast.policy import Retention
from holdfast.repository import (
    Checkpoints,
    FileList,
    History,
    Identity,
    Lease,
    Repository,
    Status,
    Summary,
    held_key,
    place_of,
)
from holdfast.repository.checkpoint_keys import OBJECTS

POINTS = {
    # where a prune may die, in its order, and what it leaves behind
    "prune planned": "nothing has changed",
    "manifest dropped": "after each: some checkpoints are gone, their objects are garbage",
    "object collected": "after every hundred: some garbage is gone",
    "pruned": "all is done",
}
_OBJECT = re.compile(r"[0-9a-f]{64}")
_BATCH = 100
_NOT_WHOLE = "damaged, files of it are missing: kept for whoever mends it, and counts for nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """What a prune would do: a value, to be looked at before it is applied."""

    timeline: int  # the current one: others are left alone
    retention: str  # what is kept, in words
    highest: int  # the highest id that was ever taken: when another was, this plan is outdated
    drops: tuple[int, ...]  # ids of the checkpoints that go, oldest first
    keeps: Mapping[int | str, str]  # by id, or name of a savepoint: why it stays
    garbage: tuple[str, ...]  # keys of objects
    garbage_bytes: int  # their size
    leftovers: tuple[int, ...]  # ids of attempts that were left unfinished
    blocked: str | None  # why no objects are collected

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.drops or self.garbage or self.leftovers)

    def summary(self) -> str:
        """Say it."""
        gone = ", ".join(map(str, self.drops)) or "none"
        lines = [f"keep {self.retention}", f"checkpoints that go: {gone}"]
        lines += [f"  {name} stays: {why}" for name, why in self.keeps.items()]
        if self.leftovers:
            lines.append(f"attempts that were left unfinished: {', '.join(map(str, self.leftovers))}")
        if self.blocked:
            lines.append(f"no objects are collected: {self.blocked}")
        else:
            garbage = f"{figures.number(len(self.garbage))}, {figures.size(self.garbage_bytes)}"
            lines.append(f"objects that no checkpoint will need: {garbage}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it; of the garbage its count."""
        return {**plain(self), "garbage": len(self.garbage)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What a prune has done."""

    dropped: tuple[int, ...]  # ids of checkpoints
    closed: tuple[int, ...]  # ids of attempts that were left unfinished
    objects: int  # how many were deleted
    bytes: int  # their size
    blocked: str | None = None  # why no objects were collected

    def summary(self) -> str:
        """Say it."""
        objects = f"{figures.number(self.objects)} objects, {figures.size(self.bytes)}"
        text = f"dropped {figures.number(len(self.dropped))} checkpoints and {objects}"
        return f"{text}; no objects: {self.blocked}" if self.blocked else text

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return plain(self)


def plan_prune(repository: Repository, retention: Retention, *, now_ms: int | None = None) -> PrunePlan:
    """Say what a prune would do; changes nothing and needs no lease.

    While a checkpoint is being taken, what it has held so far is shown as garbage; such a plan is outdated by then.
    """
    checked_type("retention", retention, Retention)
    checkpoints = Checkpoints(repository)
    timeline = Identity.load(repository).timeline
    highest = checkpoints.highest()  # first: what is taken from here on makes the plan outdated
    found = checkpoints.standing()
    ours = {each.checkpoint: each for each in found if _is_choosable(each, timeline)}
    lists = _Lists(checkpoints)
    kept, broken = _chosen(lists, ours, retention, _now_ms() if now_ms is None else now_ms)
    drops = tuple(sorted(ours.keys() - kept.keys() - broken.keys()))
    stay = [each for each in found if each.checkpoint not in drops]
    marked, blocked = _marked(lists, stay)
    garbage = () if blocked else tuple(key for key in _objects(repository) if key not in marked)
    return PrunePlan(
        timeline=timeline,
        retention=retention.summary(),
        highest=highest,
        drops=drops,
        keeps={each.name: (kept | broken).get(each.checkpoint) or _why_apart(each) for each in stay},
        garbage=garbage,
        garbage_bytes=sum(size or 0 for size in repository.sizes(garbage).values()),
        leftovers=tuple(each.checkpoint_id for each in checkpoints.open_attempts(timeline)),
        blocked=blocked,
    )


def apply_prune(
    repository: Repository, plan: PrunePlan, lease: Lease, *, why: str | None = "", reach: Reach = unwatched
) -> Pruned:
    """Carry a plan out, between two checkpoints, as the holder of the lease.

    1. Refuse if the lease is not ours, or an id was taken since the plan was made.  2. Write it into the history, with
    `why`; `None` is for the routine after each checkpoint, which would fill it.  3. Give up what was left unfinished.
    4. Drop the manifests, oldest first.  5. Delete the objects, and look at the lease before each hundred.
    """
    lease.check()  # 1
    checkpoints = Checkpoints(repository)
    if checkpoints.highest() != plan.highest:
        raise PlanOutdated(planned=plan.highest, highest=checkpoints.highest())
    reach("prune planned")
    if why is not None and not plan.empty:
        _record(repository, plan, why)  # 2
    left = {each.checkpoint_id for each in checkpoints.open_attempts(plan.timeline)}.intersection(plan.leftovers)
    for number in sorted(left):
        checkpoints.abort(plan.timeline, number, lease.number, "it was left unfinished")  # 3
    for number in plan.drops:
        checkpoints.drop(plan.timeline, number)  # 4
        reach("manifest dropped")
    for start in range(0, len(plan.garbage), _BATCH):
        lease.check()
        repository.delete_all(plan.garbage[start : start + _BATCH])  # 5
        reach("object collected")
    reach("pruned")
    return Pruned(
        dropped=plan.drops,
        closed=tuple(sorted(left)),
        objects=len(plan.garbage),
        bytes=plan.garbage_bytes,
        blocked=plan.blocked,
    )


# --- inside ----------------------------------------------------------------------------------------------------------


def _is_choosable(each: Summary, timeline: int) -> bool:
    return each.status is Status.RESTORABLE and each.timeline == timeline and each.savepoint is None


class _Lists:
    """The file lists of one plan. Checkpoints share most files: each list is read once, each file looked at once."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._read: dict[str, FileList | str] = {}
        self._whole: dict[str, bool] = {}
        self._sizes: dict[str, int | None] = {}

    def of(self, each: Summary, digest: str) -> FileList | str:
        """Return a list that a checkpoint names, or what is wrong with it."""
        if digest not in self._read:
            self._read[digest] = self._checkpoints.file_list(place_of(each.timeline, each.checkpoint), digest)
        return self._read[digest]

    def is_whole(self, each: Summary, digest: str) -> bool:
        """Whether a list is there, and each of its files with its size."""
        if digest not in self._whole:
            listed = self.of(each, digest)
            self._whole[digest] = not isinstance(listed, str) and self._are_there(listed)
        return self._whole[digest]

    def _are_there(self, listed: FileList) -> bool:
        due = {file.sha256: file.size for file in listed.files}
        new = {held_key(OBJECTS, digest): digest for digest in due.keys() - self._sizes.keys()}
        found = self._checkpoints.repository.sizes(new)
        self._sizes |= {digest: found[key] for key, digest in new.items()}
        return all(self._sizes[digest] == size for digest, size in due.items())


def _chosen(
    lists: _Lists, ours: Mapping[int, Summary], retention: Retention, now_ms: int
) -> tuple[dict[int, str], dict[int, str]]:
    """Return what retention keeps, and what is not whole: that is kept too, and does not count in the place of others.

    Only what would be kept is looked at: what goes need not be whole.
    """
    broken: dict[int, str] = {}
    while True:
        times = {number: each.timestamp_ms for number, each in ours.items() if number not in broken}
        kept = dict(retention.keeps(times, now_ms))
        found = [
            number for number in kept if not all(lists.is_whole(ours[number], each) for each in ours[number].lists)
        ]
        if not found:
            return kept, broken
        broken |= dict.fromkeys(found, _NOT_WHOLE)


def _why_apart(each: Summary) -> str:
    if each.savepoint is not None:
        return "a savepoint: kept until it is deleted by its name"
    if each.status is Status.RESTORABLE:
        return f"of timeline {each.timeline}: kept to undo what began the next"
    return "damaged: kept for whoever mends it" if each.status is Status.DAMAGED else "being taken, or left unfinished"


def _marked(lists: _Lists, stay: list[Summary]) -> tuple[set[str], str | None]:
    """Return the keys of all objects that are named, or why that cannot be known."""
    named: set[str] = set()
    seen: set[str] = set()
    for each in stay:
        if each.savepoint is not None:
            continue  # its files are its own
        if each.status is Status.DAMAGED:
            return named, f"checkpoint {each.checkpoint} is damaged, {each.why}, and might name any of them"
        for digest in set(each.lists) - seen:
            listed = lists.of(each, digest)
            if isinstance(listed, str):
                return named, f"checkpoint {each.checkpoint} is damaged, {listed}, and might name any of them"
            seen.add(digest)
            named.update([file.sha256 for file in listed.files])
    return {held_key(OBJECTS, digest) for digest in seen | named}, None


def _objects(repository: Repository) -> Iterator[str]:
    for top in repository.list(OBJECTS):
        for name in repository.list(f"{OBJECTS}/{top}") if top.endswith("/") else ():
            if _OBJECT.fullmatch(name):  # whatever else lies there, we have not put it there
                yield f"{OBJECTS}/{top}{name}"


def _record(repository: Repository, plan: PrunePlan, why: str) -> None:
    """Write a prune into the history."""
    facts = {key: value for key, value in plan.to_dict().items() if key in _FACTS}
    History(repository).add("prune", why, facts)


_FACTS = ("timeline", "retention", "drops", "garbage", "garbage_bytes", "leftovers", "blocked")


def _now_ms() -> int:
    return int(time.time() * 1000)

"""Decision slots: one for each attempt at an epoch, closed exactly once.

A slot is the key `timelines/<t>/streams/<stream>/epochs/<epoch>.<attempt>.json`. It is closed by `put_if_absent`: the
first record written is final for every driver. Nothing else decides an epoch.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

from holdfast._validation import is_name
from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.errors import EpochClosed, NotFound, RecordCorrupt
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository, checked_repository
from holdfast.repository.contracts import HeadsView
from holdfast.repository.lease import Lease
from holdfast.repository.local import LocalRepository

_SLOT = re.compile(r"(\d+)\.(\d+)\.json")
_DISPLAYED = 10  # epochs that are looked at first
LAST_SLOTS = 3  # of an epoch that are read for display


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of one epoch: the decisions that closed the first ones, in order, and the first open one."""

    closed: tuple[Decision, ...]
    open: Attempt


class Decisions:
    """The decisions in one repository."""

    def __init__(self, repository: Repository) -> None:
        self._repository = checked_repository(repository)

    def close(self, decision: Decision, lease: Lease | None = None) -> Decision:
        """Close a slot and return its decision: this one, or the one that closed it earlier.

        A lease that is given is checked by the same look at the heads. If it raises `Fenced`, the decision stands, and
        the new driver completes it.
        """
        key = slot_key(decision.attempt)
        put = self._repository.put_if_absent(key, decision.sealed())
        if put.won:
            heads = self._repository.heads.look()
            self._require_open(decision.attempt, heads)
            if lease is not None:
                lease.check(heads)
        return _decoded(put.data, key, decision.attempt)

    def _require_open(self, attempt: Attempt, heads: HeadsView) -> None:
        """Raise `EpochClosed` for a slot that is free only because it was pruned."""
        key = _floor_key(attempt.stream, attempt.timeline)
        floor = heads.level(key, lambda data: Floor.unsealed(data, key).epoch)
        if attempt.epoch < floor:
            self._repository.delete(slot_key(attempt))
            raise EpochClosed(stream=attempt.stream, epoch=attempt.epoch, floor=floor)

    def look(self, stream: str, timeline: int, epoch: int) -> Slots:
        """Read an epoch's slots one after another; decisions are never listed.

        The result is durable, so the caller may act on it. The writer of the last decision may have died before it was
        durable, so that decision is put again. The earlier ones are durable already: a slot is used only after the slot
        before it was closed durably, or was read here. An epoch without attempts costs one read.
        """
        closed: list[Decision] = []
        attempt = Attempt(stream=stream, timeline=timeline, epoch=epoch, attempt=1)
        last = b""
        with contextlib.suppress(NotFound):
            while True:
                key = slot_key(attempt)
                last = self._repository.read(key)
                closed.append(_decoded(last, key, attempt))
                attempt = attempt.next()
        if closed:
            key = slot_key(closed[-1].attempt)
            closed[-1] = _decoded(self._repository.put_if_absent(key, last).data, key, closed[-1].attempt)
        return Slots(tuple(closed), attempt)

    def newest(self, stream: str, timeline: int) -> Decision | None:
        """Return the last decision to commit, or `None`. Only names are listed; old decisions have been pruned."""
        epochs = {int(match[1]) for name in self._names(stream, timeline) if (match := _SLOT.fullmatch(name))}
        for epoch in sorted(epochs, reverse=True):  # the newest, or the one before it if the newest is not decided
            for decision in self.look(stream, timeline, epoch).closed:
                if decision.verdict is Verdict.COMMIT:
                    return decision
        return None

    def committed(self, stream: str, timeline: int, epoch: int) -> Decision | None:
        """Return the decision to commit one epoch, or `None` if there is none or it was pruned. Nothing is written.

        Not guaranteed: that the decision is durable. Costs one read if the first attempt was committed.
        """
        attempt = Attempt(stream=stream, timeline=timeline, epoch=epoch, attempt=1)
        with contextlib.suppress(NotFound):
            while True:
                key = slot_key(attempt)
                decision = _decoded(self._repository.read(key), key, attempt)
                if decision.verdict is Verdict.COMMIT:
                    return decision
                attempt = attempt.next()
        return None

    def seen(self, stream: str, timeline: int) -> Decision | None:
        """Return the last decision to commit, or `None`, for display: nothing is written.

        Not guaranteed: that the decision is durable.
        """
        found = [(int(m[1]), int(m[2]), name) for name in self._names(stream, timeline) if (m := _SLOT.fullmatch(name))]
        for epoch, attempt, name in sorted(found, reverse=True):
            key = f"{_folder(stream, timeline)}/{name}"
            address = Attempt(stream=stream, timeline=timeline, epoch=epoch, attempt=attempt)
            decision = _decoded(self._repository.read(key), key, address)
            if decision.verdict is Verdict.COMMIT:
                return decision
        return None

    def displayed(self, stream: str, timeline: int) -> Decision | None:
        """Return what `seen` returns, without a list of all slots where that can be avoided. Only for display.

        Of the slots of an epoch, only the last ones are read: an outage leaves many aborts, a decision is among the
        last. Not guaranteed: that it is the last one, if records are missing.
        """
        by_epoch: dict[int, list[Attempt]] = {}
        for each in reversed(newest_slots(self._repository, stream, timeline, _DISPLAYED)):
            by_epoch.setdefault(each.epoch, []).append(each)
        for address in (each for slots in by_epoch.values() for each in slots[:LAST_SLOTS]):
            key = slot_key(address)
            decision = _decoded(self._repository.read(key), key, address)
            if decision.verdict is Verdict.COMMIT:
                return decision
        return self.seen(stream, timeline)

    def prune(self, stream: str, timeline: int, before: int) -> int:
        """Delete the slots of all epochs before this one and return their number. Only for the lease holder.

        The limit is recorded first: a driver that was paused and wakes up later must not find its old slot free.
        """
        names = self._names(stream, timeline)
        old = [name for name in names if (match := _SLOT.fullmatch(name)) and int(match[1]) < before]
        if old:
            self._repository.heads.rise(_floor_key(stream, timeline), before, Floor(epoch=before).sealed())
            self._repository.delete_all(f"{_folder(stream, timeline)}/{name}" for name in old)  # synced once
        return len(old)

    def has_ended(self, stream: str, timeline: int, after: int) -> bool:
        """Whether a timeline has ended for a stream after an epoch: no driver decides anything more in it."""
        return any(each.verdict is Verdict.END for each in self.look(stream, timeline, after + 1).closed)

    def end(self, stream: str, timeline: int, lease: int, after: int) -> Decision | None:
        """Close the slot after an epoch with `end`; return the decision to commit that won the slot, or `None`.

        `after` is the last decided epoch that the caller has given to its sinks, 0 for none. `None` means that the
        timeline has ended for this stream: no driver decides anything in it from now on. After a decision, the caller
        gives that epoch to its sinks too and calls this again. Only for the lease holder; idempotent.
        """
        slots = self.look(stream, timeline, after + 1)
        while True:
            for decision in slots.closed:
                if decision.verdict is not Verdict.ABORT:
                    return decision if decision.verdict is Verdict.COMMIT else None
            closed = self.close(Decision(attempt=slots.open, verdict=Verdict.END, lease=lease))
            slots = Slots((closed,), slots.open.next())

    def _names(self, stream: str, timeline: int) -> list[str]:
        names = self._repository.list(_folder(stream, timeline))
        return [name.removesuffix("/") for name in names]  # a folder in place of a slot is damage, not an open slot


class Floor(Record, frozen=True, kw_only=True):
    """The first epoch that was not pruned: all epochs before it are closed, even if their slots are missing."""

    epoch: int


def _floor_key(stream: str, timeline: int) -> str:
    return f"{stream_folder(stream, timeline)}/floor.json"


def stream_folder(stream: str, timeline: int) -> str:
    """Return the folder of one stream in one timeline."""
    return f"timelines/{timeline}/streams/{stream}"


def streams_of(repository: Repository, timeline: int) -> list[str]:
    """Return the names of a timeline's streams, sorted."""
    names = repository.list(f"timelines/{timeline}/streams")
    return [name.removesuffix("/") for name in names if name.endswith("/") and is_name(name.removesuffix("/"))]


def newest_slots(
    repository: Repository, stream: str, timeline: int, most: int, last: int | None = None
) -> list[Attempt]:
    """Return the closed slots of the newest epochs of a stream, at most `most` epochs, oldest first.

    `last`: the last epoch that counts. On a local disk, the slots of a long history are not listed: Spark's own log,
    which is short, names the last epoch, and the slots before it are looked up one by one. Where that log is gone, and
    on a store, where each look is a request, they are listed.
    """
    top = (last or _last_epoch(repository, stream, timeline)) if isinstance(repository, LocalRepository) else None
    if top is None:
        listed = _listed(repository, stream, timeline, last)
        epochs = sorted({each.epoch for each in listed})[-most:]
        return [each for each in listed if each.epoch >= epochs[0]]
    found: list[list[Attempt]] = []
    for epoch in range(top, max(top - most, 0), -1):
        closed = _closed(repository, Attempt(stream=stream, timeline=timeline, epoch=epoch, attempt=1))
        if not closed:
            break  # the epochs before it were pruned
        found.append(closed)
    return [each for closed in reversed(found) for each in closed]


def _last_epoch(repository: Repository, stream: str, timeline: int) -> int | None:
    """Return the last epoch with a closed slot, from Spark's log; `None` if the log does not lead to one.

    Spark writes the offsets of a batch before its epoch is decided. The slot after the last epoch may be closed by the
    end of the timeline.
    """
    names = repository.list(f"{stream_folder(stream, timeline)}/spark/offsets")
    begun = max((int(name) + 1 for name in names if name.isascii() and name.isdecimal()), default=0)

    def is_closed(epoch: int) -> bool:
        key = slot_key(Attempt(stream=stream, timeline=timeline, epoch=epoch, attempt=1))
        return repository.sizes([key])[key] is not None

    last = next((epoch for epoch in (begun, begun - 1) if epoch > 0 and is_closed(epoch)), None)
    while last is not None and is_closed(last + 1):
        last += 1
    return last


def _closed(repository: Repository, attempt: Attempt) -> list[Attempt]:
    """Return the closed slots of one epoch, from its first attempt on."""
    found: list[Attempt] = []
    while repository.sizes([key := slot_key(attempt)])[key] is not None:
        found.append(attempt)
        attempt = attempt.next()
    return found


def _listed(repository: Repository, stream: str, timeline: int, last: int | None) -> list[Attempt]:
    names = (name.removesuffix("/") for name in repository.list(_folder(stream, timeline)))
    slots = sorted((int(match[1]), int(match[2])) for name in names if (match := _SLOT.fullmatch(name)))
    return [
        Attempt(stream=stream, timeline=timeline, epoch=epoch, attempt=attempt)
        for epoch, attempt in slots
        if epoch and attempt and (last is None or epoch <= last)
    ]


def _folder(stream: str, timeline: int) -> str:
    return f"{stream_folder(stream, timeline)}/epochs"


def slot_key(attempt: Attempt) -> str:
    """Return the key of an attempt's slot."""
    return f"{_folder(attempt.stream, attempt.timeline)}/{attempt.epoch}.{attempt.attempt}.json"


def _decoded(data: bytes, key: str, attempt: Attempt) -> Decision:
    decision = Decision.unsealed(data, key)
    if decision.attempt != attempt:
        raise RecordCorrupt(key=key, why=f"it contains the decision of {decision.attempt}")
    return decision

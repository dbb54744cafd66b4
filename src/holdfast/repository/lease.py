"""The lease: which process may write to a pipeline's repository.

Taking the lease writes the next number under `lease/`. The highest number wins; an older holder detects this at its
next check. A guard keeps a second process out from the start: an OS lock on a local disk, a beat on an object store.

The lease avoids wasted work; safety does not depend on it. Any amount of time may pass between a check and a write, so
only `put_if_absent` of decisions is safe.
"""

from __future__ import annotations

import math
import os
import re
import socket
import time
import uuid
from collections.abc import Callable

import msgspec

from holdfast.errors import Closed, Fenced, HoldfastError, LeaseTaken, NotFound, RecordCorrupt, UnsupportedVersion
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository, checked_repository, now_ms, read_each
from holdfast.repository.contracts import HeadsView, Lock
from holdfast.repository.guards import LEASES
from holdfast.repository.oslock import OsLock

RUN = "run"  # the reason that a running pipeline gives
BACKFILL = "backfill"
_CLOCK_S = 5.0  # tolerated clock adjustment between the start of a process and its lease
LONGEST_PROGRAM = 1000  # characters
KEPT = 16  # older lease records are of no use
_NAME = re.compile(r"(\d{8,})\.(json|beat|released)")


class LeaseRecord(Record, frozen=True, kw_only=True):
    """The content of a lease file: its holder and time. The token distinguishes two holders with the same pid."""

    number: int
    host: str
    pid: int
    token: str
    taken_at_ms: int
    why: str = ""  # why it was taken
    shared: bool = False  # there is no OS lock that keeps others out: only the number does
    started_as: str = ""  # the program, as it was typed after `holdfast run`; empty: not known

    @property
    def holder(self) -> str:
        """The holder, for display."""
        return f"process {self.pid} on {self.host}"

    def is_alive(self) -> bool | None:
        """Whether the process that took the lease is alive; `None` if it is on another machine.

        A process that started after the lease was taken is a different one with the same pid.
        """
        if self.host != socket.gethostname():
            return None
        started_s = OsLock.started_s(self.pid)
        return started_s is not None and started_s <= self.taken_at_ms / 1000 + _CLOCK_S


class Lease:
    """A lease that was taken by this process."""

    def __init__(self, repository: Repository, record: LeaseRecord, lock: Lock | None) -> None:
        self._repository = repository
        self._lock = lock
        self._released = False
        self._sealed = record.sealed()  # compared at each check
        self._checked_s = -math.inf  # by the monotonic clock
        self.record = record

    @property
    def number(self) -> int:
        """The fencing token: a higher number replaces a lower one."""
        return self.record.number

    @classmethod
    def take(
        cls,
        repository: Repository,
        *,
        locker: Callable[[], Lock | None] | None = None,
        shared: bool = False,
        take_over: bool = False,
        why: str = "",
        started_as: str = "",
        clock: Callable[[], float] = time.time,
    ) -> Lease:
        """Become the writer; `why` is recorded as the reason, and `started_as` for the next steps of later errors.

        1. Pass the guard. On a local disk, `Locked` names the process that holds the OS lock; `locker` takes that lock
           in another way, for example through the JVM, or returns `None` if there is none; `shared` records that there
           is none. On an object store, wait until the last holder has ended or has not shown itself for 30 seconds, or
           raise `LeaseHeld`; `take_over` skips this.
        2. Write the next number. If another process writes it first, raise `LeaseTaken`.
        3. Show that this holder is alive.
        4. Delete old records.
        """
        guard = checked_repository(repository).guard
        lock = locker() if locker else guard.enter(take_over=take_over)  # 1
        try:
            view = repository.heads.look()
            numbers = _numbers(view)
            record = LeaseRecord(
                number=max(numbers, default=0) + 1,
                host=socket.gethostname(),
                pid=os.getpid(),
                token=uuid.uuid4().hex,
                taken_at_ms=now_ms(clock),
                why=why,
                shared=shared,
                started_as=started_as,
            )
            put = repository.put_if_absent(_key(repository, record.number), record.sealed())  # 2
            if not put.won:
                raise LeaseTaken(number=record.number, holder=holder_of(put.data))
            lock = guard.begin(record.number, lock)  # 3
            _delete_old(repository, view, numbers)  # 4
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        return cls(repository, record, lock)

    def check(self, view: HeadsView | None = None) -> None:
        """Raise `Fenced` if a newer lease was taken, or if the record of this one is missing or changed.

        All numbers are listed: the record with the next number may have been deleted already. `view` is a look at the
        heads that was taken just now.
        """
        if self._released or (self._lock is not None and not self._lock.held):  # a forked child does not hold it
            raise Closed(what=f"lease {self.number}", do="take a new one with Lease.take")
        now_s = time.monotonic()
        view = view or self._repository.heads.look()
        newest = max(_numbers(view), default=0)
        if newest <= self.number and view.holds(_key(self._repository, self.number), self._sealed):
            self._checked_s = now_s
            return
        try:
            data = self._repository.read(_key(self._repository, max(newest, self.number)))
        except NotFound:
            raise Fenced(number=self.number, newer=newest, holder="no process: its record is missing") from None
        # a record of its own number that differs: the repository was restored from a copy, and the number taken again
        raise Fenced(number=self.number, newer=newest, holder=holder_of(data))

    def check_again(self) -> None:
        """Do the same, unless the last check was a moment ago. For a process that may have been paused since then."""
        if time.monotonic() - self._checked_s >= self._repository.heads.fresh_s:
            self.check()

    def release(self) -> None:
        """Release the lock. The record stays: the next holder takes the number after it."""
        self._released = True
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def refuse_replaced(repository: Repository, number: int) -> None:
    """Raise `Fenced` if a newer lease than this one was taken."""
    newest = max(_numbers(repository.heads.look()), default=0)
    if newest > number:
        raise Fenced(number=number, newer=newest, holder=holder_of(repository.read(_key(repository, newest))))


def newest_lease(repository: Repository) -> LeaseRecord | None:
    """Return the record of the newest lease, or `None` if no lease was ever taken."""
    newest = max(_numbers(repository.heads.look()), default=0)
    if not newest:
        return None
    key = _key(repository, newest)
    return LeaseRecord.unsealed(repository.read(key), key)


def seen_leases(repository: Repository) -> tuple[list[LeaseRecord], list[HoldfastError]]:
    """Return the readable records of the last leases, oldest first, and an error for each of the others.

    Older records are deleted.
    """
    keys = [_key(repository, number) for number in _numbers(repository.heads.look())]
    return read_each(lambda key: LeaseRecord.unsealed(repository.read(key), key), keys)


def held_lease(repository: Repository) -> LeaseRecord | None:
    """Return the newest lease if the guard shows that its holder is alive; otherwise `None`.

    Not guaranteed for a `shared` lease: without a lock, it is unknown whether its holder is alive.
    """
    pid = repository.guard.holder()
    record = None if pid is None else newest_lease(repository)
    if record is None or not pid or record.host != socket.gethostname() or OsLock.lives(record.pid):
        return record
    return msgspec.structs.replace(record, pid=pid)  # this process holds the lock but has not written its record yet


def _key(repository: Repository, number: int) -> str:
    return f"{repository.heads.folder(LEASES)}/{number:08}.json"


def _numbers(view: HeadsView) -> list[int]:
    """Return the numbers that have a record, sorted."""
    names = (name.removesuffix("/") for name in view.names(LEASES))  # a folder counts as a damaged record
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)) and match[2] == "json")


def _delete_old(repository: Repository, view: HeadsView, numbers: list[int]) -> None:
    old = set(numbers[: -KEPT + 1])
    names = [name for name in view.names(LEASES) if (match := _NAME.fullmatch(name)) and int(match[1]) in old]
    repository.delete_all(f"{repository.heads.folder(LEASES)}/{name}" for name in names)


def holder_of(data: bytes) -> str:
    """Return the holder of a lease from its stored record, for display."""
    try:
        return LeaseRecord.unsealed(data, LEASES).holder
    except (RecordCorrupt, UnsupportedVersion):
        return "a process whose record cannot be read"  # its number counts nevertheless

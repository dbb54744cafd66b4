"""The lease: who may write to a pipeline's repository.

Taking it writes the next number under `lease/`; the highest number wins, and an older holder finds out at its next
check. On a local disk a lock of the operating system keeps a second process out from the start.

The lease is for politeness and speed. Safety rests on `put_if_absent` of decisions alone: between a check and a write
any amount of time may pass.
"""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from collections.abc import Callable

import msgspec

from holdfast.errors import Closed, Fenced, HoldfastError, LeaseTaken, NotFound, RecordCorrupt, UnsupportedVersion
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Lock, Repository, checked_repository, read_each
from holdfast.repository.oslock import OsLock

FOLDER = "lease"
LOCK = f"{FOLDER}/os.lock"
RUN = "run"  # why a pipeline takes it
_CLOCK_S = 5.0  # by which a clock may be adjusted between the start of a process and its lease
KEPT = 16  # older lease records tell nobody anything
_NAME = re.compile(r"(\d{8,})\.json")


class LeaseRecord(Record, frozen=True, kw_only=True):
    """What a lease file says: who took it, and when. The token tells two holders with equal pids apart."""

    number: int
    host: str
    pid: int
    token: str
    taken_at_ms: int
    why: str = ""  # what it was taken for
    shared: bool = False  # no lock of the operating system keeps others out: only its number does

    @property
    def holder(self) -> str:
        """The holder, for people."""
        return f"process {self.pid} on {self.host}"

    def is_alive(self) -> bool | None:
        """Whether the process that took the lease is alive; `None` on another machine, where it cannot be checked.

        A process that started after the lease was taken is another one with the same pid.
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
        self.record = record

    @property
    def number(self) -> int:
        """The fencing token: a higher one has replaced a lower one."""
        return self.record.number

    @classmethod
    def take(
        cls,
        repository: Repository,
        *,
        locker: Callable[[], Lock | None] | None = None,
        shared: bool = False,
        why: str = "",
        clock: Callable[[], float] = time.time,
    ) -> Lease:
        """Become the writer; `why` is for whoever reads the history.

        1. Take the lock of the operating system; `Locked` says which process has it. `locker` takes it another way, as
           a JVM does, or returns `None` where there is none; `shared` writes down that there is none.
        2. Write the next number. Whoever writes it first has it; the other gets `LeaseTaken`.
        3. Remove records that are long past.
        """
        checked_repository(repository)
        lock = locker() if locker else repository.lock(LOCK, f"the lease of {repository.where}")  # 1
        try:
            numbers = _numbers(repository)
            record = LeaseRecord(
                number=max(numbers, default=0) + 1,
                host=socket.gethostname(),
                pid=os.getpid(),
                token=uuid.uuid4().hex,
                taken_at_ms=int(clock() * 1000),
                why=why,
                shared=shared,
            )
            put = repository.put_if_absent(_key(record.number), record.sealed())  # 2
            if not put.won:
                raise LeaseTaken(number=record.number, holder=_holder(put.data, record.number))
            for number in sorted(numbers)[: -KEPT + 1]:  # 3
                repository.delete(_key(number))
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        return cls(repository, record, lock)

    def check(self) -> None:
        """Raise `Fenced` if a newer lease was taken, or this one's record is not there as it was written.

        A list, not a look at the next number: that one may be gone already.
        """
        if self._released or (self._lock is not None and not self._lock.held):  # a forked child has no lease
            raise Closed(what=f"lease {self.number}", do="take a new one with Lease.take")
        newest = max(_numbers(self._repository), default=0)
        if newest > self.number:
            data = self._repository.read(_key(newest))
            raise Fenced(number=self.number, newer=newest, holder=_holder(data, newest))
        try:
            data = self._repository.read(_key(self.number))
        except NotFound:
            raise Fenced(number=self.number, newer=newest, holder="nobody: its record is gone") from None
        if data != self.record.sealed():  # the folder was put back from a copy, and somebody took the number again
            raise Fenced(number=self.number, newer=newest, holder=_holder(data, newest))

    def release(self) -> None:
        """Let go of the lock. The record stays: the next holder counts on from it."""
        self._released = True
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def newest_lease(repository: Repository) -> LeaseRecord | None:
    """Return the record of the newest lease, or `None` where none was ever taken."""
    newest = max(_numbers(repository), default=0)
    if not newest:
        return None
    return LeaseRecord.unsealed(repository.read(_key(newest)), _key(newest))


def seen_leases(repository: Repository) -> tuple[list[LeaseRecord], list[HoldfastError]]:
    """Return the last leases whose records can be read, oldest first, and an error for each of the others.

    Older records are not kept.
    """
    keys = [_key(number) for number in sorted(_numbers(repository))]
    return read_each(lambda key: LeaseRecord.unsealed(repository.read(key), key), keys)


def held_lease(repository: Repository) -> LeaseRecord | None:
    """Return the newest lease if its holder lives, as far as the lock of this machine tells; else `None`.

    Not promised for a `shared` one, which no lock holds: whether its holder lives cannot be told from here.
    """
    pid = repository.locked_by(LOCK)
    record = None if pid is None else newest_lease(repository)
    if record is None or not pid or record.host != socket.gethostname() or OsLock.lives(record.pid):
        return record
    return msgspec.structs.replace(record, pid=pid)  # it holds the lock, and has not yet written its own record


def _key(number: int) -> str:
    return f"{FOLDER}/{number:08}.json"


def _numbers(repository: Repository) -> list[int]:
    names = (name.removesuffix("/") for name in repository.list(FOLDER))  # a folder is a damaged record
    return [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]


def _holder(data: bytes, number: int) -> str:
    try:
        return LeaseRecord.unsealed(data, _key(number)).holder
    except (RecordCorrupt, UnsupportedVersion):
        return "a process whose record cannot be read"  # its number counts all the same

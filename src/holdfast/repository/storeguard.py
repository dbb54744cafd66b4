"""The lease on an object store: its holder writes a beat, because a store has no locks.

    heads/lease/00000007.json        the record of the lease (`lease.py`)
    heads/lease/00000007.beat        written again every 10 seconds: the only object that is overwritten
    heads/lease/00000007.released    its holder has ended cleanly
    heads/clock/<token>              written by a process that waits, to read the time of the store

Rules:
- A start goes on at once if the newest lease is released or was never taken. Otherwise it waits until 30 seconds have
  passed without a sign of the holder. Both times are the store's: the clocks of the machines need not agree.
- Two signs during the wait mean that the holder is alive: `LeaseHeld`. (One may be a request that was sent before its
  process ended.)
- Safety does not depend on any of this. A holder that is only paused is fenced by the next number.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import HoldfastError, LeaseHeld, NotFound
from holdfast.repository.base import StoredObject
from holdfast.repository.contracts import Lock
from holdfast.repository.guards import LEASES
from holdfast.repository.lease import holder_of
from holdfast.repository.storeheads import HEADS, Store

_log = logging.getLogger(__name__)
_SIGN = re.compile(rf"{HEADS}/{LEASES}/(\d{{8,}})\.(json|beat|released)", re.ASCII)
_CLOCKS = f"{HEADS}/clock"
_OLD_CLOCK_S = 600.0
_ALIVE_SIGNS = 2
_SECOND = 1.0  # S3 reports times in whole seconds


@dataclass(frozen=True, slots=True)
class BeatTiming:
    """How often a holder shows itself, and how long a start waits for it, in seconds."""

    beat_s: float = 10.0
    wait_s: float = 30.0
    poll_s: float = 1.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """The newest lease as one listing shows it."""

    number: int  # 0: none was ever taken
    released: bool
    sign_s: float  # the last sign of its holder, by the store's clock


class StoreGuard:
    """Waits for the holder of the newest lease, or shows that this process holds it."""

    def __init__(self, store: Store, timing: BeatTiming, sleep: Callable[[float], None] = time.sleep) -> None:
        self._store = store
        self._timing = timing
        self._sleep = sleep

    def enter(self, *, take_over: bool = False) -> Lock:
        """Wait until the last holder has ended, or raise `LeaseHeld`; `take_over` goes on at once."""
        seen = _newest(self._store.flat(HEADS))
        if not take_over and seen.number and not seen.released:
            self._wait(seen)
        return Beat(None)

    def begin(self, number: int, lock: Lock | None) -> Lock | None:
        """Begin to write the beat of this lease."""
        del lock
        return Beat(_BeatThread(self._store, number, self._timing.beat_s))

    def holder(self) -> int | None:
        """Return 0 if the newest lease is not released and has shown a sign lately, otherwise `None`.

        Nothing is written, so the clock of this machine is compared with that of the store. Not guaranteed if they
        differ by more than a few seconds.
        """
        seen = _newest(self._store.flat(HEADS))
        if not seen.number or seen.released:
            return None
        return 0 if time.time() - seen.sign_s <= self._timing.wait_s + self._timing.beat_s else None

    def _wait(self, first: _Seen) -> None:
        clock = f"{_CLOCKS}/{uuid.uuid4().hex}"
        text = "lease %d of %s was not released: waiting until its holder has not shown itself for %g s"
        _log.warning(text, first.number, self._store.where, self._timing.wait_s)
        last, signs = first, 0
        try:
            while True:
                self._store.overwrite(clock, b"now\n")
                found = self._store.flat(HEADS)
                now_s = next((each.modified_s for each in found if each.key == clock), 0.0)
                seen = _newest(found)
                if seen.released or not seen.number:
                    break
                if (seen.number, seen.sign_s) > (last.number, last.sign_s):
                    last, signs = seen, signs + 1
                if signs >= _ALIVE_SIGNS:
                    raise LeaseHeld(number=seen.number, holder=self._holder(seen.number), where=self._store.where)
                if now_s - seen.sign_s >= self._timing.wait_s + _SECOND:
                    break
                self._sleep(self._timing.poll_s)
            old = [each.key for each in found if _is_old_clock(each, now_s)]
        finally:
            with contextlib.suppress(HoldfastError):
                self._store.delete_all([clock])
        self._store.delete_all(old)

    def _holder(self, number: int) -> str:
        try:
            return holder_of(self._store.read(f"{HEADS}/{LEASES}/{number:08}.json"))
        except NotFound:
            return "another process"


class Beat:
    """Stands for a lease that this process holds. Without a writer, it only passed the guard."""

    def __init__(self, writer: _BeatThread | None) -> None:
        self._writer = writer
        self._pid = os.getpid()
        self._released = False

    @property
    def held(self) -> bool:
        """Whether this process still holds the lease; a forked child does not."""
        return not self._released and self._pid == os.getpid()

    def release(self) -> None:
        """End the beat and mark the lease as released; idempotent."""
        if self.held and self._writer is not None:
            self._writer.end()
        self._released = True

    def __enter__(self) -> Beat:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _BeatThread:
    """A thread that writes the beat of a lease. A beat that fails is left out: the next one follows."""

    def __init__(self, store: Store, number: int, beat_s: float) -> None:
        self._store = store
        self._key = f"{HEADS}/{LEASES}/{number:08}"
        self._beat_s = beat_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-beat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(self._beat_s):
            with contextlib.suppress(HoldfastError):
                self._store.overwrite(f"{self._key}.beat", b"alive\n")

    def end(self) -> None:
        """Stop the thread, and mark the lease as released. Without the mark, the next start waits."""
        self._ended.set()
        with contextlib.suppress(HoldfastError):
            self._store.put_if_absent(f"{self._key}.released", b"released\n")


def _newest(found: list[StoredObject]) -> _Seen:
    signs = [(int(match[1]), match[2], each.modified_s) for each in found if (match := _SIGN.fullmatch(each.key))]
    number = max((number for number, kind, _ in signs if kind == "json"), default=0)
    own = [(kind, at) for each, kind, at in signs if each == number]
    return _Seen(number, any(kind == "released" for kind, _ in own), max((at for _, at in own), default=0.0))


def _is_old_clock(each: StoredObject, now_s: float) -> bool:
    return each.key.startswith(f"{_CLOCKS}/") and now_s - each.modified_s > _OLD_CLOCK_S

"""A repository on an object store: S3, and servers that speak its protocol.

Rules:
- `put_if_absent` is a conditional PUT. Its metadata contains a token that no other call has; the stored bytes are those
  of the caller. On any error, and on "already exists", the key is read back: our token means that this call has won,
  another one that it has lost, and a missing object that it must try again. (A lost answer, a repeated request and a
  conflict all look like "already exists" or like an error, whichever call has won.) If that gives no answer, the
  outcome is unknown.
- Nothing is overwritten, except the beat of a lease (`storeguard.py`). `put_new` writes names that are used once.
- The store is durable when it confirms a request, and a listing shows what was confirmed before.
- Many requests run in parallel, 32 at a time.
- S3A writes empty objects whose names end with a slash, as markers of folders. They are never listed.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from holdfast._validation import checked_key, checked_value_key
from holdfast.errors import (
    BucketMissing,
    BucketUnsuitable,
    HoldfastError,
    NotFound,
    OutcomeUnknown,
    Storage,
    StorageFailed,
    StoreDenied,
    WrongRegion,
)
from holdfast.repository._s3 import Bucket, Fetched
from holdfast.repository.base import Data, Held, StoredObject, joined
from holdfast.repository.contracts import Put
from holdfast.repository.s3address import parsed
from holdfast.repository.storeguard import BeatTiming, StoreGuard
from holdfast.repository.storeheads import StoreHeads
from holdfast.repository.storejournal import StoreJournal

BEATS = BeatTiming()
AT_ONCE = 32
PAGE = 1000  # objects per request of a listing
DELETED_AT_ONCE = 1000
_CHUNK = 1 << 20
_IN_PARTS = 32 << 20  # larger objects are written in parts
_GIVE_UP_S = 60.0
_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)  # and then the last one again and again
_LISTED_FROM = 9  # from so many keys of one folder on, one listing replaces a request per key
_NEVER_SENT = (
    BucketMissing,
    BucketUnsuitable,
    StoreDenied,
    WrongRegion,
)  # the store has refused the request: nothing was changed

A = TypeVar("A")
B = TypeVar("B")


class ObjectRepository:
    """A repository in a bucket, at `s3://bucket/prefix`. Opening it requests nothing.

    It can be pickled: only its address is. Not guaranteed: that the bucket is suitable; `probe.py` finds out.
    """

    def __init__(self, url: str | os.PathLike[str], *, timing: BeatTiming = BEATS) -> None:
        self.address = parsed(url)
        self._timing = timing  # of leases: for tests
        self._bucket: Bucket | None = None
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"ObjectRepository({self.where!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _opened, (self.where, self._timing)

    @property
    def where(self) -> str:
        """The address. It never contains credentials."""
        return str(self.address)

    @property
    def bucket(self) -> Bucket:
        """The client of this process."""
        found = self._bucket
        if found is None or not found.is_ours:
            if found is not None:
                self._opening = threading.Lock()  # a forked child: another thread may have held it
            with self._opening:
                if self._bucket is None or not self._bucket.is_ours:
                    self._bucket = Bucket(self.address)
                return self._bucket
        return found

    @property
    def heads(self) -> StoreHeads:
        """The records that change: numbered objects below `heads/`."""
        return StoreHeads(self)

    @property
    def guard(self) -> StoreGuard:
        """The beat of the lease."""
        return StoreGuard(self, self._timing)

    def journal(self, name: str) -> StoreJournal:
        """Return the journal of this name: one object per entry."""
        return StoreJournal(self, name)

    # --- values ---

    def read(self, key: str) -> bytes:
        """Return the value, or raise `NotFound`."""
        return self.bucket.get(checked_key(key)).data

    def read_all(self, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Return each value, 32 at a time; `None` if there is none."""
        return self._for_each(self._read_or_none, (checked_key(key) for key in keys))

    def put_if_absent(self, key: str, data: Data) -> Put:
        """Write the value if there is none: the store confirms one conditional PUT per key.

        1. Send it.  2. If it was not confirmed, read the key back: the token shows who has won.  3. If there is no
        object, or it cannot be read, try again with the same token: a request that arrives late is still this one's.
        """
        body, token, until = joined(data), uuid.uuid4().hex, time.monotonic() + _GIVE_UP_S
        checked_value_key(key)
        unsure: Storage | None = None  # why a request of ours may still take effect
        for pause in _pauses():
            time.sleep(pause)
            try:
                if self.bucket.create(key, body, token):  # 1
                    return Put(won=True, data=body)
                failed: Storage = StorageFailed(action="write", key=key, why="it was refused, but there is no object")
            except Storage as error:
                failed = error
            refused = isinstance(failed, _NEVER_SENT) and unsure is None
            try:
                found = self._fetched(key)  # 2
            except Storage:
                found = None
            if found is not None:
                return Put(found.token == token, found.data)
            if refused:
                raise failed
            unsure = failed
            if time.monotonic() > until:
                raise OutcomeUnknown(action="write", key=key, why=_why(failed)) from failed
        raise AssertionError  # the pauses never end

    def put_new(self, key: str, data: Data) -> None:
        """Write a value under a name that is used once: one plain PUT, or several parts if it is large."""
        body = joined(data)
        self.overwrite(checked_value_key(key), body)

    def put_file(self, key: str, path: Path) -> None:
        """Do the same with the content of a local file, without loading a large one into memory."""
        checked_value_key(key)
        parts = path.stat().st_size > _IN_PARTS
        self._again("write", key, lambda: self.bucket.put_file(key, path, parts=parts))

    def overwrite(self, key: str, body: bytes) -> None:
        """Write an object whether it exists or not. Only for a name that has one writer and that no value depends on.

        Not guaranteed: that a request that failed does not take effect later.
        """
        self._again("write", key, lambda: self.bucket.put(key, body, parts=len(body) > _IN_PARTS))

    def copy_all(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Copy values on the server's side, each to a name that is used once; 32 at a time.

        A missing source raises `NotFound`. Copies made before a failure are not removed.
        """
        wanted = [(checked_key(source), checked_value_key(target)) for source, target in pairs]
        self._for_each(lambda pair: self._again("copy", pair[0], lambda: self.bucket.copy(*pair)), wanted)

    def delete(self, key: str) -> None:
        """Delete the value; no error if there is none."""
        self.delete_all([key])

    def delete_all(self, keys: Iterable[str]) -> None:
        """Delete many values, a thousand with one request."""
        wanted = [checked_value_key(key) for key in keys]
        for start in range(0, len(wanted), DELETED_AT_ONCE):
            part = wanted[start : start + DELETED_AT_ONCE]
            self._again("delete", part[0], lambda part=part: self.bucket.delete(part))  # type: ignore[misc]

    def clear(self, folder: str) -> None:
        """Delete everything below a folder. Not guaranteed: that markers of folders, which S3A writes, are deleted."""
        keys = [each.key for each in self.bucket.flat(checked_key(folder))]
        for start in range(0, len(keys), DELETED_AT_ONCE):
            part = keys[start : start + DELETED_AT_ONCE]
            self._again("clear", folder, lambda part=part: self.bucket.delete(part))  # type: ignore[misc]

    # --- looking ---

    def list(self, folder: str = "") -> builtins.list[str]:
        """Return the names directly inside `folder`, sorted; folders end with a slash."""
        objects, folders = self.bucket.level(checked_key(folder.removesuffix("/")) if folder else "")
        inside = len(f"{folder.removesuffix('/')}/") if folder else 0
        names = {each.key[inside:] for each in self._without_markers(objects, set(folders), inside)}
        return sorted({name for name in names if name} | {f"{name}/" for name in folders})

    def flat(self, folder: str = "") -> builtins.list[StoredObject]:
        """Return all objects below a folder, sorted by key, with one listing (a request per thousand)."""
        found = self.bucket.flat(checked_key(folder.removesuffix("/")) if folder else "")
        parents = {parent for each in found for parent in _parents(each.key)}
        return sorted(self._without_markers(found, parents, 0), key=lambda each: each.key)

    def page(self, folder: str, after: str | None = None) -> builtins.list[StoredObject]:
        """Return the first thousand objects below a folder, sorted by key, from after a key on: one request."""
        after = None if after is None else checked_key(after)
        return sorted(self.bucket.page(checked_key(folder), after, PAGE), key=lambda each: each.key)

    def sizes(self, keys: Iterable[str]) -> dict[str, int | None]:
        """Return the size of each value in bytes; `None` if there is no value. Many keys of one folder: one listing."""
        found: dict[str, int | None] = {checked_key(key): None for key in keys}
        folders: defaultdict[str, builtins.list[str]] = defaultdict(builtins.list)
        for key in found:
            folders[key.rpartition("/")[0]].append(key)
        alone: builtins.list[str] = []
        for folder, inside in folders.items():
            if len(inside) < _LISTED_FROM:
                alone += inside
            else:
                there = {each.key: each.size for each in self.flat(folder)}
                found.update((key, there.get(key)) for key in inside)
        heads = self._for_each(self.bucket.head, alone)
        return found | {key: None if head is None else head.size for key, head in heads.items()}

    def digest(self, key: str) -> str:
        """Return the SHA-256 of a value without loading all of it into memory."""
        return self._measured(checked_key(key)).sha256

    def digests(self, keys: Iterable[str]) -> dict[str, Held | None]:
        """Return the size and SHA-256 of each value as read, 32 at a time; `None` if there is no value."""
        return self._for_each(self._measured_or_none, (checked_key(key) for key in keys))

    def stream(self, key: str) -> Iterator[bytes]:
        """Yield a value in pieces of a megabyte, or raise `NotFound`."""
        return self.bucket.stream(checked_key(key), _CHUNK)

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes of a value from `start` to before `end`, or raise `NotFound`."""
        return self.bucket.get_range(checked_key(key), start, end)

    # --- requests ---

    def _fetched(self, key: str) -> Fetched | None:
        try:
            return self.bucket.get(key)
        except NotFound:
            return None

    def _read_or_none(self, key: str) -> bytes | None:
        found = self._fetched(key)
        return None if found is None else found.data

    def _measured(self, key: str) -> Held:
        digest, size = hashlib.sha256(), 0
        for piece in self.bucket.stream(key, _CHUNK):
            digest.update(piece)
            size += len(piece)
        return Held(key, size, digest.hexdigest())

    def _measured_or_none(self, key: str) -> Held | None:
        try:
            return self._measured(key)
        except NotFound:
            return None

    def _without_markers(self, found: Iterable[StoredObject], folders: set[str], inside: int) -> Iterator[StoredObject]:
        """Leave out the markers of folders. obstore reports them without their slash, as empty objects.

        An empty object that is also a folder is a marker. Any other one is looked up: a marker is not found by its name
        without the slash.
        """
        for each in found:
            if each.size or (each.key[inside:] not in folders and self.bucket.head(each.key) is not None):
                yield each

    def _again(self, action: str, key: str, request: Callable[[], None]) -> None:
        """Send a request that may be repeated until it is confirmed. After a minute, the outcome is unknown."""
        until = time.monotonic() + _GIVE_UP_S
        for pause in _pauses():
            time.sleep(pause)
            try:
                return request()
            except _NEVER_SENT:
                raise
            except StorageFailed as error:
                if time.monotonic() > until:
                    raise OutcomeUnknown(action=action, key=key, why=_why(error)) from error
        raise AssertionError  # the pauses never end

    def _for_each(self, ask: Callable[[A], B], keys: Iterable[A]) -> dict[A, B]:
        """Call a function with each key, 32 at a time; the first error is raised."""
        wanted = builtins.list(dict.fromkeys(keys))
        if len(wanted) < 2:
            return {key: ask(key) for key in wanted}
        with ThreadPoolExecutor(min(AT_ONCE, len(wanted)), "holdfast-s3") as pool:
            return dict(zip(wanted, pool.map(ask, wanted), strict=True))


def _opened(where: str, timing: BeatTiming) -> ObjectRepository:
    return ObjectRepository(where, timing=timing)


def _pauses() -> Iterator[float]:
    yield from _PAUSES_S
    while True:
        yield _PAUSES_S[-1]


def _parents(key: str) -> Iterator[str]:
    while "/" in key:
        key = key.rpartition("/")[0]
        yield key


def _why(error: HoldfastError) -> str:
    return getattr(error, "why", "") or error.summary

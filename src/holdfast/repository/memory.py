"""A repository in memory, for Holdfast's tests and for users' tests. Its content is lost with the object."""

from __future__ import annotations

import builtins
import hashlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from holdfast._validation import checked_key, checked_value_key
from holdfast.errors import AlreadyExists, Locked, NotFound
from holdfast.repository.base import Data, Held, held_key, joined, read_one_by_one
from holdfast.repository.contracts import Put
from holdfast.repository.file_parts import FileParts
from holdfast.repository.files import failing_as, file_to_hold, local_path


class MemoryRepository(FileParts):
    """A dictionary that fulfils the contract of a repository; thread-safe."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._locked: set[str] = set()
        self._mutex = threading.Lock()

    @property
    def where(self) -> str:
        """The address, for display."""
        return "memory:"

    def read(self, key: str) -> bytes:
        """Return the value, or raise `NotFound`."""
        try:
            return self._values[checked_key(key)]
        except KeyError:
            raise NotFound(key=key, where=self.where) from None

    def put(self, key: str, data: Data) -> None:
        """Write the value, replacing any previous one."""
        self._values[checked_value_key(key)] = joined(data)

    def read_all(self, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Return each value; `None` if there is none."""
        return read_one_by_one(self, keys)

    def put_new(self, key: str, data: Data) -> None:
        """Write a value under a name that is used once."""
        self.put(key, data)

    def put_if_absent(self, key: str, data: Data) -> Put:
        """Write the value if there is none."""
        new = joined(data)
        with self._mutex:
            won = checked_value_key(key) not in self._values
            return Put(won, self._values.setdefault(key, new))

    def list(self, folder: str = "") -> list[str]:
        """Return the names directly inside `folder`, sorted; folders end with a slash."""
        prefix = f"{checked_key(folder.removesuffix('/'))}/" if folder else ""
        inside = [key.removeprefix(prefix) for key in list(self._values) if key.startswith(prefix)]
        return sorted({head + slash for head, slash, _ in (key.partition("/") for key in inside)})

    def delete(self, key: str) -> None:
        """Delete the value; no error if there is none."""
        self._values.pop(checked_value_key(key), None)

    def delete_all(self, keys: Iterable[str]) -> None:
        """Delete many values."""
        for key in keys:
            self.delete(key)

    def clear(self, folder: str) -> None:
        """Delete a folder and everything in it; no error if there is none."""
        for key in [each for each in list(self._values) if each.startswith(f"{checked_key(folder)}/")]:
            self._values.pop(key, None)

    def sizes(self, keys: Iterable[str]) -> dict[str, int | None]:
        """Return the size of each value in bytes; `None` if there is no value."""
        values = {key: self._values.get(checked_key(key)) for key in keys}
        return {key: None if value is None else len(value) for key, value in values.items()}

    def digest(self, key: str) -> str:
        """Return the SHA-256 of a value."""
        return hashlib.sha256(self.read(key)).hexdigest()

    def digests(self, keys: Iterable[str]) -> dict[str, Held | None]:
        """Return the size and SHA-256 of each value; `None` if there is no value."""
        values = {key: self._values.get(checked_key(key)) for key in keys}
        return {
            key: None if value is None else Held(key, len(value), hashlib.sha256(value).hexdigest())
            for key, value in values.items()
        }

    def hold_all(self, sources: Iterable[Path], folder: str, *, copy: bool = False) -> builtins.list[Held]:
        """Store copies of files, each under its digest."""
        del copy  # there are no links in memory
        held = []
        for source in sources:
            with failing_as("hold", str(source)):
                try:
                    data = source.read_bytes()
                except FileNotFoundError:
                    raise NotFound(key=str(source), where=str(source.parent)) from None
            digest = hashlib.sha256(data).hexdigest()
            self.put_if_absent(held_key(folder, digest), data)
            held.append(Held(held_key(folder, digest), len(data), digest))
        return held

    def hold(self, source: Path, key: str) -> None:
        """Store a copy of a file; an existing value is not replaced."""
        checked_value_key(key)
        with failing_as("hold", str(source)):
            self.put_if_absent(key, file_to_hold(source).read_bytes())

    def restore(self, key: str, target: Path) -> None:
        """Place a held file at `target`, which must not exist."""
        data, target = self.read(key), local_path("target", target)
        with failing_as("restore", key):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with target.open("xb") as writer:
                    writer.write(data)
            except FileExistsError:
                raise AlreadyExists(what=str(target)) from None

    def restore_all(self, keys: Iterable[tuple[str, Path]], *, copy: bool = False) -> None:
        """Place many held files at their targets."""
        del copy  # there are no links in memory
        for key, target in keys:
            self.restore(key, target)

    def lock(self, key: str, what: str | None = None) -> MemoryLock:
        """Take the lock of this name, or raise `Locked` at once."""
        with self._mutex:
            if checked_key(key) in self._locked:
                raise Locked(what=what or key, pid=os.getpid(), own=True)
            self._locked.add(key)
        return MemoryLock(self._locked, key)

    def locked_by(self, key: str) -> int | None:
        """Return the pid of this process if the lock is held, otherwise `None`."""
        with self._mutex:
            return os.getpid() if checked_key(key) in self._locked else None


class MemoryLock:
    """A lock of a repository in memory."""

    def __init__(self, locked: set[str], key: str) -> None:
        self._locked: set[str] | None = locked
        self._key = key

    @property
    def held(self) -> bool:
        """Whether the lock is still held."""
        return self._locked is not None

    def release(self) -> None:
        """Release the lock; idempotent."""
        if self._locked is not None:
            self._locked.discard(self._key)
            self._locked = None

    def __enter__(self) -> MemoryLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

"""A repository in a folder on a local disk."""

from __future__ import annotations

import builtins
import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from holdfast._validation import checked_key, checked_value_key
from holdfast.errors import AlreadyExists, BadValue, NotFound, StorageFailed
from holdfast.repository import files
from holdfast.repository.base import Data, Held, held_key, joined, read_one_by_one
from holdfast.repository.contracts import Put
from holdfast.repository.file_parts import FileParts
from holdfast.repository.files import local_path
from holdfast.repository.oslock import OsLock

TEMPORARIES = ".tmp"
_TRIES = 100


class LocalRepository(FileParts):
    """A repository in a folder, which the first write creates: opening one that does not exist changes nothing."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = local_path("repository address", root)
        with files.failing_as("open", str(self.root)):
            if self.root.exists() and not self.root.is_dir():
                raise BadValue(what="repository root", value=str(root), expected="a folder", why="it is a file")
        self._where = str(self.root)
        self._folders: set[Path] = set()
        self._temporaries = self.root / TEMPORARIES
        self._durable: set[Path] = set()  # held files and their folders that this object has synced

    def __repr__(self) -> str:
        return f"LocalRepository({str(self.root)!r})"

    @property
    def where(self) -> str:
        """The folder."""
        return str(self.root)

    def read(self, key: str) -> bytes:
        """Return the value, or raise `NotFound`."""
        path = self._quick_path(key)
        with files.failing_as("read", key):
            try:
                with open(path, "rb", buffering=0) as reader:  # noqa: PTH123 - thousands of them
                    return reader.read()
            except (FileNotFoundError, NotADirectoryError):
                raise NotFound(key=key, where=self.where) from None

    def put(self, key: str, data: Data) -> None:
        """Write the value durably, replacing any previous one."""
        files.replace_durably(self._path_to_write(checked_value_key(key)), data, key, via=self._temporaries)

    def read_all(self, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Return each value; `None` if there is none."""
        return read_one_by_one(self, keys)

    def put_new(self, key: str, data: Data) -> None:
        """Write a value under a name that is used once."""
        self.put(key, data)

    def put_if_absent(self, key: str, data: Data) -> Put:
        """Write the value durably if there is none: linking it into place has exactly one winner.

        1. Write and sync a temporary file.  2. Link it into place, or lose.  3. Sync the folder, also as the loser:
        the caller acts on the value, so it must be durable before this method returns.
        """
        path = self._path_to_write(checked_value_key(key))
        with files.failing_as("write", key), files.temporary(self._temporaries, data) as temp:  # 1
            for _ in range(_TRIES):
                try:
                    os.link(temp, path)  # 2
                    won = True
                except FileExistsError:
                    won = False
                with files.failing_as("write", key, unknown=won):
                    files.sync_folder(path.parent)  # 3
                if won:
                    return Put(won, joined(data))
                with contextlib.suppress(FileNotFoundError):  # the winner's value has been deleted since: try again
                    return Put(won, path.read_bytes())
        raise StorageFailed(action="write", key=key, why=f"it was deleted {_TRIES} times between two steps")

    def list(self, folder: str = "") -> list[str]:
        """Return the names directly inside `folder`, sorted; folders end with a slash."""
        path = self._path(folder.removesuffix("/")) if folder else self.root
        with files.failing_as("list", folder):
            try:
                with os.scandir(path) as found:
                    names = [each.name + "/" * _is_folder(each) for each in found if not each.name.startswith(".")]
            except FileNotFoundError:
                return []
        return sorted(names)

    def delete(self, key: str) -> None:
        """Delete the value durably; no error if there is none."""
        path = self._path(checked_value_key(key))
        with files.failing_as("delete", key):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return
        with files.failing_as("delete", key, unknown=True):
            files.sync_folder(path.parent)

    def delete_all(self, keys: Iterable[str]) -> None:
        """Delete many values durably: unlink all of them, then sync their folders."""
        folders: set[Path] = set()
        for key in keys:
            path = self._path(checked_value_key(key))
            self._durable.discard(path)
            with files.failing_as("delete", key), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                folders.add(path.parent)
        with files.failing_as("sync", self.where, unknown=True):
            files.sync_all(sorted(folders))

    def clear(self, folder: str) -> None:
        """Delete a folder and everything in it, durably."""
        path = self._path(folder)
        gone = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        with files.failing_as("clear", folder, unknown=True), gone:
            self._forget(path)
            shutil.rmtree(path)
            files.sync_folder(path.parent)

    def sizes(self, keys: Iterable[str]) -> dict[str, int | None]:
        """Return the size of each value in bytes; `None` if there is no value."""
        found: dict[str, int | None] = {}
        for key in keys:
            try:
                found[key] = os.stat(self._quick_path(key)).st_size  # noqa: PTH116 - thousands of them
            except (FileNotFoundError, NotADirectoryError):
                found[key] = None
            except OSError as error:
                raise StorageFailed(action="stat", key=key, why=error.strerror or str(error)) from error
        return found

    def digest(self, key: str) -> str:
        """Return the SHA-256 of a value without loading all of it into memory."""
        with files.failing_as("read", key):
            try:
                return files.digest_of_file(self._quick_path(key))
            except (FileNotFoundError, NotADirectoryError):
                raise NotFound(key=key, where=self.where) from None

    def digests(self, keys: Iterable[str]) -> dict[str, Held | None]:
        """Return the size and SHA-256 of each value; `None` if there is no value."""
        found: dict[str, Held | None] = {}
        for key in keys:
            try:
                found[key] = Held(key, *files.measured(self._quick_path(key)))
            except (FileNotFoundError, NotADirectoryError):
                found[key] = None
            except OSError as error:
                raise StorageFailed(action="read", key=key, why=error.strerror or str(error)) from error
        return found

    def hold_all(self, sources: Iterable[Path], folder: str, *, copy: bool = False) -> builtins.list[Held]:
        """Store external files, each under its digest.

        1. Link or copy each file to a temporary name.  2. Hash that.  3. Move it to the name of its digest, unless a
        file of the right size is there already; after a power failure, a name may exist without its bytes.  4. Sync
        the new files, together if there are many, and each existing one once: the process that stored it may have died
        before it was durable.
        """
        held: list[Held] = []
        new: set[Path] = set()
        self._path_to_write(f"{folder}/00/0")
        for source in sources:
            with files.failing_as("hold", str(source)):
                temp = files.temporary_name(self._temporaries)
                try:
                    (shutil.copyfile if copy else files.link_or_copy)(source, temp)  # 1
                    size, digest = temp.stat().st_size, files.digest_of_file(temp)  # 2
                    key = held_key(folder, digest)
                    path = self._path_to_write(key)
                    if self.sizes([key])[key] != size:
                        temp.replace(path)  # 3
                        self._durable.discard(path)
                    if path not in self._durable:
                        new |= {path, path.parent}
                except FileNotFoundError:
                    raise NotFound(key=str(source), where=str(source.parent)) from None
                finally:
                    temp.unlink(missing_ok=True)
            held.append(Held(key, size, digest))
        with files.failing_as("sync", folder, unknown=True):
            files.sync_all(sorted(new))  # 4
        self._durable |= new
        return held

    def hold(self, source: Path, key: str) -> None:
        """Store an external file that may not be synced yet: sync it, link it, sync the folder."""
        path = self._path_to_write(checked_value_key(key))
        with files.failing_as("hold", str(source)):
            source = files.file_to_hold(source)
            files.sync_all([source])
            with contextlib.suppress(FileExistsError):  # held already
                files.link_or_copy(source, path)
            with files.failing_as("hold", str(source), unknown=True):
                files.sync_folder(path.parent)

    def restore(self, key: str, target: Path) -> None:
        """Place a held file at `target` durably; an existing file is never overwritten.

        The two share their bytes: the file at `target` may be replaced, as Spark does, but not written in place.
        """
        path, target = self._path(key), local_path("target", target)
        with files.failing_as("restore", key):
            if not path.is_file():
                raise NotFound(key=key, where=self.where)
            files.make_folder(target.parent)
            try:
                files.link_or_copy(path, target)
            except FileExistsError:
                raise AlreadyExists(what=str(target)) from None
            with files.failing_as("restore", key, unknown=True):
                files.sync_folder(target.parent)

    def restore_all(self, keys: Iterable[tuple[str, Path]], *, copy: bool = False) -> None:
        """Place many held files at their targets: create the folders, link or copy each file, then sync all."""
        new: set[Path] = set()
        for key, target in keys:
            path = self._path(key)
            with files.failing_as("restore", key):
                if target.parent not in new:
                    new |= files.make_folders(target.parent)
                try:
                    (files.copy_new if copy else files.link_or_copy)(path, target)
                except FileExistsError:
                    raise AlreadyExists(what=str(target)) from None
                except FileNotFoundError:
                    raise NotFound(key=key, where=self.where) from None
                new.add(target)
        with files.failing_as("sync", self.where, unknown=True):
            files.sync_all(sorted(new))

    def lock(self, key: str, what: str | None = None) -> OsLock:
        """Take the lock file of this name for this process, or raise `Locked` at once."""
        return OsLock.acquire(self._path_to_write(key), what or f"{self.where}/{key}")

    def locked_by(self, key: str) -> int | None:
        """Return the pid of the process that holds this lock, 0 if the pid is unknown, `None` if the lock is free."""
        return OsLock.holder(self._path(key))

    def _forget(self, folder: Path) -> None:
        """Remove a deleted folder from the caches."""
        inside = f"{folder}{os.sep}"
        for remembered in (self._folders, self._durable):
            remembered -= {each for each in list(remembered) if each == folder or str(each).startswith(inside)}

    def _quick_path(self, key: str) -> str:
        """Return the path of a key as text: for thousands of keys, creating `Path` objects costs more than the call."""
        return f"{self._where}/{checked_key(key)}"

    def _path(self, key: str) -> Path:
        return self.root / checked_key(key)

    def _path_to_write(self, key: str) -> Path:
        path = self._path(key)
        if not self._temporaries.is_dir():
            self._folders.clear()  # the first write, or the first since another process deleted the folder
        if path.parent not in self._folders or not path.parent.is_dir():
            with files.failing_as("create the folder of", key):
                if not self._folders:
                    files.make_folder(self._temporaries)
                    files.sweep_temporaries(self._temporaries)
                files.make_folder(path.parent)
            self._folders.add(path.parent)
        return path


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a dangling link: reading it reports the error
        return False

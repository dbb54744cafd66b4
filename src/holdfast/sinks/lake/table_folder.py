"""The folder of a lake table: on a disk, or on S3. Names are relative to it, with slashes.

Rules:
- Spark writes data files through Hadoop, everything else is read and written here: on S3 with Holdfast's own client,
  whose endpoint and credentials come from the environment, as for a repository.
- A file whose name begins with `_` or `.` is not data. Neither is anything in a folder of such a name, except for that
  of a partition, such as `_day=1` or `.day=1`.
- On a disk, nothing that Spark wrote is durable until the paths of `unsynced` are synced, nor is what `write` wrote.
- The digest of a file is its SHA-256 on a disk, and its ETag on S3, which a listing returns.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import (
    BadValue,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    SinkFailed,
    SinkUnavailable,
    StorageFailed,
    StoreUnreachable,
)
from holdfast.repository.files import hadoop_address, local_path, make_folder, replace_durably, sync_folder
from holdfast.repository.objectstore import AT_ONCE, ObjectRepository
from holdfast.repository.s3address import OTHER_SCHEMES, SCHEME
from holdfast.sinks.base import SinkContext, os_error_text
from holdfast.sinks.lake.object_file import ObjectFile
from holdfast.sinks.staged_files import digests, make_unused, refuse_file, require_seen_by_all
from holdfast.sinks.staging import below, names_in

_NULL = "__HIVE_DEFAULT_PARTITION__"
_CODE = re.compile("%([0-9A-Fa-f]{2})")
_FOOTER = 1 << 16  # bytes at the end of a Parquet file: most footers fit
_TRAILER = 8  # the length of the footer and the magic bytes
_OUTAGES = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.ETIMEDOUT, errno.ENOTCONN)


class TableFolder(Protocol):
    """The folder of one table."""

    @property
    def url(self) -> str:
        """The folder as the libraries of the table formats take it: a path, or an address on S3."""

    @property
    def bucket(self) -> str | None:
        """The bucket, if the folder is on S3."""

    def check(self, sink: str, context: SinkContext) -> None:
        """Refuse a folder that the executors cannot write to."""

    def spark_address(self, name: str) -> str:
        """Return a folder as Spark takes it."""

    def make_unused(self, name: str, mode: int) -> None:
        """Create a folder for Spark to write to; raise `FileExistsError` if it exists, which only a disk can know."""

    def files(self, name: str) -> dict[str, int]:
        """Return the data files below a folder with their sizes, by their names in it, sorted."""

    def digests(self, name: str, sizes: Mapping[str, int]) -> dict[str, str]:
        """Return a digest of each of these files in a folder; those that are missing are left out."""

    def footers(self, names: Sequence[str], sizes: Sequence[int]) -> list[Any]:
        """Return the Parquet metadata of files, read in parallel."""

    def opened(self, name: str, size: int) -> Any:
        """Return a data file for reading, as PyArrow takes it."""

    def unsynced(self, name: str) -> tuple[Path, ...]:
        """Return the paths to sync after a file or folder was written: what is in it, itself and the folders above."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, or `None` if it does not exist."""

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""

    def write(self, name: str, data: bytes) -> None:
        """Write a small file under a name that is used once. On a disk, it is durable after a sync of `unsynced`."""

    def write_durably(self, name: str, data: bytes) -> None:
        """Write a small file durably, replacing any previous one at once."""

    def names(self, name: str) -> list[str]:
        """Return the names directly in a folder, sorted, without slashes."""

    def flat(self, name: str) -> list[str]:
        """Return the names of all files below a folder, relative to it, sorted, including hidden ones."""

    def other_file(self, own: str) -> str | None:
        """Return one file of the table's folder that is data and not in the folder `own`, or `None`."""

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with everything in it, if it exists."""

    def sync(self, names: Iterable[str]) -> None:
        """Make files that another program wrote durable, with the folders that they are in; on S3 they are."""


class DiskFolder:
    """The folder of a table on a disk."""

    bucket = None

    def __init__(self, path: Path) -> None:
        self.path = path
        refuse_file("table", path)

    @property
    def url(self) -> str:
        """The path."""
        return str(self.path)

    def check(self, sink: str, context: SinkContext) -> None:
        """Every executor must see the folder."""
        require_seen_by_all(sink, context)

    def spark_address(self, name: str) -> str:
        """Return the path as a Hadoop address."""
        return hadoop_address(self.path / name)

    def make_unused(self, name: str, mode: int) -> None:
        """Create it, and the folders above it."""
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        make_unused(self.path / name, mode)

    def files(self, name: str) -> dict[str, int]:
        """Walk the folder."""
        top = self.path / name
        found = {str(path.relative_to(top)): path for path in below(top) if path.is_file()}
        return {each: found[each].stat().st_size for each in sorted(found) if not _is_hidden(each)}

    def digests(self, name: str, sizes: Mapping[str, int]) -> dict[str, str]:
        """Hash the files."""
        top = self.path / name
        return digests(top, {each: size for each, size in sizes.items() if (top / each).exists()})

    def footers(self, names: Sequence[str], sizes: Sequence[int]) -> list[Any]:
        """Read the ends of the files."""
        del sizes
        from pyarrow import parquet  # noqa: PLC0415 - an extra, slow to import

        return _in_parallel(lambda name: parquet.read_metadata(self.path / name), names)

    def opened(self, name: str, size: int) -> Any:
        """Return its path."""
        del size
        return self.path / name

    def unsynced(self, name: str) -> tuple[Path, ...]:
        """Return everything below the folder, and every folder from there up to the table's."""
        inside = Path(name).parts
        above = [self.path.joinpath(*inside[:count]) for count in range(len(inside))]
        return (*below(self.path / name), self.path / name, *above)

    def read(self, name: str) -> bytes | None:
        """Read the file."""
        try:
            return (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self, name: str) -> bool:
        """Look for the file."""
        return (self.path / name).is_file()

    def write(self, name: str, data: bytes) -> None:
        """Write the file, and create the folders above it."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def write_durably(self, name: str, data: bytes) -> None:
        """Write the file, fsync it, rename it into place, and fsync the folder."""
        path = self.path / name
        make_folder(path.parent)
        replace_durably(path, data, str(path))

    def names(self, name: str) -> list[str]:
        """List the folder."""
        return names_in(self.path / name)

    def flat(self, name: str) -> list[str]:
        """Walk the folder."""
        top = self.path / name
        return sorted(str(path.relative_to(top)) for path in below(top) if path.is_file())

    def other_file(self, own: str) -> str | None:
        """Walk the folder, up to the first one."""
        for top, folders, files in os.walk(self.path, onerror=_raised):
            inside = Path(top).relative_to(self.path)
            found = _first_data(((inside / name).as_posix() for name in files), own)
            if found is not None:
                return found
            folders[:] = sorted(each for each in folders if not _is_hidden(each) and (inside / each) != Path(own))
        return None

    def remove(self, name: str) -> None:
        """Remove it."""
        path = self.path / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # remains only take up space
        else:
            path.unlink(missing_ok=True)

    def sync(self, names: Iterable[str]) -> None:
        """Fsync the files and their folders."""
        paths = [self.path / name for name in names]
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        for folder in dict.fromkeys(path.parent for path in paths):
            sync_folder(folder)


class BucketFolder:
    """The folder of a table on S3. A name may contain any character, because partition values become names."""

    def __init__(self, url: str) -> None:
        self._store = ObjectRepository(url)

    @property
    def url(self) -> str:
        """The address, which contains no credentials."""
        return self._store.where

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self._store.address.bucket

    def check(self, sink: str, context: SinkContext) -> None:
        """Every executor reaches the store. Let Spark's connector use the same endpoint."""
        context.connect(self.bucket)
        del sink

    def spark_address(self, name: str) -> str:
        """Return the address in the scheme of Spark's connector."""
        return f"s3a{self.url.removeprefix('s3')}/{name}"

    def make_unused(self, name: str, mode: int) -> None:
        """Nothing: a store has no folders, and the name contains lease and attempt."""

    def files(self, name: str) -> dict[str, int]:
        """List the objects."""
        found = {each.key.removeprefix(f"{name}/"): each.size for each in self._store.bucket.flat(name)}
        return {each: found[each] for each in sorted(found) if found[each] and not _is_hidden(each)}

    def digests(self, name: str, sizes: Mapping[str, int]) -> dict[str, str]:
        """Return the ETags, with one listing."""
        found = {each.key.removeprefix(f"{name}/"): each.etag for each in self._store.bucket.flat(name)}
        return {each: found[each] for each in sizes if each in found}

    def footers(self, names: Sequence[str], sizes: Sequence[int]) -> list[Any]:
        """Read the ends of the objects; twice, if a footer is large."""
        known = dict(zip(names, sizes, strict=True))
        return _in_parallel(lambda name: self._footer(name, known[name]), names)

    def _footer(self, name: str, size: int) -> Any:
        from pyarrow import BufferReader, parquet  # noqa: PLC0415 - an extra, slow to import

        tail = self._store.bucket.get_range(name, max(size - _FOOTER, 0), size)
        length = int.from_bytes(tail[-_TRAILER:-4], "little") + _TRAILER
        if len(tail) < length <= size:
            tail = self._store.bucket.get_range(name, size - length, size)
        return parquet.read_metadata(BufferReader(tail))

    def opened(self, name: str, size: int) -> Any:
        """Read ranges of the object."""
        return ObjectFile(partial(self._store.bucket.get_range, name), size)

    def unsynced(self, name: str) -> tuple[Path, ...]:
        """Nothing: an object is durable when the store has confirmed it."""
        del name
        return ()

    def read(self, name: str) -> bytes | None:
        """Get the object."""
        try:
            return self._store.bucket.get(name).data
        except NotFound:
            return None

    def exists(self, name: str) -> bool:
        """Ask for the object's head."""
        return self._store.bucket.head(name) is not None

    def write(self, name: str, data: bytes) -> None:
        """Put the object."""
        self._store.overwrite(name, data)

    def write_durably(self, name: str, data: bytes) -> None:
        """Put the object: it is durable when the store has confirmed it."""
        self.write(name, data)

    def names(self, name: str) -> list[str]:
        """List one level."""
        objects, folders = self._store.bucket.level(name)
        return sorted({each.key.removeprefix(f"{name}/") for each in objects} | set(folders))

    def flat(self, name: str) -> list[str]:
        """List the objects."""
        return sorted(each.key.removeprefix(f"{name}/") for each in self._store.bucket.flat(name))

    def other_file(self, own: str) -> str | None:
        """List the objects. A key that ends with a slash is how some programs show a folder."""
        return _first_data((each.key for each in self._store.bucket.flat("") if not each.key.endswith("/")), own)

    def remove(self, name: str) -> None:
        """Delete the object, or all objects below the name."""
        keys = [each.key for each in self._store.bucket.flat(name)]
        for start in range(0, len(keys), 1000):
            self._store.bucket.delete(keys[start : start + 1000])
        if not keys:
            self._store.bucket.delete([name])

    def sync(self, names: Iterable[str]) -> None:
        """Nothing."""
        del names


def table_folder(address: str | os.PathLike[str], sink: str) -> TableFolder:
    """Return the folder of a table: a path, a `file:` URL, or an address on S3. `sink` names the class in errors."""
    text = os.fspath(address) if isinstance(address, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise BadValue(what="table", value=address, expected="a path, or an address such as s3://bucket/tables/orders")
    if text.startswith(SCHEME):
        return BucketFolder(text)
    scheme = text.partition("://")[0].lower()
    if "://" in text and scheme != "file":
        why = OTHER_SCHEMES.get(scheme, "only S3 and mounted file systems are tested").replace("repositories", "tables")
        do = f"write s3://{text.partition('://')[2]}" if scheme in ("s3a", "s3n") and "@" not in text else None
        raise NotSupported(what=f"{sink} at {scheme}://", why=why, do=do or "use s3://, or a folder on a disk")
    return DiskFolder(local_path("table", text))


def partition_values(name: str, columns: Sequence[str]) -> dict[str, str | None]:
    """Return the values of partition columns from a file's name, such as `day=2025-01-31/part-0.parquet`.

    Spark escapes special characters with percent codes. An empty string becomes null: Spark and the table formats do
    not tell the two apart.
    """
    found = dict(part.partition("=")[::2] for part in name.split("/")[:-1])
    decoded = {_unescaped(key): _unescaped(value) for key, value in found.items()}
    return {each: None if decoded[each] == _NULL else decoded[each] for each in columns}


def _unescaped(text: str) -> str:
    return _CODE.sub(lambda found: chr(int(found[1], 16)), text)


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) and "=" not in part for part in name.split("/"))


def _first_data(names: Iterable[str], own: str) -> str | None:
    return min((each for each in names if not _is_hidden(each) and not each.startswith(f"{own}/")), default=None)


def _raised(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _in_parallel(act: Callable[[str], Any], names: Sequence[str]) -> list[Any]:
    if len(names) < 4:
        return [act(each) for each in names]
    with ThreadPoolExecutor(min(AT_ONCE, len(names)), "holdfast-footers") as pool:
        return list(pool.map(act, names))


@contextmanager
def failing_at(sink: str, action: str) -> Iterator[None]:
    """Raise errors of the disk and the store as `SinkFailed`, and outages as `SinkUnavailable`."""
    try:
        yield
    except OSError as error:
        kind = SinkUnavailable if error.errno in _OUTAGES else SinkFailed
        raise kind(sink=sink, action=action, why=os_error_text(error)) from error
    except (StoreUnreachable, OutcomeUnknown) as error:
        raise SinkUnavailable(sink=sink, action=action, why=error.summary) from error
    except StorageFailed as error:
        raise SinkFailed(sink=sink, action=action, why=error.summary) from error

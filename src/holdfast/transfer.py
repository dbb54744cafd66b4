"""Moving the files of a cut out of an object store, or to another place in it.

Rules:
- Inside a bucket, objects are copied on the server's side. Every copy is then downloaded once, and compared with the
  size and the digest in the list of files.
- A file that is downloaded is hashed on the way. It is durable, and complete, before it has its name.
- A file that is gone raises `NotFound`: a clean-up has deleted it since the plan was made.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import AlreadyExists, NotFound, StorageFailed
from holdfast.repository import HeldFile, ObjectRepository
from holdfast.repository.files import failing_as, make_folders, sync_all, temporary_name
from holdfast.repository.objectstore import AT_ONCE

_DIFFERS = "it does not match the digest in the list of files"


@dataclass(frozen=True, slots=True)
class Download:
    """An object, and the path where it goes."""

    key: str
    file: HeldFile
    target: Path


def download_all(store: ObjectRepository, files: Iterable[Download]) -> None:
    """Download files, none of whose targets may exist; durable on return."""
    wanted = list(files)
    new: set[Path] = set()
    with failing_as("create", str(wanted[0].target.parent) if wanted else ""):
        for folder in {each.target.parent for each in wanted}:
            new |= make_folders(folder)
    with ThreadPoolExecutor(AT_ONCE, "holdfast-download") as pool:
        for _ in pool.map(lambda each: _download(store, each), wanted):
            pass
    with failing_as("sync", store.where, unknown=True):
        sync_all(sorted({*new, *(each.target for each in wanted)}))


def _download(store: ObjectRepository, wanted: Download) -> None:
    digest, target = hashlib.sha256(), wanted.target
    with failing_as("write", str(target)):
        temp = temporary_name(target.parent)
        try:
            with temp.open("xb") as writer:
                for piece in store.stream(wanted.key):
                    digest.update(piece)
                    writer.write(piece)
            if digest.hexdigest() != wanted.file.sha256:
                raise StorageFailed(action="restore", key=wanted.key, why=_DIFFERS)
            try:
                os.link(temp, target)
            except FileExistsError:
                raise AlreadyExists(what=str(target)) from None
        finally:
            temp.unlink(missing_ok=True)


def copy_all(source: ObjectRepository, files: Mapping[str, HeldFile], target: ObjectRepository, folder: str) -> None:
    """Copy objects by key into a folder of the same or another repository, and compare sizes and digests afterwards."""
    new = {key: key_in(folder, file.path) for key, file in files.items()}
    if source.address.bucket == target.address.bucket:
        bucket = ObjectRepository(f"s3://{source.address.bucket}")
        above, below = source.address.prefix, target.address.prefix
        bucket.copy_all((key_in(above, key), key_in(below, copy)) for key, copy in new.items())
    else:
        with ThreadPoolExecutor(AT_ONCE, "holdfast-copy") as pool:
            for _ in pool.map(lambda key: target.put_new(new[key], source.read(key)), new):
                pass
    found = target.digests(new.values())
    for key, file in files.items():
        held = found[new[key]]
        if held is None:
            raise NotFound(key=new[key], where=target.where)
        if (held.size, held.sha256) != (file.size, file.sha256):
            raise StorageFailed(action="copy", key=key, why=_DIFFERS)


def key_in(folder: str, key: str) -> str:
    """Return a key inside a folder; an empty folder is the repository itself."""
    return f"{folder}/{key}" if folder else key

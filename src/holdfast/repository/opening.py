"""Opening a repository by its address."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import BadValue, NotSupported
from holdfast.repository.base import Repository
from holdfast.repository.files import local_path
from holdfast.repository.local import LocalRepository
from holdfast.repository.memory import MemoryRepository
from holdfast.repository.objectstore import ObjectRepository
from holdfast.repository.s3address import SCHEME, refuse_other_schemes


def open_repository(address: str | os.PathLike[str]) -> Repository:
    """Open a folder (`./orders`, `file:///data/orders`), a place on S3 (`s3://bucket/x`), or a new one (`memory:`).

    Nothing is read or written yet. Credentials for S3 come from the environment, never from the address.
    """
    if address == "memory:":
        return MemoryRepository()
    return ObjectRepository(address) if is_store(address) else LocalRepository(address)


def is_store(address: str | os.PathLike[str]) -> bool:
    """Whether an address is that of an object store; one that is not supported raises `NotSupported`."""
    if not isinstance(address, str) or "://" not in address:
        return False
    refuse_other_schemes(address)
    return address.lower().startswith(SCHEME)


def repository_below(root: str | os.PathLike[str], name: str) -> LocalRepository | ObjectRepository:
    """Return the repository of a pipeline below its root: a folder, or a place on S3. Nothing is created yet."""
    if is_store(root):
        return ObjectRepository(f"{os.fspath(root).rstrip('/')}/{name}")
    folder = local_path("root", root)
    if folder.exists() and not folder.is_dir():
        why, do = "it is a file", "pass a folder; it is created if missing"
        raise BadValue(what="root", value=str(folder), why=why, do=do)
    return LocalRepository(folder / name)


def local_root(repository: Repository) -> Path | None:
    """Return the folder of a repository on this machine; `None` for one that has none."""
    return repository.root if isinstance(repository, LocalRepository) else None


def local_repository(repository: Repository, what: str) -> LocalRepository:
    """Return a repository that is a folder; refuse to do `what` in another one."""
    if not isinstance(repository, LocalRepository):
        why = f"the repository is {repository.where}, and this works only in a folder"
        raise NotSupported(what=what, why=why, do="use a root on a local disk for this pipeline")
    return repository

"""Opening a repository by its address."""

from __future__ import annotations

import os

from holdfast.repository.base import Repository
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

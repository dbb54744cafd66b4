"""Opening a repository by its address."""

from __future__ import annotations

import os

from holdfast.repository._s3 import SCHEME, refuse_other_schemes
from holdfast.repository.base import Repository
from holdfast.repository.local import LocalRepository
from holdfast.repository.memory import MemoryRepository
from holdfast.repository.objectstore import ObjectRepository


def open_repository(address: str | os.PathLike[str]) -> Repository:
    """Open a folder (`./orders`, `file:///data/orders`), a place on S3 (`s3://bucket/x`), or a new one (`memory:`).

    Nothing is read or written yet. Credentials for S3 come from the environment, never from the address.
    """
    if address == "memory:":
        return MemoryRepository()
    if isinstance(address, str) and "://" in address:
        if address.lower().startswith(SCHEME):
            return ObjectRepository(address)
        refuse_other_schemes(address)
    return LocalRepository(address)

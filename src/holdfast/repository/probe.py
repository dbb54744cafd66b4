"""Whether a bucket can hold a repository. Every start finds out before anything else is read or written.

Each check is one that some server fails: conditional writes are ignored in silence by those that do not know them.
"""

from __future__ import annotations

import contextlib
import uuid

from holdfast.errors import BucketUnsuitable, HoldfastError, NotFound, StorageFailed, StoreDenied
from holdfast.repository._s3 import Bucket
from holdfast.repository.objectstore import ObjectRepository

PROBES = "probe"
_DATA = b"a conditional write of Holdfast\n"


def probe(repository: ObjectRepository) -> None:
    """Raise an error if the bucket cannot hold a repository; leave nothing behind.

    1. Write an object on condition that there is none: `BucketMissing`, `StoreDenied`, `StoreUnreachable` and
       `WrongRegion` come from here.
    2. Write it again in the same way, which must be refused.
    3. Read it: its bytes and its metadata must be those of step 1.
    4. Find it in both kinds of listing.
    5. Delete it: it must be gone.
    """
    bucket = Bucket(repository.address, patient=False)
    key, token = f"{PROBES}/{uuid.uuid4().hex}", uuid.uuid4().hex
    bucket.put(key, _DATA, token=token, create=True)  # 1
    try:
        _require(_is_refused(bucket, key), repository, "it overwrites an object that a conditional write must not")  # 2
        found = bucket.get(key)  # 3
        _require(found.data == _DATA, repository, "an object that was just written is read with other bytes")
        _require(found.token == token, repository, "it does not keep the metadata of an object (x-amz-meta-…)")
        flat, level = bucket.flat(PROBES), bucket.level(PROBES)[0]  # 4
        listed = all(any(each.key == key and each.size == len(_DATA) for each in names) for names in (flat, level))
        _require(listed, repository, "an object that was just written is not listed")
    except BaseException:
        with contextlib.suppress(HoldfastError):
            bucket.delete([key])
        raise
    bucket.delete([key])  # 5
    with contextlib.suppress(NotFound):
        bucket.get(key)
        raise BucketUnsuitable(where=repository.where, why="an object that was deleted can still be read")


def _is_refused(bucket: Bucket, key: str) -> bool:
    try:
        bucket.put(key, b"the second one\n", token="second", create=True)  # noqa: S106 - not a password
    except StoreDenied:
        raise
    except StorageFailed:
        return True
    return False


def _require(holds: bool, repository: ObjectRepository, why: str) -> None:
    if not holds:
        raise BucketUnsuitable(where=repository.where, why=why)

"""Whether a bucket can hold a repository.

Every start of a pipeline checks this before anything else is read or written. So do a fork, a rewind, and a prune by
another process, before they write. Each check is one that some server fails. For example, servers that do not know
conditional writes silently ignore the condition.
"""

from __future__ import annotations

import contextlib
import uuid

from holdfast.errors import BucketUnsuitable, HoldfastError, NotFound
from holdfast.repository._s3 import Bucket
from holdfast.repository.objectstore import ObjectRepository

PROBES = "probe"
_DATA = b"a conditional write of Holdfast\n"


def probe(repository: ObjectRepository) -> None:
    """Raise an error if the bucket cannot hold a repository; leave nothing behind.

    1. Write an object on condition that there is none: `BucketMissing`, `StoreDenied`, `StoreUnreachable` and
       `WrongRegion` come from here.
    2. Write it again in the same way, which must be refused for that reason. Any other error proves nothing.
    3. Read it: its bytes and its metadata must be those of step 1.
    4. Find it in both kinds of listing.
    5. Delete it: it must be gone.
    """
    bucket = Bucket(repository.address, patient=False)
    key, token = f"{PROBES}/{uuid.uuid4().hex}", uuid.uuid4().hex
    _require(bucket.create(key, _DATA, token), repository, "it refuses to create an object that does not exist")  # 1
    try:
        created = bucket.create(key, b"the second one\n", uuid.uuid4().hex)  # 2
        _require(not created, repository, "it overwrites an object that a conditional write must not")
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


def _require(holds: bool, repository: ObjectRepository, why: str) -> None:
    if not holds:
        raise BucketUnsuitable(where=repository.where, why=why)

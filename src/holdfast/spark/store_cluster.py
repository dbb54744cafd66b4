"""A pipeline whose repository is on an object store, on a cluster: what its tasks need on executors."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.errors import NotFound
from holdfast.repository import Repository
from holdfast.repository.objectstore import ObjectRepository
from holdfast.repository.probe import PROBES
from holdfast.sinks.base import Sink
from holdfast.spark import adapter, s3a
from holdfast.spark.executors import require_executors
from holdfast.sparkfiles.storefolder import hadoop_root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOR_LOGS = {"obstore", "pyarrow"}  # which `holdfast-spark[spark,s3]` installs


def require_cluster(spark: SparkSession, repository: Repository, sinks: Iterable[Sink]) -> None:
    """Raise `ExecutorsUnfit` unless all executors can run a pipeline; nothing is checked on one machine.

    Whether a stream reads or writes an event log on the store is known only after its function was called, which may
    create logs. So Python's access to the store is always required.
    """
    if adapter.is_local(spark) or not isinstance(repository, ObjectRepository):
        return
    packages = {name for sink in sinks for name in sink.on_executors} | _FOR_LOGS
    require_executors(
        spark,
        packages=sorted(packages),
        java_class=adapter.STORE_FILES,
        folder=f"{hadoop_root(repository)}/{PROBES}/executors",
        settings=adapter.settings_of_bucket(spark, repository.address.bucket, s3a.s3a_settings()),
        reach=partial(use_store, repository.where),
    )


def use_store(address: str) -> None:
    """Write, read and delete an object, with the credentials of this machine. Runs on executors."""
    repository = ObjectRepository(address)
    key, data = f"{PROBES}/executors/{uuid.uuid4().hex}", uuid.uuid4().hex.encode()
    repository.put_new(key, data)
    found = repository.read(key)
    repository.delete(key)
    if found != data:
        raise NotFound(key=key, where=address)

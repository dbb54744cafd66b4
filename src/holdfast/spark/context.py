"""The values that all streams of one run share: its settings, and the callbacks of the user."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.coordinator import StreamPosition
from holdfast.epoch import Reach, unwatched
from holdfast.errors import NotSupported
from holdfast.formats.manifest import Manifest
from holdfast.policy import Backoff
from holdfast.repository import GapRecord, Identity, Lease, Lineage, Repository
from holdfast.repository.objectstore import ObjectRepository
from holdfast.spark.activity import ActivityTally
from holdfast.spark.epoch_times import EpochTimes
from holdfast.spark.failures import Kind
from holdfast.spark.outages import Outage
from holdfast.spark.spec import StreamSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

R = TypeVar("R")


def _nothing(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCallbacks:
    """Functions to call on events of a pipeline. A callback that fails is logged; the stream continues."""

    on_epoch: Callable[[str, int, int], object] = _nothing  # stream, epoch, rows
    on_epoch_times: Callable[[str, EpochTimes], object] = _nothing  # stream, how long the phases of an epoch took
    on_restart: Callable[[str, Exception, int], object] = _nothing  # stream, error, number of restarts so far
    on_outage: Callable[[str, Outage], object] = _nothing  # stream, what it waits for; once for each failed try
    on_outage_over: Callable[[str, Outage], object] = _nothing  # stream, what it waited for
    on_exhausted: Callable[[str, Exception], object] = _nothing  # stream, the error that ended it
    on_quarantine: Callable[[str, GapRecord], object] = _nothing  # stream, the gap that was recorded
    on_checkpoint: Callable[[str, Manifest], object] = _nothing  # pipeline, the checkpoint that was taken
    on_checkpoint_failed: Callable[[str, Exception], object] = _nothing  # pipeline, error

    def and_then(self, other: StreamCallbacks) -> StreamCallbacks:
        """Return callbacks that call these and then the others, even if these raise."""

        def both(first: Callable[..., object], second: Callable[..., object]) -> Callable[..., object]:
            def call(*facts: object) -> None:
                try:
                    first(*facts)
                finally:
                    second(*facts)

            return call

        names = [each.name for each in dataclasses.fields(self)]
        return StreamCallbacks(**{name: both(getattr(self, name), getattr(other, name)) for name in names})


def _built_alone(spec: StreamSpec) -> DataFrame:
    raise NotSupported(what=f"using stream {spec.name!r}", why="it belongs to no running pipeline")


@dataclass(frozen=True, slots=True)
class RunContext:
    """Everything that the streams of one run share."""

    spark: SparkSession
    repository: Repository
    lineage: Lineage
    lease: Lease
    retain: int
    shared: bool
    available_now: bool
    accept: frozenset[str]
    backoff: Backoff
    callbacks: StreamCallbacks
    reach: Reach = unwatched
    clock: Callable[[], float] = time.monotonic
    acknowledge: Callable[[int, StreamPosition | Exception], None] = _nothing
    build: Callable[[StreamSpec], DataFrame] = _built_alone
    outage: Mapping[Kind, float | None] = field(default_factory=dict)  # limits that replace those of the streams
    activity: ActivityTally = field(default_factory=ActivityTally)  # what the streams do, for people
    poll_ms: int | None = None  # between two polls for input of an idle stream; `None`: as the session has it

    def together(self, *reads: Callable[[], Any]) -> list[Any]:
        """Call functions that only read, and return their results; the error of the first one that failed is raised.

        On a store they are called at the same time, because each of them is a round trip.
        """
        if not isinstance(self.repository, ObjectRepository):
            return [read() for read in reads]
        with ThreadPoolExecutor(len(reads), "holdfast-look") as pool:
            return [each.result() for each in [pool.submit(read) for read in reads]]

    @contextmanager
    def meanwhile(self, read: Callable[[], R]) -> Iterator[Callable[[], R]]:
        """Yield a function that returns the result of another one, which only reads, or raises its error.

        On a store it is called at once, in another thread, because it is a round trip. Otherwise it is called when the
        result is needed.
        """
        if not isinstance(self.repository, ObjectRepository):
            yield read
            return
        with ThreadPoolExecutor(1, "holdfast-read") as pool:
            yield pool.submit(read).result

    @property
    def identity(self) -> Identity:
        """The identity of the pipeline."""
        return self.lineage.identity

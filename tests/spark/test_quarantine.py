"""Which failures count against an epoch that may be quarantined, and which do not."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import InDoubt, SinkFailed, StorageFailed, StreamFailed
from holdfast.policy import Backoff, RestartPolicy
from holdfast.repository import Gaps, LocalRepository
from holdfast.testing import CrashAt
from rig import FilesTarget, Rig

QUICK = Backoff(first=0.01, longest=0.02)
OFTEN = RestartPolicy.bounded(9, 60)


class Failing(hf.FileSink):
    """Fails as it is told: a list of what to raise, by method."""

    def __init__(self, path: Path, **plans: list[Exception | None]) -> None:
        super().__init__(path)
        self.plans = plans

    def _next(self, what: str) -> None:
        plan = self.plans.get(what) or [None]
        error = plan.pop(0)
        if error is not None:
            raise error

    def open(self, context: Any) -> None:
        self._next("open")
        super().open(context)

    def prepare(self, df: Any, key: Any) -> Any:
        self._next("prepare")
        return super().prepare(df, key)

    def commit(self, key: Any, handle: Any) -> None:
        self._next("commit")
        super().commit(key, handle)


def rigged(spark: SparkSession, folder: Path, sink: hf.FileSink, **options: Any) -> Rig:
    target = FilesTarget(sink.path)
    target.make = lambda: sink
    return Rig(spark, folder, [target], **options)


def refused(sink: str = "files.out") -> SinkFailed:
    return SinkFailed(sink=sink, action="answer", why="connection refused")


def test_a_quarantine_is_recorded_also_when_the_driver_dies_at_that_moment(spark: SparkSession, tmp_path: Path) -> None:
    rig = rigged(spark, tmp_path, Failing(tmp_path / "out", prepare=[refused(), refused()]), quarantine_after=2)
    rig.add(1)
    with pytest.raises((StreamFailed, BaseException)):
        rig.run(CrashAt("decided"), restart=OFTEN, backoff=QUICK)
    assert Gaps(LocalRepository(rig.repository)).all("rows", 1) == []
    rig.run()
    (gap,) = Gaps(LocalRepository(rig.repository)).all("rows", 1)
    assert (gap.kind, gap.epoch) == ("quarantined", 1)


def test_one_failure_is_not_counted_again_while_the_sink_is_down(spark: SparkSession, tmp_path: Path) -> None:
    """A sound epoch was passed over because recovery failed twice after its first failure."""
    sink = Failing(tmp_path / "out", prepare=[refused()], open=[None, refused(), refused()])
    rig = rigged(spark, tmp_path, sink, quarantine_after=3)
    rig.add(1)
    rig.run(restart=OFTEN, backoff=QUICK)
    assert rig.visible() == [[1]]


def test_trouble_of_the_repository_is_no_poison(spark: SparkSession, tmp_path: Path) -> None:
    full = [StorageFailed(action="write", key="x", why="No space left on device") for _ in range(4)]
    rig = rigged(spark, tmp_path, Failing(tmp_path / "out", prepare=list(full)), quarantine_after=3)
    rig.add(1)
    rig.run(restart=OFTEN, backoff=QUICK)
    assert rig.visible() == [[1]]


def test_whatever_a_users_sink_raises_in_recovery_is_told_as_doubt(spark: SparkSession, tmp_path: Path) -> None:
    sink = Failing(tmp_path / "out", commit=[ConnectionError("boom"), ConnectionError("boom")])
    rig = rigged(spark, tmp_path, sink)
    rig.add(1)
    with pytest.raises(StreamFailed):
        rig.run()
    with pytest.raises(InDoubt, match="boom"):
        rig.run()
    rig.run()
    assert rig.visible() == [[1]]

"""The log between two streams of a pipeline is trimmed by prune, and no reader misses an event."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.errors import LogTrimmed
from holdfast.eventlog.keeping import read_floor
from holdfast.repository import Lease
from rig import FilesTarget, Rig


def chained(rig: Rig, readers: int = 1) -> hf.Pipeline:
    pipeline = rig.pipeline()
    for number in range(readers):

        def copy(spark: SparkSession) -> DataFrame:
            return pipeline.read("rows")

        pipeline.stream(copy, name=f"copy{number}", sinks=hf.FileSink(rig.folder / f"copy{number}"))
    return pipeline


def run(rig: Rig, readers: int = 1) -> hf.Pipeline:
    pipeline = chained(rig, readers)
    policy = hf.CheckpointPolicy(epochs=1, retention=hf.Retention(last=1))
    pipeline.run(rig.spark, available_now=True, checkpoint_every=policy)
    return pipeline


def copied(rig: Rig, number: int = 0) -> list[int]:
    return FilesTarget(rig.folder / f"copy{number}").visible(rig.spark)


def test_a_chain_keeps_only_what_it_needs(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, [FilesTarget(tmp_path / "out")])
    for number in range(4):
        rig.add(2 * number, 2 * number + 1)
        pipeline = run(rig)
    with Lease.take(pipeline.repository) as lease:
        hf.pruning.apply_prune(
            pipeline.repository, hf.pruning.plan_prune(pipeline.repository, hf.Retention(last=1)), lease
        )
    log = rig.repository / "logs/rows/log"
    assert read_floor(log) == 6  # the last epoch of the reader may be replayed
    assert copied(rig) == list(range(8))
    assert [row["sequence"] for row in hf.read_log(spark, log).collect()] == [6, 7]
    with pytest.raises(LogTrimmed):
        hf.read_log(spark, log, start=2)

    rig.add(8)
    run(rig, readers=2)  # a new reader begins with what is kept
    assert copied(rig) == list(range(9))
    assert copied(rig, 1) == [6, 7, 8]
    rig.add(9)
    run(rig, readers=2)
    assert copied(rig, 1) == [6, 7, 8, 9]

"""The bare two-phase commit of a micro-batch to folders: the floor of every exactly-once sink on a local disk.

1. Spark writes the rows into new folders that no reader looks at. For several outputs, the rows are frozen first, on
   use, because a second computation may give other rows; then all outputs are written at the same time.
2. One `syncfs` makes the new folders and Spark's own files durable: Spark must be able to run the batch again.
3. One small file is published durably: the decision.
4. Each folder is renamed into place, and the rename is made durable.

It checks nothing, counts nothing, records nothing else, and cannot recover.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import DataFrame

from bench.durable import publish
from holdfast.repository.files import sync_all, sync_folder

RECORD = b"x" * 1500  # about as long as a decision


class BareCommit:
    """A function for `foreachBatch`."""

    def __init__(self, folder: Path, outputs: Sequence[Path]) -> None:
        self._outputs = outputs
        self._staged, self._decisions = folder / "staged", folder / "decisions"
        for each in (*outputs, self._staged, self._decisions):
            each.mkdir(parents=True)
        self._others = ThreadPoolExecutor(max(len(outputs) - 1, 1))

    def __call__(self, df: DataFrame, batch: int) -> None:
        """Write a batch exactly once, if nothing fails."""
        staged = {output: self._staged / f"{output.name}-{batch}" for output in self._outputs}
        self._write(df, list(staged.values()))  # 1
        sync_all([self._staged], at_once=True)  # 2
        publish(self._decisions, str(batch), RECORD)  # 3
        for output, folder in staged.items():
            os.rename(folder, output / f"epoch={batch}")  # noqa: PTH104 - 4
            sync_folder(output)

    def _write(self, df: DataFrame, folders: Sequence[Path]) -> None:
        if len(folders) == 1:
            _write_parquet(df, folders[0])
            return
        rows = df.localCheckpoint(eager=False)  # Spark frees it some time after the last use
        others = [self._others.submit(_write_parquet, rows, each) for each in folders[1:]]
        _write_parquet(rows, folders[0])
        for each in others:
            each.result()


def _write_parquet(rows: DataFrame, folder: Path) -> None:
    """Write Parquet without Hadoop's `_SUCCESS`: the rename shows that the folder is complete."""
    rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(str(folder))

"""The job of the benchmarks as a Flink program. It runs in the environment of the peers, which does not have Holdfast.

Usage: python flink_job.py FOLDER CHECKPOINT_MS

The job reads the CSV files of FOLDER/in, continuously, and writes CSV files to FOLDER/out. If FOLDER/checkpoints has a
complete checkpoint, the job continues from the newest one. Source, sink and formats are Flink's own Java code: no row
passes through Python.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

COLUMNS = "id BIGINT, customer STRING, amount DOUBLE, at_ms BIGINT, paid BOOLEAN"
SETTINGS = {
    "parallelism.default": str(os.cpu_count()),
    "pipeline.object-reuse": "true",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.checkpointing.storage": "filesystem",
    "execution.checkpointing.incremental": "true",
    "execution.state-recovery.claim-mode": "CLAIM",
    "restart-strategy.type": "none",  # a failure must end the job, and with it the benchmark
    # The process is suspended between its turns. Without these, Flink would take a suspension for a failure.
    "heartbeat.timeout": "24 h",
    "pekko.ask.timeout": "24 h",
    "execution.checkpointing.timeout": "24 h",
}
FILES = "'connector' = 'filesystem', 'format' = 'csv', 'path' = '{path}'"
SOURCE = f"CREATE TABLE source ({COLUMNS}) WITH ({FILES}, 'source.monitor-interval' = '10 ms')"
SINK = f"CREATE TABLE sink ({COLUMNS}) WITH ({FILES})"


def newest(checkpoints: Path) -> Path | None:
    """Return the newest complete checkpoint; `None` if there is none."""
    found = [path for path in checkpoints.glob("*/chk-*/_metadata") if path.is_file()]
    return max(found, key=lambda path: path.stat().st_mtime_ns).parent if found else None


def main(folder: Path, checkpoint_ms: int) -> None:
    """Run the job until the process is killed."""
    from pyflink.table import EnvironmentSettings, TableEnvironment  # noqa: PLC0415 - the rest is tested without it

    table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    checkpoints = folder / "checkpoints"
    given = {
        **SETTINGS,
        "execution.checkpointing.interval": f"{checkpoint_ms} ms",
        # After a suspension, Flink would make up for all checkpoints that it missed, one after the other.
        "execution.checkpointing.min-pause": f"{checkpoint_ms * 8 // 10} ms",
        "execution.checkpointing.dir": checkpoints.as_uri(),
    }
    last = newest(checkpoints)
    if last is not None:
        given["execution.state-recovery.path"] = last.as_uri()
    for name, value in given.items():
        table.get_config().set(name, value)
    table.execute_sql(SOURCE.format(path=(folder / "in").as_uri()))
    table.execute_sql(SINK.format(path=(folder / "out").as_uri()))
    table.execute_sql("INSERT INTO sink SELECT * FROM source").wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), int(sys.argv[2]))

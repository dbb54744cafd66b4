"""A driver that starts its pipeline again whenever a request stops it: `python controlled.py <folder>`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import holdfast as hf
from sparkfixture import session

PAUSES_S = {"all prepared": 0.4, "checkpoint claimed": 0.5}


def slowly(point: str) -> None:
    """Let an epoch and a checkpoint take some time, so that requests find them under way."""
    time.sleep(PAUSES_S.get(point, 0.0))


def main(folder: Path) -> None:
    spark = session()
    while True:
        pipeline = hf.Pipeline("ticks", root=folder / "root")
        sink = hf.FileSink(folder / "out")

        @pipeline.stream(sinks=[sink], name="ticks")
        def ticks(spark: object) -> object:
            return spark.readStream.format("rate").option("rowsPerSecond", 50).load()  # type: ignore[attr-defined]

        status = pipeline.run(spark, checkpoint_every=0.5, reach=slowly)
        with (folder / "runs").open("a") as runs:
            runs.write(f"{status.lease}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

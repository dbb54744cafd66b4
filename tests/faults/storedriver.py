"""A driver whose repository is on S3, to be killed: `python storedriver.py <spec as JSON>`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyspark.sql import SparkSession

from rig import PostgresTarget, Rig
from sparkfixture import session
from storekinds import totals


def rigged(spark: SparkSession, folder: str, root: str, dsn: str) -> Rig:
    """Two streams in one: the totals of all rows, in a state; and each row, in the number of rows."""
    rig = Rig(
        spark, Path(folder), [PostgresTarget(dsn, "totals", create=True, key=["k"])], totals, output_mode="update"
    )
    rig.root = root
    return rig


def main(folder: str, root: str, dsn: str, go: str, *, take_over: bool) -> None:
    """Start Spark, wait for `go`, and run for ever; each point is written down as it is reached."""
    rig = rigged(session(), folder, root, dsn)
    while not Path(go).exists():
        time.sleep(0.02)
    points = (Path(folder) / "points").open("a", buffering=1)
    points.write("start\n")
    made = rig.pipeline()
    made.run(
        rig.spark, checkpoint_every=None, take_over=take_over, reach=lambda point: points.write(f"{point}\n") and None
    )


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))

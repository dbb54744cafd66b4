"""Six pipelines that are really broken, each in another way: made with real Spark, a real PostgreSQL server and a kill.

`python tests/brokenpipelines.py FOLDER` makes them, and keeps them for a look at the page.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from holdfast.errors import HoldfastError
from pgfixture import Postgres

QUICK = hf.Backoff(first=0.05, longest=0.1)
KILLED = """
import os
import sys

sys.path.insert(0, {tests!r})

import holdfast as hf
from sparkfixture import session

pipeline = hf.Pipeline("in-doubt", root={root!r})


@pipeline.stream(sinks=[hf.FileSink({out!r}), hf.SqliteSink({db!r}, table="orders")])
def orders(spark):
    return spark.readStream.schema("n long").json({folder!r})


pipeline.run(session(), available_now=True, reach=lambda point: os._exit(9) if point == "decided" else None)
"""


class Broken:
    """Makes the pipelines below `root`; their input and output are beside it."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder, self.root, self.spark = folder, folder / "root", spark

    def make(self, pg: Postgres) -> Path:
        """Make all of them, and return the root."""
        self.poison()
        self.server_down(pg)
        self.damaged()
        self.input_gone()
        self.in_doubt()
        self.foreign()
        return self.root

    def poison(self) -> None:
        """A row that the query cannot process; the restart budget is used up."""
        self._give("poison", 1)
        pipeline = self._pipeline("poison", restart=hf.RestartPolicy.bounded(2, 60), backoff=QUICK)
        self._stream(pipeline, hf.FileSink(self.folder / "out-poison"), _refuse_13)
        pipeline.run(self.spark, available_now=True)
        self._give("poison", 13)
        self._run(pipeline)

    def server_down(self, pg: Postgres) -> None:
        """The server of a sink is stopped, and stays so for longer than the pipeline waits."""
        pg.start_again()
        dsn = pg.dsn(pg.fresh_database())
        self._give("server-down", 1)
        pipeline = self._pipeline("server-down", outage={"sink": "1s"}, backoff=QUICK)
        self._stream(pipeline, hf.PostgresSink(dsn, "orders", create=True))
        handle = pipeline.start(self.spark, checkpoint_every=None)
        while handle.status().streams["orders"].epoch < 1:
            assert not handle.wait(0.1)
        pg.stop()
        self._give("server-down", 2)
        with contextlib.suppress(HoldfastError):
            handle.await_termination(120)
        pg.start_again()

    def damaged(self) -> None:
        """The manifest of the newest checkpoint is cut short."""
        pipeline = self._pipeline("damaged")
        self._stream(pipeline, hf.FileSink(self.folder / "out-damaged"))
        for number in (1, 2):
            self._give("damaged", number)
            pipeline.run(self.spark, available_now=True)
        path = self.root / "damaged/timelines/1/checkpoints/2/manifest.json"
        path.write_bytes(path.read_bytes()[:-20])

    def input_gone(self) -> None:
        """The folder that the source reads was deleted."""
        self._give("input-gone", 1)
        pipeline = self._pipeline("input-gone", restart=hf.RestartPolicy.bounded(1, 60), backoff=QUICK)
        self._stream(pipeline, hf.FileSink(self.folder / "out-input-gone"))
        pipeline.run(self.spark, available_now=True)
        shutil.rmtree(self.folder / "in-input-gone")
        self._run(pipeline)

    def in_doubt(self) -> None:
        """The process was killed between the decision of an epoch and its commit."""
        self._give("in-doubt", 1)
        program = self.folder / "killed.py"
        program.write_text(
            KILLED.format(
                tests=str(Path(__file__).parent),
                root=str(self.root),
                out=str(self.folder / "out-in-doubt"),
                db=str(self.folder / "in-doubt.db"),
                folder=str(self.folder / "in-in-doubt"),
            )
        )
        done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 9, done.stderr

    def foreign(self) -> None:
        """A new repository over the output of another pipeline of the same name."""
        self._give("foreign", 1)
        for root in (self.folder / "old-root", self.root):
            pipeline = hf.Pipeline("foreign", root=root)
            self._stream(pipeline, hf.FileSink(self.folder / "out-foreign"))
            self._run(pipeline)

    # --- parts ---

    def _pipeline(self, name: str, **options: object) -> hf.Pipeline:
        return hf.Pipeline(name, root=self.root, **options)

    def _stream(
        self, pipeline: hf.Pipeline, sink: hf.Sink, query: Callable[[DataFrame], DataFrame] = lambda rows: rows
    ) -> None:
        folder = self.folder / f"in-{pipeline.name}"
        pipeline.stream(
            lambda spark: query(spark.readStream.schema("n long").json(str(folder))), name="orders", sinks=[sink]
        )

    def _give(self, name: str, number: int) -> None:
        folder = self.folder / f"in-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.json").write_text(f'{{"n": {number}}}\n')

    def _run(self, pipeline: hf.Pipeline) -> None:
        with contextlib.suppress(HoldfastError, AnalysisException):  # the second one is from the function of the stream
            pipeline.run(self.spark, available_now=True)


def _refuse_13(rows: DataFrame) -> DataFrame:
    return rows.withColumn("n", f.when(f.col("n") == 13, f.raise_error(f.lit("no price for 13"))).otherwise(f.col("n")))


def main(folder: Path) -> None:
    """Make them, and print the root."""
    from pgfixture import server
    from sparkfixture import session

    folder.mkdir(parents=True, exist_ok=True)
    print(Broken(folder, session()).make(server()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

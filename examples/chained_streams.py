"""Two chained streams, checkpoints of both, and a worker without Spark that reads the log between them.

What it shows: `payments` appends its input to an event log. `balances` reads the log with `pipeline.read` and keeps a
sum for each account. Every checkpoint is one cut of both streams. In its own process, a `CursorWorker` reads the large
payments of the same log and raises an alert for each, at least once. After a restart it continues at its last position.

How to run it in a clone of the repository, in two terminals or one after the other:

    JAVA_HOME=$(cat .venv/java-home) .venv/bin/python examples/chained_streams.py          # until SIGTERM or Ctrl-C
    .venv/bin/python examples/chained_streams.py --alerts                                  # needs no Java

Move files with lines like `{"account": "a-1", "cents": 250000}` into `data/payments/`. With `--once`, each program
processes the available input and ends.

What to look at: `sqlite3 data/out/payments.db 'SELECT * FROM balances'`; `data/out/alerts/`, one file per alert; the
manifests in `data/checkpoints/payments/timelines/1/checkpoints/`. Kill either program at any moment and start it again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

import holdfast as hf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATA = os.environ.get("HOLDFAST_DATA", "data")
LARGE = hf.eventlog.Region(kind=hf.eventlog.KindFilter(0, 1))  # category 0, type 1: rows whose column `large` is 1


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; `arguments([])` returns the defaults."""
    parser = argparse.ArgumentParser(
        description="Payments into a log, balances and alerts out of it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--input", default=f"{DATA}/payments", help="input folder, with files of JSON lines")
    parser.add_argument("--output", default=f"{DATA}/out", help="folder for the log, the balances and the alerts")
    parser.add_argument("--large", type=int, default=100_000, help="smallest amount in cents that raises an alert")
    parser.add_argument("--alerts", action="store_true", help="run the worker instead of the pipeline")
    parser.add_argument("--checkpoints", default=f"{DATA}/checkpoints", help="folder for the pipeline's repository")
    parser.add_argument("--checkpoint-every", default="30s", help="interval between checkpoints")
    parser.add_argument("--once", action="store_true", help="process the available input, then end")
    return parser.parse_args(given)


def build(options: argparse.Namespace) -> hf.Pipeline:
    """Define the pipeline, without starting or writing anything."""
    pipeline = hf.Pipeline("payments", root=options.checkpoints)
    folder, output = Path(options.input).absolute(), Path(options.output)

    @pipeline.stream(trigger="1 second", sinks=[hf.LogSink(output / "payments.log", entity="account", type="large")])
    def payments(spark: SparkSession) -> DataFrame:
        folder.mkdir(parents=True, exist_ok=True)  # Spark refuses a folder that does not exist
        lines = (
            spark.readStream.schema("account string, cents long").option("maxFilesPerTrigger", 100).json(str(folder))
        )
        sound = lines.where("account != '' AND cents IS NOT NULL")
        return sound.withColumn("large", (f.col("cents") >= options.large).cast("int"))

    balances = hf.SqliteSink(output / "payments.db", table="balances", key="account")

    @pipeline.stream(name="balances", output_mode="update", trigger="1 second", sinks=[balances])
    def sums(spark: SparkSession) -> DataFrame:
        del spark  # not needed: it reads the log of the other stream
        total, count = f.sum("cents").alias("cents"), f.count("*").alias("payments")
        return pipeline.read("payments", rows_per_epoch=100_000).groupBy("account").agg(total, count)

    return pipeline


pipeline = build(arguments([]))  # for `holdfast run chained_streams.py:pipeline`


def work(options: argparse.Namespace) -> None:
    """Raise an alert for each large payment, starting at the last committed position."""
    alerts = Path(options.output, "alerts")
    alerts.mkdir(parents=True, exist_ok=True)

    def handle(
        batch: hf.eventlog.Batch, log: hf.eventlog.EventLog, witness: hf.eventlog.AtLeastOnce | None
    ) -> hf.eventlog.Action:
        """Write alerts in place of a webhook call; a batch may be repeated, so the sequence names the alert."""
        del log, witness
        for event in batch:
            alert = {"alert": event.sequence, "account": event.entity, "cents": event.payload["cents"]}
            hidden = alerts / f".{event.sequence}.json"  # for a POST, use the sequence as idempotency key
            hidden.write_text(json.dumps(alert))
            hidden.replace(alerts / f"{event.sequence}.json")
        return hf.eventlog.Action.CONTINUE

    log = _log(Path(options.output, "payments.log"), wait=not options.once)
    repository = hf.open_repository(Path(options.checkpoints, "payments"))
    worker = hf.eventlog.CursorWorker(LARGE, handle, log=log, repository=repository, cursor="alerts", idle_sleep=0.2)
    with contextlib.suppress(KeyboardInterrupt), worker.start() as running:
        running.drain() if options.once else running.join()


def _log(path: Path, *, wait: bool) -> hf.eventlog.EventLog:
    """Open the log, which the first start of the pipeline creates."""
    while True:
        try:
            return hf.eventlog.EventLog.open(path)
        except hf.errors.LogMissing:
            if not wait:
                raise
            time.sleep(0.5)


def main() -> None:
    """Run the pipeline or the worker."""
    options = arguments()
    try:
        if options.alerts:
            work(options)
        else:
            build(options).run(available_now=options.once, checkpoint_every=options.checkpoint_every)
    except hf.HoldfastError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()

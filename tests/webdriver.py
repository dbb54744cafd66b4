"""A process that runs a pipeline with a fake query: `python tests/webdriver.py FOLDER SECONDS`. Prints `ready`."""

import sys
import threading
import time
from pathlib import Path

import pytest

import fakespark
from holdfast.repository.activity import ENDED
from holdfast.spark.activity import ActivityWriter, Lag, noted


class Live(fakespark.Bench):
    """A pipeline in the folder `live`, whose source grows while it runs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, sinks=2)


def main(folder: Path, seconds: float) -> None:
    fakespark.install(pytest.MonkeyPatch())
    bench = Live(folder)
    decided = [int(path.name.split(".")[0]) for path in (folder / "repository").rglob("epochs/*.1.json")]
    last = max(decided, default=0)
    bench.source += [[n, 1, 2] for n in range(last)]
    for place in bench.places:  # what an earlier process has decided is in its sinks
        place.visible[last] = []
    stream, thread = bench.started()
    run = stream._parts.run
    writer = ActivityWriter(bench.repository, run.activity, run.lease.number)
    writer.work({"rows": Lag("running", behind=3)})
    print("ready", flush=True)
    until = time.monotonic() + seconds
    while time.monotonic() < until and threading.main_thread().is_alive():
        bench.source.append([len(bench.source), 1, 2])
        time.sleep(0.05)
        writer.work()
    stream.stop()
    thread.join()
    run.activity.event(noted(ENDED, run.lease.number, text="stopped gracefully"))
    writer.work({"rows": Lag("stopped")})


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))

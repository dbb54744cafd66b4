"""Our own part of a restart: the recovery of a stream after 10 and after 100,000 epochs, for three kinds of sinks.

Included: all that Holdfast does for a stream at a start, from the check of the lease to the closed attempts. It opens
the sink, compares the last decision with Spark's logs and with the position of the sink, and reads the slots of the
next epoch. A sample is one such recovery, in this process, with files that are in the page cache on both sides.

Not included:

- Spark. The session, the plan of the query and its settings are replaced by constants, because their time would hide
  ours. Whole restarts, with Spark's own growth, are measured by `bench/restart.py`.
- A file source. Spark keeps a list of all files that it has read, and Holdfast compares the bytes of that list with its
  digest, so with such a source our time grows with the list.
- Checkpoints. Their number depends on the retention, not on the epochs.

The history is generated, not run (see `bench/longlived.py`). All but its last ten epochs are written directly, in the
layout of the sink: 100,000 folders, 100,000 records in the index of a log, a million rows of a table. The last ten are
staged and committed by the sink itself. The decisions are closed and pruned by Holdfast. After 100,000 epochs there are
101 of them and 101 entries in each of Spark's logs, after 10 epochs there are 10. This difference is part of the ratio.
Each recovery must find the last epoch.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

from bench.compare import Result, in_turn
from bench.longlived import Files, History, Log, Sqlite
from bench.scratch import scratch
from holdfast.spark import adapter
from holdfast.spark.kafka_sources import KafkaInputs

SIZES, QUICK_SIZES = (10, 1_000, 10_000, 100_000), (10, 1_000)
ROUNDS, QUICK_ROUNDS = 200, 50
WARM_UP = 10
GOAL = 1.1
KINDS: dict[str, type[History]] = {"FileSink": Files, "LogSink": Log, "SqliteSink": Sqlite}


@contextmanager
def without_spark() -> Iterator[None]:
    """Replace what asks Spark by constants."""
    constants: dict[str, Callable[..., Any]] = {
        "source_names": lambda _: ["kafka"],
        "inputs": lambda _: [("kafka", {"subscribe": "rows"})],
        "lake_inputs": lambda _: [],
        "state_operators": lambda _: [],
        "setting": lambda *_: None,
        "require_packages": lambda _: None,
        "require_trigger": lambda *_: None,
        "is_stateful": lambda _: False,
        "is_observed": lambda _: False,
        "few_rows": lambda *_, **_options: None,
        "state_settings": lambda _: {},
        "is_local": lambda _: True,
        "folder_mode": lambda _: 0o755,
    }
    with ExitStack() as stack:
        for name, constant in constants.items():
            stack.enter_context(mock.patch.object(adapter, name, constant))
        stack.enter_context(mock.patch.object(KafkaInputs, "of", return_value=KafkaInputs()))  # no broker is asked
        yield


def run(quick: bool) -> list[Result]:
    sizes, rounds = (QUICK_SIZES, QUICK_ROUNDS) if quick else (SIZES, ROUNDS)
    with scratch(__name__) as folder, without_spark():
        made = {
            (name, size): kind(folder / name / str(size), size)
            for (name, kind), size in itertools.product(KINDS.items(), sizes)
        }
        os.sync()
        found = in_turn(
            rounds,
            {f"{name} {size}": partial(History.recover, history) for (name, size), history in made.items()},
            warm_up=WARM_UP,
        )
    least, most = sizes[0], sizes[-1]
    return [
        Result(
            "restart",
            f"our own part, {name}, after {most:,} epochs",
            f"after {least}",
            found[f"{name} {most}"],
            found[f"{name} {least}"],
            GOAL,
            details={f"{size} epochs, {name}": statistics.median(found[f"{name} {size}"]) for size in sizes},
        )
        for name in KINDS
    ]

"""A pipeline that is kept on an object store: the duration of its triggers, its requests, and a restart.

Both sides keep Spark's checkpoint on the same S3 server, s3proxy on this machine. A proxy in between adds 20 ms to each
request, as much as a request to a store in the same region takes, and counts the requests. The job is that of
`bench/triggers.py`: JSON files of a hundred rows to Parquet, unchanged, or counted by key in two partitions. Input and
output are on the local disk, so that only the checkpoint is compared. Plain Spark has its default file manager and the
same Hadoop client. For the stateful query it keeps its state in RocksDB, with the settings of Holdfast: its default
state store needs more requests. Holdfast also writes its own records to the store. It takes no checkpoints while its
triggers are measured.

The requests of an epoch are those of Spark and of Holdfast. A round trip is a group of our own requests that overlap in
time. Requests of Spark do not count as round trips. Neither do the beat of the lease and the search for requests of
other processes, once per second, because no epoch waits for them. A checkpoint is taken on request while no input
arrives, after the epochs that were measured.

The restart is measured after a history that was really run, without the delay. It lasts from the construction of the
stream until its first new epoch has ended, with the delay, in a warm session.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.compare import Result, in_turn
from bench.rival import Rival, rivals
from bench.scratch import scratch
from bench.spark import OURS, PLAIN, Job, Side, as_it_is
from bench.traffic import KINDS, Store, Traffic, stores
from bench.triggers import ROWS, SCHEMA, counted
from holdfast.spark.adapter import STATE
from holdfast.spark.java_environment import with_jar
from holdfast.spark.s3a import s3a_settings

DELAY_S = 0.02
GOALS = {False: 0.3, True: 0.3}  # of a trigger, by whether there is state
RESTART_GOAL = 1.2
EPOCHS, ROUNDS, WARM_UP = 8, 4, 3
QUICK_EPOCHS, QUICK_ROUNDS, QUICK_WARM_UP = 5, 1, 1
HISTORY, QUICK_HISTORY = 1_000, 40
RESTARTS, QUICK_RESTARTS = 5, 2


class Kept:
    """A side: runs epochs, takes a checkpoint, or restarts, as requested."""

    def __init__(self, folder: Path, side: Side, bucket: str, environment: Mapping[str, str], stateful: bool) -> None:
        os.environ.update(environment)
        scheme = "s3" if side.ours else "s3a"
        hadoop = {} if side.ours else {f"spark.hadoop.{name}": value for name, value in s3a_settings().items()}
        settings = {**dict(side.settings), **hadoop, **({} if side.ours else STATE)}
        at = replace(side, kept=f"{scheme}://{bucket}/bench", settings=tuple(settings.items()))
        query = counted if stateful else as_it_is
        with with_jar():  # Hadoop's client for S3 is not part of Spark
            self._job = Job(folder, at, SCHEMA, "json", query, output_mode="update" if stateful else "append")

    def __call__(self, request: tuple[str, int]) -> Any:
        """Carry out a request: its kind, and a number."""
        kind, number = request
        return getattr(self, kind)(number)

    def epochs(self, number: int) -> list[float]:
        """Run epochs, and return the duration of each trigger. The first one is slower, after the suspension."""
        self._feed(number)
        return self._job.triggers(number, dropped=1)

    def _feed(self, number: int) -> None:
        for _ in range(number):
            first = self._job.given
            rows = ({"k": (first * 7 + n) % 1000, "v": "x" * 20} for n in range(ROWS))
            self._job.add(["\n".join(map(json.dumps, rows))])

    def checkpoint(self, _: int) -> float:
        """Take a checkpoint; return its duration."""
        assert self._job.handle is not None
        start = time.perf_counter()
        self._job.handle.checkpoint(timeout=300)
        return time.perf_counter() - start

    def restart(self, _: int) -> float:
        """Stop, and return the time from the next start to the end of its first epoch."""
        self._job.stop()
        self._feed(1)
        start = time.perf_counter()
        self._job.start_again()
        self._job.triggers(1)
        return time.perf_counter() - start

    def check(self, _: int) -> int:
        """Return how many rows are missing from the output, or too many."""
        return self._job.rows() - self._job.given * ROWS


def compared(stateful: bool, quick: bool) -> list[Result]:
    sides = {side.name: side for side in (PLAIN, OURS)}
    epochs, rounds, warm_up = (QUICK_EPOCHS, QUICK_ROUNDS, QUICK_WARM_UP) if quick else (EPOCHS, ROUNDS, WARM_UP)
    with scratch(__name__) as folder, stores(list(sides)) as kept:
        made = {
            name: (Kept, folder / str(n), side, kept[name].bucket, kept[name].environment, stateful)
            for n, (name, side) in enumerate(sides.items())
        }
        with rivals(made) as running:
            for store in kept.values():
                store.delay(DELAY_S)
            traffic: dict[str, list[Traffic]] = {name: [] for name in sides}

            def turn(name: str) -> list[float]:
                kept[name].taken()
                found: list[float] = running[name](("epochs", epochs + 1))
                traffic[name].append(kept[name].taken())
                return found

            found = in_turn(rounds, {name: partial(turn, name) for name in sides}, warm_up=warm_up)
            checkpoint = _checkpoint(running[OURS.name], kept[OURS.name])
            restart = _restarted(running, kept, quick) if not stateful else []
            assert [rival(("check", 0)) for rival in running.values()] == [0, 0]
    what = "with state" if stateful else "stateless"
    details = {**_per_epoch(traffic, rounds, epochs + 1), **checkpoint}
    pair = found[OURS.name], found[PLAIN.name]
    name = f"Holdfast on a store, {what}"
    return [Result("store", name, "plain Spark on s3a", *pair, goal=GOALS[stateful], details=details), *restart]


def _per_epoch(traffic: Mapping[str, list[Traffic]], rounds: int, epochs: int) -> dict[str, float]:
    """Return the requests of an epoch, by side and kind, and our round trips: medians over the turns that count."""
    found = {}
    for side, turns in traffic.items():
        for kind in KINDS:
            numbers = [each.counts()[kind] / epochs for each in turns[-rounds:]]
            found[f"{kind} per epoch, {side} (requests)"] = statistics.median(numbers)
    trips = [each.round_trips() / epochs for each in traffic[OURS.name][-rounds:]]
    found[f"per epoch, {OURS.name} without Spark (round trips)"] = statistics.median(trips)
    return found


def _checkpoint(rival: Rival, store: Store) -> dict[str, float]:
    """Return the duration of a checkpoint, and its requests."""
    rival(("checkpoint", 0))  # the first one reads everything
    rival(("epochs", EPOCHS))
    store.taken()
    seconds: float = rival(("checkpoint", 0))
    counts = store.taken().counts()
    found = {f"{kind} per checkpoint (requests)": float(number) for kind, number in counts.items()}
    return {f"checkpoint after {EPOCHS} epochs": seconds, **found}


def _restarted(running: Mapping[str, Rival], kept: Mapping[str, Store], quick: bool) -> list[Result]:
    """Return the comparison of restarts after a long history."""
    history, rounds = (QUICK_HISTORY, QUICK_RESTARTS) if quick else (HISTORY, RESTARTS)
    for store in kept.values():
        store.delay(0)
    for rival in running.values():
        rival(("epochs", history))
    for store in kept.values():
        store.delay(DELAY_S)
    sides = {name: partial(rival, ("restart", 0)) for name, rival in running.items()}
    found = in_turn(rounds, sides)
    name = f"Holdfast on a store, restart after {history:,} epochs"
    return [Result("store", name, "plain Spark on s3a", found[OURS.name], found[PLAIN.name], goal=RESTART_GOAL)]


def run(quick: bool) -> list[Result]:
    return [*compared(False, quick), *compared(True, quick)]

"""A pipeline beside a simple model of its lineage, for tests that walk over epochs, checkpoints, rewinds and the like.

The model is a list of epochs: a run appends to it, a rewind cuts it, an undo restores it, and prune and compact do not
change it. After each step the sinks must show the rows of the list, and every checkpoint that the model has must be
sound and a possible base.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from handsinks import HandJsonSink, HandLogSink, HandSqliteSink, key_of
from handstaged import query
from holdfast.epoch import Reach
from holdfast.errors import CheckpointMissing, RewindRefused, StreamFailed
from holdfast.eventlog import EventLog
from holdfast.policy import Retention
from holdfast.pruning import apply_prune, plan_prune
from holdfast.repository import Checkpoints, Lease, Status
from holdfast.repository.rewinds import unfinished_rewind
from holdfast.rewind.bases import on_lineage
from holdfast.sinks import apply_compact, plan_compact
from holdfast.sinks.base import Sink
from holdfast.testing import CrashAt, Crashed
from holdfast.verification import verify_all
from rewindbench import RewindBench

UNDECIDED = ("rewind planned", "rewind built")
Crash = tuple[str, int] | None  # a point, and which time it is reached
Epochs = list[list[int]]


@dataclass(frozen=True, slots=True)
class Taken:
    """A checkpoint or savepoint, and the epochs that it contains."""

    name: int | str
    number: int
    epochs: Epochs


class Walked:
    """A pipeline and its model. Each method is a step; `check` compares the two."""

    def __init__(self, bench: RewindBench) -> None:
        self.bench = bench
        self.epochs: Epochs = []
        self.next = 0
        self.kept: list[Taken] = []  # of the lineage, oldest first
        self.others: list[Taken] = []  # of abandoned branches
        self.undo_to: tuple[Epochs, list[Taken]] | None = None
        self.rewinds = 0

    # --- the steps ---

    def write(self, *rows: int) -> None:
        """Run one epoch for each number, with so many rows."""
        self.epochs = [*self.epochs, *(self._new(each) for each in rows)]
        self.start()
        self.undo_to = None

    def start(self) -> None:
        """Start without new input: what was interrupted is finished."""
        self.bench.source[:] = self.epochs
        self.bench.run()

    def take(self, *, savepoint: bool = False) -> None:
        """Take a checkpoint or a savepoint, as a driver does that has started and found nothing to do."""
        self.start()
        name = f"save{self.next}-{len(self.kept)}-{self.rewinds}" if savepoint else None
        with contextlib.suppress(CheckpointMissing):
            if name is not None and Checkpoints(self.bench.repository).find(name):
                return
        number = self.bench.take(name).checkpoint_id
        self.kept = [*self.kept, Taken(name or number, number, self.epochs)]

    def rewind(self, choice: int, crash: Crash = None) -> None:
        if not self.kept:
            return
        place = choice % len(self.kept)
        base = self.kept[place]
        if not self._decided(crash, lambda reach: self.bench.rewind(base.name, reach)):
            return
        self.undo_to = (self.epochs, self.kept)
        self.others = [*self.others, *self.kept[place + 1 :]]
        self.epochs, self.kept = base.epochs, self.kept[: place + 1]
        self.rewinds += 1

    def undo(self, crash: Crash = None) -> None:
        if self.undo_to is None:
            with pytest.raises(RewindRefused):
                self.bench.undo()
            return
        if not self._decided(crash, self.bench.undo):
            return
        (self.epochs, before), self.undo_to = self.undo_to, None
        known = {each.number for each in (*self.kept, *self.others)}
        back = [each for each in before if each.number in known]  # a prune may have deleted some since
        self.others = [each for each in (*self.others, *self.kept) if each not in back]
        self.kept = back
        self.rewinds += 1

    def die(self, at: str, hit: int = 1) -> None:
        """Die within an epoch. The next step or start completes what was decided."""
        new = self._new(1)
        self.bench.source[:] = [*self.epochs, new]
        with pytest.raises((Crashed, StreamFailed)):
            self.bench.run(CrashAt(at, hit))
        if at != "durable":
            self.epochs = [*self.epochs, new]
            self.undo_to = None

    def prune(self, last: int, *, abandoned: bool, crash: Crash = None) -> None:
        """Keep few checkpoints; a prune that dies has deleted some of those that it was to delete."""
        numbered = [each for each in self.kept if isinstance(each.name, int)]
        doomed = numbered[:-last] + [each for each in self.others if abandoned and isinstance(each.name, int)]
        reach = CrashAt(*crash) if crash else CrashAt("pruned", 2)
        with contextlib.suppress(Crashed), _lease(self.bench) as lease:
            plan = plan_prune(self.bench.repository, Retention(last=last), abandoned=abandoned)
            assert sorted(plan.drops) == sorted(each.number for each in doomed)
            apply_prune(self.bench.repository, plan, lease, reach=reach)
        dropped = {each.number for each in doomed[: reach.reached.count("manifest dropped")]}
        if reach.died:
            found = Checkpoints(self.bench.repository).all()
            names = {each.name for each in found if each.status is Status.RESTORABLE}
            dropped = {each.number for each in doomed if each.name not in names}
        self.kept = [each for each in self.kept if each.number not in dropped]
        self.others = [each for each in self.others if each.number not in dropped]

    def _decided(self, crash: Crash, act: Callable[[Reach], Any]) -> bool:
        """Act, and perhaps die on the way; return whether a start finishes it."""
        reach = CrashAt(*crash) if crash else CrashAt("rewound", 2)
        with contextlib.suppress(Crashed):
            act(reach)
        assert reach.died == bool(crash), f"{crash} was not reached"
        return crash is None or crash[0] not in UNDECIDED

    def _new(self, rows: int) -> list[int]:
        self.next += rows
        return list(range(self.next - rows + 1, self.next + 1))

    # --- the comparison ---

    def check(self) -> None:
        bench = self.bench
        assert self.seen() == self.expected()
        assert unfinished_rewind(bench.repository, bench.lineage) is None
        assert bench.lineage.current >= 1 + self.rewinds
        found = [each.name for each in on_lineage(Checkpoints(bench.repository), bench.lineage)]
        assert found == [each.name for each in reversed(self.kept)]
        for each in self.kept:
            plan = bench.plan(each.name)
            assert plan.problems == (), each.name
            assert plan.no_undo is None, each.name
            assert plan.streams[0].base_epoch == len(each.epochs)
            assert plan.streams[0].rows == len(flat(self.epochs)) - len(flat(each.epochs))
        results = verify_all(bench.repository) if self.kept or self.others else []
        assert {each.checkpoint for each in results} == {each.name for each in (*self.kept, *self.others)}
        for result in results:
            assert result.ok, result.summary()
        for each in self.others[-1:]:
            with pytest.raises(RewindRefused, match="abandoned branch"):
                bench.plan(each.name)

    def seen(self) -> Any:
        """Return what readers see in each sink."""
        return self.bench.visible()

    def expected(self) -> Any:
        """Return what they must see."""
        return [flat(self.epochs)] * len(self.bench.outputs)


def flat(epochs: Epochs) -> list[int]:
    return [row for epoch in epochs for row in epoch]


def _lease(bench: RewindBench) -> Lease:
    return Lease.take(bench.repository, locker=lambda: None, shared=True)


# --- real sinks ------------------------------------------------------------------------------------------------------


class WalkBench(RewindBench):
    """A pipeline into real sinks: a folder of JSON files, and some others."""

    def __init__(self, folder: Path, others: Iterable[str]) -> None:
        super().__init__(folder, sinks=0)
        self.place = folder
        self.others = tuple(others)

    def made_sinks(self) -> list[Sink]:
        makers: dict[str, Callable[[], Sink]] = {
            "table": lambda: HandSqliteSink(self.place / "a.db", "rows", epoch_column="epoch", name="table"),
            "upserts": lambda: HandSqliteSink(self.place / "b.db", "rows", key="n", undo=True, name="upserts"),
            "log": lambda: HandLogSink(self.place / "log", entity="text", name="log"),
        }
        return [HandJsonSink(self.place / "out", "files"), *(makers[name]() for name in self.others)]

    def seen(self) -> dict[str, Any]:
        """What readers see, by sink. Rows of the files and the table with their epochs."""
        readers: dict[str, Callable[[], Any]] = {
            "table": lambda: sorted(query(self.place / "a.db", "SELECT n, epoch FROM rows")),
            "upserts": lambda: dict(query(self.place / "b.db", "SELECT n, text FROM rows")),
            "log": lambda: sorted(event.payload["n"] for event in EventLog.open(self.place / "log").read()),
        }
        return {"files": self._in_files(), **{name: readers[name]() for name in self.others}}

    def _in_files(self) -> list[int]:
        lines = [line for each in (self.place / "out").rglob("*.json") for line in each.read_text().splitlines()]
        return sorted(json.loads(line)["n"] for line in lines)


class DiskWalked(Walked):
    """The same with real sinks. The folder of files can be compacted."""

    bench: WalkBench

    def compact(self, crash: Crash = None) -> None:
        """Merge what may be merged; a compaction that dies has changed nothing that a reader sees."""
        plan = plan_compact(self.bench.repository, self.bench.place / "out")
        reach = CrashAt(*crash) if crash else CrashAt("compacted", 2)
        with contextlib.suppress(Crashed):
            apply_compact(self.bench.repository, plan, take_over=True, grace_s=0, reach=reach)

    def seen(self) -> dict[str, Any]:
        return self.bench.seen()

    def expected(self) -> dict[str, Any]:
        rows = flat(self.epochs)
        numbered = [(row, number) for number, epoch in enumerate(self.epochs, 1) for row in epoch]
        found = {"table": numbered, "upserts": {key_of(row): f"row {row}" for row in rows}, "log": rows}
        return {"files": rows, **{name: found[name] for name in self.bench.others}}

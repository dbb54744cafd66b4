"""Random walks over run, checkpoint, rewind, undo, prune, compact and crashes, with real sinks on disk.

After each step the visible rows equal those of the lineage, which a simple list models. A failure prints the seed of
its walk; `HOLDFAST_WALK_SEED=<seed>` repeats it. `make soak` makes 3,000 walks.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest

from fakespark import install
from holdfast.rewind import steps
from holdfast.sinks.compaction import apply as compaction
from rewindwalk import Crash, DiskWalked, WalkBench
from support import rounds

OTHERS = ((), ("table",), ("upserts",), ("log",), ("table", "upserts"))
PRUNE_POINTS = ("prune planned", "manifest dropped", "manifest dropped", "object collected", "pruned")
WEIGHTS = {"write": 5, "take": 5, "savepoint": 1, "rewind": 5, "undo": 8, "prune": 3, "compact": 3, "die": 2}
SHARE_OF_CRASHES = 0.3


class RandomWalk:
    """One walk. All choices come from its seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.sinks = self.random.choice(OTHERS)
        self.walked = DiskWalked(WalkBench(folder, self.sinks))
        self.steps: list[str] = []

    def run(self) -> None:
        self.walked.write(1)
        for _ in range(self.random.randint(8, 14)):
            name = self.random.choices(list(WEIGHTS), [self.weight(name) for name in WEIGHTS])[0]
            self.step(name)
            if name == "die":
                self.step(self.random.choice(["rewind", "undo", "prune", "compact", "start"]))

    def weight(self, name: str) -> int:
        """How likely a step is. One that would do nothing, or would be refused, is rare."""
        walked = self.walked
        idle = (name == "undo" and walked.undo_to is None) or (name in ("rewind", "prune") and not walked.kept)
        return 1 if idle else WEIGHTS[name]

    def step(self, name: str) -> None:
        """Make one step. After one that dies, a start finishes what was interrupted."""
        self.steps.append(name)
        died = getattr(self, name)()
        if name == "die":
            return
        if died or self.steps[-2:-1] == ["die"]:
            self.walked.start()
        self.walked.check()

    def start(self) -> None:
        self.walked.start()

    def write(self) -> None:
        self.walked.write(*(self.random.randint(1, 2) for _ in range(self.random.randint(1, 4))))

    def take(self) -> None:
        self.walked.take()

    def savepoint(self) -> None:
        self.walked.take(savepoint=True)

    def rewind(self) -> Crash:
        crash = self.crash([*steps.POINTS], several="sink taken back")
        self.walked.rewind(self.random.randrange(6), crash)
        return crash

    def undo(self) -> Crash:
        crash = self.crash([*steps.POINTS], several="sink taken back")
        self.walked.undo(crash)
        return crash

    def die(self) -> None:
        at = self.random.choice(["durable", "decided", "committed"])
        self.walked.die(at, self.random.randint(1, 1 + len(self.sinks)) if at == "committed" else 1)

    def prune(self) -> Crash:
        crash = self.crash(PRUNE_POINTS)
        self.walked.prune(self.random.randint(1, 2), abandoned=self.random.random() < 0.5, crash=crash)
        return crash

    def compact(self) -> Crash:
        crash = self.crash([*compaction.POINTS])
        self.walked.compact(crash)
        return crash

    def crash(self, points: list[str] | tuple[str, ...], several: str = "manifest dropped") -> Crash:
        """Choose where to die, or not to. A point that is reached for each sink is reached several times."""
        if self.random.random() >= SHARE_OF_CRASHES:
            return None
        point = self.random.choice(points)
        chosen = self.random.randint(1, 1 + len(self.sinks)) if point == several else 1
        self.steps[-1] += f" dies at {point!r}, {chosen}"
        return point, chosen


def walk(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = RandomWalk(seed, Path(folder))
        try:
            made.run()
        except BaseException as error:
            error.add_note(f"HOLDFAST_WALK_SEED={seed} repeats this walk: sinks {made.sinks}, {'; '.join(made.steps)}")
            raise


def seeds(part: int, parts: int) -> list[int]:
    """The seeds of one part of the walks, or the one that the environment names."""
    if "HOLDFAST_WALK_SEED" in os.environ:
        return [int(os.environ["HOLDFAST_WALK_SEED"])] if part == 0 else []
    return list(range(part, rounds(24, 3000), parts))


@pytest.mark.parametrize("part", range(4))
def test_random_walks(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    for seed in seeds(part, 4):
        walk(seed)

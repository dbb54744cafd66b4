"""Going back: the time of a plan, and of a rewind compared with the file operations that it consists of.

A pipeline of one stream with a FileSink. Its epochs are decided by the real code, with a fake query and without a JVM;
its checkpoints are generated. Files are small, because a rewind copies and moves none of their bytes.

- Plan: the base is the newest checkpoint, of 3,000 files, and 20 epochs are abandoned. Both sides have the same files.
- Epochs: each round is a rewind and its undo; only the rewind is measured. It includes a second plan, with the rows of
  every abandoned epoch, and about 40 fsyncs that do not depend on the number of epochs. The other side renames as many
  folders, then syncs both parents. It neither counts rows nor records anything. The goal leaves room for reading the
  record of each epoch, but not for copying rows, which would cost far more.
- Files: the same, with one abandoned epoch. The other side links as many files into as many new folders, then syncs the
  file system once, as the restore of a checkpoint does. It makes no plan, for which Holdfast looks at every file, and
  has no fixed cost.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.compare import Result, calls_in_turn, in_turn, timed
from bench.scratch import scratch
from holdfast.formats import Manifest
from holdfast.repository import Checkpoints, FileList, HeldFile
from holdfast.repository.checkpoint_keys import place_of
from holdfast.repository.files import sync_all, sync_folder
from holdfast.rewind import apply_rewind, plan_rewind, plan_undo

CHECKPOINTS, FEW = 1_000, 10
FILES, FOLDERS = 3_000, 200
PLANNED_EPOCHS = 20
EPOCHS, QUICK_EPOCHS = 1_000, 200
ROUNDS, QUICK_ROUNDS = 11, 5
LIMIT_S = 1.0
FLAT, EPOCHS_GOAL, FILES_GOAL = 1.5, 10.0, 3.0


class Rewound:
    """A pipeline that has a base, and epochs after it."""

    def __init__(self, root: Path) -> None:
        from rewindbench import DiskBench, HandFileSink  # noqa: PLC0415 - the tests make the pipeline

        self.root = root
        root.mkdir()
        self.pipeline: Any = DiskBench(root)
        self.pipeline.sinks = lambda: [HandFileSink(root / "out", name="files")]
        self.pipeline.add([0])

    def take(self, checkpoints: int = 1, files: int = 0) -> None:
        """Take a checkpoint with more files than the fake query has written, then copies of it with other ids."""
        manifest: Manifest = self.pipeline.take()
        repository = self.pipeline.repository
        place, (stream, cut) = place_of(1, 1), next(iter(manifest.streams.items()))
        listed = Checkpoints(repository).files(place, cut, 1).files
        more = [self._object(f"state/0/{n % FOLDERS}/{n}.delta", str(n).encode()) for n in range(files)]
        found = FileList(sorted([*listed, *more], key=lambda each: each.path))
        digest = self._object("", found.to_bytes()).sha256
        named = replace(cut, files=digest, file_count=len(found.files), file_bytes=found.bytes)
        for number in range(1, checkpoints + 1):
            copy = replace(manifest, checkpoint_id=number, epoch=number, streams={stream: named})
            self._write(place_of(1, number).manifest, copy.to_bytes())

    def _object(self, path: str, data: bytes) -> HeldFile:
        held = HeldFile(path, len(data), hashlib.sha256(data).hexdigest())
        self._write(place_of(1, 1).object(held.sha256), data)
        return held

    def _write(self, key: str, data: bytes) -> None:
        """Write without fsync: this is not measured."""
        path = self.pipeline.repository.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def go_on(self, epochs: int) -> None:
        """Run more epochs."""
        self.pipeline.add(*([n] for n in range(epochs)))

    def plan(self) -> None:
        """Plan a rewind to the newest checkpoint."""
        assert plan_rewind(self.pipeline, "latest").problems == ()

    def rewind(self) -> float:
        """Go back to the newest checkpoint, and undo it; return the time of the rewind."""
        plan = plan_rewind(self.pipeline, "latest")
        took = timed(lambda: apply_rewind(self.pipeline, plan, accept_input=True))
        apply_rewind(self.pipeline, plan_undo(self.pipeline))
        return took


def planning(root: Path, checkpoints: int) -> list[Result]:
    many, few = Rewound(root / "many"), Rewound(root / "few")
    for each, count in ((many, checkpoints), (few, FEW)):
        each.take(count, FILES)
        each.go_on(PLANNED_EPOCHS)
    times = calls_in_turn(ROUNDS, many.plan, few.plan)
    name = f"plan a rewind, {checkpoints:,} checkpoints of {FILES:,} files"
    return [
        Result("back", name, f"the same with {FEW} checkpoints", *times, goal=FLAT),
        Result("back", name, "one second", times[0], [LIMIT_S], goal=1.0),
    ]


def epochs_abandoned(root: Path, epochs: int, rounds: int) -> Result:
    ours = Rewound(root / "epochs")
    ours.take()
    ours.go_on(epochs)
    shutil.copytree(ours.root / "out", root / "bare")
    bare, aside = root / "bare", root / "aside"
    aside.mkdir()
    names = sorted(path.name for path in bare.glob("hf_epoch=*"))[1:]
    assert len(names) == epochs

    def move(source: Path, target: Path) -> None:
        for name in reversed(names):
            (source / name).rename(target / name)
        sync_folder(target)
        sync_folder(source)

    def renames() -> float:
        took = timed(lambda: move(bare, aside))
        move(aside, bare)
        return took

    found = in_turn(rounds, {"ours": ours.rewind, "bare": renames})
    name = f"rewind, {epochs:,} epochs abandoned"
    goal = EPOCHS_GOAL if epochs == EPOCHS else None  # with few epochs, the fixed cost is most of it
    return Result("back", name, "the bare renames", found["ours"], found["bare"], goal=goal)


def files_linked(root: Path, rounds: int) -> Result:
    ours = Rewound(root / "files")
    ours.take(files=FILES)
    ours.go_on(1)
    source = root / "objects"
    source.mkdir()
    for number in range(FILES):
        (source / str(number)).write_text(str(number))
    targets = (root / f"linked-{number}" for number in itertools.count())

    def links() -> None:
        target = next(targets)
        for number in range(FOLDERS):
            (target / str(number)).mkdir(parents=True)
        for number in range(FILES):
            os.link(source / str(number), target / str(number % FOLDERS) / str(number))
        sync_all([target], at_once=True)

    found = in_turn(rounds, {"ours": ours.rewind, "bare": lambda: timed(links)})
    name = f"rewind to a checkpoint of {FILES:,} files"
    return Result("back", name, "the bare links", found["ours"], found["bare"], goal=FILES_GOAL)


@contextlib.contextmanager
def fake_query() -> Iterator[None]:
    """Run pipelines without a JVM."""
    sys.path.insert(0, "tests")
    from fakespark import install  # noqa: PLC0415 - of the tests

    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        yield


def run(quick: bool) -> list[Result]:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    parts: list[Callable[[Path], list[Result]]] = [
        lambda root: planning(root, 100 if quick else CHECKPOINTS),
        lambda root: [epochs_abandoned(root, QUICK_EPOCHS if quick else EPOCHS, rounds)],
        lambda root: [files_linked(root, rounds)],
    ]
    with scratch(__name__) as root, fake_query():
        return [result for part in parts for result in part(root)]

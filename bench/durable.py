"""The cost of durable writes, compared with a bare publish: temporary file, fsync, rename, fsync of the folder."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from bench.compare import Result, calls_in_turn
from bench.scratch import scratch
from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.repository import Decisions, FileBlocks, LocalRepository
from holdfast.stages import CheckpointedStage, MsgpackCodec

ROUNDS, QUICK_ROUNDS = 300, 100


def publish(folder: Path, name: str, data: bytes) -> None:
    """Publish a new file in the fastest durable way: the floor."""
    temp = folder / f".{name}"
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(descriptor, data)
    os.fsync(descriptor)
    os.close(descriptor)
    temp.rename(folder / name)
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def decision(epoch: int) -> Decision:
    facts = {"rows": 1000, "offsets": {"start": '{"logOffset":41}', "end": '{"logOffset":42}'}, "sinks": {"out": {}}}
    attempt = Attempt(stream="orders", timeline=1, epoch=epoch, attempt=1)
    return Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=facts)


def run(quick: bool) -> list[Result]:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    with scratch(__name__) as root:
        (root / "bare").mkdir()
        decisions = Decisions(LocalRepository(root / "repository"))
        epochs, bare = itertools.count(1), itertools.count()
        data = decision(1).sealed()
        decided = calls_in_turn(
            rounds,
            lambda: decisions.close(decision(next(epochs))),
            lambda: publish(root / "bare", str(next(bare)), data),
        )
        with FileBlocks.create(root / "blocks", 64) as blocks, FileBlocks.create(root / "floor", 64) as floor:
            stage = CheckpointedStage(b"x" * 1000, blocks, MsgpackCodec(bytes))

            def bare_write() -> None:
                floor.write_blocks(0, bytes(1536))
                floor.flush()

            staged = calls_in_turn(rounds, stage.checkpoint, bare_write)
    return [
        Result("decision", "decision of an epoch", "bare durable publish", *decided, goal=2.0),
        Result("path", "stage checkpoint, 1 kB", "write and sync of the same blocks", *staged, goal=2.0),
    ]

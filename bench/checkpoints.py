"""The cost of reading checkpoints: verification against plain SHA-256 of the same files; lists and plans by time."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

from bench.compare import Result, calls_in_turn, timed
from bench.scratch import scratch
from holdfast import Checkpoints, Manifest, Retention
from holdfast import verify as verify_checkpoint
from holdfast.formats import StreamCut
from holdfast.pruning import plan_prune
from holdfast.repository import FileList, HeldFile, Identity, LocalRepository
from holdfast.repository.checkpoint_keys import AttemptRecord, place_of
from holdfast.restore import plan_restore

CHECKPOINTS = 1_000
FILES = 3_000
LARGE, LARGE_SIZE, SMALL_SIZE = 100, 1 << 20, 4_096
VERIFY_GOAL = 1 / 0.7
LIMIT_S, PRUNE_LIMIT_S = 0.1, 0.2


def plain_sha256(paths: list[Path]) -> None:
    """Read and hash the same files, one after another: the floor."""
    for path in paths:
        hashlib.sha256(path.read_bytes()).hexdigest()


class Fixture:
    """A repository that is written without fsync, because only reading is measured."""

    def __init__(self, root: Path, size_of: Callable[[int], int]) -> None:
        self.repository = LocalRepository(root)
        self.identity = Identity.create(self.repository, "bench")
        self.root = root
        chance = random.Random(1)  # noqa: S311 - bytes that do not compress, the same in every run
        self.files = [self._object(f"state/0/{n % 200}/{n}.delta", chance.randbytes(size_of(n))) for n in range(FILES)]
        self.paths = [root / place_of(1, 1).object(each.sha256) for each in self.files]

    def _object(self, path: str, data: bytes) -> HeldFile:
        held = HeldFile(path, len(data), hashlib.sha256(data).hexdigest())
        self._write(place_of(1, 1).object(held.sha256), data)
        return held

    def _write(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def take(self, number: int, files: list[HeldFile]) -> None:
        """Write a checkpoint of one stateful and one stateless stream."""
        listed = FileList(files)
        digest = self._object("", listed.to_bytes()).sha256
        cut = StreamCut(
            timeline=1,
            epoch=number,
            offsets=('{"topic":{"0":123456,"1":234567,"2":345678}}',),
            rows=number * 1000,
            confs={f"spark.sql.streaming.stateStore.setting.{n}": "as many and as long as Spark's" for n in range(17)},
            sinks={"out": {"epoch": number}},
            files=digest,
            file_count=len(files),
            file_bytes=listed.bytes,
        )
        manifest = Manifest(
            checkpoint_id=number,
            epoch=number,
            timestamp_ms=number * 30_000,
            pipeline="bench",
            uid=self.identity.uid,
            timeline=1,
            streams={"orders": cut, "totals": StreamCut(timeline=1, epoch=number)},
        )
        place = place_of(1, number)
        record = AttemptRecord(checkpoint_id=number, lease=1, begun_at_ms=1)
        self._write(f"{place.folder}/attempt.json", record.sealed())
        self._write(place.manifest, manifest.to_bytes())


def verifying(root: Path, shape: str, size_of: Callable[[int], int]) -> Result:
    fixture = Fixture(root, size_of)
    fixture.take(1, fixture.files)
    assert verify_checkpoint(fixture.repository).findings == ()
    times = calls_in_turn(11, lambda: verify_checkpoint(fixture.repository), lambda: plain_sha256(fixture.paths))
    return Result("path", f"verify {FILES} files, {shape}", "plain sha256 of the same", *times, goal=VERIFY_GOAL)


def listing(root: Path) -> list[Result]:
    fixture = Fixture(root, lambda n: 1 + n % 3)
    for number in range(1, CHECKPOINTS + 1):
        # Only the last ten, which are read below, have file lists of their own.
        own = fixture.files[:-1] if number <= CHECKPOINTS - 10 else fixture.files[number % 10 :]
        fixture.take(number, own)
    checkpoints = Checkpoints(fixture.repository)

    def look() -> None:
        assert len(checkpoints.all()) == CHECKPOINTS
        assert plan_restore(fixture.repository).checkpoint == CHECKPOINTS

    listed = [timed(look) for _ in range(5)]
    for number in range(1, CHECKPOINTS - 9):
        checkpoints.repository.clear(place_of(1, number).folder)
    pruned = [timed(lambda: plan_prune(fixture.repository, Retention(last=20))) for _ in range(5)]
    return [
        Result("path", f"list {CHECKPOINTS} checkpoints, plan", "a tenth of a second", listed, [LIMIT_S], goal=1.0),
        Result("path", f"plan a prune, 10 lists of {FILES}", "a fifth of a second", pruned, [PRUNE_LIMIT_S], goal=1.0),
    ]


def run(quick: bool) -> list[Result]:
    with scratch(__name__) as root:
        found = [] if quick else listing(root / "list")
        return [
            verifying(root / "mixed", "some large", lambda n: LARGE_SIZE if n < LARGE else SMALL_SIZE),
            verifying(root / "small", "all small", lambda _: SMALL_SIZE),
            *found,
        ]

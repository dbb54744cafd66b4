"""What the processes of the prune race do: a holder that takes checkpoints, one that asks for prunes, a reader."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # started by spawn, without pytest's own path

from fabricated import Fabricated
from holdfast import Retention
from holdfast.control import answer_requests, request_prune
from holdfast.errors import Absent, CheckpointDamaged, HoldfastError, Locked, RequestUnanswered
from holdfast.pruning import Pruned
from holdfast.repository import Checkpoints, Lease, LocalRepository

KEPT = 3


def hold(root: str, notes: str, seed: int) -> None:
    """Take one checkpoint after another, half of their files shared with older ones, and answer in between."""
    chance = random.Random(seed)
    made = Fabricated(LocalRepository(root))
    with lease_of(made) as lease:
        made.checkpoints.close_open(1, lease.number)
        while True:
            number = made.checkpoints.claim(1, lease.number)
            contents = [f"{chance.randrange(30)}" for _ in range(6)] + [f"only in {number}"]
            made.finish(number, {"orders": contents}, lease=lease.number)
            note(notes, f"took {number}")
            answer_requests(made.repository, lease)


def lease_of(made: Fabricated) -> Lease:
    while True:
        try:
            return Lease.take(made.repository)
        except Locked:
            time.sleep(0.01)  # one that asks for a prune has it for a moment


def ask(root: str, notes: str) -> None:
    """Prune again and again."""
    repository = LocalRepository(root)
    while True:
        try:
            done = request_prune(repository, Retention(last=KEPT), timeout_s=20, poll_s=0.005)
        except RequestUnanswered:
            continue  # the holder was killed and is not there again yet
        assert isinstance(done, Pruned)
        note(notes, f"pruned {len(done.dropped)}")


def read(root: str, notes: str) -> None:
    """Read everything that every manifest names; what is gone while its manifest is there is a finding."""
    repository = LocalRepository(root)
    while True:
        try:
            count = read_all(repository)
        except Exception as error:
            note(notes, f"broken {type(error).__name__}: {error}")
            raise
        note(notes, f"read {count}")


def note(path: str, text: str) -> None:
    """Write a line that outlasts the process: a queue's lock would be lost with a process that is killed."""
    with Path(path).open("a") as notes:
        notes.write(f"{text}\n")


def read_all(repository: LocalRepository) -> int:
    """Return how many checkpoints were read in full; one that is dropped meanwhile does not count."""
    checkpoints = Checkpoints(repository)
    count = 0
    for found in checkpoints.restorable():
        try:
            require_whole(checkpoints, found.checkpoint)
            count += 1
        except (Absent, CheckpointDamaged, AssertionError):
            if repository.sizes([checkpoints_key(found.checkpoint)])[checkpoints_key(found.checkpoint)] is not None:
                raise
    return count


def checkpoints_key(number: int) -> str:
    return f"timelines/1/checkpoints/{number}/manifest.json"


def require_whole(checkpoints: Checkpoints, number: int) -> None:
    place, _ = checkpoints.find(number)
    for cut in checkpoints.read(number).streams.values():
        listed = checkpoints.files(place, cut, number)
        for file in listed.files:
            try:
                assert checkpoints.repository.digest(place.object(file.sha256)) == file.sha256
            except HoldfastError as error:
                raise AssertionError(f"checkpoint {number}: {error}") from error

"""`stop`, `checkpoint`, `savepoint` and `cancel` as commands, against a driver that is made up: no Spark runs here."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fabricated import Fabricated
from holdfast.cli.verbs import cancel, checkpoint, savepoint, stop
from holdfast.control.protocol import RequestState
from holdfast.control.records import ControlRequest, read_state
from holdfast.control.results import CheckpointCancelled, PipelineStopped
from holdfast.errors import CheckpointFailed, HoldfastError
from holdfast.repository import LocalRepository
from madeup import TAKEN, MadeUpDriver
from support import eventually

SHAPES: dict[str, Any] = checkpoint.SHAPES | savepoint.SHAPES | stop.SHAPES | cancel.SHAPES


@pytest.fixture
def repository(tmp_path: Path) -> LocalRepository:
    found = LocalRepository(tmp_path / "orders")
    Fabricated(found)
    return found


@pytest.fixture
def driven(repository: LocalRepository) -> Iterator[Callable[..., MadeUpDriver]]:
    made: list[MadeUpDriver] = []

    def start(result: Any, **options: Any) -> MadeUpDriver:
        def carry(request: ControlRequest) -> dict[str, Any]:
            if isinstance(result, HoldfastError):
                raise result
            return dict(result.to_dict())

        made.append(MadeUpDriver(repository, carry, **options))
        return made[-1]

    yield start
    for each in made:
        each.end()


def typed(repository: LocalRepository, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "holdfast", *words, "-r", repository.where]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ran(repository: LocalRepository, *words: str) -> tuple[int, str, str]:
    process = typed(repository, *words)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.parametrize(
    "case",
    [
        ("checkpoint", TAKEN, 0, "checkpoint 7 was taken: orders at epoch 3; 1,200 rows"),
        ("savepoint x", TAKEN, 0, "was taken"),
        ("cancel", CheckpointCancelled(checkpoint=7, cancelled=True), 0, "checkpoint 7 was aborted"),
        ("cancel", CheckpointCancelled(checkpoint=7, cancelled=False), 1, "before it could be aborted"),
        ("cancel", CheckpointCancelled(checkpoint=None, cancelled=False), 0, "no checkpoint is being taken"),
        ("stop", PipelineStopped(epochs={"orders": 3}, last_checkpoint=7), 0, "orders has stopped: orders at epoch 3"),
        ("stop --drain", PipelineStopped(taken=TAKEN), 0, "checkpoint 7 was taken"),
        ("stop", PipelineStopped(error="StreamFailed: no"), 1, "the run failed: StreamFailed: no"),
        ("checkpoint", CheckpointFailed(checkpoint=8, why="it was cancelled"), 2, ""),
    ],
)
def test_each_command_prints_its_result_for_people_and_for_machines(
    repository: LocalRepository, driven: Callable[..., MadeUpDriver], case: tuple[str, Any, int, str]
) -> None:
    words, result, code, said = case
    driver = driven(result)
    exited, out, err = ran(repository, *words.split(), "--why", "because")
    assert (exited, said in out) == (code, True), (out, err)
    assert "asked process" in err
    assert driver.seen[0].reason == "because"
    if code == 2:
        assert "CheckpointFailed" in err and "next:" in err
    driver.end()
    driven(result)
    exited, out, err = ran(repository, *words.split(), "--json")
    document = json.loads(out)
    assert (exited, document["exit"], err) == (code, code, "")
    if code != 2:
        shape = SHAPES[document["command"]]
        kept = msgspec.json.decode(msgspec.json.encode(document["result"]), type=shape, strict=True)
        assert msgspec.to_builtins(kept) == document["result"]


def test_a_pipeline_that_does_not_run_is_an_error_except_for_a_plain_stop(repository: LocalRepository) -> None:
    for words in ("checkpoint", "savepoint x", "cancel", "stop --drain", "stop --savepoint x"):
        code, _, err = ran(repository, *words.split())
        assert code == 2 and "is not running" in err and "NotRunning" in err, (words, err)
    assert ran(repository, "stop")[:2] == (0, "pipeline orders is not running\n")
    assert repository.list("requests") == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_withdraws_the_request(
    repository: LocalRepository, driven: Callable[..., MadeUpDriver], number: int, code: int
) -> None:
    driver = driven(TAKEN, deaf=True)
    process = typed(repository, "savepoint", "x")
    eventually(lambda: driver.seen)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code and "nothing was done" in err, err
    assert read_state(repository, driver.lease.number, driver.seen[0].id)[0] is RequestState.WITHDRAWN
    assert not driver.channel.take(driver.seen[0])


def test_a_timeout_withdraws_the_request_and_names_the_process(
    repository: LocalRepository, driven: Callable[..., MadeUpDriver]
) -> None:
    driver = driven(TAKEN, deaf=True)
    code, _, err = ran(repository, "stop", "--timeout", "500ms")
    assert code == 2 and f"process {driver.lease.record.pid}" in err and "--timeout 30m" in err, err
    assert read_state(repository, driver.lease.number, driver.seen[0].id)[0] is RequestState.WITHDRAWN


@pytest.mark.parametrize(
    "words", ["savepoint ../x", "savepoint x --request-id 7", "checkpoint --timeout never", "stop --drain-timeout 0"]
)
def test_wrong_arguments_are_refused_before_anything_is_asked(
    repository: LocalRepository, driven: Callable[..., MadeUpDriver], words: str
) -> None:
    driver = driven(TAKEN)
    code, _, err = ran(repository, *words.split())
    assert code == 2 and "next:" in err and driver.seen == [], err


def test_ls_names_the_asker_of_a_stop_under_way(
    repository: LocalRepository, driven: Callable[..., MadeUpDriver]
) -> None:
    driver = driven(TAKEN, deaf=True)
    asking = typed(repository, "stop", "--why", "deploy")
    eventually(lambda: driver.seen)
    assert "stopping" not in ran(repository, "ls")[1]
    assert driver.channel.take(driver.seen[0])
    code, out, _ = ran(repository, "ls")
    words = " ".join(out.split())
    assert code == 0 and "stopping on request of" in words and ": deploy; running for" in words
    driver.end()
    asking.communicate(timeout=60)
    assert asking.returncode == 0  # its driver has ended


def test_a_pipeline_that_was_stopped_by_its_asker_is_not_running_any_longer(
    repository: LocalRepository, driven: Callable[..., MadeUpDriver]
) -> None:
    driven(PipelineStopped(epochs={}))
    assert ran(repository, "stop")[0] == 0
    assert "not running" in ran(repository, "ls")[1]


def test_a_stop_also_names_a_savepoint_that_is_newer_than_the_newest_checkpoint(
    repository: LocalRepository, driven: Callable[..., MadeUpDriver]
) -> None:
    made = Fabricated(repository)
    made.take("a")
    made.finish(made.checkpoints.claim(1, 1), {"orders": ["b"]}, savepoint="before-upgrade")
    driven(PipelineStopped(epochs={"orders": 2}, last_checkpoint=1))
    said = "the newest checkpoint is 1, the newest savepoint is before-upgrade (checkpoint 2)"
    assert said in ran(repository, "stop")[1]
    made.finish(made.checkpoints.claim(1, 2), {"orders": ["c"]}, lease=2)
    driven(PipelineStopped(epochs={"orders": 3}, last_checkpoint=3))
    assert "savepoint" not in ran(repository, "stop")[1]

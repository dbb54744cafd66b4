"""`holdfast cancel`: aborts the checkpoint that a running pipeline is taking."""

from __future__ import annotations

import msgspec
from rich.console import Console

from holdfast.cli.answers import Answer
from holdfast.cli.asking import Timeout, Why, waiting
from holdfast.cli.options import Json, Repo
from holdfast.cli.target import located_running
from holdfast.control import CheckpointCancelled, request_cancel


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a cancellation."""

    checkpoint: int | None  # id of the checkpoint that was being taken; null if there was none
    cancelled: bool  # false: there was none, or it was completed first


SHAPES = {"cancel": Cancel}


def cancel(
    repo: Repo = None,
    why: Why = "",
    timeout: Timeout = "1m",
    as_json: Json = False,
) -> Answer:
    """Abort the checkpoint or savepoint that a running pipeline is taking.

    No row is affected: the streams continue, and the next checkpoint is taken on schedule. A process that waits for the
    aborted checkpoint gets an error.

    Exits with 0 if a checkpoint was aborted or none was being taken; with 1 if it was completed before it could be
    aborted; with 2 if the pipeline is not running or the timeout expired.

    [bold]Examples[/]

        holdfast cancel -r ./checkpoints/orders
        holdfast cancel --why "the disk is slow today"
    """
    repository = located_running(repo)
    with waiting(why, timeout, None, as_json=as_json) as options:
        done = request_cancel(repository, **options)
    return cancelled_answer(done, repository.where)


def cancelled_answer(done: CheckpointCancelled, where: str) -> Answer:
    """Return the result of a cancellation."""

    def print_it(console: Console) -> None:
        if done.checkpoint is None:
            console.print("no checkpoint is being taken")
        elif done.cancelled:
            console.print(f"checkpoint {done.checkpoint} was aborted; the next one is taken on schedule")
        else:
            console.print(f"checkpoint {done.checkpoint} had ended before it could be aborted")

    found = done.checkpoint is not None and not done.cancelled
    return Answer(msgspec.convert(done.to_dict(), Cancel), print_it, found=found, repository=where)

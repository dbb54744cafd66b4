"""`holdfast checkpoint`: asks a running pipeline to take a checkpoint now."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
from rich.console import Console

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.asking import RequestId, Timeout, Why, waiting
from holdfast.cli.options import Json, Repo
from holdfast.cli.target import located_running, shown
from holdfast.control import CheckpointTaken, request_checkpoint


class TakenCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint or savepoint that was taken on request."""

    request: str | None  # id of the request; the manifest contains it
    checkpoint: int  # its id
    savepoint: str | None  # its name, for a savepoint
    timeline: int  # the timeline that it was taken in
    timestamp_ms: int  # when it was started
    epochs: dict[str, int]  # by stream: the last epoch that it includes
    rows: int  # rows written to each sink up to this point, over all streams


SHAPES = {"checkpoint": TakenCheckpoint}


def checkpoint(
    repo: Repo = None,
    why: Why = "",
    timeout: Timeout = "5m",
    request_id: RequestId = None,
    as_json: Json = False,
) -> Answer:
    """Take a checkpoint of a running pipeline now.

    The command asks the process that runs the pipeline and waits until the checkpoint is restorable. The streams are
    not stopped. If another checkpoint is being taken, the new one begins after it. Any user who can write to the
    pipeline's folder can use this command.

    Exits with 0 if the checkpoint was taken; with 2 if the pipeline is not running, the checkpoint failed or the
    timeout expired; with 130 or 143 after Ctrl-C or SIGTERM. If the command ends before the pipeline has begun, the
    request is withdrawn.

    [bold]Examples[/]

        holdfast checkpoint -r ./checkpoints/orders
        holdfast checkpoint --why "before the schema change" --timeout 1m
    """
    repository = located_running(repo)
    with waiting(why, timeout, request_id, as_json=as_json) as options:
        taken = request_checkpoint(repository, **options)
    return taken_answer(taken, repository.where)


def taken_answer(taken: CheckpointTaken, where: str) -> Answer:
    """Return the result of `checkpoint` and `savepoint`."""

    def print_it(console: Console) -> None:
        print_taken(console, taken)
        place = shlex.quote(shown(Path(where)))
        name = shlex.quote(taken.savepoint) if taken.savepoint else taken.checkpoint
        console.print(f"next: holdfast verify {name} -r {place}", soft_wrap=True, markup=False)

    return Answer(msgspec.convert(taken.to_dict(), TakenCheckpoint), print_it, repository=where)


def print_taken(console: Console, taken: CheckpointTaken) -> None:
    """Print one line about a checkpoint."""
    named = f"savepoint {taken.savepoint} (checkpoint {taken.checkpoint})"
    what = named if taken.savepoint else f"checkpoint {taken.checkpoint}"
    epochs = ", ".join(f"{stream} at epoch {epoch}" for stream, epoch in taken.epochs.items())
    text = f"{what} was taken: {epochs}; {formatting.counted(taken.rows, 'row')}"
    console.print(formatting.harmless(text), soft_wrap=True, markup=False)

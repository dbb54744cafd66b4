"""`holdfast stop`: stops a running pipeline gracefully, and waits until it has ended."""

from __future__ import annotations

import contextlib
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.asking import RequestId, Timeout, Why, waiting
from holdfast.cli.options import Json, Repo
from holdfast.cli.target import located_running
from holdfast.cli.verbs.checkpoint import TakenCheckpoint, print_taken
from holdfast.control import PipelineStopped, request_stop
from holdfast.errors import HoldfastError, NotRunning
from holdfast.policy import seconds_of
from holdfast.repository import Checkpoints, Identity, Repository, Status, Summary

_DRAIN = "60s"


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a stop."""

    pipeline: str  # its name
    was_running: bool  # false: no process ran it, and nothing was done
    epochs: dict[str, int]  # by stream: the last epoch that every sink has
    last_checkpoint: int | None = None  # id of the newest restorable checkpoint
    taken: TakenCheckpoint | None = None  # the checkpoint of --drain or --savepoint
    error: str | None = None  # why the run failed while it was being stopped
    answered: bool = True  # false: the process ended without an answer, as if it were killed


SHAPES = {"stop": Stop}


def stop(
    repo: Repo = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Process the available input first, and take a last checkpoint.")
    ] = False,
    savepoint: Annotated[
        str | None,
        typer.Option("--savepoint", metavar="NAME", help="Make the last checkpoint a savepoint of this name."),
    ] = None,
    drain_timeout: Annotated[
        str,
        typer.Option(
            "--drain-timeout", metavar="DURATION", help="How long --drain processes input that keeps arriving."
        ),
    ] = _DRAIN,
    why: Why = "",
    timeout: Timeout = "10m",
    request_id: RequestId = None,
    as_json: Json = False,
) -> Answer:
    """Stop a running pipeline gracefully.

    Each stream finishes its current epoch, and a last checkpoint is taken. The command returns when the process has
    released its lease, so that you can start the pipeline again at once. It can be used as the stop command of a
    service and as a preStop hook of Kubernetes. Any user who can write to the pipeline's folder can use it.

    Exits with 0 if the pipeline has stopped or was not running; with 1 if the run failed while it was being stopped;
    with 2 if the drain or the savepoint failed, or the timeout expired. In the last case, the message states whether
    the stop continues. With --drain or --savepoint, a pipeline that is not running is a failure.

    [bold]Examples[/]

        holdfast stop -r ./checkpoints/orders --why "deploy 2.4"
        holdfast stop --drain --timeout 5m
        holdfast stop --savepoint before-upgrade
    """
    repository = located_running(repo)
    pipeline = Identity.load(repository).pipeline
    with waiting(why, timeout, request_id, as_json=as_json) as options:
        try:
            done = request_stop(
                repository,
                drain=drain,
                savepoint=savepoint,
                drain_timeout_s=seconds_of("--drain-timeout", drain_timeout),
                **options,
            )
        except NotRunning:
            if drain or savepoint:
                raise
            return _not_running(pipeline, repository)
    return stopped_answer(done, repository)


def stopped_answer(done: PipelineStopped, repository: Repository) -> Answer:
    """Return the result of a stop."""
    pipeline = Identity.load(repository).pipeline

    def print_it(console: Console) -> None:
        _print_stopped(console, pipeline, done, _newer_savepoint(repository, done.last_checkpoint))

    result = msgspec.convert({**done.to_dict(), "pipeline": pipeline, "was_running": True}, Stop)
    return Answer(result, print_it, found=done.error is not None, repository=repository.where)


def _not_running(pipeline: str, repository: Repository) -> Answer:
    text = f"pipeline {pipeline} is not running"
    result = Stop(pipeline=pipeline, was_running=False, epochs={})
    return Answer(result, lambda console: console.print(text, markup=False), repository=repository.where)


def _newer_savepoint(repository: Repository, checkpoint: int | None) -> Summary | None:
    """Return the newest savepoint, if it is newer than the newest checkpoint."""
    with contextlib.suppress(HoldfastError):  # the pipeline has stopped: that is the result
        found = [each for each in Checkpoints(repository).savepoints() if each.status is Status.RESTORABLE]
        newest = max(found, key=lambda each: each.checkpoint, default=None)
        return newest if newest is not None and newest.checkpoint > (checkpoint or 0) else None
    return None


def _print_stopped(console: Console, pipeline: str, done: PipelineStopped, savepoint: Summary | None) -> None:
    epochs = ", ".join(f"{stream} at epoch {epoch}" for stream, epoch in done.epochs.items())
    text = f"pipeline {pipeline} has stopped{f': {epochs}' if epochs else ''}"
    console.print(formatting.harmless(text), soft_wrap=True, markup=False)
    if done.taken is not None:
        print_taken(console, done.taken)
    else:
        newest = [f"the newest checkpoint is {done.last_checkpoint}"] if done.last_checkpoint is not None else []
        newest += [f"the newest savepoint is {savepoint.name} (checkpoint {savepoint.checkpoint})"] if savepoint else []
        if newest:
            console.print(", ".join(newest), soft_wrap=True, markup=False)
    if not done.answered:
        text = "its process ended before the stop was complete; the next start finishes the epochs in flight"
        console.print(text, soft_wrap=True)
    if done.error is not None:
        console.print(Text(formatting.harmless(f"the run failed: {done.error}"), "bold red"), soft_wrap=True)

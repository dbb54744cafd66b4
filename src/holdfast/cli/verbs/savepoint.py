"""`holdfast savepoint`: asks a running pipeline to take a savepoint now."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.answers import Answer
from holdfast.cli.asking import RequestId, Timeout, Why, waiting
from holdfast.cli.options import Json, Repo
from holdfast.cli.target import located_running
from holdfast.cli.verbs.checkpoint import TakenCheckpoint, taken_answer
from holdfast.control import request_savepoint

SHAPES = {"savepoint": TakenCheckpoint}


def savepoint(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the savepoint: letters, digits, _ . and -.")],
    repo: Repo = None,
    why: Why = "",
    timeout: Timeout = "30m",
    request_id: RequestId = None,
    as_json: Json = False,
) -> Answer:
    """Take a savepoint of a running pipeline now.

    A savepoint is a named checkpoint with its own copy of every file. It is kept until it is deleted. The streams are
    not stopped while it is taken.

    If the command was interrupted and you do not know whether the savepoint was taken, repeat it with the same
    --request-id: it returns the savepoint if that request has produced it. Exit codes are those of holdfast checkpoint.

    [bold]Examples[/]

        holdfast savepoint before-upgrade -r ./checkpoints/orders --why "new release"
        holdfast savepoint nightly --request-id $(uuidgen | tr -d -) --json
    """
    repository = located_running(repo)
    with waiting(why, timeout, request_id, as_json=as_json) as options:
        taken = request_savepoint(repository, name, **options)
    return taken_answer(taken, repository.where)

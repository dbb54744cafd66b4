"""Options that several verbs have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from holdfast._validation import checked_name
from holdfast.cli.target import located
from holdfast.errors import BadValue, HoldfastError
from holdfast.repository import Checkpoints, Repository, Status

_DIGITS = 20  # of 64 bits
REPO_VARIABLE = "HOLDFAST_REPO"


def checkpoint_names(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Offer the checkpoints and savepoints that there are, to whoever presses the tab key."""
    try:
        found = Checkpoints(located(context.params.get("repo"))).all()
    except HoldfastError:
        return
    for each in found:
        if each.status is not Status.ABORTED and str(each.name).startswith(incomplete):
            yield str(each.name), f"{each.status}, timeline {each.timeline}"


Repo = Annotated[
    str | None,
    typer.Option(
        "--repo",
        "-r",
        metavar="PATH",
        envvar=REPO_VARIABLE,
        help="The pipeline's repository, <root>/<pipeline>, or a root that holds one; else here, or ./checkpoints.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, for machines.")]
CheckpointName = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="A checkpoint's id, or a savepoint's name. Else the newest checkpoint.",
        autocompletion=checkpoint_names,
    ),
]
FirstName = Annotated[
    str | None,
    typer.Argument(metavar="A", help="A checkpoint's id, or a savepoint's name.", autocompletion=checkpoint_names),
]
SecondName = Annotated[
    str | None,
    typer.Argument(metavar="B", help="What to compare it with. Else the newest.", autocompletion=checkpoint_names),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def checkpoint_of(repository: Repository, name: str) -> int | str:
    """Return what a user's word means: an id where it is a number, unless only a savepoint has that name."""
    if not (name.isascii() and name.isdecimal()):
        return checked_name("savepoint", name)
    if len(name) > _DIGITS:
        raise BadValue(what="checkpoint", value=name, why="no id has so many digits")
    number = int(name)
    found = Checkpoints(repository).all()
    if any(each.checkpoint == number for each in found):
        return number
    return name if any(each.savepoint == name for each in found) else number

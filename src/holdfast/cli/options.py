"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from typer.models import OptionInfo

from holdfast._validation import checked_name
from holdfast.cli.answers import REPO_VARIABLE
from holdfast.cli.target import looked_at
from holdfast.errors import BadValue, HoldfastError
from holdfast.repository import Checkpoints, Lineage, Repository, Status
from holdfast.repository.checkpoints import LATEST

_DIGITS = 20  # of a 64-bit number


def checkpoint_names(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Return the checkpoints and savepoints that shell completion offers."""
    try:
        found = Checkpoints(looked_at(context.params.get("repo"))).all()
    except HoldfastError:
        return
    for each in found:
        if each.status is not Status.ABORTED and str(each.name).startswith(incomplete):
            yield str(each.name), f"{each.status}, timeline {each.timeline}"


TargetName = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="app.py:pipeline or package.module:pipeline. The name is a Pipeline, or a function without arguments that "
        "returns one. It can be omitted if the program defines only one pipeline.",
        show_default=False,
    ),
]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="-- ARGS", help="Arguments for the program, passed in sys.argv.")
]


def _repo(text: str) -> OptionInfo:
    """Return the option `--repo` with a help text."""
    found: OptionInfo = typer.Option("--repo", "-r", metavar="PATH", envvar=REPO_VARIABLE, help=text)
    return found


Repo = Annotated[
    str | None,
    _repo(
        "The pipeline's repository, <root>/<pipeline>, or a root that contains only one. Most commands also take "
        "s3://bucket/<root>/<pipeline>. Default: the current folder, then ./checkpoints."
    ),
]
Repos = Annotated[
    str | None,
    _repo(
        "The repository of one pipeline, <root>/<pipeline>, or a root: all pipelines in it. Either may be on S3: "
        "s3://bucket/<root>. Default: the current folder, then ./checkpoints."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
Last = Annotated[int | None, typer.Option("--last", "-n", metavar="N", min=1, help="Show only the newest N.")]
CheckpointName = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="A checkpoint id, a savepoint name, or latest, the newest checkpoint, which is the default.",
        autocompletion=checkpoint_names,
    ),
]
FirstName = Annotated[
    str | None,
    typer.Argument(metavar="A", help="A checkpoint id, a savepoint name, or latest.", autocompletion=checkpoint_names),
]
SecondName = Annotated[
    str | None,
    typer.Argument(
        metavar="B", help="The one to compare it with. Default: the newest checkpoint.", autocompletion=checkpoint_names
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over", help="Take the lease of a shared pipeline. Use it only if its driver is no longer running."
    ),
]


def checkpoint_of(repository: Repository, name: str) -> int | str:
    """Return the id or savepoint that a name means. A number is an id, unless only a savepoint has that name."""
    if name == LATEST:
        return Checkpoints(repository).latest(Lineage.load(repository)).checkpoint_id
    if not (name.isascii() and name.isdecimal()):
        return checked_name("savepoint", name)
    if len(name) > _DIGITS:
        raise BadValue(what="checkpoint", value=name, expected=f"an id of at most {_DIGITS} digits")
    number = int(name)
    found = Checkpoints(repository).all()
    if any(each.checkpoint == number for each in found):
        return number
    return name if any(each.savepoint == name for each in found) else number

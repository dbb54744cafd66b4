"""`holdfast fork`: makes another pipeline from a checkpoint."""

from __future__ import annotations

import shlex
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.options import Json, Repo
from holdfast.cli.target import looked_at, shown
from holdfast.repository import Repository


class ForkedPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """A fork that was made."""

    pipeline: str  # its name
    uid: str  # distinguishes pipelines of the same name
    where: str  # its repository
    origin: str  # the pipeline that it was forked from
    base: str  # the checkpoint
    epochs: dict[str, int]  # by stream: the last epoch that it has
    logs: list[str]  # the streams whose event logs were copied


SHAPES = {"fork": ForkedPipeline}


def fork(
    base: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="BASE",
            help="The checkpoint to begin at: its id, the name of a savepoint, latest for the newest one that is "
            "not a savepoint, or before:STREAM:EPOCH for the newest one without that epoch.",
        ),
    ],
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="The name of the new pipeline.")],
    root: Annotated[
        str | None,
        typer.Option("--root", metavar="DIR", help="The root of the new pipeline. Default: that of the original."),
    ] = None,
    repo: Repo = None,
    as_json: Json = False,
) -> Answer:
    """Make another pipeline that begins at a checkpoint of this one.

    The fork has the state and the positions of the checkpoint, and its own name, uid and Spark ids. The original is not
    changed and may be running. Then define a pipeline with the new name and with empty targets of its own, and run it:
    it continues with the first epoch after the checkpoint. Needs neither the program nor Java.

    [bold]Examples[/]

        holdfast fork --from latest --as orders-trial -r ./checkpoints/orders
        holdfast fork --from before-upgrade --as orders-v2 --root /data/trials
    """
    from holdfast.rewind.forking import fork as make  # needs pyarrow

    repository = looked_at(repo)
    made = make(repository, base, name=name, root=root)

    def print_it(console: Console) -> None:
        epochs = ", ".join(f"{stream} after epoch {epoch}" for stream, epoch in made.epochs.items()) or "no stream yet"
        text = f"pipeline {made.pipeline} was forked from {made.base} of {made.origin}: {epochs}"
        console.print(formatting.harmless(text), soft_wrap=True, markup=False)
        next_step = f"next: define a pipeline named {made.pipeline!r} with empty targets of its own, and run it"
        console.print(formatting.harmless(next_step), soft_wrap=True, markup=False)
        if root is None:
            note = f"note: the root now contains several pipelines; name the one you mean: --repo {_place(repository)}"
            console.print(formatting.harmless(note), soft_wrap=True, markup=False)

    return Answer(msgspec.convert(made.to_dict(), ForkedPipeline), print_it, repository=repository.where)


def _place(repository: Repository) -> str:
    return shlex.quote(shown(repository.where))

"""`holdfast eject`: writes a plain Spark checkpoint from which a query without Holdfast continues a stream."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.options import Json, TakeOver
from holdfast.cli.outlets import into_stderr
from holdfast.cli.programs import find_target, named_in_errors, pipeline_of
from holdfast.cli.tables import fields
from holdfast.cli.target import is_url, located, on_disk, shown
from holdfast.plainspark import Ejection
from holdfast.plainspark import eject as write_checkpoint
from holdfast.repository import LocalRepository
from holdfast.repository.opening import local_repository, open_repository


class Ejected(msgspec.Struct, frozen=True, kw_only=True):
    """A plain Spark checkpoint that was written."""

    stream: str  # the stream that it continues
    path: str  # the folder
    epoch: int  # the last epoch that it contains
    batch: int  # the batch that Spark runs next
    offsets: list[str | None]  # by source: where that batch begins, verbatim
    rows: int  # given to each sink up to there
    files: int  # number of files
    bytes: int  # their size
    settings: dict[str, str]  # Spark settings: those that the offsets pin, and the format of the state
    stage: bool  # the stream has stage state, which is not included


SHAPES = {"eject": Ejected}


def eject(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="The pipeline's repository, <root>/<pipeline>, or its program: app.py:pipeline.",
            show_default=False,
        ),
    ],
    stream: Annotated[str, typer.Option("--stream", metavar="NAME", help="The stream to write.")],
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="The new checkpoint folder; it must not exist.")],
    take_over: TakeOver = False,
    as_json: Json = False,
) -> Answer:
    """Write a plain Spark checkpoint that continues a stream without Holdfast.

    The checkpoint is at the last committed epoch. Start the query of the stream with this folder as its
    checkpointLocation, and Spark continues with the next batch. The pipeline must be stopped, and an epoch in doubt
    must be completed first. The state of a stage is not included. Remove the stream from the program: otherwise the
    next run of the pipeline continues it too, and rows are written twice.

    [bold]Examples[/]

        holdfast eject ./checkpoints/orders --stream orders --to ./plain/orders
        holdfast eject app.py:pipeline --stream orders --to ./plain/orders --json
    """
    repository = _repository(target, as_json=as_json)
    with named_in_errors(target) if _is_program(target) else contextlib.nullcontext():
        done = write_checkpoint(repository, stream, to, take_over=take_over)
    result = msgspec.convert(done.to_dict(), Ejected)
    return Answer(result, lambda console: _print(console, done), repository=repository.where)


def _repository(target: str, *, as_json: bool) -> LocalRepository:
    """Return the repository in a folder, or that of a program."""
    if is_url(target):
        return on_disk(open_repository(target), "ejecting a stream")
    if not _is_program(target):
        return located(target)
    with into_stderr() if as_json else contextlib.nullcontext():  # the program may print something
        return local_repository(pipeline_of(find_target(target)).repository, "ejecting a stream")


def _is_program(target: str) -> bool:
    """Whether a text names a program, and not a repository."""
    is_folder = os.path.isdir(target)  # noqa: PTH112 - any text
    return not is_url(target) and not is_folder and (":" in target or target.endswith(".py"))


def _print(console: Console, done: Ejection) -> None:
    facts: list[tuple[str, str | Text]] = [
        ("checkpoint", shown(Path(done.path))),
        ("after epoch", formatting.number(done.epoch)),
        ("next batch", formatting.number(done.batch)),
        ("files", f"{formatting.number(done.files)}, {formatting.size(done.bytes)}"),
    ]
    if done.stage:
        facts.append(("not included", "the state of the stage"))
    fields(console, facts, indent=0)
    text = "next: start the query with this checkpointLocation, and remove the stream from the pipeline's program"
    console.print(text, markup=False, soft_wrap=True)

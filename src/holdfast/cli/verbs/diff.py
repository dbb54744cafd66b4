"""`holdfast diff`."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli.answers import Answer
from holdfast.cli.options import FirstName, Json, Repo, SecondName, checkpoint_of
from holdfast.cli.tables import fields
from holdfast.cli.target import looked_at, on_disk
from holdfast.difference import Difference
from holdfast.difference import diff as compare
from holdfast.errors import BadValue
from holdfast.repository import Checkpoints, Lineage, Repository


class Diff(msgspec.Struct, frozen=True):
    """Two checkpoints compared."""

    same: bool  # whether they differ in nothing but the time
    difference: Difference  # the changes from the first to the second


SHAPES = {"diff": Diff}


def diff(
    a: FirstName = None,
    b: SecondName = None,
    repo: Repo = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="Also count the state keys that were added, changed and removed. Needs Java.")
    ] = False,
    as_json: Json = False,
) -> Answer:
    """Show what changed between two checkpoints.

    Compares offsets, rows, watermark, lag, sizes and settings. With A alone, compares it with the newest checkpoint.
    Without A and B, compares the newest one with the one before it. Exits with 1 if they differ, like diff(1).

    [bold]Examples[/]

        holdfast diff
        holdfast diff 11 12
        holdfast diff before-upgrade 12 --keys
    """
    repository = looked_at(repo)
    first, second = selected(repository, a, b)
    found = compare(repository, first, second)  # fails early: Spark takes seconds to start
    if keys:
        folder = on_disk(repository, "--keys")
        from holdfast.spark.session import borrowed  # Spark may not be installed
        from holdfast.spark.statereader import diff_keys

        with borrowed() as spark:
            found = diff_keys(spark, folder, first, second)
    same = is_same(found)

    def print_it(console: Console) -> None:
        for line in found.head():
            console.print(line, markup=False, soft_wrap=True)
        for name, stream in found.streams.items():
            lines = list(stream.lines())
            console.print(Text.assemble("stream ", (name, "bold"), "" if lines else ": no changes"))
            fields(console, list(lines))

    return Answer(Diff(same, found), print_it, found=not same, repository=repository.where)


def selected(repository: Repository, a: str | None, b: str | None) -> tuple[int | str, int | str]:
    """Return the two checkpoints to compare: both as named, one and the newest, or the last two."""
    if a is not None and b is not None:
        return checkpoint_of(repository, a), checkpoint_of(repository, b)
    checkpoints = Checkpoints(repository)
    lineage = Lineage.load(repository)
    newest = checkpoints.latest(lineage).checkpoint_id
    if a is not None:
        return checkpoint_of(repository, a), newest
    before = checkpoints.before(newest, lineage)
    if before is None:
        why = "it is the only checkpoint, so there is nothing to compare it with"
        raise BadValue(what="checkpoint", value=newest, why=why, do="take another one, or name two savepoints")
    return before, newest


def is_same(found: Difference) -> bool:
    """Whether the checkpoints differ in nothing but the time."""
    if found.streams_added or found.streams_removed or not (found.timeline.same and found.pipeline_hash.same):
        return False
    return not any(list(each.lines()) for each in found.streams.values())

"""`holdfast plan`: shows whether a changed program can continue the state of its pipeline."""

from __future__ import annotations

import shlex

import msgspec
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.options import Json, TargetName
from holdfast.cli.programs import find_target, pipeline_of
from holdfast.errors.base import PROGRAM
from holdfast.program.changes import ChangeEffect, ProgramChange

_COLOURS = {ChangeEffect.IMPOSSIBLE: "red", ChangeEffect.TAKES_EFFECT: "yellow", ChangeEffect.SAFE: "green"}


class ProgramCompared(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between a program and the one that ran last."""

    pipeline: str  # its name
    possible: bool  # whether the program can continue the state
    since: dict[str, int]  # by stream that has a stored description: the first epoch of that program
    changes: list[ProgramChange]  # impossible ones first


SHAPES = {"plan": ProgramCompared}


def plan(target: TargetName, as_json: Json = False) -> Answer:
    """Show whether a changed program can continue the state of its pipeline.

    Compares the program with the one that ran last: sources, sinks, columns, operators with state, output mode, stage
    and options. Each change is safe (it does not affect existing rows and state), takes effect (it is allowed, and the
    text explains the consequence), or is impossible (holdfast run refuses the program). Writes nothing; the pipeline
    may be running. Needs Java. Exits with 1 if a change is impossible.

    [bold]Examples[/]

        holdfast plan app.py:pipeline
        holdfast plan app.py --json | jq '.result.changes[] | select(.effect == "impossible")'
    """
    found = find_target(target)
    from holdfast.spark.session import require_java, silence_spark  # PySpark may not be installed

    require_java()
    silence_spark()
    pipeline = pipeline_of(found, [])
    made = pipeline.plan()
    found_changes = [
        msgspec.structs.replace(each, do=each.do.replace(PROGRAM, shlex.quote(target))) for each in made.changes
    ]

    def print_it(console: Console) -> None:
        if not made.since:
            text = "nothing to compare with: no earlier program is recorded"
            console.print(text, soft_wrap=True, markup=False)
        elif not found_changes:
            console.print("no changes", markup=False)
        for each in found_changes:
            line = Text(f"{each.effect:<12}  ", _COLOURS[each.effect])
            console.print(line.append(formatting.harmless(each.summary), "default"), soft_wrap=True)
        if made.possible:
            console.print(f"next: holdfast run {shlex.quote(target)}", soft_wrap=True, markup=False)

    result = ProgramCompared(pipeline=made.pipeline, possible=made.possible, since=made.since, changes=found_changes)
    return Answer(result, print_it, found=not made.possible, repository=pipeline.repository.where)

"""`holdfast rewind`: shows the plan first, then carries it out."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from holdfast.cli import formatting
from holdfast.cli.answers import Answer, approved
from holdfast.cli.asking import Why
from holdfast.cli.options import Arguments, Json, TakeOver, TargetName, Yes, checkpoint_names
from holdfast.cli.programs import find_target, named_in_errors, pipeline_of
from holdfast.errors import BadValue, PlanOutdated, RewindUnfinished
from holdfast.rewind.plan import RewindDone, RewindPlan

if TYPE_CHECKING:
    from holdfast.spark.pipeline import Pipeline


class Rewind(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a rewind or an undo, and its result."""

    id: str  # changes if anything changes that the plan depends on; empty if an interrupted rewind was completed
    plan: RewindPlan | None  # what is done to each stream and sink; null if an interrupted rewind was completed
    rewound: RewindDone | None = None  # the result; null in a dry run


SHAPES = {"rewind": Rewind}


def rewind(
    target: TargetName,
    arguments: Arguments = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="BASE",
            help="The checkpoint to go back to: its id, the name of a savepoint, latest for the newest one that "
            "is not a savepoint, or before:STREAM:EPOCH for the newest one without that epoch.",
            autocompletion=checkpoint_names,
        ),
    ] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Undo the last rewind. Possible until the next run has decided an epoch.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="STREAM",
            help="Take back only this stream. Streams that read from it must go back too. Repeatable. "
            "Default: all streams.",
        ),
    ] = None,
    leave: Annotated[
        list[str] | None,
        typer.Option(
            "--leave",
            metavar="SINK",
            help="Do not take back this sink: its rows stay, and the rows after the checkpoint are written to it a "
            "second time. Repeatable.",
        ),
    ] = None,
    lost: Annotated[
        list[str] | None,
        typer.Option(
            "--lost",
            metavar="SINK",
            help="Complete an interrupted rewind without this sink, because its target is lost for good. Remove the "
            "sink from the program first. The rewind cannot be undone then. Repeatable; without --to.",
        ),
    ] = None,
    accept_input: Annotated[
        bool,
        typer.Option(
            "--accept-input",
            help="Go back even if it is not known whether a source still has the input after the checkpoint.",
        ),
    ] = False,
    take_over: TakeOver = False,
    why: Why = "",
    expect: Annotated[
        str | None,
        typer.Option(
            "--plan", metavar="ID", help="Refuse if the plan no longer has this id, which a dry run has printed."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan without changing anything.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> Answer:
    """Take a stopped pipeline back to a checkpoint, with its sinks.

    Shows the plan first: how many epochs are abandoned (those after the checkpoint), what each sink does with their
    rows, and whether the input can still be read. Each sink takes these rows back, and keeps them for an undo. The next
    run continues after the checkpoint, in a new timeline. Loads the program, but does not need Java.

    If a rewind is interrupted, the next run or rewind of the same program completes it. A dry run exits with 1 if the
    rewind would be refused.

    [bold]Examples[/]

        holdfast rewind app.py:pipeline --to 41 --dry-run
        holdfast rewind app.py:pipeline --to before:orders:1200 --why "a bug in the tax rate"
        holdfast rewind app.py:pipeline --to 41 --plan 3f2a91c04d1b77e0 --yes
        holdfast rewind app.py:pipeline --undo
        holdfast rewind app.py:pipeline --lost totals
    """
    _check_options(to, undo=undo, only=only, leave=leave, lost=lost, dry_run=dry_run)
    pipeline = pipeline_of(find_target(target), arguments or [])
    from holdfast.rewind.apply import apply_rewind, require_possible  # PySpark may not be installed

    with named_in_errors(target):
        if lost:
            return _completed(pipeline, target, lost, take_over=take_over, yes=yes, as_json=as_json)
        plan = _planned(pipeline, to, only, leave or [], take_over=take_over, dry_run=dry_run)
        if expect is not None and expect != plan.id:
            why_not = f"the pipeline or a sink has changed since plan {expect} was made; the plan is now {plan.id}"
            raise PlanOutdated(why=why_not, command="rewind")
        done: RewindDone | None = None
        if not dry_run:
            require_possible(plan, accept_input=accept_input)  # before the user is asked
            approved("rewind", yes=yes, as_json=as_json, show=lambda console: _print_plan(console, plan))
            done = apply_rewind(pipeline, plan, accept_input=accept_input, take_over=take_over, why=why)

    def print_it(console: Console) -> None:
        if done is not None:
            _print_done(console, done, target)
            return
        _print_plan(console, plan)
        if not plan.problems:
            console.print("next: to carry out this plan, run the same command without --dry-run")

    result = Rewind(id=plan.id, plan=plan, rewound=done)
    return Answer(result, print_it, found=done is None and bool(plan.problems), repository=pipeline.repository.where)


def _check_options(
    to: str | None,
    *,
    undo: bool,
    only: list[str] | None,
    leave: list[str] | None,
    lost: list[str] | None,
    dry_run: bool,
) -> None:
    """Refuse options that do not go together."""
    if lost:
        if to is not None or undo or only or leave or dry_run:
            do = "omit --to, --undo, --only, --leave and --dry-run: the interrupted rewind was decided already"
            raise BadValue(what="--lost", value=", ".join(lost), why="it completes an interrupted rewind", do=do)
        return
    if to is None and not undo:
        do = "name the checkpoint to go back to: --to ID (holdfast ls lists them); or undo the last rewind: --undo"
        raise BadValue(what="command", value="holdfast rewind", why="neither --to nor --undo was given", do=do)
    if undo and to is not None:
        raise BadValue(what="--to", value=to, why="--undo was given too", do="pass either --to or --undo")
    if undo and (only or leave):
        given, value = ("--only", only) if only else ("--leave", leave)
        why_not = "an undo brings back everything that the rewind took back"
        raise BadValue(what=given, value=", ".join(value or []), why=why_not, do=f"omit {given}")


def _completed(
    pipeline: Pipeline, target: str, lost: list[str], *, take_over: bool, yes: bool, as_json: bool
) -> Answer:
    """Complete an interrupted rewind without sinks that are lost."""
    from holdfast.rewind.apply import finish_rewind  # PySpark may not be installed

    def show(console: Console) -> None:
        text = f"complete the interrupted rewind without {', '.join(lost)}; it cannot be undone then"
        console.print(text, soft_wrap=True, markup=False)

    approved("rewind", yes=yes, as_json=as_json, show=show)
    done = finish_rewind(pipeline, lost=lost, take_over=take_over)

    def print_it(console: Console) -> None:
        if done is not None:
            _print_done(console, done, target)

    return Answer(Rewind(id="", plan=None, rewound=done), print_it, repository=pipeline.repository.where)


def _planned(
    pipeline: Pipeline, to: str | None, only: list[str] | None, leave: list[str], *, take_over: bool, dry_run: bool
) -> RewindPlan:
    """Make the plan. Unless it is a dry run, an unfinished rewind is finished first."""
    from holdfast.rewind.apply import finish_rewind
    from holdfast.rewind.planning import plan_rewind
    from holdfast.rewind.undo import plan_undo

    def plan() -> RewindPlan:
        return plan_undo(pipeline) if to is None else plan_rewind(pipeline, to, only=only or None, leave=leave)

    try:
        return plan()
    except RewindUnfinished:
        if dry_run:
            raise
        finish_rewind(pipeline, take_over=take_over)
    return plan()


def _print_plan(console: Console, plan: RewindPlan) -> None:
    for line in plan.summary().splitlines():
        console.print(formatting.harmless(line), soft_wrap=True, markup=False)


def _print_done(console: Console, done: RewindDone, target: str) -> None:
    console.print(done.summary(), soft_wrap=True, markup=False)
    console.print(f"next: holdfast run {shlex.quote(target)}", soft_wrap=True, markup=False)

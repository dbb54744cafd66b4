"""`holdfast prune`: which checkpoints go by a retention; first the plan, then the act."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer, approved
from holdfast.cli.options import Json, Repo, Yes
from holdfast.cli.tables import TableRows, fields
from holdfast.cli.target import located
from holdfast.control import request_prune
from holdfast.policy import Retention, seconds_of
from holdfast.pruning import Pruned, PrunePlan, plan_prune

_KEPT = Retention()


class Prune(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a prune, and what was done of it."""

    timeline: int  # the current one: others are left alone
    retention: str  # what is kept, in words
    drops: list[int]  # ids of the checkpoints that go, oldest first
    keeps: dict[str, str]  # by id or name: why it stays
    garbage: int  # how many objects nobody names any more
    garbage_bytes: int  # their size
    leftovers: list[int]  # ids of attempts that were left unfinished and are given up
    blocked: str | None  # why no object is collected
    pruned: Pruned | None = None  # what was done; null in a dry run, or where there was nothing to do


SHAPES = {"prune": Prune}


def prune(
    repo: Repo = None,
    last: Annotated[int, typer.Option(metavar="N", min=1, help="Keep the last N.")] = _KEPT.last,
    hourly: Annotated[int, typer.Option(metavar="N", min=0, help="Keep the newest of each of the last N hours.")] = 0,
    daily: Annotated[int, typer.Option(metavar="N", min=0, help="Keep the newest of each of the last N days.")] = 0,
    within: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Keep all younger than this: 30m, 12h, 7d.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; change nothing.")] = False,
    yes: Yes = False,
    timeout: Annotated[
        str, typer.Option(metavar="SPAN", help="How long to wait for a running pipeline to do it.")
    ] = "5m",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="The driver of a shared pipeline has ended: take its lease.")
    ] = False,
    as_json: Json = False,
) -> Answer:
    """Remove checkpoints that no rule keeps, and the files that nobody needs any more.

    What any rule keeps is kept; savepoints and older timelines always are. The plan is shown first. Where the pipeline
    runs, it is asked to do the work itself.

    [bold]Examples[/]

        holdfast prune --dry-run
        holdfast prune --last 5 --hourly 24 --daily 7
        holdfast prune --within 7d --yes
    """
    repository = located(repo)
    span = None if within is None else seconds_of("--within", within)
    retention, patience = Retention(last, hourly, daily, span), seconds_of("--timeout", timeout)
    plan = plan_prune(repository, retention)
    done: Pruned | None = None
    if not dry_run and not plan.empty:
        approved("prune", yes=yes, as_json=as_json, show=lambda console: _show_plan(console, plan))
        answered = request_prune(repository, retention, timeout_s=patience, take_over=take_over)
        done = answered if isinstance(answered, Pruned) else None
    result = msgspec.convert(plan.to_dict() | {"pruned": done and done.to_dict()}, Prune)

    def print_it(console: Console) -> None:
        if done is not None:
            console.print(done.summary())
            return
        _show_plan(console, plan)
        if plan.empty:
            console.print("nothing to prune")
        elif dry_run:
            console.print("next: the same without --dry-run does it")

    return Answer(result, print_it, repository=repository.where)


def _show_plan(console: Console, plan: PrunePlan) -> None:
    rows = TableRows("id", "plan", "why")
    for number in plan.drops:
        rows.add(str(number), Text("goes", "red"), "no rule keeps it")
    for name, why in plan.keeps.items():
        rows.add(str(name), Text("stays", "green"), why)
    for number in plan.leftovers:
        if number not in plan.keeps:
            rows.add(str(number), Text("closed", "yellow"), "an attempt that was left unfinished")
    if plan.drops or plan.keeps or plan.leftovers:
        rows.print(console)
    garbage = f"{formatting.number(len(plan.garbage))}, {formatting.size(plan.garbage_bytes)}"
    fields(console, [("keep", plan.retention), ("objects that go", plan.blocked or garbage)], indent=0)

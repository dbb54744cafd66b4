"""`holdfast prune`: shows the plan first, then carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer, approved
from holdfast.cli.options import Json, Repo, TakeOver, Yes
from holdfast.cli.tables import TableRows, fields
from holdfast.cli.target import looked_at
from holdfast.control import request_prune
from holdfast.eventlog.keeping import LogTrim
from holdfast.policy import DEFAULT_RETENTION, Retention, seconds_of
from holdfast.pruning import Pruned, PrunePlan, plan_prune
from holdfast.repository import Repository
from holdfast.repository.rewinds import require_finished

if TYPE_CHECKING:
    from holdfast.sinks.log_garbage import LogGarbage


class Prune(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a prune, and its result."""

    timeline: int  # the current one; other timelines are not pruned without `--abandoned`
    retention: str  # the retention rules, as text
    drops: list[int]  # ids of the checkpoints to remove, oldest first
    keeps: dict[str, str]  # by id or name: why it is kept
    garbage: int  # number of objects that are no longer referenced
    garbage_bytes: int  # their total size
    leftovers: list[int]  # ids of unfinished attempts, which are aborted
    blocked: str | None  # why no objects are removed
    timelines: list[int] = []  # abandoned timelines to remove, with `--abandoned`
    logs: list[LogTrim] = []  # what to remove from each event log
    logs_blocked: str | None = None  # why nothing is removed from event logs
    deep: int = 0  # with `--deep`: number of objects of event logs that never became part of a log
    deep_bytes: int = 0  # their total size
    pruned: Pruned | None = None  # the result; null in a dry run, or if there was nothing to do


SHAPES = {"prune": Prune}


def prune(
    repo: Repo = None,
    last: Annotated[int | None, typer.Option(metavar="N", min=1, help="Keep the last N checkpoints.")] = None,
    hourly: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Keep the newest checkpoint of each of the last N hours.")
    ] = None,
    daily: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Keep the newest checkpoint of each of the last N days.")
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Keep all checkpoints younger than this: 30m, 12h, 7d."),
    ] = None,
    abandoned: Annotated[
        bool,
        typer.Option("--abandoned", help="Also remove the checkpoints that rewinds have abandoned."),
    ] = False,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Also remove objects of lost tasks from event logs on S3. Reads the whole index of each log."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan without changing anything.")] = False,
    yes: Yes = False,
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="How long to wait for a running pipeline to do the work.")
    ] = "5m",
    take_over: TakeOver = False,
    as_json: Json = False,
) -> Answer:
    """Remove old checkpoints, and the files that only they need.

    A checkpoint is kept if any of the rules keeps it. --last 10 applies if it is not given. Savepoints are always
    kept. The checkpoints that a rewind has abandoned are kept unless --abandoned is given. Also removes events that are
    no longer needed from the event logs between streams, and from each LogSink with keep=. Rows that sinks have set
    aside are not removed: see holdfast asides. The plan is shown before anything is removed. If the pipeline is
    running, it does the work on request.

    [bold]Examples[/]

        holdfast prune --dry-run
        holdfast prune --last 5 --hourly 24 --daily 7
        holdfast prune --within 7d --yes
    """
    repository = looked_at(repo)
    span = None if within is None else seconds_of("--within", within)
    retention, timeout_s = retention_of(last, hourly, daily, span), seconds_of("--timeout", timeout)
    require_finished(repository)
    plan = plan_prune(repository, retention, abandoned=abandoned)
    lost = _lost_objects(repository) if deep else []
    empty = plan.empty and not any(each.keys for each in lost)
    done: Pruned | None = None
    if not dry_run and not empty:
        approved("prune", yes=yes, as_json=as_json, show=lambda console: print_prune_plan(console, plan, lost))
        if not plan.empty:
            answered = request_prune(
                repository, retention, timeout_s=timeout_s, take_over=take_over, abandoned=abandoned
            )
            done = answered if isinstance(answered, Pruned) else None
        for each in lost:
            _remove_lost(each)
    counts = {"deep": sum(len(each.keys) for each in lost), "deep_bytes": sum(each.bytes for each in lost)}
    result = msgspec.convert(plan.to_dict() | {"pruned": done and done.to_dict()} | counts, Prune)

    def print_it(console: Console) -> None:
        if not dry_run and any(each.keys for each in lost):
            console.print(f"removed from event logs: {_amount(lost)}")
        if done is not None:
            console.print(done.summary())
            return
        print_prune_plan(console, plan, lost)
        if empty:
            console.print("nothing to prune")
        elif dry_run:
            console.print("next: to carry out this plan, run the same command without --dry-run")

    return Answer(result, print_it, repository=repository.where)


def retention_of(last: int | None, hourly: int | None, daily: int | None, span: float | None) -> Retention:
    """Return the given rules; without any, those of a run, so that a plain prune removes nothing that a run keeps."""
    if (last, hourly, daily, span) == (None, None, None, None):
        return DEFAULT_RETENTION
    return Retention(DEFAULT_RETENTION.last if last is None else last, hourly or 0, daily or 0, span)


def _lost_objects(repository: Repository) -> list[LogGarbage]:
    from holdfast.sinks.log_garbage import find_garbage, logs_on_stores  # needs pyarrow, which may not be installed

    return [find_garbage(each) for each in logs_on_stores(repository)]


def _remove_lost(garbage: LogGarbage) -> None:
    from holdfast.sinks.log_garbage import remove_garbage  # needs pyarrow

    remove_garbage(garbage)


def _amount(lost: Sequence[LogGarbage]) -> str:
    count, size = sum(len(each.keys) for each in lost), sum(each.bytes for each in lost)
    return f"{formatting.number(count)} objects, {formatting.size(size)}"


def print_prune_plan(console: Console, plan: PrunePlan, lost: Sequence[LogGarbage] = ()) -> None:
    """Print what a prune would remove and keep."""
    rows = TableRows("id", "plan", "why")
    for number in plan.drops:
        rows.add(str(number), Text("remove", "red"), "no rule keeps it")
    for name, why in plan.keeps.items():
        rows.add(str(name), Text("keep", "green"), why)
    for number in plan.leftovers:
        if number not in plan.keeps:
            rows.add(str(number), Text("close", "yellow"), "an unfinished attempt")
    for number in plan.timelines:
        rows.add(f"timeline {number}", Text("remove", "red"), "an abandoned branch")
    if plan.drops or plan.keeps or plan.leftovers or plan.timelines:
        rows.print(console)
    garbage = f"{formatting.number(len(plan.garbage))}, {formatting.size(plan.garbage_bytes)}"
    objects = f"none: {plan.blocked}" if plan.blocked else garbage
    found: list[tuple[str, str | Text]] = [("keep", plan.retention), ("objects to remove", objects)]
    for each in plan.logs:
        segments = f"{formatting.number(each.segments)} segments, {formatting.size(each.bytes)}"
        found.append(("events to remove", f"{segments} before sequence {formatting.number(each.floor)} of {each.path}"))
    if plan.logs_blocked:
        found.append(("events to remove", f"none: {plan.logs_blocked}"))
    if lost:
        found.append(("in event logs", _amount(lost)))
    fields(console, found, indent=0)

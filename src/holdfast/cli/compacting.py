"""`holdfast compact`: closed epochs of a FileSink into fewer files; first the plan, then the act."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer, approved, console
from holdfast.cli.options import Json, Repo, Yes
from holdfast.cli.tables import TableRows, print_damaged
from holdfast.cli.target import located, shown
from holdfast.errors import Corrupt, NotSupported, SinkFailed, SinkMissing, UnsupportedVersion
from holdfast.policy import seconds_of
from holdfast.repository import LocalRepository
from holdfast.sinks.compaction.plan import TARGET_BYTES, CompactPlan, plan_compact
from holdfast.sinks.compaction.runs import KEEP_LAST
from holdfast.sinks.places import readable_file_sinks

if TYPE_CHECKING:
    from holdfast.sinks.compaction.apply import Compacted as Done


class CompactRun(msgspec.Struct, frozen=True, kw_only=True):
    """Epochs that become one folder."""

    timeline: int  # the timeline of all of them
    first: int  # the first epoch of the run
    last: int  # the last one: the merged folder has its name
    epochs: int  # how many they are: some have no rows, and no folder
    rows: int  # in all of them
    files: int  # that they have now
    into: int  # about how many they become
    bytes: int  # their size now


class CompactSink(msgspec.Struct, frozen=True, kw_only=True):
    """One sink's folder."""

    path: str  # where it is
    stream: str | None = None  # whose output it holds
    runs: list[CompactRun] = []  # what would be, or was, merged
    files: int = 0  # that there are before
    files_after: int = 0  # about how many there are afterwards
    notes: list[str] = []  # what stays as it is, and why
    blocked: str | None = None  # why nothing is merged
    refused: str | None = None  # why this folder cannot be compacted at all
    done: CompactDone | None = None  # what was done; null in a dry run, or where there was nothing to do


class CompactDone(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction has done."""

    path: str  # where
    epochs: int  # that were merged
    folders: int  # that they became
    files_before: int  # of those epochs
    files_after: int  # of those epochs
    rows: int  # in them
    bytes_before: int  # of those epochs
    bytes_after: int  # of those epochs


class Compact(msgspec.Struct, frozen=True):
    """The plan of a compaction, and what was done of it."""

    sinks: list[CompactSink]  # one for each folder
    damaged: list[str] = []  # what is wrong with records or folders that could not be read


_TARGET = f"{TARGET_BYTES >> 20}MiB"
SHAPES = {"compact": Compact}


def compact(
    path: Annotated[
        str | None,
        typer.Argument(metavar="FOLDER", help="The folder of a FileSink. Else all that the pipeline writes to."),
    ] = None,
    repo: Repo = None,
    target: Annotated[str, typer.Option(metavar="SIZE", help="How large a file may become: 64MB, 1GB.")] = _TARGET,
    keep_last: Annotated[
        int, typer.Option(metavar="N", min=KEEP_LAST, help="Leave the last N epochs as they are.")
    ] = KEEP_LAST,
    grace: Annotated[
        str, typer.Option(metavar="SPAN", help="How long the old files stay for those who are listing them.")
    ] = "10s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; change nothing. Needs no Java.")] = False,
    yes: Yes = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="The driver of a shared pipeline has ended: take its lease.")
    ] = False,
    as_json: Json = False,
) -> Answer:
    """Merge closed epochs of a FileSink into fewer files, also while the pipeline runs.

    Whoever lists the folder and then reads it gets every row once, before and after. Interrupted at any moment it has
    done nothing, or all of it. No run of epochs crosses the cut of a checkpoint that is kept. Parquet and ORC need
    Spark and Java to be merged.

    [bold]Examples[/]

        holdfast compact --dry-run
        holdfast compact out/orders --target 256MB --yes
    """
    repository = located(repo)
    size, grace_s = (
        formatting.bytes_of("--target", target),
        0.0 if grace in ("0", "0s") else seconds_of("--grace", grace),
    )
    places, bad = readable_file_sinks(repository) if path is None else ([], [])
    paths = [path] if path is not None else [str(each.path) for each in places]
    if not paths and not bad:
        why = "its pipeline was not started with a FileSink since this is written down"
        raise SinkMissing(path=repository.where, why=why)
    plans, refused, damaged = _plans(repository, paths, size, keep_last, alone=path is not None)
    damaged = [*damaged, *(error.summary for error in bad)]
    due = [plan for plan in plans if not plan.empty]
    done: dict[str, Done] = {}
    if due and not dry_run:
        if any(plan.by_spark for plan in due):
            _require_spark()  # before the user is asked
        approved("compact", yes=yes, as_json=as_json, show=lambda console: _show(console, plans, refused, damaged))
        done = _applied(repository, due, grace_s=grace_s, take_over=take_over, quiet=as_json)
    result = Compact([*(_sink(plan, done.get(plan.path)) for plan in plans), *refused], damaged)

    def print_it(console: Console) -> None:
        if done:
            for each in done.values():
                console.print(each.summary(), soft_wrap=True)
            print_damaged(console, damaged)
            return
        _show(console, plans, refused, damaged)
        console.print("next: the same without --dry-run does it" if due and dry_run else "nothing to merge")

    return Answer(result, print_it, found=bool(damaged), repository=repository.where)


def _plans(
    repository: LocalRepository, paths: list[str], size: int, keep_last: int, *, alone: bool
) -> tuple[list[CompactPlan], list[CompactSink], list[str]]:
    """Plan for each folder. One that cannot be compacted or is damaged is an error if the user named it."""
    plans: list[CompactPlan] = []
    refused: list[CompactSink] = []
    damaged: list[str] = []
    for path in paths:
        try:
            plans.append(plan_compact(repository, path, target_bytes=size, keep_last=keep_last))
        except (NotSupported, SinkMissing) as error:
            if alone:
                raise
            refused.append(CompactSink(path=path, refused=error.summary))
        except (Corrupt, UnsupportedVersion, SinkFailed) as error:
            if alone:
                raise
            damaged.append(error.summary)
    return plans, refused, damaged


def _applied(
    repository: LocalRepository, plans: list[CompactPlan], *, grace_s: float, take_over: bool, quiet: bool
) -> dict[str, Done]:
    from holdfast import apply_compact  # Spark takes seconds, and may be missing

    said = console(stderr=True)

    def progress(text: str) -> None:
        if not quiet and sys.stderr.isatty():
            said.print(Text(text, "dim"))

    def apply(spark: object) -> dict[str, Done]:
        return {
            plan.path: apply_compact(repository, plan, spark, take_over=take_over, grace_s=grace_s, progress=progress)
            for plan in plans
        }

    if not any(plan.by_spark for plan in plans):
        return apply(None)
    from holdfast.spark.session import borrowed

    progress("starting Spark")
    with borrowed() as spark:
        return apply(spark)


def _require_spark() -> None:
    from holdfast.spark.session import require_java

    require_java()


def _sink(plan: CompactPlan, done: Done | None) -> CompactSink:
    data = plan.to_dict() | {"done": done and done.to_dict()}
    return msgspec.convert({name: data[name] for name in CompactSink.__struct_fields__ if name in data}, CompactSink)


def _show(console: Console, plans: list[CompactPlan], refused: list[CompactSink], damaged: list[str]) -> None:
    rows = TableRows(
        "folder", "stream", "epochs", "rows", "files", "into", "size", right=("rows", "files", "into", "size")
    )
    for plan in plans:
        for run in plan.runs:
            epochs = f"{run.first}-{run.last}" + f" of timeline {run.timeline}" * (run.timeline > 1)
            counts = (
                formatting.number(run.rows),
                formatting.number(run.files),
                formatting.number(run.into),
                formatting.size(run.bytes),
            )
            rows.add(shown(Path(plan.path)), plan.stream, epochs, *counts)
    if any(plan.runs for plan in plans):
        rows.print(console)
    for plan in plans:
        remarks = [*plan.notes, *([f"nothing is merged: {plan.blocked}"] if plan.blocked else [])]
        if plan.leftovers:
            remarks.append("what a compaction left that died is cleared, unless one is at work")
        for remark in remarks:
            console.print(f"{shown(Path(plan.path))}: {remark}", markup=False, soft_wrap=True)
    for each in refused:
        console.print(f"{shown(Path(each.path))}: {each.refused}", markup=False, soft_wrap=True)
    print_damaged(console, damaged)

"""`holdfast compact`: merges closed epochs of a FileSink into fewer files. Shows the plan first."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer, approved, console
from holdfast.cli.options import Json, Repo, TakeOver, Yes
from holdfast.cli.tables import TableRows, print_damaged
from holdfast.cli.target import located, shown
from holdfast.errors import Corrupt, NotSupported, SinkFailed, SinkMissing, UnsupportedVersion
from holdfast.policy import seconds_of
from holdfast.repository import LocalRepository
from holdfast.repository.rewinds import require_finished
from holdfast.sinks.compaction.plan import TARGET_BYTES, CompactPlan, plan_compact
from holdfast.sinks.compaction.runs import KEEP_LAST
from holdfast.sinks.places import readable_file_sinks

if TYPE_CHECKING:
    from holdfast.sinks.compaction.apply import Compacted as Done


class CompactRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of epochs that is merged into one folder."""

    timeline: int  # the timeline of all its epochs
    first: int  # the first epoch of the run
    last: int  # the last epoch; the merged folder is named after it
    epochs: int  # number of epochs; some have no rows and no folder
    rows: int  # total number of rows
    files: int  # current number of files
    into: int  # approximate number of files afterwards
    bytes: int  # current size


class CompactSink(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of one sink."""

    path: str  # the folder
    stream: str | None = None  # the stream that writes to it
    runs: list[CompactRun] = []  # the runs that would be, or were, merged
    files: int = 0  # number of files before
    files_after: int = 0  # approximate number of files afterwards
    notes: list[str] = []  # what is left unchanged, and why
    blocked: str | None = None  # why nothing is merged
    refused: str | None = None  # why this folder cannot be compacted at all
    done: CompactDone | None = None  # the result; null in a dry run, or if there was nothing to do


class CompactDone(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a compaction."""

    path: str  # the folder
    epochs: int  # number of epochs that were merged
    folders: int  # number of folders that they were merged into
    files_before: int  # number of files of these epochs before
    files_after: int  # number of files of these epochs afterwards
    rows: int  # rows in these epochs
    bytes_before: int  # size of these epochs before
    bytes_after: int  # size of these epochs afterwards


class Compact(msgspec.Struct, frozen=True):
    """The plan of a compaction, and its result."""

    sinks: list[CompactSink]  # one per folder
    damaged: list[str] = []  # what is wrong with records or folders that could not be read


_TARGET = f"{TARGET_BYTES >> 20}MiB"
SHAPES = {"compact": Compact}


def compact(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="FOLDER", help="The folder of a FileSink. Default: all folders that the pipeline writes to."
        ),
    ] = None,
    repo: Repo = None,
    target: Annotated[str, typer.Option(metavar="SIZE", help="Maximum size of a merged file: 64MB, 1GB.")] = _TARGET,
    keep_last: Annotated[
        int, typer.Option(metavar="N", min=KEEP_LAST, help="Do not merge the last N epochs.")
    ] = KEEP_LAST,
    grace: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long to keep the old files for readers that have listed them."),
    ] = "10s",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan without changing anything. Needs no Java.")
    ] = False,
    yes: Yes = False,
    take_over: TakeOver = False,
    as_json: Json = False,
) -> Answer:
    """Merge closed epochs of a FileSink into fewer files.

    The pipeline may be running. A reader that lists the folder and then reads it gets every row exactly once, before
    and after. An interrupted compaction has either no effect or its full effect. A merge never spans the cut of a
    checkpoint that is kept. Merging Parquet and ORC files needs Spark and Java.

    [bold]Examples[/]

        holdfast compact --dry-run
        holdfast compact out/orders --target 256MB --yes
    """
    repository = located(repo)
    size = formatting.bytes_of("--target", target)
    grace_s = 0.0 if grace in ("0", "0s") else seconds_of("--grace", grace)
    require_finished(repository)
    plans = _plan(repository, path, size, keep_last)
    done: dict[str, Done] = {}
    if plans.pending and not dry_run:
        if any(plan.by_spark for plan in plans.pending):
            _require_spark()  # before the user is asked
        approved("compact", yes=yes, as_json=as_json, show=plans.print)
        done = _applied(repository, plans.pending, grace_s=grace_s, take_over=take_over, quiet=as_json)

    def print_it(console: Console) -> None:
        if done:
            for each in done.values():
                console.print(each.summary(), soft_wrap=True)
            print_damaged(console, plans.damaged)
            return
        plans.print(console)
        hint = "next: to carry out this plan, run the same command without --dry-run"
        console.print(hint if plans.pending and dry_run else "nothing to merge")

    result = Compact([*(_sink(plan, done.get(plan.path)) for plan in plans.plans), *plans.refused], plans.damaged)
    return Answer(result, print_it, found=bool(plans.damaged), repository=repository.where)


@dataclass(slots=True)
class CompactPlans:
    """The plans for all folders, and the folders that cannot be compacted or read."""

    plans: list[CompactPlan] = field(default_factory=list)
    refused: list[CompactSink] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @property
    def pending(self) -> list[CompactPlan]:
        """The plans that have something to do."""
        return [plan for plan in self.plans if not plan.empty]

    def print(self, console: Console) -> None:
        """Print a table of the merges, then the remarks of each folder."""
        rows = TableRows(
            "folder", "stream", "epochs", "rows", "files", "into", "size", right=("rows", "files", "into", "size")
        )
        for plan in self.plans:
            for run in plan.runs:
                epochs = f"{run.first}-{run.last}" + f" of timeline {run.timeline}" * (run.timeline > 1)
                counts = map(formatting.number, (run.rows, run.files, run.into))
                rows.add(shown(Path(plan.path)), plan.stream, epochs, *counts, formatting.size(run.bytes))
        if any(plan.runs for plan in self.plans):
            rows.print(console)
        remarks = [(plan.path, remark) for plan in self.plans for remark in _remarks(plan)]
        remarks += [(each.path, each.refused or "") for each in self.refused]
        for path, remark in remarks:
            console.print(f"{shown(Path(path))}: {remark}", markup=False, soft_wrap=True)
        print_damaged(console, self.damaged)


def _remarks(plan: CompactPlan) -> list[str]:
    remarks = list(plan.notes)
    if plan.blocked:
        remarks.append(f"nothing is merged: {plan.blocked}")
    if plan.leftovers:
        remarks.append("files left by an interrupted compaction are removed, unless another one is running")
    return remarks


def _plan(repository: LocalRepository, path: str | None, size: int, keep_last: int) -> CompactPlans:
    """Plan each folder. A folder that cannot be compacted or is damaged is an error only if the user named it."""
    places, bad = readable_file_sinks(repository) if path is None else ([], [])
    paths = [path] if path is not None else [str(each.path) for each in places]
    if not paths and not bad:
        why = "no FileSink is recorded for this pipeline; folders are recorded when the pipeline starts"
        raise SinkMissing(path=repository.where, why=why)
    found = CompactPlans()
    for each in paths:
        try:
            found.plans.append(plan_compact(repository, each, target_bytes=size, keep_last=keep_last))
        except (NotSupported, SinkMissing) as error:
            if path is not None:
                raise
            found.refused.append(CompactSink(path=each, refused=error.summary))
        except (Corrupt, UnsupportedVersion, SinkFailed) as error:
            if path is not None:
                raise
            found.damaged.append(error.summary)
    found.damaged += [error.summary for error in bad]
    return found


def _applied(
    repository: LocalRepository, plans: list[CompactPlan], *, grace_s: float, take_over: bool, quiet: bool
) -> dict[str, Done]:
    from holdfast.sinks.compaction.apply import apply_compact

    errors = console(stderr=True)

    def progress(text: str) -> None:
        if not quiet and sys.stderr.isatty():
            errors.print(Text(text, "dim"))

    def apply(spark: object) -> dict[str, Done]:
        return {
            plan.path: apply_compact(repository, plan, spark, take_over=take_over, grace_s=grace_s, progress=progress)
            for plan in plans
        }

    if not any(plan.by_spark for plan in plans):
        return apply(None)
    from holdfast.spark.session import borrowed  # Spark may not be installed

    progress("starting Spark")
    with borrowed() as spark:
        return apply(spark)


def _require_spark() -> None:
    from holdfast.spark.session import require_java

    require_java()


def _sink(plan: CompactPlan, done: Done | None) -> CompactSink:
    data = plan.to_dict() | {"done": done and done.to_dict()}
    return msgspec.convert({name: data[name] for name in CompactSink.__struct_fields__ if name in data}, CompactSink)

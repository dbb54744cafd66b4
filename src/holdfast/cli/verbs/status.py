"""`holdfast status`."""

from __future__ import annotations

import time

from rich.console import Console
from rich.text import Text

from holdfast import _figures as figures
from holdfast.cli import formatting
from holdfast.cli.answers import Answer, with_repo
from holdfast.cli.options import Json, Repos
from holdfast.cli.tables import TableRows
from holdfast.cli.target import all_looked_at, shown
from holdfast.web.reading.status import status_of
from holdfast.web.reading.status_lines import PipelineLine, RunState, StatusFound

SHAPES = {"status": StatusFound}
COLOURS = {
    RunState.RUNNING: "green",
    RunState.TROUBLED: "yellow",
    RunState.STOPPING: "yellow",
    RunState.UNKNOWN: "yellow",
    RunState.FAILED: "bold red",
    RunState.KILLED: "bold red",
    RunState.DAMAGED: "bold red",
}


def status(repo: Repos = None, as_json: Json = False) -> Answer:
    """Show what each pipeline is doing, its problems, and what to do next.

    Reads only the repository, so it works for pipelines that run, have stopped or were killed. A running pipeline
    counts its lag about once a minute. Exits with 1 if a pipeline has a problem that is an error.

    [bold]Examples[/]

        holdfast status -r ./checkpoints
        holdfast status --json | jq '.result.pipelines[].state'
    """
    found = [status_of(each) for each in all_looked_at(repo)]
    bad = any(problem.severity == "error" for each in found for problem in each.problems)

    def print_it(console: Console) -> None:
        for number, each in enumerate(found):
            if number:
                console.print()
            print_status(console, each, named(each, found, repo))

    return Answer(StatusFound(found), print_it, found=bad, repository=found[0].where if len(found) == 1 else None)


def named(line: PipelineLine, found: list[PipelineLine], repo: str | None) -> str | None:
    """Return how next steps name a repository: by itself if several were found, otherwise as it was typed."""
    return shown(line.where) if len(found) > 1 else repo


def print_status(console: Console, line: PipelineLine, repo: str | None = None) -> None:
    """Print the status of one pipeline. `repo` names it in next steps; `None`: it need not be named."""
    since = ""
    if line.since_ms and line.state is RunState.RUNNING:
        since = f" for {formatting.age(line.since_ms)}"
    elif line.since_ms and line.state is RunState.KILLED:
        since = f", last sign of life {formatting.age(line.since_ms)} ago"
    console.print(
        Text.assemble(
            (formatting.harmless(line.pipeline), "bold"),
            f"  timeline {line.timeline}  ",
            (str(line.state), COLOURS.get(line.state, "")),
            since,
        )
    )
    taken = f"{line.checkpoint}, {formatting.age(line.checkpoint_at_ms)} ago" if line.checkpoint else "none"
    doubts = figures.counted(len(line.doubts), "epoch")
    console.print(Text(f"checkpoint {taken}; {doubts} in doubt; {figures.counted(line.gaps, 'gap')}", "dim"))
    if line.streams:
        stream_rows(line).print(console)
    for each in line.problems:
        colour = "bold red" if each.severity == "error" else "yellow"
        what, do = (formatting.harmless(text) for text in (each.what, with_repo(each.next, repo)))
        console.print(Text.assemble((f"{each.severity}: ", colour), what), soft_wrap=True)
        console.print(Text.assemble(("  next: ", "bold"), do), soft_wrap=True)


def stream_rows(line: PipelineLine) -> TableRows:
    """Return the streams of a pipeline as a table."""
    dead = ("dead",) if any(each.dead_rows for each in line.streams) else ()
    rows = TableRows(
        *("stream", "state", "epoch", "rows", *dead, "rate", "lag", "freshness", "restarts"),
        right=("epoch", "rows", *dead, "rate", "lag", "freshness", "restarts"),
        wide_only=("rows", "restarts"),
    )
    for each in line.streams:
        rows.add(
            each.stream,
            each.state,
            str(each.epoch),
            formatting.number(each.rows),
            *(formatting.number(each.dead_rows) for _ in dead),
            "-" if each.rows_per_s is None else f"{each.rows_per_s:,.0f}/s",
            figures.lag(each.behind, each.unread_files, seconds=each.behind_s),
            formatting.span(time.time() - each.fresh_at_ms / 1000) if each.fresh_at_ms else "-",
            str(each.restarts),
        )
    return rows

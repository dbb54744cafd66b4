"""`holdfast gaps`."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.options import Json, Repo
from holdfast.cli.tables import TableRows, print_damaged
from holdfast.cli.target import looked_at
from holdfast.policy import seconds_of
from holdfast.repository import Checkpoints, GapRecord, Gaps, Identity, Repository
from holdfast.repository.decisions import streams_of


class GapsFound(msgspec.Struct, frozen=True):
    """The gap ledger of a pipeline."""

    gaps: list[GapRecord]  # by timeline, stream and epoch
    damaged: list[str] = []  # what is wrong with records that could not be read


SHAPES = {"gaps": GapsFound}


def gaps(
    repo: Repo = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="DURATION", help="Only gaps recorded within this duration: 2h, 90m."),
    ] = None,
    as_json: Json = False,
) -> Answer:
    """List gaps: input that did not reach the sinks, and state that was rebuilt differently.

    A gap is a quarantined epoch, input that was skipped with --accept gaps, or a difference in a rebuilt state that was
    accepted with --accept replay. Gaps are never removed from the ledger. Exits with 1 if there are any. If a
    record is damaged, the others are still listed, and the command exits with 1, too.

    [bold]Examples[/]

        holdfast gaps -r ./checkpoints/orders
        holdfast gaps --since 2h    for an hourly check
    """
    oldest_ms = 0.0 if since is None else (time.time() - seconds_of("--since", since)) * 1000
    repository = looked_at(repo)
    result = gaps_of(repository, oldest_ms)
    found, damaged = result.gaps, result.damaged

    def print_it(console: Console) -> None:
        if not found and not damaged:
            console.print("no gaps" if since is None else f"no gaps in the last {since}", markup=False)
            return
        rows = TableRows("stream", "timeline", "epoch", "kind", "when (UTC)", "why", right=("timeline", "epoch"))
        for gap in found:
            rows.add(gap.stream, str(gap.timeline), str(gap.epoch), gap.kind, formatting.moment(gap.at_ms), gap.why)
        if found:
            rows.print(console)
        print_damaged(console, damaged)

    return Answer(result, print_it, found=bool(found or damaged), repository=repository.where)


def gaps_of(repository: Repository, oldest_ms: float = 0.0) -> GapsFound:
    """Return the gaps of all timelines since a time, and what is wrong with records that cannot be read."""
    Identity.load(repository)
    ledger = Gaps(repository)
    found: list[GapRecord] = []
    damaged: list[str] = []
    for timeline in Checkpoints(repository).timelines():
        for stream in streams_of(repository, timeline):
            records, bad = ledger.seen(stream, timeline)
            found += [gap for gap in records if gap.at_ms >= oldest_ms]
            damaged += [error.summary for error in bad]
    return GapsFound(found, damaged)

"""`holdfast epochs`."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.options import Json, Last, Repo
from holdfast.cli.tables import TableRows, print_damaged
from holdfast.cli.target import looked_at
from holdfast.errors import BadValue
from holdfast.errors.base import PROGRAM
from holdfast.policy import seconds_of
from holdfast.repository import Lineage, Repository
from holdfast.web.reading.epochs import EpochsFound, all_streams, epochs_of, slowest_first

SHAPES = {"epochs": EpochsFound}
_SHOWN = 20
_SLOWEST_OF = 1000


def epochs(
    stream: Annotated[
        str | None, typer.Argument(metavar="STREAM", help="A stream. Default: the only one of the pipeline.")
    ] = None,
    repo: Repo = None,
    last: Last = None,
    slowest: Annotated[
        bool, typer.Option("--slowest", help="Sort the last 1,000 epochs by duration, the slowest first.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="DURATION", help="With --json: also return totals of this time, such as 1h or 7d."
        ),
    ] = None,
    as_json: Json = False,
) -> Answer:
    """Show the epochs of a stream, and how long each phase took.

    An epoch is opened, prepared by every sink, made durable (harden), decided, and committed to every sink. The times
    of the last two phases are recorded with the next epoch. Rows that went to a dead letter are counted separately.
    Decisions that neither a checkpoint nor Spark needs are pruned. For epochs before them there are only totals per
    minute.

    [bold]Examples[/]

        holdfast epochs orders
        holdfast epochs orders --slowest --last 5
        holdfast epochs orders --since 7d --json
    """
    repository = looked_at(repo)
    name = _stream(repository, stream)
    since_ms = None if since is None else int((time.time() - seconds_of("--since", since)) * 1000)
    found = epochs_of(repository, name, last=_SLOWEST_OF if slowest else last or _SHOWN, since_ms=since_ms)
    if slowest:
        found = msgspec.structs.replace(found, epochs=slowest_first(found.epochs)[: last or _SHOWN])

    def print_it(console: Console) -> None:
        if not found.epochs and not found.damaged:
            console.print(Text(f"stream {formatting.harmless(name)} has decided no epoch yet"))
            return
        phases = ("open", "prepare", "harden", "decide", "commit")
        dead = ("dead",) if any(each.dead_rows for each in found.epochs) else ()
        head = ("epoch", "verdict", "rows", *dead, "decided (UTC)", "took", *phases)
        rows = TableRows(*head, right=("epoch", "rows", *dead, "took", *phases), wide_only=("decided (UTC)",))
        for each in found.epochs:
            rows.add(
                str(each.epoch) if each.attempt == 1 else f"{each.epoch}.{each.attempt}",
                "quarantined" if each.quarantined else str(each.verdict),
                formatting.number(each.rows),
                *(formatting.number(each.dead_rows) for _ in dead),
                formatting.moment(each.decided_at_ms) if each.decided_at_ms else "-",
                _ms(each.seconds),
                *(_ms(each.phases.get(phase)) for phase in phases),
            )
        rows.print(console)
        print_damaged(console, found.damaged)

    return Answer(found, print_it, found=bool(found.damaged), repository=repository.where)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"


def _stream(repository: Repository, asked: str | None) -> str:
    names = all_streams(repository, Lineage.load(repository))
    if asked is None and len(names) == 1:
        return names[0]
    if asked in names:
        return asked
    if not names:
        do = f"run it: holdfast run {PROGRAM}"
        raise BadValue(what="pipeline", value=repository.where, why="it has no stream yet", do=do)
    do, listed = f"name a stream: holdfast epochs {names[0]}", ", ".join(names)
    if asked is None:
        why = f"the pipeline has several streams: {listed}"
        raise BadValue(what="command", value="holdfast epochs", why=why, do=do)
    raise BadValue(what="stream", value=asked, expected=f"one of: {listed}", do=do)

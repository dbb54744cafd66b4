"""`holdfast demo`: a pipeline and its plain Spark twin, killed again and again, and what their outputs hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from holdfast.cli.answers import Answer, console
from holdfast.cli.options import Json


class DemoKill(msgspec.Struct, frozen=True, kw_only=True):
    """A kill, and the rows that were to be seen then."""

    job: str  # whose worker it was: holdfast or plain
    number: int  # counted from 1
    pid: int  # of the worker
    processes: int  # that were killed with it, Java among them
    place: str  # the output that was seen to grow
    delay_ms: int  # between that and the kill
    parquet: int  # rows in the Parquet folder then
    sqlite: int | None  # rows in the table then; null where it was being written


class DemoRows(msgspec.Struct, frozen=True, kw_only=True):
    """The orders in one output."""

    found: int  # rows that are there
    due: int  # rows that there must be
    lost: int  # due, and not there
    doubled: int  # copies beyond the first
    wrong: int  # nobody's


class DemoTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of the second stream."""

    due: int  # how many there must be
    wrong: int  # missing, or not what is due
    cents: int  # by how much all together are too high


class DemoJob(msgspec.Struct, frozen=True, kw_only=True):
    """What the outputs of one job hold."""

    killed: int  # how often it was
    ok: bool  # whether nothing is lost, doubled or wrong
    parquet: DemoRows  # the orders in Parquet
    sqlite: DemoRows  # the orders in SQLite
    totals: DemoTotals  # the totals in SQLite


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo came to."""

    ok: bool  # whether Holdfast lost, doubled and changed nothing
    folder: str  # where it lies
    seed: int  # of the input and of the moments
    seconds: float  # that it took
    events: int  # in the input
    late: int  # of them: come late
    twice: int  # of them: come twice
    kills: list[DemoKill]  # of both jobs
    jobs: dict[str, DemoJob]  # by name: holdfast and plain


SHAPES = {"demo": Demo}


def demo(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="Where to write. Else ./holdfast-demo.", show_default=False)
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Fewer kills: about a minute.")] = False,
    kills: Annotated[int | None, typer.Option(metavar="N", help="How often to kill each job.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Draw the same orders and moments again.")] = None,
    as_json: Json = False,
) -> Answer:
    """See a pipeline killed again and again that loses nothing, beside plain Spark.

    An order stream with late and duplicate events goes through two chained streams into Parquet and SQLite, with
    checkpoints. Its process is killed with SIGKILL several times, and so is a plain Spark job with foreachBatch. Then
    the outputs alone are compared with what is due. Needs Java, and no server. Exits with 1 if Holdfast lost or doubled
    anything.

    [bold]Examples[/]

        holdfast demo
        holdfast demo --fast
        holdfast demo ./shop --kills 10 --seed 7
    """
    from holdfast.demo.show import demo as run_demo  # not for whoever only asks for help

    said = console()
    said.quiet = as_json
    outcome = run_demo(folder, fast=fast, seed=seed, kills=kills, console=said)

    def print_it(_: Console) -> None:
        """Print nothing more: the demo has told its own story."""

    return Answer(msgspec.convert(outcome.to_dict(), Demo), print_it, found=not outcome.ok)

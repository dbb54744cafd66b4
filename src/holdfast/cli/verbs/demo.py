"""`holdfast demo`: repeatedly kills a pipeline and a plain Spark job, compares their outputs, and undoes a bug."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from holdfast.cli.answers import Answer, console
from holdfast.cli.options import Json
from holdfast.rewind.plan import RewindPlan


class DemoKill(msgspec.Struct, frozen=True, kw_only=True):
    """One kill, and the rows that were visible at that moment."""

    job: str  # the job whose worker was killed: holdfast or plain
    number: int  # counted from 1
    pid: int  # process id of the worker
    processes: int  # number of processes that were killed, including Java
    place: str  # the output whose growth triggered the kill
    delay_ms: int  # between that growth and the kill
    parquet: int  # rows in the Parquet folder at that moment
    sqlite: int | None  # rows in the table at that moment; null if the table was being written


class DemoRows(msgspec.Struct, frozen=True, kw_only=True):
    """The orders in one output."""

    found: int  # rows that are present
    due: int  # rows that are expected
    lost: int  # expected rows that are missing
    doubled: int  # additional copies of rows
    wrong: int  # rows that are not in the input


class DemoTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of the second stream."""

    due: int  # number of totals that are expected
    wrong: int  # totals that are missing or incorrect
    cents: int  # sum of the excess of all totals


class DemoOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of Holdfast at one moment."""

    ok: bool  # whether no row is lost, duplicated or wrong
    parquet: DemoRows  # the orders in Parquet
    sqlite: DemoRows  # the orders in SQLite
    totals: DemoTotals  # the totals in SQLite


class DemoRewind(msgspec.Struct, frozen=True, kw_only=True):
    """The bug that was deployed with the Holdfast job after the kills, and the rewind that undid it."""

    ok: bool  # whether the totals showed the bug, and the outputs are right after the rewind and after the fix
    events: int  # number of events that arrived with the bug
    category: str  # the category whose orders the bug doubled
    plan: RewindPlan  # what the rewind did to each stream and sink
    timeline: int  # the new timeline
    buggy: DemoOutputs  # with the bug
    rewound: DemoOutputs  # after the rewind, compared with the orders from before the bug
    fixed: DemoOutputs  # after the run of the fixed program


class DemoJob(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of one job after the kills."""

    killed: int  # how many times it was killed
    ok: bool  # whether no row is lost, duplicated or wrong
    parquet: DemoRows  # the orders in Parquet
    sqlite: DemoRows  # the orders in SQLite
    totals: DemoTotals  # the totals in SQLite


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the demo."""

    ok: bool  # whether Holdfast lost, duplicated and changed nothing, and the rewind and the fix removed the bug
    folder: str  # the folder with the input and the outputs
    seed: int  # random seed of the input and of the kills
    seconds: float  # duration
    events: int  # number of events before the bug
    late: int  # how many of them arrive late
    twice: int  # how many of them arrive twice
    kills: list[DemoKill]  # of both jobs
    jobs: dict[str, DemoJob]  # by name: holdfast and plain
    rewind: DemoRewind  # the bug and its rewind


SHAPES = {"demo": Demo}


def demo(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="Where to write. Default: ./holdfast-demo.", show_default=False),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Fewer kills; takes about a minute.")] = False,
    kills: Annotated[int | None, typer.Option(metavar="N", help="How many times to kill each job.")] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Repeat the orders and kills of an earlier run.")
    ] = None,
    as_json: Json = False,
) -> Answer:
    """Kill a pipeline several times, undo a bug with a rewind, and check every row of its output.

    Orders, some of them late or duplicated, pass through two chained streams with checkpoints into Parquet and SQLite.
    The process is killed with SIGKILL several times. The same is done to a plain Spark job with foreachBatch. The demo
    then compares both outputs with the expected rows. Finally the demo deploys a version of the pipeline with a bug,
    which shows in its totals, goes back to the checkpoint before it, and runs a fixed version. Needs Java, but no
    server. Exits with 1 if Holdfast lost or duplicated a row, or if the rewind did not remove the effects of the bug.

    [bold]Examples[/]

        holdfast demo
        holdfast demo --fast
        holdfast demo ./shop --kills 10 --seed 7
    """
    from holdfast.demo.show import demo as run_demo  # not needed for --help

    out = console()
    out.quiet = as_json
    outcome = run_demo(folder, fast=fast, seed=seed, kills=kills, console=out)

    def print_it(_: Console) -> None:
        """Print nothing: the demo has printed its results already."""

    return Answer(msgspec.convert(outcome.to_dict(), Demo), print_it, found=not outcome.ok)

"""What the demo prints: an introduction, the comparison of both jobs, and at the end the commands to try."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from holdfast.demo.contents import contents
from holdfast.demo.orders import WATERMARK, Orders
from holdfast.demo.outcome import JOBS, Comparison, Outcome
from holdfast.demo.place import DemoFolder
from holdfast.demo.trial import Strike


def introduce(console: Console, orders: Orders, strikes: tuple[Strike, ...], seed: int, folder: str) -> None:
    """Print what is about to happen."""
    events = sum(1 for _ in orders.events)
    hours = WATERMARK.total_seconds() / 3600
    console.print(
        f"[bold]{events:,} order events[/] in {len(orders.files)} files: {orders.late:,} arrive late, "
        f"{orders.twice:,} arrive twice. The watermark is {hours:.0f} hours, longer than any delay, so each order "
        f"must be counted exactly once.\n"
        f"Two jobs process them with the same queries: [bold]Holdfast[/] and [bold]plain Spark[/] with foreachBatch. "
        f"Each writes the orders to Parquet and to SQLite. A second stream, which reads the first, writes totals.\n"
        f"Each job is killed {len(strikes)} times with SIGKILL, including its JVM, just after one of its outputs has "
        f"grown. The rule is the same for both. At the end, a bug is deployed, undone by a rewind, and fixed. "
        f"Seed {seed}, folder {escape(folder)}.\n",
        highlight=False,
    )


def compare(console: Console, comparison: Comparison, planned: int) -> None:
    """Print the outputs of both jobs side by side."""
    console.print()
    killed = [f"{comparison.killed(job)} times" for job in JOBS]
    proofs = {name: comparison.proofs[job] for job, name in JOBS.items()}
    console.print(contents("Contents of the outputs", proofs, {"killed": killed}))
    for job, name in JOBS.items():
        if comparison.killed(job) < planned:
            console.print(f"{name} finished before all {planned} kills: it was killed {comparison.killed(job)} times.")
    if comparison.ok:
        console.print("[bold green]Holdfast: no lost rows, no duplicates.[/] Its outputs prove it.", highlight=False)
    else:
        console.print("[bold red]Holdfast's outputs are wrong.[/]")
    if comparison.proofs["plain"].ok:
        console.print("Plain Spark was not affected this time: no kill hit between a write and Spark's commit.")
        console.print("Try another --seed.")
    else:
        console.print("Plain Spark ran the killed batches again and wrote their rows a second time.")


def conclude(console: Console, outcome: Outcome, folder: str) -> None:
    """Print the result, the location of the outputs, and commands to try."""
    if outcome.ok:
        console.print("[bold green]Holdfast: the bug is gone from every output. No lost rows, no duplicates.[/]")
    else:
        console.print("[bold red]Holdfast's outputs are wrong.[/] This is a bug in Holdfast. Please report it with the")
        console.print(f"seed {outcome.seed} and the folder {escape(folder)}.", highlight=False)
    console.print(f"\n[bold]Outputs[/]  ({outcome.seconds:.0f} s, seed {outcome.seed})", highlight=False)
    for inner, what in (
        ("holdfast", "orders/ and shop.db, written by Holdfast"),
        ("plain   ", "the same, written by plain Spark"),
        ("logs    ", "the output of each worker, including recoveries"),
    ):
        console.print(f"  {escape(folder)}/{inner}  {what}", highlight=False, soft_wrap=True)
    console.print("\n[bold]Try[/]", highlight=False)
    commands = _commands(f"{folder}/checkpoints/orders", _ids(DemoFolder(outcome.folder).repository))
    width = max(map(len, commands))
    for command, what in commands.items():
        line = f"  {escape(_typed())} {escape(command.ljust(width))}  [dim]# {what}[/]"
        console.print(line, highlight=False, soft_wrap=True)


def _commands(repository: str, ids: list[int]) -> dict[str, str]:
    commands = {
        f"ls -r {repository}": "list checkpoints",
        f"log -r {repository}": "see the rewind",
        f"show -r {repository}": "show the newest",
        f"verify -r {repository}": "check the newest",
    }
    if len(ids) > 1:
        commands[f"diff -r {repository} {ids[0]} {ids[-1]}"] = "compare two"
    return commands


def _ids(repository: Path) -> list[int]:
    """Return the ids of the restorable checkpoints."""
    from holdfast.repository import Checkpoints, Status, open_repository  # needed only at the end

    summaries = Checkpoints(open_repository(str(repository))).all()
    return [each.checkpoint for each in summaries if each.status is Status.RESTORABLE]


def _typed() -> str:
    """Return the command to type for `holdfast`: its path if it is not on the PATH."""
    return "holdfast" if shutil.which("holdfast") else relative(Path(sys.executable).with_name("holdfast"))


def relative(folder: Path) -> str:
    """Return a path relative to the current folder if it is inside it."""
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)

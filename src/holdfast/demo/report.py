"""What the demo prints: an introduction, and at the end a table and the commands to try."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.demo.orders import WATERMARK, Orders
from holdfast.demo.outcome import JOBS, Outcome
from holdfast.demo.proof import RowCounts
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
        f"grown. The rule is the same for both. Seed {seed}, folder {escape(folder)}.\n",
        highlight=False,
    )


def report(console: Console, outcome: Outcome, planned: int, folder: str) -> None:
    """Print the result, the location of the outputs, and commands to try."""
    console.print()
    console.print(_table(outcome))
    for job, name in JOBS.items():
        if outcome.killed(job) < planned:
            console.print(f"{name} finished before all {planned} kills: it was killed {outcome.killed(job)} times.")
    _verdict(console, outcome, folder)
    console.print(f"\n[bold]Outputs[/]  ({outcome.seconds:.0f} s, seed {outcome.seed})", highlight=False)
    for inner, what in (
        ("holdfast", "orders/ and shop.db, written by Holdfast"),
        ("plain   ", "the same, written by plain Spark"),
        ("logs    ", "the output of each worker, including recoveries"),
    ):
        console.print(f"  {escape(folder)}/{inner}  {what}", highlight=False, soft_wrap=True)
    console.print("\n[bold]Try[/]", highlight=False)
    commands = _commands(f"{folder}/checkpoints/orders", _ids(outcome.folder / "checkpoints" / "orders"))
    width = max(map(len, commands))
    for command, what in commands.items():
        line = f"  {escape(_typed())} {escape(command.ljust(width))}  [dim]# {what}[/]"
        console.print(line, highlight=False, soft_wrap=True)


def _verdict(console: Console, outcome: Outcome, folder: str) -> None:
    if outcome.proofs["holdfast"].ok:
        console.print("[bold green]Holdfast: no lost rows, no duplicates.[/] Its outputs prove it.", highlight=False)
    else:
        console.print("[bold red]Holdfast's outputs are wrong.[/] This is a bug. Please report it with the")
        console.print(f"seed {outcome.seed} and the folder {escape(folder)}.", highlight=False)
    if outcome.proofs["plain"].ok:
        console.print("Plain Spark was not affected this time: no kill hit between a write and Spark's commit.")
        console.print("Try another --seed.")
    else:
        console.print("Plain Spark ran the killed batches again and wrote their rows a second time.")


def _commands(repository: str, ids: list[int]) -> dict[str, str]:
    commands = {
        f"ls -r {repository}": "list the checkpoints",
        f"show -r {repository}": "show the newest one",
        f"verify -r {repository}": "check that it can be restored",
    }
    if len(ids) > 1:
        commands[f"diff -r {repository} {ids[0]} {ids[-1]}"] = "compare the first and the last"
    return commands


def _table(outcome: Outcome) -> Table:
    table = Table(title="Contents of the outputs", title_justify="left", title_style="bold")
    table.add_column("")
    for name in JOBS.values():
        table.add_column(name, justify="right", min_width=14)
    proofs = [outcome.proofs[job] for job in JOBS]

    def count(found: int, text: str | None = None) -> str:
        return f"[{'red' if found else 'green'}]{text or f'{found:,}'}[/]"

    def rows(name: str, found: list[RowCounts]) -> None:
        table.add_row(f"{name}: rows, of {found[0].due:,}", *(f"{each.found:,}" for each in found))
        table.add_row("  lost", *(count(each.lost) for each in found))
        table.add_row(
            "  duplicates", *(count(each.doubled) for each in found), end_section=not any(e.wrong for e in found)
        )
        if any(each.wrong for each in found):
            table.add_row("  wrong", *(count(each.wrong) for each in found), end_section=True)

    table.add_row("killed", *(f"{outcome.killed(job)} times" for job in JOBS), end_section=True)
    rows("orders in Parquet", [each.parquet for each in proofs])
    rows("orders in SQLite", [each.sqlite for each in proofs])
    totals = [each.totals for each in proofs]
    table.add_row(f"totals: wrong, of {totals[0].due}", *(count(each.wrong) for each in totals))
    table.add_row("  amount too high", *(count(each.cents, f"{each.cents / 100:,.2f}") for each in totals))
    return table


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

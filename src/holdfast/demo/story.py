"""What the demo prints about the bug, the rewind and the fix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from holdfast import _figures as figures
from holdfast.demo.contents import contents
from holdfast.demo.orders import LISTED_TWICE, Orders
from holdfast.demo.outcome import Correction
from holdfast.demo.proof import Proof

if TYPE_CHECKING:
    from holdfast.rewind.plan import RewindPlan, SinkPlan


def announce(console: Console, more: Orders) -> None:
    """Print what the bug is."""
    console.print(
        f"\n[bold]A bug is deployed.[/] {more.rows().total():,} new orders arrive. The new version of the Holdfast job "
        f"has {LISTED_TWICE} twice in its list of products, so its join doubles each order of {LISTED_TWICE}.",
        highlight=False,
    )


def show_harm(console: Console, proof: Proof) -> None:
    """Print what the bug did to the outputs."""
    if proof.totals.ok:
        console.print("The bug cannot be seen in the totals.", style="red", highlight=False)
        return
    console.print(
        f"The outputs show it. Wrong totals: {proof.totals.wrong} of {proof.totals.due}, "
        f"{proof.totals.cents / 100:,.2f} too high.",
        highlight=False,
    )


def show_rewind(console: Console, plan: RewindPlan, rewound: Proof) -> None:
    """Print what the rewind abandoned, what each sink did, and what the outputs contain now."""
    console.print(f"\n[bold]A rewind[/] goes back to {plan.base}, the last one before the bug:", highlight=False)
    for stream in plan.streams:
        epochs = figures.counted(stream.epochs, "epoch")
        console.print(f"  {escape(stream.stream)} abandons {epochs},{_rows(stream.rows)}", highlight=False)
        for sink in stream.sinks:
            console.print(f"    {escape(_action(sink))}", highlight=False)
    if rewound.ok:
        console.print(
            f"The outputs are as they were before the bug: {rewound.parquet.found:,} orders, 0 lost, 0 duplicates.",
            highlight=False,
        )
    else:
        console.print("The outputs are not as they were before the bug:", style="red", highlight=False)
        console.print(rewound.summary(), style="red", highlight=False)


def conclude(console: Console, correction: Correction) -> None:
    """Print the outputs with the bug and after the fix, side by side."""
    console.print()
    proofs = {"with the bug": correction.buggy, "after the fix": correction.fixed}
    console.print(contents("Contents of Holdfast's outputs", proofs, {}))


def _action(sink: SinkPlan) -> str:
    action = "takes back" if sink.action == "take back" else sink.action
    return f"{sink.kind:<10}  {sink.sink:<13}  {action}{_rows(sink.rows)}"


def _rows(rows: int | None) -> str:
    return " its rows" if rows is None else f" {figures.counted(rows, 'row')}"

"""The table of what the outputs contain: one column per comparison with the expected contents."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from holdfast.demo.proof import Proof, RowCounts


def contents(title: str, proofs: Mapping[str, Proof], about: Mapping[str, list[str]]) -> Table:
    """Return the table, with the proofs by the name of their column. The lines of `about` come first."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for name in proofs:
        table.add_column(name, justify="right", min_width=14)
    for name, cells in about.items():
        table.add_row(name, *cells, end_section=True)
    _add_rows(table, "orders in Parquet", [each.parquet for each in proofs.values()])
    _add_rows(table, "orders in SQLite", [each.sqlite for each in proofs.values()])
    totals = [each.totals for each in proofs.values()]
    table.add_row(f"totals: wrong, of {totals[0].due}", *(_count(each.wrong) for each in totals))
    table.add_row("  amount too high", *(_count(each.cents, f"{each.cents / 100:,.2f}") for each in totals))
    return table


def _add_rows(table: Table, name: str, found: list[RowCounts]) -> None:
    table.add_row(f"{name}: rows, of {found[0].due:,}", *(f"{each.found:,}" for each in found))
    table.add_row("  lost", *(_count(each.lost) for each in found))
    any_wrong = any(each.wrong for each in found)
    table.add_row("  duplicates", *(_count(each.doubled) for each in found), end_section=not any_wrong)
    if any_wrong:
        table.add_row("  wrong", *(_count(each.wrong) for each in found), end_section=True)


def _count(found: int, text: str | None = None) -> str:
    return f"[{'red' if found else 'green'}]{text or f'{found:,}'}[/]"

"""The contents of a job's outputs, compared with the expected contents. Only the outputs themselves are evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.demo.orders import Row, Total
from holdfast.demo.outputs import Outputs


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The rows of one output: how many were found, expected (`due`), lost, duplicated, and wrong."""

    found: int
    due: int
    lost: int
    doubled: int
    wrong: int

    @classmethod
    def compare(cls, found: Counter[Row], due: Counter[Row]) -> RowCounts:
        """Compare all columns, row by row."""
        surplus = found - due
        wrong = sum(count for row, count in surplus.items() if row not in due)
        lost, doubled = (due - found).total(), surplus.total() - wrong
        return cls(found.total(), due.total(), lost, doubled, wrong)

    @property
    def ok(self) -> bool:
        """Whether every expected row was found once, and no other."""
        return not (self.lost or self.doubled or self.wrong)

    def summary(self) -> str:
        """Return a one-line summary."""
        wrong = f", {self.wrong:,} wrong" if self.wrong else ""
        return f"{self.found:,} rows of {self.due:,}: {self.lost:,} lost, {self.doubled:,} duplicates{wrong}"


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals: how many are expected (`due`), how many are missing or wrong, and the error of their sum in cents."""

    due: int
    wrong: int
    cents: int

    @classmethod
    def compare(cls, found: Mapping[tuple[str, str], Total], due: Mapping[tuple[str, str], Total]) -> Totals:
        """Compare group by group."""
        wrong = sum(found.get(key) != due.get(key) for key in found.keys() | due.keys())
        cents = sum(each.cents for each in found.values()) - sum(each.cents for each in due.values())
        return cls(len(due), wrong, cents)

    @property
    def ok(self) -> bool:
        """Whether every total is right."""
        return not self.wrong

    def summary(self) -> str:
        """Return a one-line summary."""
        return f"{self.wrong} of {self.due} wrong, {self.cents / 100:+,.2f} in total"


@dataclass(frozen=True, slots=True)
class Proof:
    """The comparison of the three outputs of a job."""

    parquet: RowCounts
    sqlite: RowCounts
    totals: Totals

    @classmethod
    def of(cls, outputs: Outputs, rows: Counter[Row], totals: Mapping[tuple[str, str], Total]) -> Proof:
        """Read the outputs and compare them with the expected contents."""
        return cls(
            RowCounts.compare(outputs.parquet_rows(), rows),
            RowCounts.compare(outputs.sqlite_rows(), rows),
            Totals.compare(outputs.totals(), totals),
        )

    @property
    def ok(self) -> bool:
        """Whether no output has lost, duplicate or wrong rows."""
        return self.parquet.ok and self.sqlite.ok and self.totals.ok

    def summary(self) -> str:
        """Return a summary of three lines."""
        return "\n".join(
            f"{name}: {each.summary()}"
            for name, each in (("Parquet", self.parquet), ("SQLite", self.sqlite), ("totals", self.totals))
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {"ok": self.ok} | asdict(self)

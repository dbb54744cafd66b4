"""The outputs of a job, read independently of it: Parquet with pyarrow and SQLite with sqlite3."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from holdfast.demo.orders import Row, Total


@dataclass(frozen=True, slots=True)
class Outputs:
    """The folder of one job's outputs."""

    folder: Path

    @property
    def parquet(self) -> Path:
        """The folder of Parquet files."""
        return self.folder / "orders"

    @property
    def sqlite(self) -> Path:
        """The SQLite database."""
        return self.folder / "shop.db"

    def parquet_shown(self) -> int:
        """Return the number of visible entries in the Parquet folder: epoch folders or files. Cheap."""
        try:
            return sum(not each.name.startswith(("_", ".")) for each in self.parquet.iterdir())
        except FileNotFoundError:
            return 0

    def stamp(self) -> tuple[int, int] | None:
        """Return the modification time and size of the database. Cheaper still."""
        try:
            stat = self.sqlite.stat()
        except FileNotFoundError:
            return None
        return stat.st_mtime_ns, stat.st_size

    def sqlite_shown(self) -> int | None:
        """Return the number of rows in the table; `None` while a writer locks it. Cheap."""
        if not self.sqlite.exists():
            return 0
        try:
            with closing(sqlite3.connect(self.sqlite, timeout=0)) as shop:
                return int(shop.execute("SELECT count(*) FROM orders").fetchone()[0])
        except sqlite3.OperationalError as error:
            return 0 if "no such table" in str(error) else None

    def parquet_count(self) -> int:
        """Return the number of rows in the visible files, from their footers."""
        import pyarrow.parquet as pq  # an optional dependency, and slow to import

        return sum(pq.read_metadata(path).num_rows for path in self._files())

    def parquet_rows(self) -> Counter[Row]:
        """Return every row of every visible file."""
        import pyarrow.parquet as pq  # an optional dependency, and slow to import

        rows: Counter[Row] = Counter()
        for path in self._files():
            with pq.ParquetFile(path) as file:
                rows.update(Row(**each) for each in file.read(columns=list(Row._fields)).to_pylist())
        return rows

    def _files(self) -> Iterator[Path]:
        """Yield the visible files. Names that start with `_` or `.` are work in progress, which readers ignore."""
        for path in self.parquet.rglob("*.parquet"):
            if not any(part.startswith(("_", ".")) for part in path.relative_to(self.parquet).parts):
                yield path

    def sqlite_rows(self) -> Counter[Row]:
        """Return every row of the table of orders."""
        with closing(sqlite3.connect(self.sqlite)) as shop:
            found = shop.execute("SELECT event, day, product, category, quantity, cents FROM orders")
            return Counter(map(Row._make, found))

    def totals(self) -> dict[tuple[str, str], Total]:
        """Return the table of totals."""
        with closing(sqlite3.connect(self.sqlite)) as shop:
            found = shop.execute("SELECT day, category, orders, cents FROM totals").fetchall()
        return {(day, category): Total(orders, cents) for day, category, orders, cents in found}

"""What a job has written, seen from outside: Parquet by pyarrow and SQLite by sqlite3, as any reader would."""

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
        """Count what lies in the Parquet folder for all to see: an epoch's folder, or a file. Cheap."""
        try:
            return sum(not each.name.startswith(("_", ".")) for each in self.parquet.iterdir())
        except FileNotFoundError:
            return 0

    def stamp(self) -> tuple[int, int] | None:
        """Return what changes when the database does. Cheaper still."""
        try:
            stat = self.sqlite.stat()
        except FileNotFoundError:
            return None
        return stat.st_mtime_ns, stat.st_size

    def sqlite_shown(self) -> int | None:
        """Count the rows of the table; `None` while its writer keeps readers out. Cheap."""
        if not self.sqlite.exists():
            return 0
        try:
            with closing(sqlite3.connect(self.sqlite, timeout=0)) as shop:
                return int(shop.execute("SELECT count(*) FROM orders").fetchone()[0])
        except sqlite3.OperationalError as error:
            return 0 if "no such table" in str(error) else None

    def parquet_count(self) -> int:
        """Count the rows of the files that a reader of the folder sees, by their footers."""
        import pyarrow.parquet as pq  # an extra's, and slow to import

        return sum(pq.read_metadata(path).num_rows for path in self._files())

    def parquet_rows(self) -> Counter[Row]:
        """Return every row of every file that a reader of the folder sees."""
        import pyarrow.parquet as pq  # an extra's, and slow to import

        rows: Counter[Row] = Counter()
        for path in self._files():
            with pq.ParquetFile(path) as file:
                rows.update(Row(**each) for each in file.read(columns=list(Row._fields)).to_pylist())
        return rows

    def _files(self) -> Iterator[Path]:
        """Find the files for all to see: what begins with `_` or `.` is work under way, and readers pass it over."""
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

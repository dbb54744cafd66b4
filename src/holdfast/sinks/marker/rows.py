"""The rows that a marker sink is given: staged Parquet files, read as dicts, as Arrow batches or as a table."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import SinkFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows of one epoch. They can be read any number of times, and are the same whenever a call is repeated.

    Iterate over it for dicts by column name. `len(rows)` is their number; without rows it is false.
    """

    files: tuple[Path, ...]  # Parquet files with the rows
    count: int
    replaces: bool = False  # output mode "complete": the rows replace all earlier ones
    _schema: str = ""  # of an epoch without rows, serialised by Arrow

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from batch.to_pylist()

    def batches(self, size: int = _BATCH) -> Iterator[pa.RecordBatch]:
        """Yield the rows as Arrow record batches of at most so many rows."""
        import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

        for path in self.files:
            with pq.ParquetFile(path) as staged:
                yield from (batch for batch in staged.iter_batches(size) if batch.num_rows)

    def table(self) -> pa.Table:
        """Return all rows as one Arrow table. It has no columns if the call only stores a key."""
        import pyarrow as pa  # noqa: PLC0415 - an extra

        if self.files:
            return pa.Table.from_batches(self.batches())
        if not self._schema:
            return pa.table({})
        return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(self._schema))).empty_table()


def rows_in(sink: str, folder: Path, count: int, *, replaces: bool) -> StagedRows:
    """Return the rows that an attempt staged; raise if the files do not have exactly so many."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    files = tuple(sorted(path for path in folder.glob("*.parquet") if not path.name.startswith(".")))
    found = sum(pq.read_metadata(path).num_rows for path in files)
    if found != count:
        why = f"{found} rows were staged, but the decision counts {count}"
        raise SinkFailed(sink=sink, action="read the staged rows", why=why)
    return StagedRows(files, count, replaces)


def serialised(schema: StructType) -> str:
    """Return the columns of an epoch without rows, as a handle stores them."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - an extra

    return base64.b64encode(to_arrow_schema(schema).serialize().to_pybytes()).decode()

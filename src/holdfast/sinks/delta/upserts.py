"""The staged rows of an upsert, which the driver reads before delta-rs merges them into a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import SinkFailed
from holdfast.sinks.lake.epoch_files import EpochFiles
from holdfast.sinks.lake.table_folder import TableFolder

_DO = "give each row of an epoch its own key (groupBy, dropDuplicates, filter), then run again; nothing was written"


def merged_rows(folder: TableFolder, files: EpochFiles, columns: Sequence[str] | None = None) -> Any:
    """Return staged rows as one Arrow table: all columns, or some."""
    import pyarrow as pa  # noqa: PLC0415 - an extra, slow to import
    import pyarrow.parquet as pq  # noqa: PLC0415

    found = []
    for each in files.files:
        data = folder.read(each.path)
        if data is None:
            raise FileNotFoundError(2, "a staged file is missing", f"{folder.url}/{each.path}")
        found.append(pq.read_table(pa.BufferReader(data), columns=None if columns is None else list(columns)))
    return pa.concat_tables(found)


def check_unique(sink: str, keys: Any, names: Sequence[str]) -> None:
    """Refuse rows with a null in their key, and two rows of an epoch with the same key."""
    for name in names:
        if keys.column(name).null_count:
            why = f"the key column {name} is null in some rows"
            raise SinkFailed(sink=sink, action="accept the rows", why=why, do=_DO)
    distinct = keys.group_by(list(names)).aggregate([]).num_rows
    if distinct != keys.num_rows:
        why = f"{keys.num_rows} rows have only {distinct} different keys ({', '.join(names)})"
        raise SinkFailed(sink=sink, action="accept the rows", why=why, do=_DO)

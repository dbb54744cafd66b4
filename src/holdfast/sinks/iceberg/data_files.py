"""Data files as Iceberg's metadata describes them, with the statistics by which readers skip files.

Rules:
- A column has bounds only if each part of a file that has values has them. PyIceberg would ignore the other parts, and
  readers would miss their rows. Nor has it bounds if Python cannot represent them, as dates after the year 9999, or if
  PyIceberg may fail to cut them: it replaces the last character of a maximum that is cut by the next one.
- A column has a null count only if each part of a file has one. PyIceberg would take a missing count as 0, and readers
  that search for null would skip the file.
- Nulls are counted in each column that the table requires, even if its properties turn statistics off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table

from holdfast.errors import RecordCorrupt, SchemaMismatch
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.sinks.iceberg.columns import StoredColumn
from holdfast.sinks.iceberg.partitions import Partitioning
from holdfast.sinks.lake.epoch_files import Describe, LakeFile
from holdfast.sinks.lake.null_counts import nulls_in

_UNCUT = "\ud7ff"  # surrogates follow it, which are no characters
_NONE, _COUNTS = MetricsMode(MetricModeTypes.NONE), MetricsMode(MetricModeTypes.COUNTS)


class FileStatistics(msgspec.Struct, frozen=True):
    """The statistics of a file; columns by their field ids."""

    record_count: int
    column_sizes: dict[int, int]
    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    nan_value_counts: dict[int, int]
    lower_bounds: dict[int, bytes]
    upper_bounds: dict[int, bytes]
    split_offsets: list[int]


def required_columns(stored: Sequence[StoredColumn]) -> list[StoredColumn]:
    """Return the columns in which every row must have a value."""
    return [each for each in stored if each.field.required and each.field.field_type.is_primitive]


def describing(table: Table, stored: Sequence[StoredColumn], sink: str, name: str) -> Describe:
    """Return the function that describes a file of the table. It refuses null where the table requires a value.

    It needs the null counts of the columns of `required_columns`.
    """
    schema = table.schema()
    plan = compute_statistics_plan(schema, table.properties)
    ids = parquet_path_to_id_mapping(schema)
    required = [each.field for each in required_columns(stored)]
    for field in required:
        if plan[field.field_id].mode == _NONE:
            plan[field.field_id] = replace(plan[field.field_id], mode=_COUNTS)

    def describe(footer: Any, nulls: Mapping[str, int]) -> str:
        found = data_file_statistics_from_parquet_metadata(footer, _possible(plan, footer, ids), ids)
        unknown = {ids[path] for path in _uncounted(footer)}
        counts = {number: each for number, each in found.null_value_counts.items() if number not in unknown}
        for field in required:
            counts[field.field_id] = nulls[field.name]
            if nulls[field.name]:
                why = f"it requires the column {field.name!r}, and a row has no value there"
                do = "remove such rows in the query, or make the column optional; nothing was committed"
                raise SchemaMismatch(sink=sink, table=name, why=why, do=do)
        return msgspec.json.encode(replace(found, null_value_counts=counts).to_serialized_dict()).decode()

    return describe


def _possible(
    plan: Mapping[int, StatisticsCollector], footer: Any, ids: Mapping[str, int]
) -> dict[int, StatisticsCollector]:
    """Return the statistics of a plan that a file has: only counts of columns without bounds."""
    found = dict(plan)
    for group in (footer.row_group(number) for number in range(footer.num_row_groups)):
        for column in (group.column(number) for number in range(footer.num_columns)):
            number = ids[column.path_in_schema]
            if found[number].mode != _NONE and not _has_bounds(column.statistics):
                found[number] = replace(found[number], mode=_COUNTS)
    return found


def _uncounted(footer: Any) -> Iterator[str]:
    """Return the paths of the columns whose nulls are not counted in every part of a file."""
    for number in range(footer.num_columns):
        if nulls_in(footer, number) is None:
            yield footer.schema.column(number).path


def _has_bounds(statistics: Any) -> bool:
    """Whether a part of a column has bounds that Python can represent, or needs none because it has no values."""
    if statistics is None or not statistics.num_values:
        return True  # without statistics, PyIceberg leaves the column out
    try:
        if not statistics.has_min_max or statistics.min is None or statistics.max is None:
            return False
        return not (isinstance(statistics.max, str) and _UNCUT in statistics.max)
    except (OverflowError, ValueError):
        return False
    except NotImplementedError:  # of a decimal that is stored as an integer, which PyIceberg reads itself
        return True


def data_files(
    table: Table, files: Iterable[LakeFile], columns: Collection[int], partitioning: Partitioning, spec: int
) -> list[DataFile]:
    """Return the files of an epoch as the table's metadata names them, with the statistics of these columns."""
    return [_data_file(table, each, columns, partitioning, spec) for each in files]


def _data_file(
    table: Table, file: LakeFile, columns: Collection[int], partitioning: Partitioning, spec: int
) -> DataFile:
    stats: dict[str, Any] = {
        name: {number: each for number, each in value.items() if number in columns}
        if isinstance(value, dict)
        else value
        for name, value in msgspec.structs.asdict(statistics_in(file)).items()
    }
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location().rstrip('/')}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=partitioning.record(file.partition),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **stats,
    )
    made.spec_id = spec
    return made


def statistics_in(file: LakeFile) -> FileStatistics:
    """Return the statistics in the record of a file."""
    try:
        return from_json(file.stats.encode(), FileStatistics)
    except Undecodable as error:
        raise RecordCorrupt(key=file.path, why=f"its statistics: {error}") from error

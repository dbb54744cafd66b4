"""Columns of an Iceberg table that another program changes after the files of an epoch were written.

Rules:
- Files have no field ids, so readers find a column of a file by the table's name mapping. They would read a column that
  they do not find as null, without an error: such files are refused. A column that was renamed is found.
- Two columns of a file must not be found as one, as after a rename to the former name of another column.
- A type may become wider, as Iceberg allows it: readers widen the values, nested ones too.
- A column that the table requires now must have no null in the files; if it is nested, the type of the stream must
  exclude null. One that the files lack must not be required.
- Statistics belong to a field id. They are left out if the name in the file now means another column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pyiceberg import types as ice
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import MappedField

from holdfast.errors import SchemaMismatch
from holdfast.sinks.iceberg.columns import PLAIN, Unfit, can_widen
from holdfast.sinks.iceberg.data_files import statistics_in
from holdfast.sinks.lake.epoch_files import EpochFiles

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_Fields: TypeAlias = Iterable[Mapping[str, Any]]  # of a struct, in Spark's JSON


def columns_found(files: EpochFiles, table: Table, sink: str, name: str, do: str) -> frozenset[int]:
    """Return the ids of the columns that readers find in the files of an epoch.

    Raise `SchemaMismatch`, with the next step `do`, if readers would miss values or find a null that is not allowed.
    """
    mapping = table.metadata.name_mapping() or table.schema().name_mapping
    separating = {each for file in files.files for each in file.partition}  # columns that are not in the files
    written = [each for each in json.loads(files.columns)["fields"] if each["name"] not in separating]
    try:
        found = frozenset(_in_struct(written, table.schema().fields, mapping.root, ""))
        _refuse_nulls(files, [each for each in table.schema().fields if each.required])
    except Unfit as unfit:
        raise SchemaMismatch(sink=sink, table=name, why=str(unfit), do=do) from None
    return found


def _in_struct(
    written: _Fields, fields: Sequence[ice.NestedField], mapped: Sequence[MappedField], above: str
) -> Iterator[int]:
    by_id = {each.field_id: each for each in fields}
    found = set()
    for each in written:
        path = f"{above}{each['name']}"
        meant = next((one for one in mapped if each["name"] in one.names), None)
        field = by_id.get(meant.field_id) if meant is not None and meant.field_id is not None else None
        if meant is None or field is None:
            raise Unfit(_lost(each["name"], path, fields))
        if field.field_id in found:
            raise Unfit(f"two columns of the stream would be read as its column '{above}{field.name}'")
        if above or not field.field_type.is_primitive:
            _refuse_null(each["nullable"], field.required, path)
        found.add(field.field_id)
        yield from _in_type(each["type"], field.field_id, field.field_type, meant.fields, path)
    for field in fields:
        if field.required and field.field_id not in found:
            raise Unfit(f"it requires the column '{above}{field.name}', which the stream does not have")


def _lost(name: str, path: str, fields: Sequence[ice.NestedField]) -> str:
    if any(each.name == name for each in fields):
        return f"its property schema.name-mapping.default does not name the column {path!r}"
    return f"it no longer has the column {path!r}"


def _in_type(
    kind: Any, number: int, target: ice.IcebergType, mapped: Sequence[MappedField], path: str
) -> Iterator[int]:
    yield number
    match kind, target:
        case {"type": "struct", "fields": fields}, ice.StructType():
            yield from _in_struct(fields, target.fields, mapped, f"{path}.")
        case {"type": "array", "elementType": inner}, ice.ListType():
            _refuse_null(kind["containsNull"], target.element_required, f"{path}.element")
            below = _below(mapped, "element")
            yield from _in_type(inner, target.element_id, target.element_type, below, f"{path}.element")
        case {"type": "map", "keyType": key, "valueType": value}, ice.MapType():
            _refuse_null(kind["valueContainsNull"], target.value_required, f"{path}.value")
            yield from _in_type(key, target.key_id, target.key_type, _below(mapped, "key"), f"{path}.key")
            yield from _in_type(value, target.value_id, target.value_type, _below(mapped, "value"), f"{path}.value")
        case str(), _:
            own = _primitive(kind)
            if own != target and not can_widen(own, target):
                raise Unfit(f"its column {path!r} is {target}, but the stream's is {own}")
        case _:
            raise Unfit(f"its column {path!r} is {target}, but the stream's is {kind['type']}")


def _below(mapped: Sequence[MappedField], name: str) -> Sequence[MappedField]:
    return next((each.fields for each in mapped if name in each.names), ())


def _primitive(kind: str) -> ice.PrimitiveType:
    if decimal := _DECIMAL.fullmatch(kind):
        return ice.DecimalType(int(decimal[1]), int(decimal[2]))
    return PLAIN[kind.partition("(")[0].partition(" ")[0]]  # varchar(3), string with a collation


def _refuse_null(may_be_null: bool, required: bool, path: str) -> None:
    if may_be_null and required:
        raise Unfit(f"it requires {path!r}, which may be null in the stream")


def _refuse_nulls(files: EpochFiles, required: Sequence[ice.NestedField]) -> None:
    for field in (each for each in required if each.field_type.is_primitive):
        for file in files.files:
            nulls = statistics_in(file).null_value_counts.get(field.field_id)
            if nulls is None:  # if the file does not have the field id, the column was dropped and added again
                known = field.field_id in statistics_in(file).column_sizes
                why = "whose nulls were not counted when" if known else "which was replaced after"
                raise Unfit(
                    f"it requires the column {field.name!r}, {why} the epoch was staged: make it optional until the "
                    "epoch is committed"
                )
            if nulls:
                raise Unfit(f"it requires the column {field.name!r}, which is null in a row of the epoch")

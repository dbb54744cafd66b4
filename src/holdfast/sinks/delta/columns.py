"""Which columns a Delta table can store, and whether a table stores those of a stream: delta-rs checks neither.

Schemas are compared as the JSON that Spark and Delta share.

Rules:
- Columns are matched by name. Names differ in more than case, because Delta ignores case.
- Types must be the same, nested ones too. A column of the table that the stream lacks must be nullable: it stays null.
- A column of the table that is not nullable is compared with the null counts of the files, because Spark marks most
  columns of a stream as nullable. Files have no such count for a nested column: the stream's type must exclude null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.errors import BadValue, NotSupported, SchemaMismatch, SinkFailed
from holdfast.sinks.delta.statistics import null_count
from holdfast.sinks.lake.epoch_files import EpochFiles
from holdfast.sinks.rows import not_null, quoted

_PLAIN = re.compile(
    r"boolean|byte|short|integer|long|float|double|string|binary|date|timestamp|timestamp_ntz|decimal\(\d+,-?\d+\)"
)
_AS_PARTITION = re.compile(r"boolean|byte|short|integer|long|string|date|timestamp|timestamp_ntz|decimal\(\d+,-?\d+\)")
_BAD_NAME = re.compile(r"[ ,;{}()\n\t=]")
_NO_NULLS = "give every row a value in this column (filter, coalesce), then run again; nothing was written"


def check_stream(sink: str, columns: str, partition_by: Sequence[str], time_zone: str) -> None:
    """Refuse columns of a stream that no Delta table can store, and those that cannot be partition columns."""
    fields = _fields(columns)
    lowered = [name.lower() for name in fields]
    for name, field in fields.items():
        _check_name(name)
        if lowered.count(name.lower()) > 1:
            why = "Delta ignores case, and another column has the same name"
            raise BadValue(what="column", value=name, why=why, do="rename one of them")
        _check_type(sink, name, field["type"])
    missing = [each for each in partition_by if each not in fields]
    if missing:
        raise BadValue(what="partition_by", value=missing, expected=f"columns of the stream: {sorted(fields)}")
    if len(set(partition_by)) >= len(fields):
        raise BadValue(what="partition_by", value=list(partition_by), why="no column would be left for the files")
    for name in partition_by:
        kind = fields[name]["type"]
        if not isinstance(kind, str) or not _AS_PARTITION.fullmatch(kind):
            why = f"its type {_text(kind)} has no exact form in the name of a folder"
            raise BadValue(what="partition_by", value=name, why=why, do="cast it to a string, or choose another column")
        if kind == "timestamp" and time_zone not in ("UTC", "Etc/UTC", "Z", "GMT"):
            why = f"Spark names folders in the time zone of the session ({time_zone}), and readers take them as UTC"
            do = "set spark.sql.session.timeZone to UTC, or partition by a date"
            raise BadValue(what="partition_by", value=name, why=why, do=do)


def check_key(columns: str, key: Sequence[str]) -> None:
    """Refuse columns that cannot identify a row."""
    fields = _fields(columns)
    for name in key:
        if name not in fields:
            raise BadValue(what="key", value=name, expected=f"columns of the stream: {sorted(fields)}")
        kind = fields[name]["type"]
        if not isinstance(kind, str) or not _AS_PARTITION.fullmatch(kind):
            why = f"values of type {_text(kind)} cannot be compared exactly"
            raise BadValue(what="key", value=name, why=why, do="choose another column, or cast it to a string")


def check_table(sink: str, table: str, columns: str, found: str) -> None:
    """Refuse a table that does not store the columns of a stream as they are."""
    ours, theirs = _fields(columns), _fields(found)
    lowered = {name.lower(): name for name in theirs}
    for name, field in ours.items():
        if name in theirs:
            _compare(sink, table, name, field["type"], theirs[name]["type"])
            if not isinstance(field["type"], str):
                _compare_nulls(sink, table, f"column {name}", field["nullable"], theirs[name]["nullable"])
        elif name.lower() in lowered:
            raise _mismatch(sink, table, f"its column {lowered[name.lower()]} is written {name} in the stream")
        else:
            do = "add the column to the table, or drop it from the stream; nothing was written"
            raise _mismatch(sink, table, f"it has no column {name} ({_text(field['type'])})", do)
    for name, field in theirs.items():
        if name not in ours and not field["nullable"]:
            raise _mismatch(sink, table, f"its column {name} must not be null, and the stream has no such column")


def check_partitions(sink: str, table: str, files: EpochFiles, partition_by: Sequence[str]) -> None:
    """Refuse a table that is no longer partitioned as it was when the files were written."""
    found = list(files.files[0].partition)
    if found != list(partition_by):
        why = f"it is partitioned by {list(partition_by)}, and the files of epoch {files.epoch} by {found}"
        raise _mismatch(sink, table, why, "restore the partitioning of the table; nothing was written")


def required_columns(columns: str) -> list[str]:
    """Return the columns of a table that must not be null, and of which files count the nulls."""
    return [
        name for name, field in _fields(columns).items() if not field["nullable"] and isinstance(field["type"], str)
    ]


def check_nulls(sink: str, columns: str, files: EpochFiles, do: str = _NO_NULLS) -> None:
    """Refuse rows with a null in a column of the table that must not be null."""
    for name in required_columns(columns):
        for file in files.files:
            nulls = int(file.partition[name] is None) if name in file.partition else null_count(file.stats, name)
            if nulls is None or nulls:
                many = "may contain nulls: its file has no count of them" if nulls is None else "is null in some rows"
                why = f"column {name} {many}, and the table does not allow it"
                raise SinkFailed(sink=sink, action="accept the rows", why=why, do=do)


def null_conditions(
    columns: str, stream: Collection[str], key: Collection[str], partition_by: Collection[str]
) -> dict[str, str]:
    """Return the conditions, by name, that the rows of a stream must meet: no null in the key, nor where it is refused.

    Spark stores an empty string in a partition column as null.
    """
    found = {}
    for name, field in _fields(columns).items():
        if name in stream and (name in key or not field["nullable"]):
            empty = name in partition_by and name not in key and field["type"] == "string"
            found[f"{name} is null"] = not_null(name) + (f" AND {quoted(name)} <> ''" if empty else "")
    return found


def _fields(columns: str) -> dict[str, Mapping[str, Any]]:
    return {each["name"]: each for each in json.loads(columns)["fields"]}


def _check_name(name: str) -> None:
    if not name or _BAD_NAME.search(name):
        why = "Delta allows none of the characters ' ,;{}()=', tab and line feed in a name"
        raise BadValue(what="column", value=name, why=why, do="rename the column")


def _check_type(sink: str, name: str, kind: Any) -> None:
    match kind:
        case str() if _PLAIN.fullmatch(kind):
            return
        case {"type": "struct", "fields": fields}:
            for each in fields:
                _check_name(each["name"])
                _check_type(sink, f"{name}.{each['name']}", each["type"])
        case {"type": "array", "elementType": inner}:
            _check_type(sink, f"{name}.element", inner)
        case {"type": "map", "keyType": key, "valueType": value}:
            _check_type(sink, f"{name}.key", key)
            _check_type(sink, f"{name}.value", value)
        case _:
            what = f"column {name} of type {_text(kind)} in sink {sink!r}"
            raise NotSupported(what=what, why="DeltaSink does not write this type", do="cast the column, or drop it")


def _compare(sink: str, table: str, name: str, ours: Any, theirs: Any) -> None:
    match ours, theirs:
        case str(), str() if ours == theirs:
            return
        case {"type": "struct", "fields": one}, {"type": "struct", "fields": other}:
            inner = {each["name"]: each for each in other}
            if [each["name"] for each in one] != list(inner):
                raise _mismatch(sink, table, f"the fields of its column {name} are {sorted(inner)}")
            for each in one:
                _compare(sink, table, f"{name}.{each['name']}", each["type"], inner[each["name"]]["type"])
                _compare_nulls(sink, table, f"{name}.{each['name']}", each["nullable"], inner[each["name"]]["nullable"])
        case {"type": "array"}, {"type": "array"}:
            _compare(sink, table, f"{name}.element", ours["elementType"], theirs["elementType"])
            _compare_nulls(sink, table, f"{name}.element", ours["containsNull"], theirs["containsNull"])
        case {"type": "map"}, {"type": "map"}:
            _compare(sink, table, f"{name}.key", ours["keyType"], theirs["keyType"])
            _compare(sink, table, f"{name}.value", ours["valueType"], theirs["valueType"])
            _compare_nulls(sink, table, f"{name}.value", ours["valueContainsNull"], theirs["valueContainsNull"])
        case _:
            raise _mismatch(sink, table, f"its column {name} is {_text(theirs)}, and the stream's is {_text(ours)}")


def _compare_nulls(sink: str, table: str, name: str, ours: bool, theirs: bool) -> None:
    if ours and not theirs:
        raise _mismatch(sink, table, f"{name} must not be null there, and may be null in the stream")


def _mismatch(sink: str, table: str, why: str, do: str | None = None) -> SchemaMismatch:
    return SchemaMismatch(sink=sink, table=table, why=why, **({"do": do} if do else {}))


def _text(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type", kind))

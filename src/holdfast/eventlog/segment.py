"""Segments of an event log: Parquet files of events, written and read through Arrow.

Columns: scope, entity, category, type, clock (if the log stores clocks), payload. Rows are in the order of their
sequences.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast._validation import checked_u64
from holdfast.errors import BadValue, MissingExtra
from holdfast.eventlog.region import KIND_MAX, Region, checked_coordinate, checked_kind_part

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ModuleNotFoundError as _error:
    raise MissingExtra(extra="log", module="pyarrow") from _error

_CHUNK = 8192  # rows per filter step, so that a reader of few events does not decode a whole segment


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to be appended."""

    entity: str  # the object that the event is about, such as `order:7`
    payload: Any  # bytes, unless the log has another payload type
    scope: str = "default"  # a namespace, such as a tenant
    category: int = 0  # a user-defined category
    type: int = 0  # a user-defined type within the category
    clock: int | None = None  # its number within its entity, if the log stores clocks


@dataclass(frozen=True, slots=True)
class LogEvent:
    """An event of a log: its place in the global sequence, its coordinates, its kind and its payload."""

    sequence: int  # counted from 0 over the whole log
    scope: str  # a namespace, such as a tenant
    entity: str  # the object that the event is about, such as `order:7`
    category: int  # a user-defined category
    type: int  # a user-defined type within the category
    clock: int | None  # its number within its entity, if the log stores clocks
    payload: Any  # bytes, unless the log has another payload type


def schema_of(payload: pa.DataType | None, *, keep_clock: bool) -> pa.Schema:
    """Return the columns of a log. Integers are signed, because Spark has no unsigned types."""
    columns = [("scope", pa.string()), ("entity", pa.string()), ("category", pa.int32()), ("type", pa.int32())]
    if keep_clock:
        columns.append(("clock", pa.int64()))
    kind = pa.binary() if payload is None else payload
    _check_type(kind)
    columns.append(("payload", kind))
    return pa.schema([pa.field(name, kind, nullable=name == "payload") for name, kind in columns])


def _check_type(kind: object) -> None:
    """Reject types whose values Python cannot represent: such an event could be written but not read."""
    if not isinstance(kind, pa.DataType):
        raise BadValue(what="payload type", value=kind, expected="an Arrow type")
    plain = (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )
    nested = pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_map(kind)
    if not plain and not nested:
        raise BadValue(what="payload type", value=str(kind), why="Python or Spark cannot represent its values")
    for inner in range(kind.num_fields if nested else 0):
        _check_type(kind.field(inner).type)


def schema_to_text(schema: pa.Schema) -> str:
    """Return a schema as text that can be stored in JSON."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """Return the schema that `schema_to_text` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))


def to_table(events: Iterable[NewEvent] | pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return events as an Arrow table with the log's schema, or raise `BadValue`."""
    try:
        if isinstance(events, pa.RecordBatch):
            events = pa.Table.from_batches([events])
        if isinstance(events, pa.Table):
            missing = sorted(set(schema.names) - set(events.column_names))
            if missing:
                raise BadValue(what="table", value=events.column_names, why=f"columns {missing} are missing")
            table = events.select(schema.names).cast(schema)
        else:
            rows = [_row(place, event, schema) for place, event in enumerate(_several(events))]
            table = pa.Table.from_pylist(rows, schema=schema)
        table.validate(full=True)
    except BadValue:
        raise
    except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadValue(what="events", value=type(events).__name__, why=str(error)) from error
    for name in schema.names:
        if name != "payload":
            _check_column(name, table.column(name))
    return table


def _check_column(name: str, column: pa.ChunkedArray) -> None:
    """Check a column of a table by the rules for a single event."""
    if column.null_count:
        raise BadValue(what="column", value=name, why="it contains nulls")
    if pa.types.is_string(column.type):
        if pc.any(pc.equal(column, "")).as_py():
            raise BadValue(what="column", value=name, why="it contains empty text")
        return
    least, most = pc.min_max(column).values() if len(column) else (pa.scalar(0), pa.scalar(0))
    if least.as_py() < 0 or (name != "clock" and most.as_py() > KIND_MAX):
        raise BadValue(what="column", value=name, why="it contains a number out of range")


def _several(events: object) -> Iterable[object]:
    if isinstance(events, NewEvent | str | bytes) or not isinstance(events, Iterable):
        expected = "an iterable of NewEvent, an Arrow table or a record batch"
        raise BadValue(what="events", value=events, expected=expected, do="pass a list, even for one event")
    return events


def _row(place: int, event: object, schema: pa.Schema) -> dict[str, Any]:
    if not isinstance(event, NewEvent):
        raise BadValue(what=f"event {place}", value=event, expected=f"NewEvent, not {type(event).__name__}")
    _check_payload(place, event.payload, schema.field("payload").type)
    row: dict[str, Any] = {
        "scope": checked_coordinate("scope", event.scope),
        "entity": checked_coordinate("entity", event.entity),
        "category": checked_kind_part("category", event.category),
        "type": checked_kind_part("type", event.type),
        "payload": event.payload,
    }
    if "clock" in schema.names:
        row["clock"] = checked_u64("clock", event.clock)
    elif event.clock is not None:
        raise BadValue(what="clock", value=event.clock, why="the log does not store entity clocks")
    return row


def _check_payload(place: int, payload: object, kind: pa.DataType) -> None:
    """Reject values that Arrow would silently convert: text to bytes, misspelt fields to nulls."""
    if pa.types.is_binary(kind) and not isinstance(payload, bytes | bytearray | memoryview | None):
        raise BadValue(what=f"payload of event {place}", value=payload, expected="bytes")
    if pa.types.is_struct(kind) and isinstance(payload, dict):
        unknown = sorted(set(payload) - {each.name for each in kind})
        if unknown:
            raise BadValue(what=f"payload of event {place}", value=payload, why=f"the log has no field {unknown[0]!r}")


def joined(tables: list[pa.Table]) -> pa.Table:
    """Return the concatenation of tables with the same schema."""
    return pa.concat_tables(tables)


def to_parquet(table: pa.Table) -> bytes:
    """Return the bytes of a segment."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_parquet(data: bytes, schema: pa.Schema) -> pa.Table:
    """Return the events of a segment, or raise `ValueError` if the bytes do not have this schema."""
    try:
        # One thread: segments are small, and starting a thread pool would cost more than it saves.
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, OSError) as error:
        raise ValueError(str(error)) from error


def matching(table: pa.Table, first: int, start: int, region: Region) -> Iterator[LogEvent]:
    """Yield the events of a segment from row `start` on that are in `region`; `first` is the sequence of row 0."""
    for at in range(start, table.num_rows, _CHUNK):
        chunk = table.slice(at, _CHUNK)
        rows = pc.indices_nonzero(_mask(chunk, region)) if _filters(region) else None
        found = chunk.take(rows) if rows is not None else chunk
        places = rows.to_pylist() if rows is not None else range(chunk.num_rows)
        for place, row in zip(places, _rows(found), strict=True):
            yield LogEvent(
                sequence=first + at + place,
                scope=row["scope"],
                entity=row["entity"],
                category=row["category"],
                type=row["type"],
                clock=row.get("clock"),
                payload=row["payload"],
            )


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
    except (ValueError, OverflowError) as error:  # for example, a date after the year 9999
        raise BadValue(what="payload", value=str(table.schema.field("payload").type), why=str(error)) from error
    return rows


def _filters(region: Region) -> bool:
    return region != Region()


def _mask(chunk: pa.Table, region: Region) -> pa.Array:
    mask = pa.array([True] * chunk.num_rows)
    if region.scope is not None:
        mask = pc.and_(mask, pc.equal(chunk["scope"], region.scope))
    if region.entity is not None:
        below = pc.starts_with(chunk["entity"], f"{region.entity}:")
        mask = pc.and_(mask, pc.or_(below, pc.equal(chunk["entity"], region.entity)))
    if region.kind is not None and region.kind.category is not None:
        mask = pc.and_(mask, pc.equal(chunk["category"], region.kind.category))
        if region.kind.type is not None:
            mask = pc.and_(mask, pc.equal(chunk["type"], region.kind.type))
    if region.clock is not None:
        low, high = (pa.scalar(each, pa.uint64()) for each in region.clock)
        clock = chunk["clock"].cast(pa.uint64())
        mask = pc.and_(mask, pc.and_(pc.greater_equal(clock, low), pc.less_equal(clock, high)))
    return mask

"""The JSON of a manifest: its parts are decoded field by field, with the range of each number, and encoded again.

Unknown fields are kept as JSON text in the `extra` of each part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, NoReturn

import msgspec

from holdfast.errors import ManifestCorrupt
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.formats.manifest_parts import (
    CheckpointTimes,
    ConnectorCheckpoint,
    GapNote,
    GapNotes,
    SinkStatus,
    StreamCut,
    StreamTimes,
)
from holdfast.formats.sidecar import OperatorState

_RANGES = {"u64": (0, (1 << 64) - 1), "i64": (-(1 << 63), (1 << 63) - 1), "u16": (0, (1 << 16) - 1)}


def refuse(why: str) -> NoReturn:
    """Report damage."""
    raise ManifestCorrupt(why=why)


def refuse_duplicate_keys(data: bytes) -> None:
    """Reject duplicate keys: parsers disagree on which value counts. A sealed text cannot have any."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        unique = dict(found)
        if len(unique) != len(found):
            refuse("duplicate key")
        return unique

    try:
        json.loads(data.decode(), object_pairs_hook=pairs)
    except ValueError as error:  # not JSON, or an integer of thousands of digits
        refuse(str(error))


def wire(value: Any) -> Any:
    """Return a value as it is encoded."""
    match value:
        case SinkStatus(state="Failed"):
            return {"Failed": value.why or ""}
        case SinkStatus():
            return value.state
        case (
            ConnectorCheckpoint()
            | OperatorState()
            | StreamCut()
            | GapNote()
            | GapNotes()
            | StreamTimes()
            | CheckpointTimes()
        ):
            own = {each.name: wire(getattr(value, each.name)) for each in fields(value) if each.name != "extra"}
            return {**own, **raw_fields(value.extra)}
        case Mapping():
            return {name: wire(each) for name, each in value.items()}
        case tuple():
            return [wire(each) for each in value]
    return value


def raw_fields(extra: Mapping[str, str]) -> dict[str, msgspec.Raw]:
    """Return unknown fields as they are encoded."""
    return {name: msgspec.Raw(text.encode()) for name, text in extra.items()}


def _extra(raw: dict[str, msgspec.Raw], known: Iterable[str]) -> dict[str, str]:
    unknown = raw.keys() - set(known)
    return {name: msgspec.json.format(raw[name], indent=-1).decode() for name in raw if name in unknown}


def manifest_fields(raw: dict[str, msgspec.Raw], known: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a manifest; those that are not in `known` go to `extra`."""

    def integer(kind: str, name: str) -> int:
        return integer_of(kind, raw.get(name), name)

    def text(name: str) -> str | None:
        return _decode(raw[name], str | None, name) if name in raw else None

    def optional_integer(kind: str, name: str) -> int | None:
        return None if name not in raw or bytes(raw[name]) == b"null" else integer(kind, name)

    def named(name: str) -> dict[str, msgspec.Raw]:
        return _decode(raw[name], dict[str, msgspec.Raw], name) if name in raw else {}

    def integers(kind: str, name: str) -> dict[str, int]:
        return {key: integer_of(kind, value, f"{name}.{key}") for key, value in named(name).items()}

    def names(name: str) -> tuple[str, ...]:
        return tuple(_decode(raw[name], list[str], name)) if name in raw else ()

    def connectors(name: str) -> dict[str, ConnectorCheckpoint]:
        return {key: _connector(value, f"{name}.{key}") for key, value in named(name).items()}

    return {
        "version": integer("u64", "version"),
        "checkpoint_id": integer("u64", "checkpoint_id"),
        "epoch": integer("u64", "epoch"),
        "timestamp_ms": integer("u64", "timestamp_ms"),
        "source_offsets": connectors("source_offsets"),
        "table_offsets": connectors("table_offsets"),
        "sink_epochs": integers("u64", "sink_epochs"),
        "sink_commit_statuses": {
            key: _status(value, f"sink_commit_statuses.{key}") for key, value in named("sink_commit_statuses").items()
        },
        "operator_states": {
            key: _operator(value, f"operator_states.{key}") for key, value in named("operator_states").items()
        },
        "table_store_checkpoint_path": text("table_store_checkpoint_path"),
        "watermark": optional_integer("i64", "watermark"),
        "source_watermarks": integers("i64", "source_watermarks"),
        "source_names": names("source_names"),
        "sink_names": names("sink_names"),
        "pipeline_hash": optional_integer("u64", "pipeline_hash"),
        "vnode_count": integer("u16", "vnode_count") if "vnode_count" in raw else 0,
        "state_checksum": text("state_checksum"),
        "pipeline": text("pipeline"),
        "uid": text("uid"),
        "timeline": integer("u64", "timeline") if "timeline" in raw else 0,
        "lease": integer("u64", "lease") if "lease" in raw else 0,
        "savepoint": text("savepoint"),
        "request": text("request"),
        "parent": text("parent"),
        "streams": {key: _cut(value, f"streams.{key}") for key, value in named("streams").items()},
        "gaps": _gaps(raw["gaps"], "gaps") if bytes(raw.get("gaps", b"null")) != b"null" else None,
        "times": _times(raw["times"], "times") if bytes(raw.get("times", b"null")) != b"null" else None,
        "extra": _extra(raw, known),
    }


def _connector(raw: msgspec.Raw, where: str) -> ConnectorCheckpoint:
    found = _decode(raw, dict[str, msgspec.Raw], where)
    if "offsets" not in found:
        refuse(f"{where}.offsets is missing")
    return ConnectorCheckpoint(
        offsets=_decode(found["offsets"], dict[str, str], f"{where}.offsets"),
        epoch=integer_of("u64", found.get("epoch"), f"{where}.epoch"),
        metadata=_decode(found["metadata"], dict[str, str], f"{where}.metadata") if "metadata" in found else {},
        extra=_extra(found, ("offsets", "epoch", "metadata")),
    )


def _operator(raw: msgspec.Raw, where: str) -> OperatorState:
    found = _decode(raw, dict[str, msgspec.Raw], where)

    def text(name: str) -> str | None:
        return _decode(found[name], str | None, f"{where}.{name}") if name in found else None

    def integer(name: str) -> int:
        return integer_of("u64", found[name], f"{where}.{name}") if name in found else 0

    return OperatorState(
        state_b64=text("state_b64"),
        external=_decode(found["external"], bool, f"{where}.external") if "external" in found else False,
        external_offset=integer("external_offset"),
        external_length=integer("external_length"),
        sha256=text("sha256"),
        extra=_extra(found, (each.name for each in fields(OperatorState) if each.name != "extra")),
    )


class _Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON types of the fields of a `StreamCut`."""

    timeline: int
    epoch: int
    offsets: list[str | None] = []
    watermark_ms: int = 0
    rows: int = 0
    output_mode: str = "append"
    reads: list[str] = []
    sources: list[str] = []
    state_format: str | None = None
    confs: dict[str, str] = {}
    sinks: dict[str, dict[str, Any]] = {}
    files: str | None = None
    file_count: int = 0
    file_bytes: int = 0


def _cut(raw: msgspec.Raw, where: str) -> StreamCut:
    found: _Cut = _decode(raw, _Cut, where)
    own = msgspec.structs.asdict(found)
    for name, value in own.items():
        if isinstance(value, int):
            _in_range("i64" if name == "watermark_ms" else "u64", value, f"{where}.{name}")
    return StreamCut(**own, extra=_extra(_decode(raw, dict[str, msgspec.Raw], where), own))


class _Gap(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON types of the fields of a `GapNote`."""

    stream: str
    timeline: int
    epoch: int
    kind: str
    why: str
    at_ms: int
    facts: dict[str, Any] = {}


def _gaps(raw: msgspec.Raw, where: str) -> GapNotes:
    found = _decode(raw, dict[str, msgspec.Raw], where)
    newest = _decode(found["newest"], list[msgspec.Raw], f"{where}.newest") if "newest" in found else []
    return GapNotes(
        total=integer_of("u64", found.get("total"), f"{where}.total"),
        newest=tuple(_gap(each, f"{where}.newest.{number}") for number, each in enumerate(newest)),
        extra=_extra(found, ("total", "newest")),
    )


def _gap(raw: msgspec.Raw, where: str) -> GapNote:
    own = msgspec.structs.asdict(_decode(raw, _Gap, where))
    for name in ("timeline", "epoch", "at_ms"):
        _in_range("u64", own[name], f"{where}.{name}")
    return GapNote(**own, extra=_extra(_decode(raw, dict[str, msgspec.Raw], where), own))


class _StreamTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON types of the fields of a `StreamTimes`."""

    barrier: float = 0.0
    acknowledged: float = 0.0
    linked: float = 0.0
    held: float = 0.0
    new_files: int = 0
    new_bytes: int = 0


def _times(raw: msgspec.Raw, where: str) -> CheckpointTimes:
    found = _decode(raw, dict[str, msgspec.Raw], where)
    if "seconds" not in found:
        refuse(f"{where}.seconds is missing")
    streams = _decode(found["streams"], dict[str, msgspec.Raw], f"{where}.streams") if "streams" in found else {}
    return CheckpointTimes(
        seconds=_finite(_decode(found["seconds"], float, f"{where}.seconds"), f"{where}.seconds"),
        streams={name: _stream_times(each, f"{where}.streams.{name}") for name, each in streams.items()},
        extra=_extra(found, ("seconds", "streams")),
    )


def _stream_times(raw: msgspec.Raw, where: str) -> StreamTimes:
    own = msgspec.structs.asdict(_decode(raw, _StreamTimes, where))
    for name, value in own.items():
        if isinstance(value, int):
            _in_range("u64", value, f"{where}.{name}")
        else:
            _finite(value, f"{where}.{name}")
    return StreamTimes(**own, extra=_extra(_decode(raw, dict[str, msgspec.Raw], where), own))


def _finite(value: float, where: str) -> float:
    if not math.isfinite(value) or value < 0:
        refuse(f"{where} {value} is not a duration")
    return value


def _status(raw: msgspec.Raw, where: str) -> SinkStatus:
    match _decode(raw, object, where):
        case "Pending" | "Committed" as state:
            return SinkStatus(state)
        case {"Failed": str(why), **rest} if not rest:
            return SinkStatus.failed(why)
    return refuse(f"{where} is not one of Pending, Committed and Failed")


def integer_of(kind: str, raw: msgspec.Raw | None, where: str) -> int:
    """Decode a required integer of a kind: u64, i64 or u16."""
    if raw is None:
        refuse(f"{where} is missing")
    return _in_range(kind, _decode(raw, int, where), where)


def _in_range(kind: str, value: int, where: str) -> int:
    low, high = _RANGES[kind]
    if not low <= value <= high:
        refuse(f"{where} {value} does not fit {kind}")
    return value


def _decode(raw: msgspec.Raw, kind: Any, where: str) -> Any:
    try:
        return from_json(raw, kind)
    except Undecodable as error:
        raise ManifestCorrupt(why=f"{where}: {error}") from error

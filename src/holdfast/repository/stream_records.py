"""`stream.json`: how a stream was first started. Spark must be given the same output mode and settings from then on."""

from __future__ import annotations

from holdfast.formats.sealed_json import Record
from holdfast.repository.decisions import stream_folder


class StreamRecord(Record, frozen=True, kw_only=True):
    """How a stream was first started in a timeline."""

    stream: str
    output_mode: str
    settings: dict[str, str]


def stream_record_key(stream: str, timeline: int) -> str:
    """Return the key of a stream's record in one timeline."""
    return f"{stream_folder(stream, timeline)}/stream.json"

"""The description of a stream: everything about a program that matters for continuing its state.

Rules:
- A description is a value without secrets. Equal programs have equal descriptions on every run and machine.
- It contains no plan text, whose expression ids change with every run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.formats.manifest import pipeline_hash


class SourceDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One streaming source, in Spark's order."""

    kind: str  # such as FileSource, kafka, rate, holdfast_log
    reads: str = ""  # its path, topics or table; empty: not known
    options: dict[str, str] = {}  # the others, redacted


class SinkDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One sink."""

    kind: str  # its class
    target: str = ""  # where it writes; empty: not known
    settings: dict[str, Any] = {}  # those that decide how its rows are stored


class ColumnDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One column of the stream's rows."""

    name: str
    type: str  # as Spark writes it: bigint, array<string>


class StateDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One operator that keeps state, in the order of the plan."""

    kind: str  # such as Aggregate, Deduplicate, Join LeftOuter
    keys: list[str] = []  # the types of its keys
    columns: list[ColumnDescription] = []  # its output


class StreamDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of a program."""

    sources: list[SourceDescription]
    sinks: dict[str, SinkDescription]  # by name
    columns: list[ColumnDescription]
    state: list[StateDescription]
    output_mode: str
    options: dict[str, str] = {}  # for Spark's writeStream, redacted
    stage: str | None = None  # the type of its Python-side state
    partitions: str | None = None  # spark.sql.shuffle.partitions of the session
    provider: str | None = None  # the state store of the session

    @property
    def hash(self) -> int:
        """The hash of the description."""
        return pipeline_hash(msgspec.to_builtins(self))

"""The description of a stream, from its DataFrame, its sinks and the session."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast._error_text import one_line
from holdfast._redaction import redacted, redacted_text
from holdfast.errors import HoldfastError
from holdfast.formats.sealed_json import plain
from holdfast.program.description import (
    ColumnDescription,
    SinkDescription,
    SourceDescription,
    StateDescription,
    StreamDescription,
)
from holdfast.program.records import Programs
from holdfast.repository import Repository
from holdfast.repository.opening import local_root
from holdfast.spark import adapter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.sinks.base import Sink
    from holdfast.spark.dead_letters import DeadLetter
    from holdfast.spark.parts import StreamParts
    from holdfast.spark.spec import StreamSpec

_PARTITIONS = "spark.sql.shuffle.partitions"
_READS = ("path", "subscribe", "subscribepattern", "assign", "table")  # options that say what a source reads
_NAMED = re.compile(r"(\w+)\[(.*)\]", re.DOTALL)  # FileSource[/data/in]

_log = logging.getLogger(__name__)


def movable(repository: Repository) -> tuple[Path, ...]:
    """Return the folder of a repository, which may be moved; a place on a store may not."""
    root = local_root(repository)
    return () if root is None else (root,)


def described(spec: StreamSpec, df: DataFrame, *roots: Path) -> StreamDescription:
    """Describe a stream. `roots` are folders that may be moved, as the repository: a path in one is relative to it."""
    stage = spec.stage.codec.type_name if spec.stage is not None else None
    return StreamDescription(
        sources=[_source(name, options, roots) for name, options in adapter.inputs(df)],
        sinks={sink.name: _sink(sink, spec.dead_letter, roots) for sink in spec.sinks},
        columns=[ColumnDescription(name=each.name, type=each.dataType.simpleString()) for each in df.schema],
        state=[
            StateDescription(
                kind=kind, keys=keys, columns=[ColumnDescription(name=name, type=type_) for name, type_ in columns]
            )
            for kind, keys, columns in adapter.state_operators(df)
        ],
        output_mode=spec.output_mode,
        options=redacted(spec.options),
        stage=stage,
        partitions=adapter.setting(df.sparkSession, _PARTITIONS),
        provider=adapter.setting(df.sparkSession, adapter.PROVIDER),
    )


def _source(name: str, options: dict[str, str], roots: Sequence[Path]) -> SourceDescription:
    found = _NAMED.fullmatch(name)
    reads = next((options[each] for each in _READS if each in options), found[2] if found else "")
    others = {key: value for key, value in options.items() if key not in _READS}
    return SourceDescription(
        kind=found[1] if found else name, reads=_relative(redacted_text(reads), roots), options=redacted(others)
    )


def _sink(sink: Sink, dead: DeadLetter | None, roots: Sequence[Path]) -> SinkDescription:
    target = _relative(redacted_text(sink.target or ""), roots)
    checks = dead.settings if dead is not None and sink is dead.sink else {}
    return SinkDescription(kind=type(sink).__name__, target=target, settings=plain({**sink.describe(), **checks}))


def _relative(text: str, roots: Sequence[Path]) -> str:
    for root in roots:
        text = text.replace(f"{root}/", "")
    return text


def store_program(parts: StreamParts, epoch: int, description: StreamDescription) -> None:
    """Store the description of a stream, if it has changed. The stream continues if that fails."""
    programs = Programs(parts.run.repository)
    try:
        stored = programs.newest(parts.name, parts.run.lineage)
        if stored is None or stored.description != description:
            programs.store(parts.name, parts.timeline, epoch, description)
    except HoldfastError as error:
        _log.warning("stream %s: the description of the program was not stored: %s", parts.name, one_line(error))

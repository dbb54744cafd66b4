"""The targets of a pipeline's sinks, recorded at each start, so that tools find them without running the program.

    timelines/<t>/streams/<stream>/sinks.json    the targets of the stream's sinks, by their names

Not guaranteed: that every pipeline has this record. Earlier versions wrote none.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import HoldfastError
from holdfast.formats.sealed_json import Record
from holdfast.repository.base import Repository, read_each
from holdfast.repository.decisions import stream_folder, streams_of
from holdfast.repository.lineage import timelines


class SinksRecord(Record, frozen=True, kw_only=True):
    """The sinks of a stream at its last start, except those without a target."""

    stream: str
    targets: dict[str, str]


def record_targets(repository: Repository, stream: str, timeline: int, targets: Mapping[str, str]) -> None:
    """Record the targets of a stream's sinks, unless the record has them already."""
    data = SinksRecord(stream=stream, targets=dict(targets)).sealed()
    repository.heads.change(_key(stream, timeline), lambda _: data)


def newest_targets(repository: Repository) -> tuple[dict[str, dict[str, str]], list[HoldfastError]]:
    """Return the targets at the last start of each stream, by stream and sink, and an error for each damaged record."""
    keys = [_key(stream, timeline) for timeline in timelines(repository) for stream in streams_of(repository, timeline)]
    records, bad = read_each(lambda key: SinksRecord.unsealed(repository.heads.read(key), key), keys)
    return {each.stream: each.targets for each in records}, bad


def _key(stream: str, timeline: int) -> str:
    return f"{stream_folder(stream, timeline)}/sinks.json"

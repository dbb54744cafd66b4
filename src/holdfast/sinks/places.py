"""The targets of a pipeline's sinks, recorded at each start, so that tools find them without running the program.

    timelines/<t>/streams/<stream>/sinks.json    the targets of the stream's sinks, by their names

Not guaranteed: that every pipeline has this record. Earlier versions wrote none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError, NotFound
from holdfast.formats.sealed_json import Record
from holdfast.repository import Repository
from holdfast.repository.base import read_each
from holdfast.repository.decisions import stream_folder, streams_of
from holdfast.sinks.base import Sink

FILES = "files "  # the target of every FileSink begins with it


class SinksRecord(Record, frozen=True, kw_only=True):
    """The sinks of a stream at its last start, except those without a target."""

    stream: str
    targets: dict[str, str]


@dataclass(frozen=True, slots=True)
class FilePlace:
    """The folder of a FileSink."""

    stream: str
    sink: str
    path: Path


def record_places(repository: Repository, stream: str, timeline: int, sinks: Iterable[Sink]) -> None:
    """Record the targets of a stream's sinks, unless the record has them already."""
    targets = {sink.name: sink.target for sink in sinks if sink.target is not None}
    data = SinksRecord(stream=stream, targets=targets).sealed()
    key = _key(stream, timeline)
    try:
        if repository.read(key) == data:
            return
    except NotFound:
        pass
    repository.put(key, data)


def file_sinks(repository: Repository) -> list[FilePlace]:
    """Return the folders of a pipeline's FileSinks at the last start of each stream, sorted by stream and sink."""
    found, bad = readable_file_sinks(repository)
    for error in bad:
        raise error
    return found


def readable_file_sinks(repository: Repository) -> tuple[list[FilePlace], list[HoldfastError]]:
    """Return the same from all records that can be read, and an error for each of the others."""
    keys = [
        _key(stream, timeline) for timeline in _timelines(repository) for stream in streams_of(repository, timeline)
    ]
    records, bad = read_each(lambda key: SinksRecord.unsealed(repository.read(key), key), keys)
    newest = {each.stream: each for each in records}
    found = [
        FilePlace(stream, sink, Path(target.removeprefix(FILES)))
        for stream, record in sorted(newest.items())
        for sink, target in sorted(record.targets.items())
        if target.startswith(FILES)
    ]
    return found, bad


def _timelines(repository: Repository) -> list[int]:
    return sorted(int(name[:-1]) for name in repository.list("timelines") if name[:-1].isdecimal())


def _key(stream: str, timeline: int) -> str:
    return f"{stream_folder(stream, timeline)}/sinks.json"

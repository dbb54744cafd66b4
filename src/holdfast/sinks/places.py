"""The folders of a pipeline's FileSinks, found without running the program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.repository import Repository
from holdfast.repository.targets import newest_targets, record_targets
from holdfast.sinks.base import Sink

FILES = "files "  # the target of every FileSink begins with it


@dataclass(frozen=True, slots=True)
class FilePlace:
    """The folder of a FileSink."""

    stream: str
    sink: str
    path: Path


def record_places(repository: Repository, stream: str, timeline: int, sinks: Iterable[Sink]) -> None:
    """Record the targets of a stream's sinks, unless the record has them already."""
    record_targets(repository, stream, timeline, {each.name: each.target for each in sinks if each.target is not None})


def file_sinks(repository: Repository) -> list[FilePlace]:
    """Return the folders of a pipeline's FileSinks at the last start of each stream, sorted by stream and sink."""
    found, bad = readable_file_sinks(repository)
    for error in bad:
        raise error
    return found


def readable_file_sinks(repository: Repository) -> tuple[list[FilePlace], list[HoldfastError]]:
    """Return the same from all records that can be read, and an error for each of the others."""
    newest, bad = newest_targets(repository)
    found = [
        FilePlace(stream, sink, Path(target.removeprefix(FILES)))
        for stream, targets in sorted(newest.items())
        for sink, target in sorted(targets.items())
        if target.startswith(FILES)
    ]
    return found, bad

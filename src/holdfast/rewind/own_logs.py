"""The event logs inside a repository, which join its streams: a fork takes a copy of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from holdfast.errors import NotSupported
from holdfast.rewind.bases import RewindBase
from holdfast.rewind.inputs import log_of

_LOGS = "logs"  # the folder of a repository with the event logs that join streams


@dataclass(frozen=True, slots=True)
class OwnLog:
    """A log inside a repository, up to a checkpoint."""

    stream: str  # that writes it
    path: str
    inside: str  # the same, relative to the repository
    tail: int  # the sequence after its last event


def own_logs(where: str, base: RewindBase) -> Iterator[OwnLog]:
    """Yield the event logs inside the repository at an address."""
    for stream, cut in base.manifest.streams.items():
        for mark in cut.sinks.values():
            path = str(mark.get("path", ""))
            inside = _inside(where, path)
            if "tail" in mark and inside is not None:
                yield OwnLog(stream, path, inside, int(mark["tail"]))


def require_own_logs(where: str, base: RewindBase) -> None:
    """Refuse a stream that reads an event log outside the repository which another stream of the pipeline writes."""
    elsewhere = {
        str(mark["log"]): (writer, str(mark["path"]))
        for writer, cut in base.manifest.streams.items()
        for mark in cut.sinks.values()
        if "log" in mark and _inside(where, str(mark.get("path", ""))) is None
    }
    for stream, cut in base.manifest.streams.items():
        for offset in cut.offsets:
            uid = log_of(offset)
            if uid in elsewhere:
                writer, path = elsewhere[uid]
                raise NotSupported(
                    what=f"a fork of stream {stream!r}",
                    why=f"it reads the event log {path} of stream {writer!r}, which is not copied into the fork",
                    do=f"remove the LogSink of stream {writer!r}, and read the stream with pipeline.read",
                )


def _inside(where: str, path: str) -> str | None:
    """Return a path relative to a repository, if it is that of a log inside it."""
    folder = PurePosixPath(where)
    found = PurePosixPath(path)
    return str(found.relative_to(folder)) if found.is_relative_to(folder / _LOGS) else None

"""What a rewind needs of a user's program: its streams and their sinks, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast.repository import Repository
from holdfast.repository.rewinds import SinkAim
from holdfast.sinks.base import Sink


@dataclass(frozen=True, slots=True)
class ProgramStream:
    """One stream of a program. `reads` has only the edges that are declared: the others are in the manifests."""

    name: str
    sinks: tuple[Sink, ...]
    reads: tuple[str, ...] = ()
    stage: str | None = None  # the type of its state

    def sink(self, name: str) -> Sink | None:
        """Return a sink by its name, or `None`."""
        return next((sink for sink in self.sinks if sink.name == name), None)


@dataclass(frozen=True, slots=True)
class Program:
    """A pipeline as its program defines it. The sinks are not opened."""

    name: str
    repository: Repository
    shared: bool
    streams: Mapping[str, ProgramStream]

    def sink(self, stream: str, name: str) -> Sink | None:
        """Return a sink of a stream, or `None`."""
        found = self.streams.get(stream)
        return found.sink(name) if found else None


class Rewindable(Protocol):
    """A pipeline that can be rewound: `Pipeline`."""

    @property
    def program(self) -> Program:
        """The definition of the pipeline."""


def aim_of(sink: Sink, *, left: bool = False) -> SinkAim:
    """Return the identity of a sink, as a rewind records it."""
    return SinkAim(kind=type(sink).__name__, target=sink.target, left=left)

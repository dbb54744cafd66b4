"""Diff: what has changed between two checkpoints, computed from their manifests and file lists alone.

Only Spark can determine which keys of a stream's state have changed. A caller with a session counts them and adds the
result with `Difference.with_keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Generic, TypeVar

from holdfast import _figures as figures
from holdfast._html import h, table
from holdfast._offsets import differences, log_edges
from holdfast.errors import BadValue
from holdfast.formats.manifest import Manifest
from holdfast.formats.manifest_parts import StreamCut
from holdfast.formats.sealed_json import plain
from holdfast.repository import Checkpoints, FileList, Repository
from holdfast.repository.summary import utc

__all__ = ["Change", "Difference", "FileChanges", "KeyCounts", "OffsetChange", "StreamDifference", "diff"]

T = TypeVar("T")
_LINES: dict[str, Callable[[Any], str]] = {
    "epoch": str,
    "rows": figures.number,
    "file_bytes": figures.size,
    "state_format": str,
    "output_mode": str,
}


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """A value in both checkpoints."""

    a: T  # in the first checkpoint
    b: T  # in the second checkpoint

    @property
    def same(self) -> bool:
        """Whether the value is unchanged."""
        return self.a == self.b

    def summary(self, shown: Callable[[int], str] = str) -> str:
        """Return the change as text; integers are formatted by `shown` and followed by their difference."""
        a, b = (shown(each) if isinstance(each, int) else _shown(each) for each in (self.a, self.b))
        if isinstance(self.a, int) and isinstance(self.b, int) and not self.same:
            return f"{a} -> {b} ({'+' if self.b > self.a else '-'}{shown(abs(self.b - self.a))})"
        return f"{a} -> {b}"


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """One changed value in the offset of a source."""

    source: str  # Spark's description of the source
    where: str  # topic and partition, or another part of the offset
    a: str  # in the first checkpoint
    b: str  # in the second checkpoint


@dataclass(frozen=True, slots=True)
class FileChanges:
    """How many files of a stream's cut were added and removed."""

    added: int = 0  # files that only the second checkpoint needs
    removed: int = 0  # files that only the first checkpoint needs
    kept: int = 0  # files that both need
    new_bytes: int = 0  # size of the contents that are not in the first checkpoint


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """How many keys of an operator's state were added, changed and removed."""

    added: int  # only in the second checkpoint
    changed: int  # in both, with a different value
    removed: int  # only in the first checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDifference:
    """What has changed in one stream."""

    epoch: Change[int]
    rows: Change[int]  # rows written to each sink since the first epoch
    watermark_ms: Change[int]
    offsets: tuple[OffsetChange, ...]  # only the changed ones
    lag: Mapping[str, Change[int | None]]  # by upstream: the sequences of its event log that were not read yet
    files: FileChanges
    file_bytes: Change[int]
    confs: Mapping[str, Change[str | None]]  # by name: changed Spark settings
    state_format: Change[str | None]  # of Spark's state store
    output_mode: Change[str]
    sinks_added: tuple[str, ...]  # names of sinks
    sinks_removed: tuple[str, ...]  # names of sinks
    keys: Mapping[str, KeyCounts] | None = None  # by operator; null if they were not counted

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each change."""
        for name, shown in _LINES.items():
            change: Change[Any] = getattr(self, name)
            if not change.same:
                yield name.replace("_", " "), change.summary(shown)
        if not self.watermark_ms.same:
            before, now = (utc(each) if each else None for each in (self.watermark_ms.a, self.watermark_ms.b))
            yield "watermark", Change(before, now).summary()
        for each in self.offsets:
            if each.where == "chain":
                continue  # a digest in the offset of an event log: the sequence beside it is the readable part
            yield f"offset of {each.source}" + f", {each.where}" * bool(each.where), f"{each.a} -> {each.b}"
        yield from (
            (f"lag behind {name!r}", change.summary(figures.number))
            for name, change in self.lag.items()
            if not change.same
        )
        files = self.files
        if files.added or files.removed:
            added, removed, kept = map(figures.number, (files.added, files.removed, files.kept))
            counts = f"{added} added, {removed} removed, {kept} kept"
            yield "files", f"{counts}; {figures.size(files.new_bytes)} are new"
        yield from ((f"conf {name}", change.summary()) for name, change in self.confs.items())
        yield from (("sink added", name) for name in self.sinks_added)
        yield from (("sink removed", name) for name in self.sinks_removed)
        for name, counts_ in (self.keys or {}).items():
            added, changed, removed = map(figures.number, (counts_.added, counts_.changed, counts_.removed))
            yield f"keys of {name}", f"{added} added, {changed} changed, {removed} removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What has changed from checkpoint `a` to checkpoint `b`."""

    a: int | str  # the first checkpoint: its id, or the name of a savepoint
    b: int | str  # the second checkpoint
    timestamp_ms: Change[int]
    timeline: Change[int]
    pipeline_hash: Change[int | None]  # of the program: streams, sinks and their settings
    streams_added: tuple[str, ...]  # names of streams that only the second checkpoint has
    streams_removed: tuple[str, ...]  # names of streams that only the first checkpoint has
    streams: Mapping[str, StreamDifference] = field(default_factory=dict)  # by name: the streams that both have

    def with_keys(self, stream: str, keys: Mapping[str, KeyCounts]) -> Difference:
        """Return a copy with the key counts of one stream's operators."""
        if stream not in self.streams:
            expected = f"a stream that both checkpoints have ({', '.join(self.streams) or 'none'})"
            raise BadValue(what="stream", value=stream, expected=expected)
        return replace(self, streams={**self.streams, stream: replace(self.streams[stream], keys=dict(keys))})

    def head(self) -> list[str]:
        """Return the changes of the whole pipeline, one per line."""
        seconds = (self.timestamp_ms.b - self.timestamp_ms.a) / 1000
        when = f"{figures.duration(abs(seconds))} {'later' if seconds >= 0 else 'earlier'}"
        lines = [f"checkpoint {self.a} -> {self.b}, {when}"]
        if not self.timeline.same:
            lines.append(f"timeline {self.timeline.summary()}")
        if not self.pipeline_hash.same:
            lines.append("the program has changed")
        lines += [f"stream {name!r} is new" for name in self.streams_added]
        lines += [f"stream {name!r} is gone" for name in self.streams_removed]
        return lines

    def summary(self) -> str:
        """Return the changes as text, one per line."""
        lines = self.head()
        for name, stream in self.streams.items():
            found = list(stream.lines())
            width = max((len(what) for what, _ in found), default=0)
            lines.append(f"stream {name!r}" + ": nothing has changed" * (not found))
            lines += [f"  {what:{width}}  {text}" for what, text in found]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the changes as tables, for notebooks."""
        parts = [h("<p><b>{}</b></p>", "; ".join(self.head()))]
        for name, stream in self.streams.items():
            parts.append(h("<p>stream {}</p>{}", name, table(("what", "change"), list(stream.lines()))))
        return "".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return plain(self)


def diff(repository: Repository, a: int | str, b: int | str) -> Difference:
    """Compare two checkpoints, given by id or by the name of a savepoint. Only manifests and file lists are read."""
    checkpoints = Checkpoints(repository)
    return compare(a, _side(checkpoints, a), b, _side(checkpoints, b))


Side = tuple[Manifest, Mapping[str, FileList]]
"""A manifest, and the file list of each of its streams."""


def compare(a: int | str, old: Side, b: int | str, new: Side) -> Difference:
    """Compare two checkpoints whose manifests and file lists have been read."""
    (before, old_lists), (after, new_lists) = old, new
    old_lag, new_lag = _lags(before), _lags(after)
    both = [name for name in after.streams if name in before.streams]
    return Difference(
        a=a,
        b=b,
        timestamp_ms=Change(before.timestamp_ms, after.timestamp_ms),
        timeline=Change(before.timeline, after.timeline),
        pipeline_hash=Change(before.pipeline_hash, after.pipeline_hash),
        streams_added=_only(after.streams, before.streams),
        streams_removed=_only(before.streams, after.streams),
        streams={
            name: _stream(
                Change(before.streams[name], after.streams[name]),
                Change(old_lists[name], new_lists[name]),
                _changes(old_lag.get(name, {}), new_lag.get(name, {})),
            )
            for name in both
        },
    )


def _side(checkpoints: Checkpoints, checkpoint: int | str) -> Side:
    place, _ = checkpoints.find(checkpoint)
    manifest = checkpoints.read(checkpoint)
    return manifest, {name: checkpoints.files(place, cut, checkpoint) for name, cut in manifest.streams.items()}


def _stream(
    cuts: Change[StreamCut], lists: Change[FileList], lag: Mapping[str, Change[int | None]]
) -> StreamDifference:
    a, b = cuts.a, cuts.b
    confs = _changes(a.confs, b.confs)
    return StreamDifference(
        epoch=Change(a.epoch, b.epoch),
        rows=Change(a.rows, b.rows),
        watermark_ms=Change(a.watermark_ms, b.watermark_ms),
        offsets=tuple(_offsets(a, b)),
        lag=lag,
        files=_files(lists.a, lists.b),
        file_bytes=Change(a.file_bytes, b.file_bytes),
        confs={name: change for name, change in confs.items() if not change.same},
        state_format=Change(a.state_format, b.state_format),
        output_mode=Change(a.output_mode, b.output_mode),
        sinks_added=_only(b.sinks, a.sinks),
        sinks_removed=_only(a.sinks, b.sinks),
    )


def _offsets(a: StreamCut, b: StreamCut) -> Iterator[OffsetChange]:
    names = b.sources if len(b.sources) >= len(a.sources) else a.sources
    for number, (old, new) in enumerate(zip_longest(a.offsets, b.offsets)):
        source = names[number] if number < len(names) else f"source {number}"
        yield from (OffsetChange(source, *each) for each in differences(old, new))


def _files(a: FileList, b: FileList) -> FileChanges:
    old, new = {(each.path, each.sha256) for each in a.files}, {(each.path, each.sha256) for each in b.files}
    held = {digest for _, digest in old}
    sizes = {each.sha256: each.size for each in b.files if each.sha256 not in held}
    return FileChanges(len(new - old), len(old - new), len(new & old), sum(sizes.values()))


def _lags(manifest: Manifest) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for edge in log_edges(manifest.streams):
        found.setdefault(edge.downstream, {})[edge.upstream] = edge.lag
    return found


def _changes(a: Mapping[str, T], b: Mapping[str, T]) -> dict[str, Change[T | None]]:
    return {name: Change(a.get(name), b.get(name)) for name in sorted(a.keys() | b.keys())}


def _only(these: Mapping[str, object], others: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(sorted(these.keys() - others.keys()))


def _shown(value: object) -> str:
    return "none" if value is None else str(value)

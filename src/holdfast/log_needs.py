"""Which events of a log are still needed: by streams, checkpoints, savepoints and cursors of one pipeline.

Rules:
- A stream needs the events from the start of its last decided epoch on: a replay reads them again. This includes the
  streams of abandoned timelines, to which an undo returns.
- A checkpoint or savepoint needs the events after its offsets, and a cursor those after its position.
- A record that cannot be read, and a stream that has not decided an epoch, may need every event.

Not known here: readers of other pipelines, and cursors in other repositories. `LogSink(keep=...)` is for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.epoch import Facts
from holdfast.errors import HoldfastError
from holdfast.eventlog._cursor_slot import cursor_names, read_cursor
from holdfast.eventlog.keeping import LogTrim, read_keep
from holdfast.formats.decoding import Undecodable, from_json
from holdfast.formats.manifest import Manifest
from holdfast.repository import Checkpoints, Decisions, Repository, Status, Summary
from holdfast.repository.decisions import streams_of
from holdfast.repository.lineage import timelines
from holdfast.repository.opening import is_store
from holdfast.repository.targets import newest_targets

LOG = "log "  # the target of every LogSink begins with it


class _LogPosition(msgspec.Struct):
    """The part of an offset of an event log that is read."""

    log: str
    sequence: int


@dataclass(frozen=True, slots=True)
class _Needs:
    """By uid of a log, the first sequence that is needed; `blocked` says why nothing is known."""

    first: Mapping[str, int]
    blocked: str | None = None


def plan_trims(repository: Repository, remaining: Sequence[Summary]) -> tuple[tuple[LogTrim, ...], str | None]:
    """Return what can be removed from the event logs of a pipeline, or why nothing is removed.

    `remaining` are the checkpoints and savepoints that a prune keeps.
    """
    logs = [address for address in _logs(repository) if _keeps(address)]
    if not logs:
        return (), None
    needs = _needs(repository, remaining)
    if needs.blocked:
        return (), needs.blocked
    from holdfast.eventlog.homes import home_of  # noqa: PLC0415 - needs an extra
    from holdfast.eventlog.trimming import plan_trim  # noqa: PLC0415 - needs an extra

    found = []
    for address in logs:
        try:
            trim = plan_trim(address, needs.first.get(home_of(address).about().uid, _EVERYTHING))
        except HoldfastError as error:
            return (), error.summary
        found += [trim] if trim else []
    return tuple(found), None


_EVERYTHING = 1 << 63  # no reader of this pipeline needs an event


def _logs(repository: Repository) -> list[str]:
    newest, _ = newest_targets(repository)
    targets = {target for each in newest.values() for target in each.values()}
    return [target.removeprefix(LOG) for target in sorted(targets) if target.startswith(LOG)]


def _keeps(address: str) -> bool:
    """Whether events of a log may be removed at all. In a folder this is answered without the packages that read it."""
    try:
        if is_store(address):
            from holdfast.eventlog.homes import home_of  # noqa: PLC0415 - needs an extra

            return home_of(address).keep() is not None
        return read_keep(Path(address)) is not None
    except HoldfastError:
        return False


def _needs(repository: Repository, remaining: Sequence[Summary]) -> _Needs:
    found: dict[str, int] = {}
    try:
        for stream, timeline in _streams(repository):
            decision = Decisions(repository).newest(stream, timeline)
            if decision is None:
                return _Needs({}, f"stream {stream} has not decided an epoch in timeline {timeline} yet")
            facts = Facts.of(decision)
            _add(found, facts.start, facts.end)
        for each in remaining:
            manifest = _manifest(repository, each)
            if manifest is None:
                return _Needs({}, f"{each.name} cannot be read, and may need any event")
            for stream, cut in manifest.streams.items():
                if not cut.epoch:
                    return _Needs({}, f"stream {stream} had not started at {each.name}, and may need any event")
                _add(found, cut.offsets, cut.offsets)
        for name in cursor_names(repository):
            cursor = read_cursor(repository, name)
            if cursor is not None and cursor.log_identity is None:
                return _Needs({}, f"cursor {name} does not record which log it reads: commit it once")
            if cursor is not None and cursor.log_identity is not None:
                found[cursor.log_identity] = min(found.get(cursor.log_identity, cursor.position), cursor.position)
    except HoldfastError as error:
        return _Needs({}, error.summary)
    return _Needs(found)


def _streams(repository: Repository) -> Iterable[tuple[str, int]]:
    for timeline in timelines(repository):
        for stream in streams_of(repository, timeline):
            yield stream, timeline


def _manifest(repository: Repository, each: Summary) -> Manifest | None:
    if each.status is not Status.RESTORABLE:
        return None
    return Checkpoints(repository).read(each.name)


def _add(found: dict[str, int], starts: Sequence[str | None], ends: Sequence[str | None]) -> None:
    """Note where a stream begins in each log. A source without a start begins with the first event."""
    for number, end in enumerate(ends):
        log = _position(end)
        if log is not None:
            start = _position(starts[number]) if number < len(starts) else None
            first = start.sequence if start else 0
            found[log.log] = min(found.get(log.log, first), first)


def _position(offset: str | None) -> _LogPosition | None:
    """Return a position in an event log; `None` for the offset of another source."""
    try:
        return from_json((offset or "").encode(), _LogPosition)
    except Undecodable:
        return None

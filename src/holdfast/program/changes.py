"""Compare two descriptions of a stream: which changes are safe, which take effect, and which are impossible.

Rules:
- The judgement follows Spark's own rules for changing a query between restarts, and those of the sinks.
- A change is *impossible* only if it is certain that the program would fail or produce wrong results. If only Spark can
  decide this, the change *takes effect*, and the text states what Spark checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from holdfast.errors.base import PROGRAM
from holdfast.program.description import ColumnDescription, SourceDescription, StateDescription, StreamDescription

_RATES = ("maxfilespertrigger", "maxbytespertrigger", "maxoffsetspertrigger", "minoffsetspertrigger", "rowspersecond")
_RATES_OF_LOGS = ("maxrowspertrigger", "partitions")
_STORED = {"FileSink": ("format", "layout", "partition_by")}  # settings that a target cannot change
_FREE_STATE = ("FlatMapGroups", "TransformWithState")  # the program's own state, whose types a plan does not show
_PATTERN = frozenset("*?[]{}")  # in a path: Spark then does not compare it with the paths of files
_NEW, _THERE = "new", "there"  # of a whole stream or sink, which has no value to show
_NEW_STREAM = "give the stream a new name and new targets, or revert the change"


class ChangeEffect(StrEnum):
    """What a change means for a pipeline that continues."""

    SAFE = "safe"
    TAKES_EFFECT = "takes effect"
    IMPOSSIBLE = "impossible"


class ProgramChange(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between the stored program and this one."""

    stream: str  # its name
    what: str  # the part of the program
    before: str  # as the stored description has it; empty: none
    now: str  # as this program has it; empty: none
    effect: ChangeEffect  # safe, takes effect, impossible
    means: str  # what happens, or why it is impossible
    do: str = ""  # the way out

    @property
    def summary(self) -> str:
        """The change as one line."""
        way = f"; {self.do}" if self.do else ""
        change = f"changed from {self.before or 'none'} to {self.now or 'none'}"
        if self.now == _NEW and not self.before:
            change = "is new"
        elif self.before == _THERE and not self.now:
            change = "was removed"
        return f"stream {self.stream}: {self.what} {change}: {self.means}{way}"


def changes(stream: str, before: StreamDescription | None, now: StreamDescription | None) -> list[ProgramChange]:
    """Return the differences between two descriptions of a stream; `None` is a stream that does not exist."""
    if before is None or now is None:
        return list(_whole(stream, before, now))
    return [
        *_sources(stream, before.sources, now.sources),
        *_sinks(stream, before, now),
        *_columns(stream, before, now),
        *_state(stream, before.state, now.state),
        *_settings(stream, before, now),
    ]


def _whole(stream: str, before: StreamDescription | None, now: StreamDescription | None) -> Iterator[ProgramChange]:
    if before is None and now is not None:
        means = "it starts with the first row of its source"
        yield _change(stream, "the stream", "", _NEW, ChangeEffect.TAKES_EFFECT, means)
    if before is not None and now is None:
        means = "it does not run; its state and its output stay as they are"
        do = "add it again to continue it"
        yield _change(stream, "the stream", _THERE, "", ChangeEffect.TAKES_EFFECT, means, do)


def _sources(
    stream: str, before: Sequence[SourceDescription], now: Sequence[SourceDescription]
) -> Iterator[ProgramChange]:
    kinds = [each.kind for each in before], [each.kind for each in now]
    if kinds[0] != kinds[1]:
        means = "Spark assigns the stored offsets to the sources in their order, and they do not fit these sources"
        yield _impossible(stream, "sources", ", ".join(kinds[0]), ", ".join(kinds[1]), means, _NEW_STREAM)
        return
    for number, (old, new) in enumerate(zip(before, now, strict=True)):
        name = f"source {number} ({old.kind})" if len(before) > 1 else f"source ({old.kind})"
        if old.reads != new.reads and old.reads and new.reads:
            yield _moved_source(stream, name, old, new, alone=len(before) == 1)
        for option in sorted(old.options.keys() | new.options.keys()):
            was, is_now = old.options.get(option, ""), new.options.get(option, "")
            if was == is_now:
                continue
            rate = option in _RATES or (old.kind == "holdfast_log" and option in _RATES_OF_LOGS)
            effect = ChangeEffect.SAFE if rate else ChangeEffect.TAKES_EFFECT
            means = "the size of the next epochs changes" if rate else "it applies from the next epoch on"
            yield _change(stream, f"option {option} of {name}", was, is_now, effect, means)


def _moved_source(
    stream: str, name: str, old: SourceDescription, new: SourceDescription, *, alone: bool
) -> ProgramChange:
    means = "the stream continues with its old offsets"
    if old.kind == "holdfast_log":
        means = "it must be the same event log, at another path: the start compares its uid and its history"
    elif old.kind == "FileSource" and alone and not _still_holds(new.reads, old.reads):
        means = "at a start, Spark looks for the files of the last epoch below the new path, and fails (Wrong basePath)"
        do = "move the folder back, or give the stream a new name and new targets"
        return _impossible(stream, name, old.reads, new.reads, means, do)
    elif old.kind == "FileSource":
        means = "Spark recognises the files that it has read by their paths: it reads every file at the new path"
    elif old.kind == "delta":
        means = "the table must be the same one at another path: the start compares its id"
    elif old.kind == "kafka":
        means = "new topics are read from startingOffsets on; Spark fails if a topic for which it has offsets is gone"
    return _change(stream, name, old.reads, new.reads, ChangeEffect.TAKES_EFFECT, means)


def _still_holds(path: str, old: str) -> bool:
    """Whether files of the old path may be read with this one: it is a pattern, or a folder above the old path."""
    return bool(_PATTERN & set(path)) or f"{old}/".startswith(f"{path.rstrip('/')}/")


def _sinks(stream: str, before: StreamDescription, now: StreamDescription) -> Iterator[ProgramChange]:
    for name in sorted(before.sinks.keys() | now.sinks.keys()):
        old, new, what = before.sinks.get(name), now.sinks.get(name), f"sink {name}"
        if old is None:
            means = "it starts empty, with the next epoch"
            accept = " --accept sinks" if before.sinks.keys() - now.sinks.keys() else ""
            fill = f"holdfast backfill {PROGRAM} --stream {stream} --sink {name}{accept}"
            do = f"fill it: {fill}; or accept it: --accept sinks"
            yield _change(stream, what, "", _NEW, ChangeEffect.TAKES_EFFECT, means, do)
        elif new is None:
            means = "it gets no more rows; those that it has stay"
            yield _change(stream, what, _THERE, "", ChangeEffect.TAKES_EFFECT, means, "accept it: --accept sinks")
        elif old.kind != new.kind:
            means = "the new sink must hold every epoch that the old one holds, for example because a class was renamed"
            do = "for another, empty target, give the sink another name"
            yield _change(stream, what, old.kind, new.kind, ChangeEffect.TAKES_EFFECT, means, do)
        elif old.target != new.target and old.target and new.target:
            means = (
                "the new target must hold every epoch that the old one holds, for example because its data was moved"
            )
            do = "for an empty target, give the sink another name"
            yield _change(stream, what, old.target, new.target, ChangeEffect.TAKES_EFFECT, means, do)
        else:
            yield from _sink_settings(stream, what, old.kind, old.settings, new.settings)


def _sink_settings(
    stream: str, what: str, kind: str, old: Mapping[str, object], new: Mapping[str, object]
) -> Iterator[ProgramChange]:
    for name in sorted(old.keys() | new.keys()):
        was, is_now = _text(old.get(name)), _text(new.get(name))
        if was == is_now:
            continue
        if name in _STORED.get(kind, ()):
            means, do = "a folder stores its rows in one way only", "use another sink name and another target"
            yield _impossible(stream, f"{name} of {what}", was, is_now, means, do)
        else:
            means = "it applies from the next epoch on; existing rows stay as they are"
            yield _change(stream, f"{name} of {what}", was, is_now, ChangeEffect.TAKES_EFFECT, means)


def _columns(stream: str, before: StreamDescription, now: StreamDescription) -> Iterator[ProgramChange]:
    was, is_now = _ddl(before.columns), _ddl(now.columns)
    if was == is_now:
        return
    logs = sorted(name for name, sink in now.sinks.items() if sink.kind == "LogSink" and name in before.sinks)
    if logs:
        means = f"the schema of an event log cannot change ({', '.join(logs)})"
        do = "give the stream a new name, or the log another sink name and path"
        yield _impossible(stream, "columns", was, is_now, means, do)
        return
    means = "files of later epochs have the new columns; a table must already have them"
    yield _change(stream, "columns", was, is_now, ChangeEffect.TAKES_EFFECT, means)


def _state(stream: str, before: Sequence[StateDescription], now: Sequence[StateDescription]) -> Iterator[ProgramChange]:
    was, is_now = [each.kind for each in before], [each.kind for each in now]
    if was != is_now:
        means = "Spark stores the state of each operator, and the operators are no longer the same"
        if not was:
            means = "there is no state for the rows that were already processed"
        yield _impossible(
            stream,
            "operators with state",
            ", ".join(was),
            ", ".join(is_now),
            means,
            _NEW_STREAM,
        )
        return
    for number, (old, new) in enumerate(zip(before, now, strict=True)):
        what = f"operator {number} ({old.kind})" if len(before) > 1 else f"operator {old.kind}"
        if old.keys != new.keys and not old.kind.startswith(_FREE_STATE):
            means = "the keys of the stored state have other types"
            yield _impossible(
                stream,
                f"keys of {what}",
                ", ".join(old.keys),
                ", ".join(new.keys),
                means,
                _NEW_STREAM,
            )
        elif old.columns != new.columns:
            means = (
                "Spark assigns stored state to the new columns by position; it checks their types, not their meaning"
            )
            was_text, now_text = _ddl(old.columns), _ddl(new.columns)
            yield _change(stream, f"columns of {what}", was_text, now_text, ChangeEffect.TAKES_EFFECT, means)


def _settings(stream: str, before: StreamDescription, now: StreamDescription) -> Iterator[ProgramChange]:
    if before.output_mode != now.output_mode:
        means = "a target with the output of one mode cannot be continued in another mode"
        yield _impossible(stream, "output mode", before.output_mode, now.output_mode, means, _NEW_STREAM)
    if before.stage != now.stage:
        added = before.stage is None
        effect = ChangeEffect.TAKES_EFFECT if added else ChangeEffect.IMPOSSIBLE
        means = "it starts with its initial state" if added else "the stored state would be lost"
        yield _change(stream, "stage", before.stage or "", now.stage or "", effect, means, "" if added else _NEW_STREAM)
    for name in sorted(before.options.keys() | now.options.keys()):
        was, is_now = before.options.get(name, ""), now.options.get(name, "")
        if was != is_now:
            means = "it applies from the next epoch on"
            yield _change(stream, f"option {name}", was, is_now, ChangeEffect.TAKES_EFFECT, means)
    pinned = (
        ("spark.sql.shuffle.partitions", before.partitions, now.partitions),
        ("state store", before.provider, now.provider),
    )
    for name, old, new in pinned:
        if old != new:
            means = "no effect, because a stream keeps the value of its first start"
            yield _change(stream, name, old or "", new or "", ChangeEffect.SAFE, means)


def _change(  # noqa: PLR0917 - the fields of a change, in their order
    stream: str, what: str, before: str, now: str, effect: ChangeEffect, means: str, do: str = ""
) -> ProgramChange:
    return ProgramChange(stream=stream, what=what, before=before, now=now, effect=effect, means=means, do=do)


def _impossible(stream: str, what: str, before: str, now: str, means: str, do: str) -> ProgramChange:  # noqa: PLR0917
    return _change(stream, what, before, now, ChangeEffect.IMPOSSIBLE, means, do)


def _ddl(columns: Sequence[ColumnDescription]) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in columns)


def _text(value: object) -> str:
    if value is None or value == []:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

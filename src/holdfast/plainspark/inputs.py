"""Whether a stream reads what a plain Spark query has read: offsets say where to continue, not in what.

Rules:
- Sources are compared in their order, as Spark assigns offsets to them.
- A file source: every file that its log names must be one that Spark would find at the path of the program: directly in
  it, in folders of partitions such as `day=1`, or with `recursiveFileLookup` anywhere below. Wildcards are followed.
  Kafka: the program must read every topic of the offset. An event log: the uid must be the same.
- A query that reads one source twice has two equal offsets and one log. Then the program must read it twice, too.
- A source that has not read anything has no position, so nothing is compared.
- A source of any other kind cannot be compared, and is refused.

Not compared: the format of files, the servers of Kafka, and whether the files still exist.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from holdfast.doctor import SourcePosition
from holdfast.errors import SourcesDiffer
from holdfast.sparkfiles.folder import files_in
from holdfast.sparkfiles.localfolder import LocalSparkFolder
from holdfast.sparkfiles.sourcelog import entries_up_to, log_of, log_offset

FILES, KAFKA, LOG = "files", "kafka", "holdfast log"
_CHECKED = 1000  # newest files of each entry of a source's log
_LOCAL = re.compile(r"file:(//(?=/))?")
_WILD = re.compile(r"[*?\[{]")
_HERE = r"(?:/[^/=]+=[^/]*)*/[^/]+"  # in the folder, or in folders of partitions
_ANYWHERE = r"/.+"


@dataclass(frozen=True, slots=True)
class ProgramSource:
    """A source of the program's stream."""

    kind: str  # files, kafka, holdfast log; any other: the name of the source
    place: str  # a path, topics, or the uid of a log, as the program has them
    topics: Mapping[str, str] = field(default_factory=dict)  # options of Kafka: subscribe, subscribepattern, assign
    recursive: bool = False  # of a file source: it reads all folders below its path


@dataclass(frozen=True, slots=True)
class AdoptedSource:
    """A source of a stream that is adopted: where it continues."""

    source: str  # its number in the query
    kind: str  # files, kafka, holdfast log, or as `doctor` names it
    place: str  # what the program reads
    position: str  # where the last batch ends, in words


def compared(
    stream: str, folder: Path, positions: Sequence[SourcePosition], program: Sequence[ProgramSource]
) -> tuple[AdoptedSource, ...]:
    """Return the sources of a stream, or raise `SourcesDiffer`."""

    def differ(why: str) -> SourcesDiffer:
        return SourcesDiffer(stream=stream, path=str(folder), why=why)

    if len(positions) != len(program):
        listed = ", ".join(f"{each.kind} {each.place}" for each in program) or "none"
        raise differ(f"the checkpoint has {len(positions)} sources, the stream {len(program)}: {listed}")
    for number, (position, source) in enumerate(zip(positions, program, strict=True)):
        log = log_of(number, [each.offset for each in positions], lambda each: _log(folder, each).is_dir())
        try:
            why = None if position.offset is None else _difference(_log(folder, log), position, source)
        except re.error as error:
            why = f"the pattern in {source.place} cannot be compared: {error}"
        if log != number and program[log] != source:
            why = f"its log {_log(folder, number)} is missing"
        if why is not None:
            raise differ(f"source {position.source}: {why}")
    return tuple(
        AdoptedSource(position.source, source.kind, source.place, position.position)
        for position, source in zip(positions, program, strict=True)
    )


def _log(folder: Path, number: int) -> Path:
    return folder / "sources" / str(number)


def _difference(log: Path, position: SourcePosition, source: ProgramSource) -> str | None:
    if position.kind not in (FILES, KAFKA, LOG):
        return f"a source with the offset {position.offset} has neither a path nor topics that can be compared"
    if position.kind != source.kind:
        return f"the checkpoint continues in {position.kind} ({position.position}), the stream reads {source.kind}"
    if position.kind == FILES:
        return _other_files(log, position, source)
    offset = json.loads(position.offset or "{}")
    if position.kind == KAFKA:
        missing = sorted(topic for topic in offset if not _is_read(topic, source.topics))
        return f"the stream does not read topic {', '.join(missing)}, only {source.place}" if missing else None
    same = offset.get("log") == source.place
    return None if same else f"the checkpoint continues in event log {offset.get('log')}, not {source.place}"


def _other_files(log: Path, position: SourcePosition, source: ProgramSource) -> str | None:
    """Return why the files of a source's log are not those at the path of the program."""
    last = log_offset(position.offset)
    names = frozenset(files_in(LocalSparkFolder(log), ""))
    found = _pattern(source.place, _ANYWHERE if source.recursive else _HERE)
    for name in entries_up_to(-1 if last is None else last, names):
        for file in _files_in(log / name) if name in names else ():
            if not found.fullmatch(_plain(file)):
                return f"the checkpoint has read {_plain(file)}, the stream reads {source.place}"
    return None


def _files_in(entry: Path) -> list[str]:
    lines = entry.read_text(errors="replace").splitlines()[1:]
    found = []
    for line in lines[-_CHECKED:]:
        try:
            match json.loads(line):
                case {"path": str(path)}:
                    found.append(path)
        except (ValueError, RecursionError):
            continue  # the doctor reports damage
    return found


def _plain(address: str) -> str:
    """Return the address of a file as a local path; with its scheme if it is elsewhere."""
    found = _LOCAL.match(address)
    return unquote(address[found.end() :]) if found else unquote(address)


def _pattern(place: str, inside: str) -> re.Pattern[str]:
    """Return a pattern of the files at or in a path, in which Hadoop's wildcards stand for parts of names."""
    plain = _LOCAL.sub("", place, count=1)
    if "://" not in plain:
        plain = os.path.abspath(plain)  # noqa: PTH100 - Spark does not resolve symbolic links either
    plain, pattern, depth = plain.rstrip("/"), "", 0
    for each in re.split(r"(\[[^\]/]*\]|[*?{},])", plain) if _WILD.search(plain) else [plain]:
        depth += (each == "{") - (each == "}" and depth > 0)
        pattern += _wild(each, depth)
    return re.compile(f"{pattern}(?:{inside})?", re.DOTALL)


def _wild(part: str, depth: int) -> str:
    known = {"*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")"}
    if part == ",":
        return "|" if depth else ","
    if part.startswith("[") and part.endswith("]"):
        return part.replace("[!", "[^", 1)
    return known.get(part) or re.escape(part)


def _is_read(topic: str, options: Mapping[str, str]) -> bool:
    """Whether the program reads a topic."""
    if "subscribe" in options:
        return topic in [each.strip() for each in options["subscribe"].split(",")]
    if "subscribepattern" in options:
        return re.fullmatch(options["subscribepattern"], topic) is not None
    try:
        return topic in json.loads(options.get("assign", "{}"))
    except ValueError:
        return False

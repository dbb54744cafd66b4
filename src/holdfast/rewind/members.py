"""Which streams a rewind takes back: all streams of the program, or some, with every stream that reads from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holdfast.epoch import Decision
from holdfast.errors import BadValue
from holdfast.formats.manifest import Manifest
from holdfast.formats.sealed_json import digest_of
from holdfast.repository import Decisions, Lineage, Repository
from holdfast.repository.decisions import slot_key, streams_of
from holdfast.rewind.program import Program


def last_decision(repository: Repository, stream: str, timeline: int) -> tuple[Decision | None, str]:
    """Return the last decision of a stream in a timeline, and its digest. Nothing is written."""
    decision = Decisions(repository).seen(stream, timeline)
    return decision, digest_of(repository.read(slot_key(decision.attempt))) if decision else ""


@dataclass(frozen=True, slots=True)
class RewindMembers:
    """The streams to take back, and what prevents it."""

    streams: tuple[str, ...]
    problems: tuple[str, ...] = ()


def members_of(
    program: Program, lineage: Lineage, base: Manifest, newest: Manifest | None, only: Collection[str] | None
) -> RewindMembers:
    """Return the streams to take back: all of the program, or the given ones if they are closed under reading."""
    decided = {
        name for timeline in lineage.timelines for name in streams_of(program.repository, timeline)
    } | base.streams.keys()
    gone = sorted(name for name in decided - program.streams.keys() if _has_gone_on(program, lineage, base, name))
    edges = readers(program, base, newest)
    if only is None:
        problems = [
            f"stream {name!r} has decided epochs after the base, but is not in the program (add it to the program, or "
            f"take back only other streams: --only)"
            for name in gone
        ]
        return RewindMembers(tuple(program.streams), tuple(problems))
    for name in only:
        if name not in program.streams:
            raise BadValue(what="stream", value=name, expected=f"one of {', '.join(program.streams)}")
    missing = sorted({reader for name in only for reader in edges.get(name, set())} - set(only))
    problems = [
        f"stream {name!r} reads from a stream that goes back, and must go back too: add --only {name}"
        for name in missing
        if name in program.streams or name in gone
    ]
    return RewindMembers(tuple(name for name in program.streams if name in only), tuple(problems))


def _has_gone_on(program: Program, lineage: Lineage, base: Manifest, stream: str) -> bool:
    decision, _ = last_decision(program.repository, stream, lineage.timeline_of(stream))
    cut = base.streams.get(stream)
    return decision is not None and decision.attempt.epoch > (cut.epoch if cut else 0)


def readers(program: Program, *manifests: Manifest | None) -> Mapping[str, set[str]]:
    """Return the streams that read from each stream, directly or through others, by manifests and program."""
    edges: dict[str, set[str]] = {}
    pairs = [(name, each.reads) for name, each in program.streams.items()]
    pairs += [(name, cut.reads) for each in manifests if each for name, cut in each.streams.items()]
    for reader, above in pairs:
        for name in above:
            edges.setdefault(name, set()).add(reader)
    while True:
        more = {name: found.union(*(edges.get(each, set()) for each in found)) for name, found in edges.items()}
        if more == edges:
            return edges
        edges = more

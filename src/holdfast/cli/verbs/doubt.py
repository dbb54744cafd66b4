"""`holdfast doubt`."""

from __future__ import annotations

import time

import msgspec
from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.holder import Holder, check_elsewhere, readable_holder
from holdfast.cli.options import Json, Repo
from holdfast.cli.tables import TableRows, print_damaged
from holdfast.cli.target import looked_at
from holdfast.in_doubt import Doubt, displayed_doubt
from holdfast.repository import Lineage, Repository
from holdfast.repository.base import read_each
from holdfast.repository.decisions import streams_of
from holdfast.web.reading.problems import NextSteps

SETTLES_S = 10.0  # a running pipeline is still committing epochs that it decided this recently


class DoubtsFound(msgspec.Struct, frozen=True, kw_only=True):
    """The epochs of a pipeline that are in doubt."""

    settling: bool  # the pipeline runs, as far as is known, and decided all of them in the last seconds: not a problem
    holder: Holder | None  # null if it is not running on this machine
    doubts: list[Doubt]  # at most one per stream
    damaged: list[str] = []  # what is wrong with records that could not be read

    @property
    def advice(self) -> str:
        """What to do about them."""
        holder = self.holder
        if holder is None or not holder.runs:
            return "next: start the pipeline again, it completes them first: holdfast run app.py:pipeline"
        if holder.certain and self.settling:
            return "the pipeline is running and is committing them now"
        if holder.certain:
            return f"next: the pipeline is running as process {holder.pid}; check its sinks and its log"
        if self.settling:
            return f"they were decided in the last seconds: {holder.host} is probably committing them now"
        return f"next: {check_elsewhere(holder, 'completes them first')}: holdfast run app.py:pipeline"


SHAPES = {"doubt": DoubtsFound}


def doubt(repo: Repo = None, as_json: Json = False) -> Answer:
    """List epochs in doubt: decided, but perhaps not yet in every sink.

    No data is lost: the next start completes these epochs first. Exits with 1 if there are any, except for those that a
    running pipeline decided in the last ten seconds. If a record is damaged, the others are still listed, and the
    command exits with 1, too.

    [bold]Example[/]

        holdfast doubt -r ./checkpoints/orders
    """
    repository = looked_at(repo)
    result = doubts_of(repository)
    settling, found, damaged = result.settling, result.doubts, result.damaged

    def print_it(console: Console) -> None:
        print_damaged(console, damaged)
        if not found:
            console.print("no other epochs are in doubt" if damaged else "no epochs are in doubt")
            return
        rows = TableRows("stream", "epoch", "sink", "rows", "age", right=("epoch", "rows"))
        for each in found:
            for sink, count in (each.sinks or {"none": 0}).items():
                rows.add(
                    each.stream, str(each.epoch), sink, formatting.number(count), formatting.age(each.decided_at_ms)
                )
        rows.print(console)
        advice = NextSteps(repository).of(result.advice)
        console.print(Text(formatting.harmless(advice)), soft_wrap=True)

    trouble = bool(damaged) or (bool(found) and not settling)
    return Answer(result, print_it, found=trouble, repository=repository.where)


def doubts_of(repository: Repository) -> DoubtsFound:
    """Return the epochs of a pipeline that are in doubt."""
    lineage = Lineage.load(repository)
    names = sorted({name for timeline in lineage.timelines for name in streams_of(repository, timeline)})
    seen, bad = read_each(lambda stream: displayed_doubt(repository, stream, lineage.timeline_of(stream)), names)
    found = [each for each in seen if each is not None]
    holder, unknown = readable_holder(repository)
    damaged = [*(error.summary for error in bad), *([unknown] if unknown else [])]
    recent = all(time.time() - each.decided_at_ms / 1000 < SETTLES_S for each in found)
    settling = bool(found) and holder is not None and holder.runs and recent
    return DoubtsFound(settling=settling, holder=holder, doubts=found, damaged=damaged)

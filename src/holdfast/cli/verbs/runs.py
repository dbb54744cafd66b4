"""`holdfast runs`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer
from holdfast.cli.options import Json, Last, Repo
from holdfast.cli.tables import TableRows, print_damaged
from holdfast.cli.target import looked_at
from holdfast.web.reading.runs import RunsFound, runs_of

SHAPES = {"runs": RunsFound}
_SHOWN = 20


def runs(repo: Repo = None, last: Last = None, as_json: Json = False) -> Answer:
    """Show the runs of a pipeline: what each start found, what failed, and what to do next.

    The running pipeline records starts, recoveries, restarts, outages, failures and ends as events. The newest 500
    events are kept. Those of the last moments before a kill may be missing. Exits with 1 if a record is damaged.

    [bold]Examples[/]

        holdfast runs -r ./checkpoints/orders
        holdfast runs --json | jq '.result.events[] | select(.next != "")'
    """
    repository = looked_at(repo)
    found = runs_of(repository, last)

    def print_it(console: Console) -> None:
        if not found.runs and not found.damaged:
            console.print("no run is recorded yet")
            return
        rows = TableRows("when (UTC)", "lease", "what", "stream", "took", "text", right=("lease", "took"))
        for each in found.events[: last or _SHOWN]:
            took = f"{each.seconds:.2f} s" if each.seconds else ""
            rows.add(formatting.moment(each.at_ms), str(each.lease), each.kind, each.stream, took, each.text)
        rows.print(console)
        newest = next((each for each in found.events if each.next), None)
        if newest is not None:
            text = formatting.harmless(newest.next)
            console.print(Text.assemble(("next:  ", "bold"), f"({newest.kind}) {text}"), soft_wrap=True)
        print_damaged(console, found.damaged)

    return Answer(found, print_it, found=bool(found.damaged), repository=repository.where)

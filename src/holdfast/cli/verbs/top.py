"""`holdfast top`."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast.cli import formatting
from holdfast.cli.answers import Answer, console
from holdfast.cli.options import Json, Repos
from holdfast.cli.target import all_looked_at
from holdfast.cli.verbs.status import named, print_status
from holdfast.policy import seconds_of
from holdfast.repository import Repository
from holdfast.web.reading.checkpoints import CheckpointReader
from holdfast.web.reading.status import status_of
from holdfast.web.reading.status_lines import StatusFound

SHAPES = {"top": StatusFound}


def top(
    repo: Repos = None,
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="How often to update the view.")] = "1s",
    as_json: Json = False,
) -> Answer:
    """Watch all pipelines of a root in the terminal, until Ctrl-C.

    Shows the output of holdfast status, and updates it. If the output is not a terminal, or with --json, prints the
    status once.

    [bold]Example[/]

        holdfast top -r ./checkpoints
    """
    pause = max(seconds_of("--every", every), 0.1)
    places = [(each, CheckpointReader(each)) for each in all_looked_at(repo)]
    if not as_json and sys.stdout.isatty():
        _watch(places, pause, repo)
    found = _look(places)

    def print_it(console: Console) -> None:
        for each in found.pipelines:
            print_status(console, each, named(each, found.pipelines, repo))

    bad = any(problem.severity == "error" for each in found.pipelines for problem in each.problems)
    return Answer(found, print_it, found=bad)


def _look(places: list[tuple[Repository, CheckpointReader]]) -> StatusFound:
    return StatusFound([status_of(repository, summaries=reader.all) for repository, reader in places])


def _watch(places: list[tuple[Repository, CheckpointReader]], pause: float, repo: str | None) -> None:
    screen = console()
    with Live(console=screen, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(_drawn(_look(places), screen, repo), refresh=True)
                time.sleep(pause)
        except KeyboardInterrupt:
            return


def _drawn(found: StatusFound, screen: Console, repo: str | None) -> RenderableType:
    """Return one frame: the status of every pipeline."""
    inner = Console(width=screen.width, force_terminal=True, color_system="truecolor", highlight=False)
    with inner.capture() as captured:
        for number, each in enumerate(found.pipelines):
            if number:
                inner.print()
            print_status(inner, each, named(each, found.pipelines, repo))
    clock = Text(f"{formatting.moment(int(time.time() * 1000))} UTC  Ctrl-C ends", "dim")
    return Group(clock, Text.from_ansi(captured.get()))

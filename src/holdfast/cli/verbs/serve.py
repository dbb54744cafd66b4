"""`holdfast serve`."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from holdfast.cli.answers import Answer, console
from holdfast.cli.options import Json
from holdfast.cli.target import pipelines
from holdfast.cli.target import roots as default_roots
from holdfast.errors import BadValue
from holdfast.web import PORT

if TYPE_CHECKING:
    from holdfast.web.acting.control import PageControl
    from holdfast.web.listening import RunningPage


class Served(msgspec.Struct, frozen=True):
    """The page that was served, until a signal ended it."""

    addresses: list[str]  # of the page, and of the metrics if they have a port of their own
    roots: list[str]  # the folders that were served


SHAPES = {"serve": Served}


def serve(
    roots: Annotated[
        list[str] | None,
        typer.Argument(metavar="ROOT", help="Roots or repositories. Default: the current folder and ./checkpoints."),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="HOST",
            help="The address to listen on. One that other machines can reach also needs --allow-host.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", metavar="PORT", help="The port; 0: any free one.")] = PORT,
    metrics: Annotated[
        int | None,
        typer.Option(
            "--metrics", metavar="PORT", help="Also serve the metrics on this port, which serves nothing else."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A host name that requests may use, besides localhost."),
    ] = None,
    allow_control: Annotated[
        bool,
        typer.Option(
            "--allow-control",
            help="Offer actions, such as stop and rewind, to everyone who has the token that is printed.",
        ),
    ] = False,
    program: Annotated[
        list[str] | None,
        typer.Option(
            "--program",
            metavar="NAME=TARGET",
            help="With --allow-control: the program that defines the pipeline NAME. The page needs it to rewind the "
            "pipeline. Repeatable.",
        ),
    ] = None,
    until_closed: Annotated[
        bool, typer.Option("--until-closed", help="End when the standard input is closed.")
    ] = False,
    as_json: Json = False,
) -> Answer:
    """Show every pipeline under the roots on a web page, and serve metrics.

    Everything on the page is read from the repositories. The page is updated while pipelines run, and also shows
    pipelines that have stopped or were killed. /metrics has the metrics for Prometheus, and /api returns the documents
    that commands print with --json.

    The server listens on this machine only, unless --host is given. There is no password: if other machines can reach
    the server, every user of them can read the page.

    The page is read-only unless --allow-control is given. Then it offers checkpoint, savepoint, cancel, stop, verify,
    prune and rewind. Each action shows its plan first, and needs a confirmation and the token. The token is printed at
    the start, and is valid until the server ends.

    [bold]Examples[/]

        holdfast serve ./checkpoints
        holdfast serve /data/one /data/two --port 0
        holdfast serve --host 0.0.0.0 --allow-host dash.example.org
        holdfast serve ./checkpoints --allow-control --program orders=app.py:pipeline
    """
    from holdfast.web.listening import Listening, RunningPage  # needs the extra `page`
    from holdfast.web.server import is_loopback

    control = _control(host, program or []) if allow_control else None
    names = tuple(allow_host or ())
    if not is_loopback(host) and not names:
        why, do = "requests for unknown host names are refused", "name the host that browsers use: --allow-host NAME"
        raise BadValue(what="--host", value=host, why=why, do=do)
    if program and control is None:
        do = "add --allow-control"
        raise BadValue(what="--program", value=program[0], why="it is needed for a rewind on the page only", do=do)
    served = [str(each) for each in (roots or default_roots(None))]
    found = not roots and pipelines(Path.cwd())  # then ./checkpoints need not exist
    for each in served:
        if "://" not in each and not Path(each).exists() and not found:
            text = f"warning: {each} does not exist: the page shows a pipeline once one has been started there"
            console(stderr=True).print(text, markup=False, soft_wrap=True)
    page = RunningPage(served, Listening(host=host, port=port, metrics_port=metrics, names=names), control)
    if not as_json:
        out = console()
        for each in page.addresses:
            out.print(f"serving {each}", markup=False)
        out.print("stop with Ctrl-C")
    else:
        print_ready(page.addresses)
    if control is not None:
        console(stderr=as_json).print(f"token for actions: {control.token.text}", markup=False, soft_wrap=True)
    if until_closed:
        threading.Thread(target=_end_with_input, args=(page,), name="holdfast-input", daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        page.serve()

    def print_it(console: Console) -> None:
        console.print("stopped")

    return Answer(Served(page.addresses, served), print_it)


def _control(host: str, programs: list[str]) -> PageControl:
    """Return what the page may change. The token must not cross a network in plain text."""
    from holdfast.web.acting.control import PageControl  # needs the extra `page`
    from holdfast.web.acting.rewinding import checked_programs
    from holdfast.web.server import is_loopback

    if not is_loopback(host):
        why = "the token would cross the network unencrypted"
        do = "listen on 127.0.0.1, behind a proxy with TLS (--allow-host NAME) or an SSH tunnel"
        raise BadValue(what="--host", value=host, why=why, do=do)
    return PageControl(programs=checked_programs(programs))


def _end_with_input(page: RunningPage) -> None:
    """Stop the page when the standard input is closed."""
    with contextlib.suppress(OSError, ValueError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
    page.request_stop()


def print_ready(addresses: list[str]) -> None:
    """Report the addresses on stderr: stdout is for the document."""
    console(stderr=True).print(f"serving {' '.join(addresses)}", markup=False)

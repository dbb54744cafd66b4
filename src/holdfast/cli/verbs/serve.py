"""`holdfast serve`."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from holdfast.cli.answers import Answer, console
from holdfast.cli.options import Json
from holdfast.cli.target import roots as default_roots
from holdfast.errors import BadValue
from holdfast.web import PORT

if TYPE_CHECKING:
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
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", metavar="PORT", help="The port; 0: any free one.")] = PORT,
    metrics: Annotated[
        int | None,
        typer.Option("--metrics", metavar="PORT", help="Also serve /metrics alone, on this port."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A host name that requests may use, besides localhost."),
    ] = None,
    until_closed: Annotated[
        bool, typer.Option("--until-closed", help="End when the standard input is closed, as with its starter.")
    ] = False,
    as_json: Json = False,
) -> Answer:
    """Show every pipeline under the roots on a web page, and serve metrics.

    The page is live while pipelines run and complete when they do not: everything on it is read from the repositories.
    It is read-only and listens on this machine only, unless --host is given. There is no password: if other machines
    can reach it, everyone on them can read it. /metrics has the metrics for Prometheus, /api what --json prints.

    [bold]Examples[/]

        holdfast serve ./checkpoints
        holdfast serve /data/one /data/two --port 0
        holdfast serve --host 0.0.0.0 --allow-host dash.example.org
    """
    from holdfast.web.listening import Listening, RunningPage  # needs the extra `page`
    from holdfast.web.server import is_loopback

    names = tuple(allow_host or ())
    if not is_loopback(host) and not names:
        why, do = "requests for unknown host names are refused", "name the host that browsers use: --allow-host NAME"
        raise BadValue(what="--host", value=host, why=why, do=do)
    served = [str(each) for each in (roots or default_roots(None))]
    page = RunningPage(served, Listening(host=host, port=port, metrics_port=metrics, names=names))
    if not as_json:
        out = console()
        for each in page.addresses:
            out.print(f"serving {each}", markup=False)
        out.print("stop with Ctrl-C")
    else:
        print_ready(page.addresses)
    if until_closed:
        threading.Thread(target=_end_with_input, args=(page,), name="holdfast-input", daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        page.serve()

    def print_it(console: Console) -> None:
        console.print("stopped")

    return Answer(Served(page.addresses, served), print_it)


def _end_with_input(page: RunningPage) -> None:
    """Stop the page when the standard input is closed."""
    with contextlib.suppress(OSError, ValueError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
    page.request_stop()


def print_ready(addresses: list[str]) -> None:
    """Report the addresses on stderr: stdout is for the document."""
    console(stderr=True).print(f"serving {' '.join(addresses)}", markup=False)

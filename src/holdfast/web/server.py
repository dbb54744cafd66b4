"""The server of the page: Starlette on uvicorn.

Rules:
- Only GET and HEAD are answered, and nothing is ever written, unless control is allowed. Then the actions answer POST
  requests that a view of this server has sent; `holdfast.web.acting` has the rules for them.
- A request must name a host that this server is known by. Otherwise a foreign website, whose name was pointed at this
  machine, could read the page through the browser of a user (DNS rebinding).
- The content security policy allows nothing but files of this server: no inline script, no other host.
- Reading a repository blocks, so it happens in threads. A slow reader of an event stream gets the newest view when it
  is ready for it, and nothing waits in memory for it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from importlib import resources
from urllib.parse import urlsplit

import anyio
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast._html import h
from holdfast.cli.answers import encoded, envelope_of
from holdfast.cli.results import Envelope
from holdfast.web.acting.access import is_own_origin
from holdfast.web.acting.control import PageControl
from holdfast.web.acting.routes import ActionRoutes
from holdfast.web.api import all_status, document_of
from holdfast.web.book import Book, Rendered
from holdfast.web.drawing.frame import View, document
from holdfast.web.metrics import CONTENT_TYPE, exposition
from holdfast.web.places import Places
from holdfast.web.reading.epochs import measured_phases

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with "no-referrer", a browser sends no origin with a form
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
MOST_STREAMS = 400  # open event streams; one more is refused
_POLL_S = 1.0
_BEAT_S = 15.0  # a comment that shows a proxy or a browser that the stream is alive
_LONGEST = 2_000  # characters of an address
_TYPES = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
_ACTION = re.compile(r"/p/[^/]+/actions/[a-z]+(/apply)?")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_log = logging.getLogger(__name__)


class RequestGuard:
    """Refuses requests for other hosts and other methods, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str], *, control: bool = False) -> None:
        self._app = app
        self._control = control
        self._hosts = {each.lower() for each in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        refused = self._refusal(scope)
        await (refused or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or host_of(hosts[0].decode("latin-1")) not in self._hosts:
            text = "This server does not answer for this host. Next: start it with --allow-host NAME.\n"
            return PlainTextResponse(text, 421)
        if scope["method"] not in ("GET", "HEAD"):
            if not (self._control and scope["method"] == "POST" and _ACTION.fullmatch(scope["path"])):
                return PlainTextResponse("This address only reads.\n", 405, {"allow": "GET, HEAD"})
            headers = Headers(scope=scope)
            if len(headers.getlist("origin")) > 1 or not is_own_origin(
                headers.get("origin"), hosts[0].decode("latin-1"), headers.get("sec-fetch-site")
            ):
                return PlainTextResponse("This request does not come from this page. Nothing was done.\n", 403)
        if len(scope["raw_path"] if scope.get("raw_path") else scope["path"]) + len(scope["query_string"]) > _LONGEST:
            return PlainTextResponse("The address is too long.\n", 414)
        return None


def host_of(header: str) -> str:
    """Return the host of a Host header in lower case, without its port; empty if it is not one."""
    if any(each in header for each in "/@\\ \t?#"):
        return ""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether an address to listen at is reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class PageServer:
    """Answers the requests for one set of roots."""

    def __init__(
        self,
        roots: Sequence[str],
        *,
        hosts: Sequence[str] = (),
        poll_s: float = _POLL_S,
        control: PageControl | None = None,
    ) -> None:
        self.book = Book(Places(roots), control=control)
        self._poll_s = poll_s
        self.is_stopping: Callable[[], bool] = lambda: False  # event streams end then
        self._streams = 0
        routes = [
            Route("/static/{name}", self.static),
            Route("/api/{rest:path}", self.api),
            Route("/metrics", self.metrics),
            Route("/events", self.events),
            *(ActionRoutes(control, self.book.places).routes() if control is not None else ()),
            Route("/{rest:path}", self.page),
        ]
        self.app: ASGIApp = RequestGuard(Starlette(routes=routes), [*_LOCAL, *hosts], control=control is not None)
        self.metrics_app: ASGIApp = RequestGuard(Starlette(routes=[Route("/metrics", self.metrics)]), [*_LOCAL, *hosts])

    @property
    def streams(self) -> int:
        """The number of open event streams."""
        return self._streams

    async def static(self, request: Request) -> Response:
        """Return the style, the script or the icon."""
        name = request.path_params["name"]
        if name not in _TYPES:
            return PlainTextResponse("There is no such file.\n", 404)
        data = (resources.files("holdfast.web") / "static" / name).read_bytes()
        return Response(data, media_type=_TYPES[name], headers={"cache-control": "max-age=300"})

    async def page(self, request: Request) -> Response:
        """Return a view as HTML."""
        rendered = await self._look(_address(request.scope))
        if rendered is None:
            return HTMLResponse(document(_missing_view(), live=False), 404)
        text = document(rendered.view, live=rendered.status == 200, control=self.book.control is not None)
        headers = {"cache-control": "no-store"}
        return Response(text.encode("utf-8", "replace"), rendered.status, headers, "text/html; charset=utf-8")

    async def api(self, request: Request) -> Response:
        """Return the document that a command prints with `--json`."""
        parts = request.path_params["rest"].strip("/").split("/")
        found = await anyio.to_thread.run_sync(lambda: self._document(parts, dict(request.query_params)))
        if found is None:
            return Response(b'{"error": "there is no such document"}\n', 404, media_type="application/json")
        code = 200 if found.error is None else 404 if found.error.kind.endswith("Missing") else 400
        return Response(encoded(found), code, {"cache-control": "no-store"}, "application/json")

    def _document(self, parts: list[str], query: dict[str, str]) -> Envelope | None:
        if parts == ["status"]:
            return envelope_of("status", lambda: all_status(list(self.book.status().values())))
        match parts:
            case ["p", slug, *rest] if (found := self.book.places.get(slug)) is not None:
                return document_of(found.repository.where, rest, query)
        return None

    async def metrics(self, request: Request) -> Response:
        """Return the metrics of all pipelines."""
        del request
        return Response((await anyio.to_thread.run_sync(self._exposition)).encode(), 200, media_type=CONTENT_TYPE)

    def _exposition(self) -> str:
        found = self.book.status()
        places = self.book.places.all()
        phases = {
            (line.where, each.stream): measured_phases(places[slug].repository, each.stream)
            for slug, line in found.items()
            if slug in places
            for each in line.streams
        }
        return exposition(found.values(), phases, int(time.time() * 1000))

    async def events(self, request: Request) -> Response:
        """Return the event stream of one view: its content, again whenever it changes."""
        address = request.query_params.get("view", "/")
        if not address.startswith("/") or address.startswith("//"):
            return PlainTextResponse("There is no such view.\n", 404)
        if self._streams >= MOST_STREAMS:
            return PlainTextResponse("Too many event streams are open.\n", 503, {"retry-after": "10"})
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if request.method == "HEAD":
            return Response(None, 200, headers, "text/event-stream")
        return StreamingResponse(self._changes(address), 200, headers, "text/event-stream")

    async def _changes(self, address: str) -> AsyncIterator[bytes]:
        self._streams += 1
        try:
            yield f"retry: 1000\nevent: hello\ndata: {int(time.time() * 1000)}\n\n".encode()
            sent, beat = "", time.monotonic()
            while not self.is_stopping():
                rendered = await self._look(address)
                if rendered is None:
                    yield b"event: gone\ndata: -\n\n"
                    return
                if rendered.version != sent:
                    sent, beat = rendered.version, time.monotonic()
                    text = json.dumps(str(rendered.view.body)).encode("utf-8", "replace")
                    yield b"event: view\ndata: " + text + b"\n\n"
                elif time.monotonic() - beat > _BEAT_S:
                    beat = time.monotonic()
                    yield b": alive\n\n"
                await asyncio.sleep(self._poll_s)
        finally:
            self._streams -= 1

    async def _look(self, address: str) -> Rendered | None:
        known = self.book.peek(address)
        return known[0] if known else await anyio.to_thread.run_sync(self.book.look, address)


def _address(scope: Scope) -> str:
    """Return the path and the query as they were sent: the parts of the path are decoded one by one, later."""
    path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").partition("?")[0]
    query = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _missing_view() -> View:
    body = h('<h1>Not found</h1><p>There is no such view. <a href="/">All pipelines</a></p>')
    return View("Not found", "/", body)

"""A proxy between an S3 client and its server that fails on request, and counts what passes.

    with FaultProxy(s3.endpoint) as proxy:                   # or the fixture `s3_faults`
        proxy.fail(Fault.DROP_AFTER, "CREATE", key="epochs/")     # the next conditional PUT below epochs/ is applied,
        …                                                         # and its answer is lost
        proxy.fail(Fault.ANSWER_503, "LIST", times=3)
        proxy.fail(Fault.HANG, chance=0.05)                  # from now on, any request, at random (seeded)
        proxy.fail(Answer(301, "PermanentRedirect"))         # any other answer, before it reaches the server
        proxy.ignore_conditions = True                       # a conditional PUT that was refused is answered with 200
        proxy.delay_s = 0.02                                 # each request takes so much longer
        proxy.clear()                                        # no more faults
        proxy.counts["LIST"]; proxy.seen[-1].key             # what has passed, with or without a fault
        proxy.reset()                                        # count from 0

The kinds of requests are GET, HEAD, LIST, PUT, CREATE (a PUT with If-None-Match), COPY, DELETE (of one object or many),
and MULTIPART. `key` is a regular expression that is searched in `bucket/key?query`.

The proxy passes on the Host header, so signatures stay valid. It is threaded and serves several processes.
"""

from __future__ import annotations

import contextlib
import enum
import http.client
import random
import re
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, urlsplit


class Fault(enum.Enum):
    """What goes wrong with a request."""

    DROP_BEFORE = "the connection ends before the request reaches the server"
    DROP_AFTER = "the request is applied, and the connection ends before its answer"
    HANG = "the request is applied, and the answer comes after `FaultProxy.hang_s`"
    ANSWER_500 = "500 before it reaches the server"
    ANSWER_503 = "503 (SlowDown) before it reaches the server"
    ANSWER_409 = "409 (ConditionalRequestConflict) before it reaches the server"
    APPLIED_500 = "the request is applied and answered with 500"
    APPLIED_503 = "the request is applied and answered with 503"
    APPLIED_409 = "the request is applied and answered with 409"


@dataclass(frozen=True)
class Answer:
    """An answer in place of the server's."""

    status: int
    code: str
    more: str = ""  # further elements of the XML


_CODES = {500: "InternalError", 503: "SlowDown", 409: "ConditionalRequestConflict"}
_STATUS = {
    Fault.ANSWER_500: 500,
    Fault.ANSWER_503: 503,
    Fault.ANSWER_409: 409,
    Fault.APPLIED_500: 500,
    Fault.APPLIED_503: 503,
    Fault.APPLIED_409: 409,
}
_BEFORE = {Fault.DROP_BEFORE, Fault.ANSWER_500, Fault.ANSWER_503, Fault.ANSWER_409}
_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "expect"}


@dataclass(frozen=True)
class Seen:
    """A request that has passed: its kind, its `bucket/key?query`, the fault, and the status that the client got."""

    kind: str
    key: str
    fault: Fault | Answer | None
    status: int  # 0: none
    agent: str  # how the client calls itself
    began_s: float  # by the monotonic clock
    ended_s: float


@dataclass(frozen=True)
class _Reply:
    status: int
    headers: list[tuple[str, str]]
    data: bytes


@dataclass
class _Rule:
    fault: Fault | Answer
    kind: str | None
    key: re.Pattern[str]
    times: int | None
    chance: float


class FaultProxy:
    """One proxy on loopback. Its attributes may be changed at any time."""

    def __init__(self, upstream: str, *, seed: int = 1) -> None:
        self.upstream = urlsplit(upstream)
        self.delay_s = 0.0
        self.ignore_conditions = False
        self.hang_s = 1.0
        self.seen: list[Seen] = []
        self.counts: Counter[str] = Counter()
        self._rules: list[_Rule] = []
        self._mutex = threading.Lock()
        self.connections: set[socket.socket] = set()  # of clients, while they are open
        self._random = random.Random(seed)
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def fail(
        self,
        fault: Fault | Answer,
        kind: str | None = None,
        *,
        key: str = "",
        times: int | None = 1,
        chance: float | None = None,
    ) -> None:
        """Fail the next `times` requests of this kind and key; with `chance`, each of them with this probability."""
        rule = _Rule(
            fault, kind, re.compile(key), None if chance is not None else times, 1 if chance is None else chance
        )
        with self._mutex:
            self._rules.append(rule)

    def clear(self) -> None:
        """Fail nothing more."""
        with self._mutex:
            self._rules.clear()

    def reset(self) -> None:
        """Count from 0."""
        with self._mutex:
            self.seen.clear()
            self.counts.clear()

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._server.shutdown()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # which ends its thread
        self._server.server_close()
        self._thread.join()

    def fault_of(self, kind: str, key: str) -> Fault | Answer | None:
        """Return the fault of a request, and use it up."""
        with self._mutex:
            for rule in self._rules:
                if rule.kind not in (None, kind) or not rule.key.search(key) or self._random.random() >= rule.chance:
                    continue
                if rule.times is not None:
                    rule.times -= 1
                    if not rule.times:
                        self._rules.remove(rule)
                return rule.fault
        return None

    def saw(self, seen: Seen) -> None:
        """Count a request."""
        with self._mutex:
            self.seen.append(seen)
            self.counts[seen.kind] += 1


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for all of them
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        """Report nothing: connections that break are what this is for."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client, and one to the server that is kept as long."""

    owner: FaultProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    _upstream: http.client.HTTPConnection | None = None

    def setup(self) -> None:
        """Remember the connection, so that the proxy can end it."""
        super().setup()
        self.owner.connections.add(self.connection)

    def finish(self) -> None:
        """Close both sides."""
        self.owner.connections.discard(self.connection)
        self._close_upstream()
        with contextlib.suppress(OSError):  # the client may have gone
            super().finish()

    def _close_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None

    def _pass(self) -> None:
        body = self._body()
        kind, key = _kind(self), self.path.removeprefix("/")
        fault = self.owner.fault_of(kind, key)
        reply: _Reply | None = None
        began_s, agent = time.monotonic(), self.headers.get("User-Agent", "")
        try:
            time.sleep(self.owner.delay_s)
            reply = self._reply(fault, body)
        finally:  # before the client goes on
            status = 0 if reply is None else reply.status
            self.owner.saw(Seen(kind, key, fault, status, agent, began_s, time.monotonic()))
        if reply is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self._send(reply)

    def _body(self) -> bytes:
        """Read the body of the request: of a known length, or in chunks, as some clients send it."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # a trailer
        self.headers["Content-Length"] = str(len(found))
        return found

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815 - as http.server asks for them

    def _reply(self, fault: Fault | Answer | None, body: bytes) -> _Reply | None:
        """Return the answer for the client; `None` ends the connection."""
        if isinstance(fault, Answer):
            return _made(fault)
        if fault in _BEFORE:
            return _made(_injected(fault)) if fault in _STATUS else None
        reply = self._asked(body)
        if fault is Fault.DROP_AFTER:
            return None
        if fault in _STATUS:
            return _made(_injected(fault))
        if fault is Fault.HANG:
            time.sleep(self.owner.hang_s)
        if reply.status == 412 and self.owner.ignore_conditions:
            return _Reply(200, [("ETag", '"0"')], b"")
        return reply

    def _send(self, reply: _Reply) -> None:
        self.send_response_only(reply.status)
        length = False
        for name, value in reply.headers:
            if name.lower() not in _HOP:
                length = length or name.lower() == "content-length"
                self.send_header(name, value)
        if not length and reply.status not in (204, 304):
            self.send_header("Content-Length", str(len(reply.data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.data)

    def _asked(self, body: bytes) -> _Reply:
        for attempt in (1, 2):
            fresh = self._upstream is None
            try:
                if self._upstream is None:
                    self._upstream = http.client.HTTPConnection(
                        str(self.owner.upstream.hostname), self.owner.upstream.port, timeout=120
                    )
                    self._upstream.connect()
                    self._upstream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in _HOP:
                        self._upstream.putheader(name, value)
                self._upstream.endheaders(body or None)
                answer = self._upstream.getresponse()
                return _Reply(answer.status, answer.getheaders(), answer.read())
            except (OSError, http.client.HTTPException):
                self._close_upstream()  # a kept connection may have been closed: nothing was applied then
                if fresh or attempt == 2:
                    raise
        raise AssertionError


def _made(answer: Answer) -> _Reply:
    inside = f"<Code>{answer.code}</Code><Message>injected</Message>{answer.more}"
    data = f"<?xml version='1.0'?><Error>{inside}</Error>".encode()
    return _Reply(answer.status, [("Content-Type", "application/xml")], data)


def _injected(fault: Fault) -> Answer:
    return Answer(_STATUS[fault], _CODES[_STATUS[fault]])


def _kind(request: BaseHTTPRequestHandler) -> str:
    parts = urlsplit(request.path)
    query = parse_qs(parts.query, keep_blank_values=True)
    if "uploads" in query or "uploadId" in query:
        return "MULTIPART"
    if request.command == "PUT":
        if "x-amz-copy-source" in request.headers:
            return "COPY"
        return "CREATE" if "If-None-Match" in request.headers else "PUT"
    if request.command == "GET" and "/" not in parts.path.strip("/"):
        return "LIST"
    return "DELETE" if request.command in ("DELETE", "POST") else request.command

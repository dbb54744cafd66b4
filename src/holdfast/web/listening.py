"""Listening: the sockets of the page and of the metrics, and the thread or the process that serves them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import uvicorn

from holdfast.errors import BadValue
from holdfast.web import PORT
from holdfast.web.acting.control import PageControl
from holdfast.web.server import PageServer, is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where to listen, and under which names."""

    host: str = "127.0.0.1"
    port: int = PORT  # 0: any free one
    metrics_port: int | None = None  # of a second socket that serves the metrics alone
    names: tuple[str, ...] = ()  # further host names that requests may use


class RunningPage:
    """A page that is being served. Its sockets are open when this is constructed."""

    def __init__(self, roots: Sequence[str], listening: Listening, control: PageControl | None = None) -> None:
        names = [*listening.names, *([listening.host] if is_loopback(listening.host) else [])]
        server = PageServer(roots, hosts=names, control=control)
        self._sockets = [_bound(listening.host, listening.port)]
        self._servers = [_server(server.app)]
        if listening.metrics_port is not None:
            try:
                self._sockets.append(_bound(listening.host, listening.metrics_port))
            except BaseException:
                self._sockets[0].close()
                raise
            self._servers.append(_server(server.metrics_app))
        self._threads: list[threading.Thread] = []
        self.page = server
        server.is_stopping = lambda: any(each.should_exit for each in self._servers)
        self.addresses = [_address(*each) for each in zip(self._sockets, ("/", "/metrics"), strict=False)]

    def serve(self) -> None:
        """Serve until a signal or `stop` ends it."""
        for server, sock in list(zip(self._servers, self._sockets, strict=True))[1:]:
            self._start(server, sock)
        try:
            self._servers[0].run(sockets=[self._sockets[0]])
        finally:
            self.stop()

    def start(self) -> RunningPage:
        """Serve in the background, in threads that do not keep the process alive."""
        for server, sock in zip(self._servers, self._sockets, strict=True):
            self._start(server, sock)
        return self

    def request_stop(self) -> None:
        """Let the servers end, without waiting for them."""
        for each in self._servers:
            each.should_exit = True

    def stop(self) -> None:
        """End the servers and wait for them; idempotent."""
        self.request_stop()
        for thread in self._threads:
            thread.join(5)
        for sock in self._sockets:
            sock.close()

    def __enter__(self) -> RunningPage:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, server: uvicorn.Server, sock: socket.socket) -> None:
        thread = threading.Thread(target=server.run, args=([sock],), name="holdfast-page", daemon=True)
        thread.start()
        self._threads.append(thread)


def _address(sock: socket.socket, path: str) -> str:
    """Return the address to open in a browser."""
    host, port = sock.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"


def _server(app: object) -> uvicorn.Server:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=3,  # event streams end by themselves within about a second
        limit_concurrency=2000,
        h11_max_incomplete_event_size=32_768,
    )
    return uvicorn.Server(config)


def _bound(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:  # the system would take it modulo 65536
        raise BadValue(what="port", value=port, expected="a number from 1 to 65535, or 0 for any free one")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(512)
        except BaseException:
            sock.close()
            raise
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        do = "choose another port with --port, or 0 for any free one"
        raise BadValue(what="address", value=f"{host}:{port}", why=why, do=do) from error
    return sock

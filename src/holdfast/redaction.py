"""Secrets never reach a manifest, a hash, a log line or the page.

Options are redacted by name, and addresses inside any value lose their passwords.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

REDACTED = "[redacted]"
_SECRET_NAME = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|private.?key|access.?key|account.?key|api.?key|sasl\.jaas|\bauth(?!ors?\b)",
    re.IGNORECASE,
)
# Greedy on purpose: a password may hold any of the characters that end it elsewhere.
_URL_PASSWORD = re.compile(r"(?P<head>[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*):\S*@")
_TELLING = r"(?:passw(?:or)?d|passphrase|pwd|secret|token|credential|account_?key|access_?key|api_?key|signature)"
_PAIR_PASSWORD = re.compile(
    rf"""(?P<head>[\w.-]*{_TELLING}[\w.-]*["']?\s*[=:]\s*)(?:'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|[^\s;&,}}]+)""",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<head>\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
_ORACLE_PASSWORD = re.compile(r"(?P<head>:thin:[^/\s@]+)/\S+@", re.IGNORECASE)


def redacted_text(text: str) -> str:
    """Return `text` with the passwords of addresses and connection strings in it struck out."""
    text = _URL_PASSWORD.sub(rf"\g<head>:{REDACTED}@", text)
    text = _ORACLE_PASSWORD.sub(rf"\g<head>/{REDACTED}@", text)
    text = _BEARER.sub(rf"\g<head>{REDACTED}", text)
    return _PAIR_PASSWORD.sub(rf"\g<head>{REDACTED}", text)


def redacted(options: Mapping[str, str]) -> dict[str, str]:
    """Return `options` with every value struck out whose name tells of a secret."""
    return {name: REDACTED if _SECRET_NAME.search(name) else redacted_text(value) for name, value in options.items()}

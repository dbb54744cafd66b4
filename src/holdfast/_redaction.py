"""Secrets never reach a manifest, a hash, a log line or the output of a command.

Options are redacted by name; passwords in addresses are redacted in every value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

REDACTED = "[redacted]"
_SECRET_NAME = re.compile(
    r"passw|passphrase|pwd|(?<![A-Za-z])(?:pass|pw)(?![A-Za-z])|ssl.?key(?!store)|secret|token|credential|private.?key|access.?key|account.?key|api.?key|sasl\.jaas|\bauth(?!ors?\b)",
    re.IGNORECASE,
)
# Greedy on purpose: a password may contain any of the characters that end it elsewhere.
_URL_PASSWORD = re.compile(r"(?P<head>[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*):\S*@")
# A word up to its last `@` before a host, and the first colon in it that may end a user name: not the colon of a
# scheme, of a path as Hadoop writes it (`file:/x`), or of a key in JSON.
_BARE_ADDRESS = re.compile(r"(?<!\S)\S+@(?=[\w\[])")
_COLON = re.compile(
    r"""(?<![^\s:/@"'(=,;\[{<]["']):(?!//)(?!(?:(?<=file:)|(?<=hdfs:)|(?<=dbfs:)|(?<=local:))/)(?!(?<=jar:)file:)"""
)
_HTTP_USER = re.compile(r"(?P<head>\bhttps?://)[^/\s:@?#]+@", re.IGNORECASE)  # most often a token
_KEY_NAME = (
    r"(?:passw(?:or)?d|passphrase|(?<![A-Za-z])(?:pass|pw)(?![A-Za-z])|pwd|secret|token|credential|ssl_?key"
    r"|(?:account|access|api|private)[_.-]?key|signature)"
)
_PAIR_PASSWORD = re.compile(
    rf"""(?P<head>[\w.-]*{_KEY_NAME}[\w.-]*["']?\s*[=:]\s*)(?:'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|[^\s;&,}}]+)""",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<head>\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
_ORACLE_PASSWORD = re.compile(r"(?P<head>:thin:[^/\s@]+)/\S+@", re.IGNORECASE)


def redacted_text(text: str) -> str:
    """Return `text` with the passwords in addresses and connection strings redacted."""
    text = _URL_PASSWORD.sub(rf"\g<head>:{REDACTED}@", text)
    text = _HTTP_USER.sub(rf"\g<head>{REDACTED}@", text)
    text = _BARE_ADDRESS.sub(_without_password, text)
    text = _ORACLE_PASSWORD.sub(rf"\g<head>/{REDACTED}@", text)
    text = _BEARER.sub(rf"\g<head>{REDACTED}", text)
    return _PAIR_PASSWORD.sub(rf"\g<head>{REDACTED}", text)


def _without_password(address: re.Match[str]) -> str:
    colon = _COLON.search(address[0])
    return f"{address[0][: colon.end()]}{REDACTED}@" if colon else address[0]


def redacted(options: Mapping[str, str]) -> dict[str, str]:
    """Return `options` with every value redacted whose name indicates a secret."""
    return {name: REDACTED if _SECRET_NAME.search(name) else redacted_text(value) for name, value in options.items()}

"""Validation of user input, done once at the boundary: names, keys, numbers, bytes.

A name becomes part of a path, a key or a table. It consists of letters, digits, `_`, `.` and `-`, begins with a letter
or digit and has at most 64 characters. Such a name cannot escape from its folder, cannot be a hidden file, and never
differs from another name only by an invisible character.
"""

from __future__ import annotations

import re
from typing import TypeVar

from holdfast.errors import BadName, BadValue

T = TypeVar("T")
MAX_LENGTH = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z", re.ASCII)
_KEY_PART = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]*\Z", re.ASCII)
_KEY_PART_LENGTH = 200
_KEY = re.compile(r"(?:[A-Za-z0-9_=-][A-Za-z0-9_.=-]{0,199}(?:/|\Z))+(?<!/)\Z", re.ASCII)
LOCK_SUFFIX = ".lock"
_KEY_RULE = "use parts of the characters A-Z a-z 0-9 _ . = - joined by /, none of them beginning with a dot"


def checked_name(kind: str, name: object) -> str:
    """Return `name`, or raise `BadName` with the reason; `kind` names the kind of name in the error."""
    if not isinstance(name, str):
        raise BadName(kind=kind, name=name, why=f"it is {type(name).__name__}, not str")
    if not name:
        raise BadName(kind=kind, name=name, why="it is empty")
    if len(name) > MAX_LENGTH:
        raise BadName(kind=kind, name=name, why=f"it has {len(name)} characters")
    if not _NAME.match(name):
        raise BadName(kind=kind, name=name, why="it contains a character that is not allowed, or begins with one")
    return name


def is_name(name: str) -> bool:
    """Whether Holdfast may have created a file of this name; any other file was put there by a person."""
    return 0 < len(name) <= MAX_LENGTH and _NAME.match(name) is not None


def checked_key(key: object) -> str:
    """Return `key`, a relative path inside a repository, or raise `BadName`.

    Holdfast builds keys from validated names, so an invalid key means a bug, or a caller that skipped the validation.
    No part may begin with a dot: the names of temporary files do.
    """
    if not isinstance(key, str) or not key:
        raise BadName(kind="key", name=key, why="it is not a non-empty str", rule=_KEY_RULE)
    if _KEY.match(key):
        return key
    for part in key.split("/"):  # find the part to report
        if len(part) > _KEY_PART_LENGTH or not _KEY_PART.match(part):
            raise BadName(kind="key", name=key, why=f"its part {part[:80]!a} is not allowed", rule=_KEY_RULE)
    return key


def checked_value_key(key: object) -> str:
    """Return `key` if a value may be stored there; a lock file must not be replaced, because that breaks the lock."""
    if checked_key(key).endswith(LOCK_SUFFIX):
        raise BadName(
            kind="key", name=key, why="such names are reserved for locks", rule=f"choose a key without {LOCK_SUFFIX}"
        )
    return str(key)


def checked_u64(what: str, value: object) -> int:
    """Return `value` if it is an unsigned 64-bit integer."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise BadValue(what=what, value=value, expected="an integer from 0 to 2**64 - 1")
    return value


def checked_seconds(what: str, value: object) -> float:
    """Return a positive duration in seconds, given as a number or a `timedelta`."""
    if hasattr(value, "total_seconds"):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise BadValue(what=what, value=value, expected="a positive number of seconds")
    return float(value)


def checked_bytes(what: str, data: object) -> bytes:
    """Return `data` as bytes if it is a bytes-like object."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise BadValue(what=what, value=data, expected=f"bytes, not {type(data).__name__}")
    return bytes(data)


def checked_type(what: str, value: object, kind: type[T]) -> T:
    """Return `value` if it is an instance of `kind`."""
    if not isinstance(value, kind):
        raise BadValue(what=what, value=value, expected=f"{kind.__name__}, not {type(value).__name__}")
    return value


def checked_positive(what: str, value: object) -> int:
    """Return `value` if it is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 63:
        raise BadValue(what=what, value=value, expected="an integer of at least 1")
    return value

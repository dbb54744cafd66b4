"""What comes from users, checked once at the edge: names, keys, numbers, bytes.

A name becomes part of a path, a key or a table: it may hold letters, digits, `_`, `.` and `-`, begins with a letter or
digit and has at most 64 characters. So it cannot climb out of a folder, hide, or differ from another only by an
invisible character.
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
_KEY_RULE = "join parts of the characters A-Z a-z 0-9 _ . = - by /, none of them beginning with a dot"


def checked_name(kind: str, name: object) -> str:
    """Return `name`, or raise `BadName` saying what is wrong with this `kind` of name."""
    if not isinstance(name, str):
        raise BadName(kind=kind, name=name, why=f"it is {type(name).__name__}, not str")
    if not name:
        raise BadName(kind=kind, name=name, why="it is empty")
    if len(name) > MAX_LENGTH:
        raise BadName(kind=kind, name=name, why=f"it has {len(name)} characters")
    if not _NAME.match(name):
        raise BadName(kind=kind, name=name, why="it holds a character that is not allowed, or begins with one")
    return name


def is_name(name: str) -> bool:
    """Whether a name is one that we may have made; another was put there by a person."""
    return 0 < len(name) <= MAX_LENGTH and _NAME.match(name) is not None


def checked_key(key: object) -> str:
    """Return `key`, a relative path inside a repository, or raise `BadName`.

    Keys are made by Holdfast out of checked names, so a refusal here means a bug, or a caller that went around the
    edge. No part may begin with a dot: temporary files do.
    """
    if not isinstance(key, str) or not key:
        raise BadName(kind="key", name=key, why="it is not a non-empty str", rule=_KEY_RULE)
    if _KEY.match(key):
        return key
    for part in key.split("/"):  # to say what is wrong
        if len(part) > _KEY_PART_LENGTH or not _KEY_PART.match(part):
            raise BadName(kind="key", name=key, why=f"its part {part[:80]!a} is not allowed", rule=_KEY_RULE)
    return key


def checked_value_key(key: object) -> str:
    """Return `key` if a value may stand there. A lock file is never replaced nor removed: it would be another lock."""
    if checked_key(key).endswith(LOCK_SUFFIX):
        raise BadName(
            kind="key", name=key, why="a lock is kept under such names", rule=f"choose one without {LOCK_SUFFIX}"
        )
    return str(key)


def checked_u64(what: str, value: object) -> int:
    """Return `value` if it is a whole number that fits 64 bits without a sign."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise BadValue(what=what, value=value, expected="an integer from 0 to 2**64 - 1")
    return value


def checked_seconds(what: str, value: object) -> float:
    """Return a span of time above nothing, given as a number of seconds or a `timedelta`."""
    if hasattr(value, "total_seconds"):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise BadValue(what=what, value=value, expected="a number of seconds above 0")
    return float(value)


def checked_bytes(what: str, data: object) -> bytes:
    """Return `data` as bytes if it is a buffer of them."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise BadValue(what=what, value=data, expected=f"bytes, not {type(data).__name__}")
    return bytes(data)


def checked_type(what: str, value: object, kind: type[T]) -> T:
    """Return `value` if it is of the type that is due."""
    if not isinstance(value, kind):
        raise BadValue(what=what, value=value, expected=f"{kind.__name__}, not {type(value).__name__}")
    return value


def checked_positive(what: str, value: object) -> int:
    """Return `value` if it is a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 63:
        raise BadValue(what=what, value=value, expected="an integer of at least 1")
    return value

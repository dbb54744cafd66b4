"""Decoding of JSON and MessagePack that may be damaged: whatever is wrong with the bytes is one exception.

The libraries raise several: their own errors, `UnicodeDecodeError` for text that is not UTF-8, `RecursionError` for
values that are nested too deeply, `ValueError` for numbers that are too long. Readers of stored bytes use these
functions, so that none of them is missed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import msgspec

T = TypeVar("T")
UNDECODABLE = (ValueError, RecursionError)
"""What the libraries raise; msgspec's own errors are ValueErrors. For decoders that are made once and used often."""


class Undecodable(Exception):
    """The bytes cannot be decoded. Callers turn this into the error of their kind of file."""


def from_json(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode JSON as a value of this type."""
    with _translated():
        return msgspec.json.decode(data, type=kind)


def from_msgpack(data: bytes, kind: type[T]) -> T:
    """Decode MessagePack as a value of this type."""
    with _translated():
        return msgspec.msgpack.decode(data, type=kind)


def converted(value: object, kind: type[T]) -> T:
    """Convert a value that was decoded without a type to this type."""
    with _translated():
        return msgspec.convert(value, kind)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except UNDECODABLE as error:
        raise Undecodable(str(error)) from error

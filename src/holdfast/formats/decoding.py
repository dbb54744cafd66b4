"""Decoding of JSON and MessagePack that may be damaged: any problem with the bytes raises one exception.

The libraries raise several exceptions: their own errors, `UnicodeDecodeError` for text that is not UTF-8,
`RecursionError` for values that are nested too deeply, `ValueError` for numbers that are too long. Code that reads
stored bytes uses these functions, so that all of them are handled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import msgspec

T = TypeVar("T")
UNDECODABLE = (ValueError, RecursionError)
"""The exceptions that the libraries raise (msgspec errors are ValueErrors), for callers with their own decoder."""


class Undecodable(Exception):
    """The bytes cannot be decoded. Callers translate this into the error for their kind of file."""


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

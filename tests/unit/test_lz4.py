"""The first block of a compressed state file, decoded without any package."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.sparkfiles.lz4 import BadBlock, first_bytes, has_end

HEADER = struct.Struct("<8sBIII")
END = HEADER.pack(b"LZ4Block", 0x10, 0, 0, 0)


def framed(data: bytes, size: int) -> bytes:
    return HEADER.pack(b"LZ4Block", 0x20, len(data), size, 0) + data + END


texts = st.lists(st.sampled_from([b"a", b"abcd", b"version", b"0123456789" * 30, b"\0" * 700]), max_size=40).map(
    b"".join
)


@given(st.one_of(st.binary(min_size=1, max_size=600), texts.filter(bool)))
def test_what_another_library_packs_is_unpacked(text: bytes) -> None:
    packed = pa.Codec("lz4_raw").compress(text, asbytes=True)
    stream = framed(packed, len(text))
    assert first_bytes(stream) == text
    assert has_end(stream) and not has_end(stream[:-1])
    assert first_bytes(HEADER.pack(b"LZ4Block", 0x10, len(text), len(text), 0) + text) == text


@given(st.binary(max_size=80), st.integers(0, 1 << 32 - 1))
def test_damage_is_one_kind_of_error(data: bytes, size: int) -> None:
    for stream in (data, framed(data, size % 5000), framed(data, size)):
        try:
            first_bytes(stream)
        except BadBlock:
            continue


def test_a_block_that_promises_more_than_it_may_is_refused() -> None:
    with pytest.raises(BadBlock, match="gives"):
        first_bytes(framed(b"\0", 1 << 30))
    with pytest.raises(BadBlock, match="more than 8"):
        first_bytes(framed(b"\x1fa\x01\x00" + b"\xff" * 900 + b"\0", 8))

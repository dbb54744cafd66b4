import itertools
import struct
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadValue, StateCorrupt, StateMismatch, UnsupportedVersion
from holdfast.formats.envelope import pack
from holdfast.formats.state import MAGIC
from holdfast.stores import CheckpointId, CheckpointState
from support import cuts

GOLDEN = bytes.fromhex(
    "4d0000000000000000002a36fe9c97174d00000000000000010000000900000077696e646f775f6f7011000000"
    "77696e646f775f73746174655f646174610100000008000000736f757263652d300020000000000000"
)
GOLDEN_STATE = CheckpointState(
    id=CheckpointId("orders", 77),
    operator_states={"window_op": b"window_state_data"},
    source_offsets={"source-0": 8192},
    watermark_ns=1_700_000_000_000_000_000,
    event_count=77,
)

u64 = st.integers(0, 2**64 - 1)
names = st.text(max_size=12)
states = st.builds(
    CheckpointState,
    id=st.builds(CheckpointId, st.text(max_size=12), u64, u64),
    operator_states=st.dictionaries(names, st.binary(max_size=40), max_size=5),
    source_offsets=st.dictionaries(names, u64, max_size=5),
    watermark_ns=u64,
    event_count=u64,
    metadata=st.dictionaries(names, names, max_size=5),
)


def test_version_1_bytes_are_exact() -> None:
    assert len(GOLDEN) == 86
    assert GOLDEN_STATE.to_v1_bytes() == GOLDEN
    assert CheckpointState.from_v1_bytes(GOLDEN, "orders") == GOLDEN_STATE
    assert CheckpointState.from_bytes(GOLDEN, "orders") == GOLDEN_STATE


def test_every_truncation_of_version_1_is_an_error_that_names_the_byte() -> None:
    for length, cut in cuts(GOLDEN):
        with pytest.raises(StateCorrupt) as caught:
            CheckpointState.from_v1_bytes(cut, "orders")
        assert 0 <= caught.value.offset <= length
        assert f"byte {caught.value.offset}" in str(caught.value)


def test_version_1_loads_with_its_names_in_any_order() -> None:
    """The original system wrote names in an order that changed from run to run."""
    operators = {"b": b"two", "a": b"one", "é": b"", "aa": b"three"}
    for order in itertools.permutations(operators):
        data = struct.pack("<QQQI", 5, 6, 7, len(order))
        for name in order:
            raw = name.encode()
            data += struct.pack("<I", len(raw)) + raw + struct.pack("<I", len(operators[name])) + operators[name]
        data += struct.pack("<I", 0)
        state = CheckpointState.from_v1_bytes(data, "s")
        assert state.operator_states == operators
        assert (state.id.sequence, state.watermark_ns, state.event_count) == (5, 6, 7)


@given(states)
def test_version_2_keeps_every_value(state: CheckpointState) -> None:
    assert CheckpointState.from_bytes(state.to_bytes()) == state
    assert CheckpointState.from_bytes(state.to_bytes(), state.id.stream_id) == state


@given(states)
def test_version_1_keeps_all_but_what_it_has_no_room_for(state: CheckpointState) -> None:
    back = CheckpointState.from_v1_bytes(state.to_v1_bytes(), state.id.stream_id)
    assert back.operator_states == state.operator_states
    assert back.source_offsets == state.source_offsets
    assert back.id.sequence == state.id.sequence
    assert (back.id.created_at, back.metadata) == (0, {})


@given(states)
def test_same_values_give_same_bytes_whatever_their_order(state: CheckpointState) -> None:
    turned = CheckpointState(
        state.id,
        dict(reversed(state.operator_states.items())),
        dict(reversed(state.source_offsets.items())),
        state.watermark_ns,
        state.event_count,
        dict(reversed(state.metadata.items())),
    )
    assert turned.to_bytes() == state.to_bytes()
    assert turned.to_v1_bytes() == state.to_v1_bytes()


@given(states)
def test_no_reader_of_version_1_takes_a_version_2_file_for_its_own(state: CheckpointState) -> None:
    with pytest.raises(StateCorrupt):
        CheckpointState.from_v1_bytes(state.to_bytes(), "s")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_an_error_or_a_state_that_encodes_back(data: bytes) -> None:
    try:
        state = CheckpointState.from_bytes(data, "s")
    except (StateCorrupt, UnsupportedVersion):
        return
    assert sorted(state.to_v1_bytes()) == sorted(data)


def test_bytes_after_the_end_names_given_twice_and_bad_utf8_are_errors() -> None:
    with pytest.raises(StateCorrupt, match="after the end") as caught:
        CheckpointState.from_v1_bytes(GOLDEN + b"\0", "orders")
    assert caught.value.offset == 86
    twice = struct.pack("<QQQI", 1, 1, 1, 0) + struct.pack("<I", 2) + (struct.pack("<I", 1) + b"a" + bytes(8)) * 2
    with pytest.raises(StateCorrupt, match="duplicate") as caught:
        CheckpointState.from_v1_bytes(twice, "orders")
    assert caught.value.offset == 28 + 4 + 13
    with pytest.raises(StateCorrupt, match="UTF-8"):
        CheckpointState.from_v1_bytes(GOLDEN.replace(b"window_op", b"window\xff\xfe\xfd"), "orders")


def test_a_future_version_is_refused_by_name_not_guessed() -> None:
    with pytest.raises(UnsupportedVersion, match="version 3") as caught:
        CheckpointState.from_bytes(pack(MAGIC, 3, b"whatever"))
    assert caught.value.found == 3


def test_a_version_1_state_without_a_stream_id_and_one_of_another_stream_are_refused() -> None:
    with pytest.raises(StateCorrupt, match="stream id"):
        CheckpointState.from_bytes(GOLDEN)
    with pytest.raises(StateMismatch, match="stream 'orders', not 'payments'"):
        CheckpointState.from_bytes(GOLDEN_STATE.to_bytes(), "payments")


def test_ids_are_ordered_by_stream_then_sequence_then_time() -> None:
    ids = [CheckpointId("b", 1, 0), CheckpointId("a", 2, 0), CheckpointId("a", 10, 0), CheckpointId("a", 2, 5)]
    assert [(each.stream_id, each.sequence, each.created_at) for each in sorted(ids)] == [
        ("a", 2, 0),
        ("a", 2, 5),
        ("a", 10, 0),
        ("b", 1, 0),
    ]


@pytest.mark.parametrize("field", ["watermark_ns", "event_count"])
@pytest.mark.parametrize("value", [-1, 2**64, 1.5, True])
def test_values_that_the_bytes_cannot_hold_are_refused(field: str, value: object) -> None:
    with pytest.raises(BadValue):
        CheckpointState(CheckpointId("s", 1), **{field: value})
    with pytest.raises(BadValue):
        CheckpointState(CheckpointId("s", 1), source_offsets={"a": value})


@pytest.mark.parametrize("state", ["text", bytearray(b"x"), memoryview(b"ab"), array("I", [1, 2])])
def test_states_that_are_no_bytes_are_refused(state: Any) -> None:
    """Wider items would be counted wrong; what can change later would not be what was saved."""
    with pytest.raises(BadValue, match="operator 'm'"):
        CheckpointState(CheckpointId("s", 1), {"m": state})
    with pytest.raises(BadValue):
        CheckpointState("s", {})
    with pytest.raises(BadValue):
        CheckpointState(CheckpointId("s", 1), metadata={"a": 1})


def test_a_name_that_is_no_utf8_is_refused_when_written() -> None:
    with pytest.raises(BadValue, match="UTF-8"):
        CheckpointState(CheckpointId("s", 1), operator_states={"\ud800": b""}).to_bytes()

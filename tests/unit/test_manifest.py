import base64
import dataclasses
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Manifest
from holdfast.errors import BadValue, ManifestCorrupt, ManifestRefused, OperatorStateCorrupt, UnsupportedVersion
from holdfast.formats import pack_states, pipeline_hash
from holdfast.formats.manifest_parts import ConnectorCheckpoint, IssueCode, Severity, SinkStatus
from holdfast.formats.sealed_json import seal
from holdfast.formats.sidecar import OperatorState

BIG = 2**64 - 3  # no float can hold it


def original(**fields: Any) -> bytes:
    """A manifest as the original system wrote it."""
    return json.dumps(
        {"version": 1, "checkpoint_id": 7, "epoch": 3, "timestamp_ms": 1_700_000_000_000, **fields}
    ).encode()


def test_the_four_required_fields_are_enough() -> None:
    manifest = Manifest.from_bytes(original())
    assert (manifest.checkpoint_id, manifest.epoch, manifest.timestamp_ms) == (7, 3, 1_700_000_000_000)
    assert manifest.vnode_count == 0
    assert manifest.source_offsets == {}
    assert manifest.pipeline_hash is None
    issues = manifest.validate()
    assert [(issue.code, issue.severity) for issue in issues] == [(IssueCode.VNODE_COUNT_ZERO, Severity.WARNING)]
    manifest.require_valid()


@pytest.mark.parametrize("field", ["version", "checkpoint_id", "epoch", "timestamp_ms"])
def test_each_required_field_is_required(field: str) -> None:
    fields = json.loads(original())
    del fields[field]
    with pytest.raises(ManifestCorrupt, match=field):
        Manifest.from_bytes(json.dumps(fields).encode())


def test_a_whole_original_manifest_round_trips_without_loss() -> None:
    data = original(
        source_offsets={
            "kafka": {"offsets": {"partition-0": "1234"}, "epoch": 3, "metadata": {"topic": "t"}, "later": [1, 2.50]},
            "pg": {"offsets": {"lsn": "0/1234ABCD"}, "epoch": 3},
        },
        table_offsets={"dim": {"offsets": {"version": "42"}, "epoch": 2}},
        sink_epochs={"out": 3, "copy": 2},
        sink_commit_statuses={"out": "Pending", "copy": {"Failed": "boom"}, "done": "Committed"},
        operator_states={
            "agg": {"state_b64": "aGVsbG8=", "external": False, "future": None},
            "old": {"external": True},
        },
        table_store_checkpoint_path=None,
        watermark=-5,
        source_watermarks={"kafka": -(2**63)},
        source_names=["pg", "kafka"],
        sink_names=["copy", "done", "out"],
        pipeline_hash=BIG,
        vnode_count=256,
        state_checksum=None,
        wal_position=12345678901234567890,
        per_core=[1, {"deep": [None, True, "é"]}],
    )
    one = Manifest.from_bytes(data)
    assert one.pipeline_hash == BIG
    assert one.sink_commit_statuses == {
        "out": SinkStatus.pending(),
        "copy": SinkStatus.failed("boom"),
        "done": SinkStatus.committed(),
    }
    assert one.source_names == ("pg", "kafka")
    two = Manifest.from_bytes(one.to_bytes())
    assert two == dataclasses.replace(one, version=2)
    written = json.loads(one.to_bytes())
    for name, value in json.loads(data).items():
        if name != "version":
            assert _covers(written[name], value), name
    assert two.to_bytes() == one.to_bytes()


def _covers(written: Any, value: Any) -> bool:
    if isinstance(value, dict):
        return all(name in written and _covers(written[name], each) for name, each in value.items())
    return bool(written == value)


def test_gaps_round_trip_and_their_unknown_fields_survive() -> None:
    gap = {"stream": "a", "timeline": 1, "epoch": 5, "kind": "quarantined", "why": "é", "at_ms": 9, "facts": {"x": [1]}}
    data = original(gaps={"total": 30, "newest": [{**gap, "later": 1.50}], "more": None})
    one = Manifest.from_bytes(data)
    assert one.gaps is not None and one.gaps.total == 30
    assert (one.gaps.newest[0].epoch, one.gaps.newest[0].facts) == (5, {"x": [1]})
    two = Manifest.from_bytes(one.to_bytes())
    assert two.gaps == one.gaps
    assert json.loads(one.to_bytes())["gaps"] == json.loads(data)["gaps"]
    assert Manifest.from_bytes(original()).gaps is None  # a file of before
    assert Manifest.from_bytes(original(gaps=None)).gaps is None


def test_the_times_of_a_checkpoint_come_back_with_fields_of_later_versions() -> None:
    data = original(
        times={"seconds": 0.5, "later": 1, "streams": {"orders": {"held": 0.25, "new_bytes": 7, "more": []}}}
    )
    found = Manifest.from_bytes(data).times
    assert found is not None
    assert (found.seconds, found.streams["orders"].held, found.streams["orders"].new_bytes) == (0.5, 0.25, 7)
    assert (found.extra, found.streams["orders"].extra) == ({"later": "1"}, {"more": "[]"})
    assert Manifest.from_bytes(original(times=None)).times is None


@pytest.mark.parametrize(
    "times", [{}, {"seconds": "1"}, {"seconds": -1}, {"seconds": 1, "streams": {"a": {"held": -0.5}}}, [], 5]
)
def test_times_that_cannot_be_are_damage(times: object) -> None:
    with pytest.raises(ManifestCorrupt):
        Manifest.from_bytes(original(times=times))


@pytest.mark.parametrize(
    "gaps", [[], {}, {"total": -1}, {"total": 1, "newest": [{}]}, {"total": 1, "newest": None}, {"newest": []}]
)
def test_damaged_gaps_are_refused(gaps: object) -> None:
    with pytest.raises(ManifestCorrupt, match="gaps"):
        Manifest.from_bytes(original(gaps=gaps))


def test_numbers_in_unknown_fields_keep_their_digits() -> None:
    data = original()[:-1] + b', "huge": 1e999, "exact": 0.1000000000000000055511151231257827, "n": {"x":1.50}}'
    written = Manifest.from_bytes(data).to_bytes()
    for text in (b"1e999", b"0.1000000000000000055511151231257827", b"1.50"):
        assert text in written
    assert Manifest.from_bytes(written).extra == Manifest.from_bytes(data).extra


@pytest.mark.parametrize(
    "fields",
    [
        {"source_offsets": None},
        {"source_offsets": {"a": None}},
        {"source_offsets": {"a": {"epoch": 1}}},
        {"source_offsets": {"a": {"offsets": {}}}},
        {"source_offsets": {"a": {"offsets": {"p": 5}, "epoch": 1}}},
        {"source_offsets": {"a": {"offsets": {}, "epoch": 1, "metadata": None}}},
        {"sink_epochs": {"s": -1}},
        {"sink_epochs": {"s": None}},
        {"sink_commit_statuses": {"s": "Maybe"}},
        {"sink_commit_statuses": {"s": {"Failed": 1}}},
        {"sink_commit_statuses": {"s": {"Failed": "x", "Pending": 1}}},
        {"operator_states": {"o": {"external": None}}},
        {"operator_states": {"o": {"external_offset": 2**64}}},
        {"vnode_count": None},
        {"vnode_count": 65536},
        {"watermark": 2**63},
        {"watermark": "5"},
        {"pipeline_hash": 2**64},
        {"pipeline_hash": -1},
        {"pipeline_hash": 1.0},
        {"source_names": None},
        {"source_names": [1]},
        {"checkpoint_id": None},
        {"epoch": True},
        {"epoch": 1.0},
        {"timestamp_ms": -1},
        {"digest": "ab"},
    ],
    ids=str,
)
def test_wrong_types_and_nulls_are_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(ManifestCorrupt):
        Manifest.from_bytes(original(**fields))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"\xef\xbb\xbf" + original(),
        original() + b"x",
        original()[:-1] + b', "epoch": 4}',
        original(a={"b": 1}).replace(b'"b": 1', b'"b": 1, "b": 2'),
        original()[:-1] + b', "x": NaN}',
        original()[:-1] + b', "x": ' + b"9" * 5000 + b"}",
        original()[:-1] + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        original()[:-1] + b', "x": "\\ud800"}'[:-2] + b'"',
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_no_manifest_is_an_error(data: bytes) -> None:
    with pytest.raises(ManifestCorrupt):
        Manifest.from_bytes(data)


def test_newer_versions_are_refused_sealed_or_not() -> None:
    with pytest.raises(UnsupportedVersion, match="version 3"):
        Manifest.from_bytes(original(version=3))
    fields = {"version": 9, "checkpoint_id": 1, "epoch": 1, "timestamp_ms": 1}
    with pytest.raises(UnsupportedVersion, match="version 9"):
        Manifest.from_bytes(seal(fields))


def test_version_2_without_a_digest_and_version_1_with_one_are_refused() -> None:
    with pytest.raises(ManifestCorrupt, match="without a digest"):
        Manifest.from_bytes(original(version=2))
    with pytest.raises(ManifestCorrupt, match="with a digest"):
        Manifest.from_bytes(seal(json.loads(original())))


def manifest(**fields: Any) -> Manifest:
    return Manifest(checkpoint_id=7, epoch=3, timestamp_ms=1, **fields)


def codes(found: Manifest, *args: Any, **options: Any) -> set[IssueCode]:
    return {issue.code for issue in found.validate(*args, **options)}


def test_a_new_manifest_is_valid_and_version_2() -> None:
    new = manifest(sink_names=["b", "a"], source_names=["z", "y"])
    assert new.validate() == []
    assert (new.version, new.vnode_count) == (2, 256)
    assert new.sink_names == ("a", "b")
    assert new.source_names == ("z", "y")


def test_validation_finds_every_issue_at_once() -> None:
    found = Manifest(
        version=0,
        checkpoint_id=0,
        epoch=0,
        timestamp_ms=0,
        vnode_count=128,
        sink_epochs={"a": 1, "b": 1},
        sink_commit_statuses={"a": SinkStatus.pending()},
        source_names=("x",),
        source_offsets={"y": ConnectorCheckpoint({}, 1)},
        operator_states={
            "both": OperatorState(state_b64="", external=True, sha256=""),
            "none": OperatorState(),
            "past": OperatorState(external=True, external_offset=90, external_length=20),
            "over": OperatorState(external=True, external_offset=80, external_length=15),
        },
    )
    issues = found.validate(256, sidecar_length=100)
    assert {issue.code for issue in issues} == {
        IssueCode.VERSION_ZERO,
        IssueCode.CHECKPOINT_ID_ZERO,
        IssueCode.EPOCH_ZERO,
        IssueCode.TIMESTAMP_ZERO,
        IssueCode.VNODE_COUNT_MISMATCH,
        IssueCode.SINK_WITHOUT_STATUS,
        IssueCode.UNKNOWN_SOURCE,
        IssueCode.STATE_TWICE,
        IssueCode.STATE_ABSENT,
        IssueCode.RANGE_OUTSIDE,
        IssueCode.RANGE_OVERLAP,
    }
    warnings = {issue.code for issue in issues if issue.severity is Severity.WARNING}
    assert warnings == {IssueCode.SINK_WITHOUT_STATUS}
    with pytest.raises(ManifestRefused, match="vnode count is 128") as caught:
        found.require_valid(256, sidecar_length=100)
    assert len(caught.value.issues) == len(issues) - 1


def test_sinks_and_sources_are_only_checked_where_they_are_recorded() -> None:
    assert codes(manifest(sink_epochs={"a": 1})) == set()
    assert codes(manifest(source_offsets={"y": ConnectorCheckpoint({}, 1)})) == set()


def test_missing_digests_are_shown_and_a_rewritten_version_1_can_still_be_restored() -> None:
    bare = manifest(operator_states={"a": OperatorState(external=True, external_length=4)})
    assert codes(bare) == {IssueCode.DIGEST_ABSENT, IssueCode.CHECKSUM_ABSENT}
    old = Manifest.from_bytes(original(operator_states={"agg": {"state_b64": "aGVsbG8="}}))
    rewritten = Manifest.from_bytes(old.to_bytes())
    warnings = rewritten.require_valid()
    assert {issue.code for issue in warnings} == {IssueCode.DIGEST_ABSENT, IssueCode.VNODE_COUNT_ZERO}
    assert bytes(rewritten.read_states()["agg"]) == b"hello"


def test_the_program_is_compared_by_its_hash() -> None:
    assert codes(manifest(pipeline_hash=5), expected_pipeline_hash=5) == set()
    assert codes(manifest(pipeline_hash=5), expected_pipeline_hash=6) == {IssueCode.PIPELINE_HASH_MISMATCH}
    assert codes(manifest(), expected_pipeline_hash=6) == set()
    with pytest.raises(BadValue, match="description"):
        pipeline_hash({"a": object()})


@given(
    st.dictionaries(st.text(min_size=1, max_size=5), st.binary(max_size=300), max_size=5),
    st.integers(0, 300),
)
def test_states_come_back_whole_inline_or_from_the_sidecar(states: dict[str, bytes], threshold: int) -> None:
    packed = pack_states(states, threshold)
    sidecar = b"".join(packed.sidecar) if packed.sidecar else None
    written = manifest(operator_states=packed.entries, state_checksum=packed.checksum)
    read = Manifest.from_bytes(written.to_bytes())
    assert read == written
    assert read.validate(sidecar_length=len(sidecar or b"")) == []
    assert {name: bytes(state) for name, state in read.read_states(sidecar).items()} == states
    for name, entry in packed.entries.items():
        assert entry.external == (len(states[name]) > threshold)


def test_large_states_are_not_copied() -> None:
    large = bytearray(200_000)
    packed = pack_states({"a": large, "b": b"x"})
    assert packed.sidecar[0].obj is large
    sidecar = bytes(large)
    back = manifest(operator_states=packed.entries, state_checksum=packed.checksum).read_states(sidecar)
    assert back["a"].obj is sidecar


def test_damaged_state_is_refused_by_the_operators_name_never_replaced() -> None:
    packed = pack_states({"small": b"hello", "large": bytes(100)}, threshold=10)
    good = manifest(operator_states=packed.entries, state_checksum=packed.checksum)
    with pytest.raises(ManifestCorrupt, match="missing"):
        good.read_states(None)
    with pytest.raises(OperatorStateCorrupt, match="large"):
        good.read_states(bytes(99))
    with pytest.raises(ManifestCorrupt, match=r"sidecar state\.bin of checkpoint 7 does not match"):
        good.read_states(bytes(101))
    unchecked = dataclasses.replace(good, state_checksum=None)
    for sidecar, why in ((None, "missing"), (bytes(99), "ends at byte 100"), (b"\1" + bytes(99), "digest")):
        with pytest.raises(OperatorStateCorrupt, match=why) as caught:
            unchecked.read_states(sidecar)
        assert caught.value.operator == "large"
    bad = OperatorState(state_b64=base64.b64encode(b"hellO").decode(), sha256=packed.entries["small"].sha256)
    with pytest.raises(OperatorStateCorrupt, match="small"):
        manifest(operator_states={"small": bad}).read_states()


@pytest.mark.parametrize(
    "text", ["aGVsbG8", "aGVsbG8=\n", "aGVs bG8=", "aGVsbG8_", "aGVsbG9=", "aGVsbG8==", "=", "YR=="]
)
def test_base64_is_strict(text: str) -> None:
    found = Manifest.from_bytes(original(operator_states={"agg": {"state_b64": text}}))
    with pytest.raises(OperatorStateCorrupt, match="agg"):
        found.read_states()


def test_an_operator_with_no_state_at_all_is_refused() -> None:
    found = Manifest.from_bytes(original(operator_states={"agg": {}}))
    with pytest.raises(OperatorStateCorrupt, match="agg"):
        found.read_states()


def test_a_rewrite_never_drops_the_checksum() -> None:
    found = Manifest.from_bytes(original(state_checksum="ab" * 32))
    assert Manifest.from_bytes(found.to_bytes()).state_checksum == "ab" * 32
    later = dataclasses.replace(found, sink_commit_statuses={"a": SinkStatus.committed()})
    assert Manifest.from_bytes(later.to_bytes()).state_checksum == "ab" * 32


@pytest.mark.parametrize(
    "fields",
    [
        {"checkpoint_id": "1"},
        {"timestamp_ms": 1.5},
        {"watermark": "x"},
        {"source_offsets": {"k": {"0": "5"}}},
        {"sink_epochs": {"a": -1}},
        {"sink_commit_statuses": {"a": "Pending"}},
        {"pipeline_hash": 2**64},
        {"extra": {"owner": "not JSON"}},
        {"source_names": [1]},
        {"source_names": "orders"},
        {"sink_names": None},
        {"watermark": float("nan")},
        {"epoch": True},
        {"vnode_count": 70_000},
        {"sink_commit_statuses": {"a": SinkStatus("Bogus")}},
        {"source_offsets": {"k": ConnectorCheckpoint({"p": 1234}, 1)}},
        {"source_offsets": {"k": ConnectorCheckpoint({}, 1, extra={"offsets": "{}"})}},
        {"operator_states": {"o": OperatorState(state_b64="", extra={"state_b64": '"eA=="'})}},
        {"extra": {"x": '1,"y":2'}},
        {"extra": {"x": '"\ud800"'}},
    ],
    ids=str,
)
def test_what_could_not_be_read_back_is_never_written(fields: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        Manifest(**{"checkpoint_id": 7, "epoch": 3, "timestamp_ms": 1, **fields}).to_bytes()


def test_states_of_the_wrong_type_are_refused() -> None:
    with pytest.raises(BadValue, match="operator 'a'"):
        pack_states({"a": "text"})
    with pytest.raises(BadValue, match="in one piece"):
        manifest().read_states((memoryview(b""),))
    with pytest.raises(BadValue, match="expected bytes"):
        Manifest.from_bytes("{}")


def test_extra_fields_cannot_stand_in_for_our_own() -> None:
    with pytest.raises(BadValue, match="digest"):
        manifest(extra={"digest": '"x"'}).to_bytes()


def test_a_manifest_is_readable_json_that_begins_with_its_digest() -> None:
    text = manifest().to_bytes().decode()
    assert text.startswith('{\n  "digest": "')
    assert text.endswith("}\n")
    assert json.loads(text)["version"] == 2


def test_the_pipeline_hash_is_stable_over_runs_and_key_order() -> None:
    one = {"streams": {"a": {"sinks": ["x"], "mode": "append"}}, "sources": ["k"]}
    other = {"sources": ["k"], "streams": {"a": {"mode": "append", "sinks": ["x"]}}}
    canonical = b'{"sources":["k"],"streams":{"a":{"mode":"append","sinks":["x"]}}}'
    expected = int.from_bytes(hashlib.sha256(canonical).digest()[:8], "little")
    assert pipeline_hash(one) == pipeline_hash(other) == expected
    assert pipeline_hash({**one, "sources": ["k2"]}) != pipeline_hash(one)

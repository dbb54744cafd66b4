"""A marker sink: `apply` and `last_key` are the user's, the rest of the contract is Holdfast's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from handstaged import SCHEMA, HandStaged, NoSession, query
from holdfast.epoch import Attempt
from holdfast.errors import (
    BadValue,
    NotSupported,
    SinkBehind,
    SinkFailed,
    SinkForeign,
    StagedDamaged,
    StagedGone,
    TimelineEnded,
)
from holdfast.sinks.base import (
    CannotTakeBack,
    EpochKey,
    Link,
    Sink,
    SinkContext,
    SinkPosition,
    Staged,
    StreamIdentity,
    handle_digest,
)
from holdfast.sinks.marker.key import Marker
from holdfast.sinks.marker.rows import StagedRows
from holdfast.testing.take_back import VisibleRows
from markersink import HandMarkerSink, hand_staged

OWNER = StreamIdentity("shop", "a" * 32, "orders")
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", fullmatch=True)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sinks.marker.sink._PAUSES_S", (0.0, 0.0, 0.0, 0.0))


@pytest.fixture
def spark() -> None:
    """The tests of the contract ask for a session; rows are staged by hand."""


class TestContract(HandStaged):
    """The part of the contract that a rewind needs. The whole suite runs with Spark."""

    def make(self, folder: Path) -> Sink:
        return HandMarkerSink(folder / "out.db", staging=folder / "staging")

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        assert isinstance(sink, HandMarkerSink)
        return sink.seen()

    def _stage(self, spark: Any, sink: Sink, key: EpochKey, *numbers: int) -> Staged:
        assert isinstance(sink, HandMarkerSink)
        return hand_staged(sink, key, *numbers)


class TestContractOfComplete(TestContract):
    output_mode = "complete"


# --- the key ---


@given(
    st.builds(StreamIdentity, NAMES, NAMES, NAMES),
    st.integers(1, 10**9),
    st.integers(0, 10**12),
    st.none() | st.text("0123456789abcdef", min_size=16, max_size=16),
)
def test_a_key_is_short_text_that_reads_back(
    owner: StreamIdentity, timeline: int, epoch: int, handle: str | None
) -> None:
    marker = Marker(owner, timeline, epoch, handle)
    assert len(str(marker)) <= 255 and str(marker).isascii() and " " not in str(marker)
    assert Marker.parsed(str(marker)) == marker


@given(st.text())
def test_other_text_is_not_a_key(text: str) -> None:
    assert Marker.parsed(text) is None


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: t + "0", lambda t: t.upper(), lambda t: t + "\n"])
def test_a_damaged_key_is_not_a_key(change: Callable[[str], str]) -> None:
    assert Marker.parsed(change(str(Marker(OWNER, 1, 1, "0123456789abcdef")))) is None


# --- apply ---


def key_of(epoch: int, before: Link | None = None, *, timeline: int = 1, owner: StreamIdentity = OWNER) -> EpochKey:
    return EpochKey(owner, Attempt(stream="orders", timeline=timeline, epoch=epoch, attempt=1), 1, before)


def opened(folder: Path, made: type[HandMarkerSink] = HandMarkerSink, mode: str = "append") -> Any:
    sink = made(folder / "out.db", staging=folder / "staging")
    sink.open(SinkContext(OWNER, SCHEMA, mode, NoSession()))  # type: ignore[arg-type]
    return sink


def filled(sink: Any, *epochs: int) -> Link:
    before = Link(0, None)
    for epoch in epochs:
        staged = hand_staged(sink, key_of(epoch), epoch)
        sink.commit(key_of(epoch, before), staged.handle)
        before = Link(epoch, handle_digest(staged.handle))
    return before


class Noisy(HandMarkerSink):
    """Calls a function before and one after each transaction; counts the calls."""

    before_it: Callable[[], object] = staticmethod(lambda: None)
    after_it: Callable[[], object] = staticmethod(lambda: None)
    calls = 0

    def apply(self, rows: StagedRows, key: str, before: str | None) -> None:
        self.calls += 1
        self.before_it()
        super().apply(rows, key, before)
        self.after_it()


def refuse(error: Exception) -> Callable[[], object]:
    def act() -> object:
        raise error

    return act


def test_a_call_whose_answer_was_lost_has_taken_effect(tmp_path: Path) -> None:
    sink = opened(tmp_path, Noisy)
    sink.after_it = refuse(ConnectionResetError("the answer was lost"))
    filled(sink, 1)
    assert (sink.seen(), sink.calls) == ([(1, "row 1")], 1)


def test_a_call_that_fails_is_repeated_and_then_raised_as_it_is(tmp_path: Path) -> None:
    sink, error = opened(tmp_path, Noisy), ValueError("it does not fit")
    sink.before_it = refuse(error)
    with pytest.raises(ValueError, match="it does not fit") as caught:
        filled(sink, 1)
    assert (caught.value, sink.calls, sink.seen()) == (error, 5, [])
    sink.before_it = lambda: None
    staged = hand_staged(sink, replace(key_of(1), lease=2), 1)
    sink.commit(replace(key_of(1, Link(0, None)), lease=2), staged.handle)
    assert sink.seen() == [(1, "row 1")]


def test_an_error_that_ends_by_itself_is_not_raised(tmp_path: Path) -> None:
    sink = opened(tmp_path, Noisy)
    failures = iter([ValueError("busy"), ValueError("busy")])

    def fail() -> None:
        for error in failures:
            raise error

    sink.before_it = fail
    filled(sink, 1)
    assert (sink.seen(), sink.calls) == ([(1, "row 1")], 3)


def test_a_key_that_cannot_be_read_at_once_is_read_again(tmp_path: Path) -> None:
    class Flaky(HandMarkerSink):
        left = 0

        def last_key(self) -> str | None:
            if self.left:
                self.left -= 1
                raise ConnectionError("gone")
            return super().last_key()

    sink = opened(tmp_path, Flaky)
    sink.left = 4
    filled(sink, 1)
    assert sink.seen() == [(1, "row 1")]
    sink.left = 5
    with pytest.raises(ConnectionError):
        sink.inspect(OWNER, 1)


def test_an_apply_that_does_not_store_its_key_is_found_at_once(tmp_path: Path) -> None:
    class Forgetful(HandMarkerSink):
        def apply(self, rows: StagedRows, key: str, before: str | None) -> None:
            super().apply(rows, str(Marker(OWNER, 1, 1, None)), before)

    class Idle(HandMarkerSink):
        def apply(self, rows: StagedRows, key: str, before: str | None) -> None:
            pass

    with pytest.raises(SinkFailed, match="last_key\\(\\) is None"):
        filled(opened(tmp_path / "1", Idle), 1)
    sink = opened(tmp_path / "2", Forgetful)
    filled(sink, 1)  # a key without a digest is that of a rewind
    with pytest.raises(SinkFailed, match="in the transaction that writes the rows"):
        staged = hand_staged(sink, key_of(2), 2)
        sink.commit(key_of(2, Link(1, None)), staged.handle)


@pytest.mark.parametrize("text", ["", "epoch 1", 1, b"x"])
def test_what_is_not_a_key_is_refused(text: Any, tmp_path: Path) -> None:
    class Wrong(HandMarkerSink):
        def last_key(self) -> str | None:
            return text  # type: ignore[no-any-return]

    with pytest.raises(BadValue, match="last_key"):
        opened(tmp_path, Wrong).inspect(OWNER, 1)


def test_a_driver_that_is_overtaken_within_apply_writes_nothing(tmp_path: Path) -> None:
    """It has read the key, is paused, and goes on after others have committed two epochs."""
    late, quick = opened(tmp_path, Noisy), opened(tmp_path)
    staged = hand_staged(quick, key_of(1), 1)

    def others() -> None:
        late.before_it = lambda: None
        quick.commit(key_of(1, Link(0, None)), staged.handle)
        digest = handle_digest(staged.handle)
        quick.commit(key_of(2, Link(1, digest)), hand_staged(quick, key_of(2), 2).handle)

    late.before_it = others
    late.commit(key_of(1), staged.handle)
    assert late.seen() == [(1, "row 1"), (2, "row 2")]


def test_a_rewind_within_apply_of_an_old_driver_refuses_it(tmp_path: Path) -> None:
    late, other = opened(tmp_path, Noisy), opened(tmp_path)
    last = filled(other, 1, 2)
    staged = hand_staged(late, key_of(3), 3)
    late.before_it = lambda: other.stamp(OWNER, (1, 1), 2)
    with pytest.raises(TimelineEnded):
        late.commit(key_of(3, last), staged.handle)
    assert late.seen() == [(1, "row 1"), (2, "row 2")]
    assert other.inspect(OWNER, 2) == SinkPosition(1)


def test_an_outdated_rewind_is_refused(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    filled(sink, 1)
    sink.stamp(OWNER, (1, 1), 3)
    with pytest.raises(TimelineEnded):
        sink.stamp(OWNER, (1, 1), 2)


def test_another_copy_of_the_repository_is_refused(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    filled(sink, 1)
    other = hand_staged(sink, replace(key_of(1), lease=7), 11, 12)
    with pytest.raises(SinkForeign, match="another copy"):
        sink.commit(replace(key_of(1, Link(0, None)), lease=7), other.handle)
    with pytest.raises(SinkForeign, match="another copy"):
        sink.commit(key_of(2, Link(1, "0" * 16)), hand_staged(sink, key_of(2), 2).handle)


def test_another_stream_is_refused(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    filled(sink, 1)
    for other in (replace(OWNER, uid="b" * 32), replace(OWNER, stream="returns")):
        assert sink.inspect(other, 1).foreign == OWNER.summary
        with pytest.raises(SinkForeign, match="orders"):
            sink.commit(key_of(2, owner=other), hand_staged(sink, key_of(2, owner=other), 2).handle)
        with pytest.raises(SinkForeign):
            sink.stamp(other, (1, 1), 2)


def test_a_database_that_lost_epochs_is_behind(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    last = filled(sink, 1, 2)
    query(sink.file, "DELETE FROM keys")
    with pytest.raises(SinkBehind):
        sink.commit(key_of(3, last), hand_staged(sink, key_of(3), 3).handle)


def test_staged_rows_that_are_gone_or_damaged_are_not_applied(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    staged = hand_staged(sink, key_of(1), 1)
    (path,) = sink._staged.folder(key_of(1)).glob("*.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StagedDamaged):
        sink.commit(key_of(1), staged.handle)
    sink.abort(key_of(1))
    with pytest.raises(StagedGone):
        sink.commit(key_of(1), staged.handle)
    assert sink.seen() == []


# --- rows ---


def test_rows_can_be_read_in_four_ways(tmp_path: Path) -> None:
    given: list[StagedRows] = []

    class Reader(HandMarkerSink):
        def apply(self, rows: StagedRows, key: str, before: str | None) -> None:
            given.append(rows)
            assert list(rows) == list(rows) == [{"n": n, "text": f"row {n}"} for n in (1, 2, 3)]
            assert rows.table().num_rows == len(rows) == 3 and rows
            assert [batch.num_rows for batch in rows.batches(2)] == [2, 1]
            assert all(path.suffix == ".parquet" for path in rows.files) and not rows.replaces
            super().apply(rows, key, before)

    sink = opened(tmp_path, Reader)
    sink.commit(key_of(1), hand_staged(sink, key_of(1), 1, 2, 3).handle)
    assert len(given) == 1 and len(sink.seen()) == 3


def test_a_call_without_rows_has_an_empty_table() -> None:
    rows = StagedRows((), 0)
    assert (list(rows), len(rows), bool(rows), rows.table().num_rows) == ([], 0, False, 0)


def test_files_with_another_number_of_rows_are_refused(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    staged = hand_staged(sink, key_of(1), 1, 2)
    with pytest.raises(SinkFailed, match="2 rows were staged, but the decision counts 3"):
        sink.commit(key_of(1), staged.handle | {"rows": 3})


# --- settings ---


def test_other_output_modes_must_be_listed(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="output_modes"):
        opened(tmp_path, mode="update")


def test_a_cluster_without_a_shared_folder_and_a_store_are_refused(tmp_path: Path) -> None:
    sink = HandMarkerSink(tmp_path / "out.db", staging=tmp_path / "staging")
    context = SinkContext(OWNER, SCHEMA, "append", NoSession(), local=False)  # type: ignore[arg-type]
    with pytest.raises(NotSupported, match="shared=True"):
        sink.open(context)
    sink.open(replace(context, shared=True))
    with pytest.raises(NotSupported, match="staging="):
        HandMarkerSink(tmp_path / "out.db").open(replace(context, local=True))


def test_it_is_left_out_of_a_rewind_unless_it_holds_nothing_later(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    filled(sink, 1, 2)
    found = sink.can_take_back(OWNER, (1, 1))
    assert isinstance(found, CannotTakeBack) and "--leave out" in found.do
    assert isinstance(sink.cannot_be_taken_back(), CannotTakeBack)
    with pytest.raises(NotSupported):
        sink.take_back(OWNER, (1, 1), 2)
    sink.take_back(OWNER, (1, 2), 2)
    assert sink.inspect(OWNER, 2).epoch == 2


def test_both_methods_must_be_written() -> None:
    with pytest.raises(TypeError, match=r"apply.*last_key|abstract"):
        hf.MarkerSink("mine")  # type: ignore[abstract]

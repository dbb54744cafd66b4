"""A sink whose target was deleted: the start says so and creates nothing; another one replaces it, with all rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfillbench import NEW, BackfillBench, install_backfill
from holdfast.errors import SinkBehind, SinksChanged
from holdfast.repository import History

OTHER = "other"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BackfillBench:
    """Three epochs in files and in a table; then the file of the table is deleted."""
    install_backfill(monkeypatch)
    made = BackfillBench(tmp_path, "sqlite")
    made.names.append(NEW)
    made.add([1], [2], [3])
    made.take()
    (tmp_path / "new.db").unlink()
    return made


def replaced(bench: BackfillBench) -> BackfillBench:
    bench.names[1] = OTHER
    return bench


def test_a_start_names_the_cause_and_creates_nothing(bench: BackfillBench) -> None:
    for _ in range(2):  # an empty file would hide it from the second one
        with pytest.raises(SinkBehind) as caught:
            bench.run()
        assert caught.value.summary == (
            "sink 'new' of stream 'rows' is missing or empty, but epoch 3 was committed to it"
        )
        assert not (bench.place / "new.db").exists()
    assert "holdfast backfill app.py:pipeline --stream rows --sink NEW --accept sinks" in caught.value.what_next


def test_a_folder_of_files_that_is_gone_is_not_created_again(bench: BackfillBench) -> None:
    bench.names.remove(NEW)
    bench.run(accept=("sinks",))
    (bench.place / "old").rename(bench.place / "elsewhere")
    with pytest.raises(SinkBehind, match="sink 'old' of stream 'rows' is missing or empty"):
        bench.run(accept=("sinks",))
    assert not (bench.place / "old").exists()


def test_a_first_epoch_in_doubt_does_not_need_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was committed to the sink yet, so it may be empty."""
    install_backfill(monkeypatch)
    bench = BackfillBench(tmp_path, "sqlite")
    bench.names.append(NEW)
    bench.source.append([1])

    def dies(point: str) -> None:
        if point == "decided":
            raise RuntimeError(point)

    with pytest.raises(Exception, match="decided"):
        bench.run(dies)
    (tmp_path / "new.db").unlink()
    bench.run()
    assert bench.seen() == [1]


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_a_target_that_is_gone_after_its_first_epoch_is_not_created_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_backfill(monkeypatch)
    bench = BackfillBench(tmp_path, kind)
    bench.names.append(NEW)
    bench.add([1])
    target = tmp_path / (NEW if kind == "files" else "new.db")
    target.rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(SinkBehind) as caught:
            bench.run()
        assert caught.value.summary == (
            "sink 'new' of stream 'rows' is missing or empty, but epoch 1 was committed to it"
        )
        assert not target.exists()
    (tmp_path / "elsewhere").rename(target)
    bench.add([2])
    assert bench.seen() == [1, 2]


def test_the_plan_of_a_rewind_asks_whether_it_was_deleted(bench: BackfillBench) -> None:
    (problem,) = bench.plan(1).problems
    assert problem.startswith("sink 'new' of stream 'rows' is missing or empty, and the base has rows of it")
    assert "was it deleted?" in problem


def test_a_backfill_says_how_to_accept_that_a_sink_is_gone(bench: BackfillBench) -> None:
    with pytest.raises(SinksChanged) as caught:
        replaced(bench).run()
    command = "holdfast backfill app.py:pipeline --stream rows --sink other --accept sinks"
    assert command in caught.value.what_next
    with pytest.raises(SinksChanged) as caught:
        bench.backfill(OTHER)
    assert command in caught.value.what_next
    assert "holdfast run" not in caught.value.what_next


def test_the_new_sink_gets_all_rows_and_nothing_is_asked_again(bench: BackfillBench) -> None:
    assert replaced(bench).backfill(OTHER, accept=("sinks",)).rows == 3
    bench.run()  # without input
    assert bench.backfill(OTHER, accept=("sinks",)).already
    bench.add([4])
    assert bench.seen("old") == bench.seen(OTHER) == [1, 2, 3, 4]
    bench.add([5])
    assert bench.seen("old") == bench.seen(OTHER) == [1, 2, 3, 4, 5]
    accepted = [each.facts for each in History(bench.repository).entries() if each.what == "accept"]
    assert accepted[0] == {"stream": "rows", "added": [], "removed": ["new"]}


def test_only_the_accepted_sinks_may_be_gone(bench: BackfillBench) -> None:
    replaced(bench).backfill(OTHER, accept=("sinks",))
    bench.names = [OTHER]
    with pytest.raises(SinksChanged, match="removed 'old'"):
        bench.run()

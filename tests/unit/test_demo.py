"""The demo's orders and its proof: what is due is the same however it is cut, and every kind of harm is found."""

import io
import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from holdfast.demo import correction, needs, show, story
from holdfast.demo.orders import LISTED_TWICE, WATERMARK, Orders, Row, generate
from holdfast.demo.outcome import Comparison, Correction, Outcome
from holdfast.demo.outputs import Outputs
from holdfast.demo.place import MARK, DemoFolder
from holdfast.demo.proof import Proof, RowCounts, Totals
from holdfast.demo.show import demo
from holdfast.demo.trial import MOST_SIGHTINGS, PLACES, draw
from holdfast.errors import BadValue, Locked, MissingExtra, NotSupported
from holdfast.rewind import RewindPlan, SinkAction, SinkPlan, StreamPlan

SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_orders_come_from_their_seed_alone(seed: int) -> None:
    assert generate(seed, 6, 50) == generate(seed, 6, 50)
    assert generate(seed, 6, 50) != generate(seed + 1, 6, 50)


@pytest.mark.parametrize("seed", SEEDS)
def test_some_orders_come_late_and_some_twice_and_each_counts_once(seed: int) -> None:
    orders = generate(seed, 12, 100)
    assert orders.late > 50
    assert orders.twice > 50
    assert len(list(orders.events)) == 12 * 100 + orders.twice
    assert set(orders.rows().values()) == {1}
    assert orders.rows().total() == 12 * 100
    assert sum(total.orders for total in orders.totals().values()) == 12 * 100
    assert sum(total.cents for total in orders.totals().values()) == sum(row.cents for row in orders.rows())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_watermark_never_passes_an_event_that_is_still_to_come(seed: int) -> None:
    """Then no event is dropped, and no copy is taken for a new one, wherever an epoch ends."""
    newest = None
    for events in generate(seed, 20, 100).followed_by(generate(seed, 3, 100, first=20)).files:
        newest = max([event.time for event in events] + ([newest] if newest else []))
        assert all(newest - event.time < WATERMARK for event in events)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_orders_of_the_second_part_are_others_and_come_after_those_of_the_first(tmp_path: Path, seed: int) -> None:
    before, more = generate(seed, 5, 50), generate(seed, 3, 50, first=5)
    assert max(event.time for event in before.events) < min(event.time for event in more.events)
    both = before.followed_by(more)
    assert both.rows() == before.rows() + more.rows()
    assert set(both.rows().values()) == {1}
    assert any(row.category == LISTED_TWICE for row in more.rows())
    for orders in (before, more):
        orders.write(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"{number:03}.json" for number in range(8)]


def test_the_moments_come_from_the_seed_and_leave_no_place_out() -> None:
    strikes = draw(7, 4)
    assert strikes == draw(7, 4)
    assert {each.place for each in strikes} == set(PLACES)
    assert all(1 <= each.sightings <= MOST_SIGHTINGS for each in strikes)


# --- the proof -------------------------------------------------------------------------------------------------------


@pytest.fixture
def orders() -> Orders:
    return generate(1, 4, 50)


def write(outputs: Outputs, parquet: list[Row], sqlite: list[Row], orders: Orders) -> None:
    (outputs.parquet / "hf_epoch=t1-0000000001").mkdir(parents=True)
    (outputs.parquet / "_temporary").mkdir()
    table = pa.Table.from_pylist([row._asdict() for row in parquet])
    pq.write_table(table.slice(0, 20), outputs.parquet / "hf_epoch=t1-0000000001" / "a.parquet")
    pq.write_table(table.slice(20), outputs.parquet / "b.parquet")
    pq.write_table(table, outputs.parquet / "_temporary" / "c.parquet")  # work under way is not seen
    with closing(sqlite3.connect(outputs.sqlite)) as shop, shop:
        shop.execute("CREATE TABLE orders (event, day, product, category, quantity, cents)")
        shop.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", sqlite)
        shop.execute("CREATE TABLE totals (day, category, orders, cents)")
        rows = [(*key, *total) for key, total in orders.totals().items()]
        shop.executemany("INSERT INTO totals VALUES (?, ?, ?, ?)", rows)


def proven(outputs: Outputs, orders: Orders) -> Proof:
    return Proof.of(outputs, orders.rows(), orders.totals())


def test_outputs_that_hold_what_is_due_are_proven(tmp_path: Path, orders: Orders) -> None:
    outputs, rows = Outputs(tmp_path), list(orders.rows())
    write(outputs, rows, rows, orders)
    proof = proven(outputs, orders)
    assert proof.ok
    assert proof.to_dict()["ok"] is True
    assert "0 lost, 0 duplicates" in proof.summary()
    assert outputs.parquet_count() == outputs.sqlite_shown() == len(rows)


@pytest.mark.parametrize("place", ["parquet", "sqlite"])
@pytest.mark.parametrize(
    ("harm", "counts"),
    [
        (lambda rows: rows[1:], (1, 0, 0)),
        (lambda rows: [*rows, rows[0]], (0, 1, 0)),
        (lambda rows: [*rows, rows[0], rows[0], rows[1]], (0, 3, 0)),
        (lambda rows: [rows[0]._replace(cents=1), *rows[1:]], (1, 0, 1)),
        (lambda rows: [rows[1], *rows[1:]], (1, 1, 0)),  # as many as are due, and not the same
    ],
    ids=["lost", "doubled", "doubled thrice", "changed", "one for another"],
)
def test_a_row_that_is_lost_doubled_or_changed_is_found(
    tmp_path: Path,
    orders: Orders,
    place: str,
    harm: Callable[[list[Row]], list[Row]],
    counts: tuple[int, int, int],
) -> None:
    rows = list(orders.rows())
    harmed = {"parquet": rows, "sqlite": rows} | {place: harm(rows)}
    write(Outputs(tmp_path), harmed["parquet"], harmed["sqlite"], orders)
    proof = proven(Outputs(tmp_path), orders)
    found = {"parquet": proof.parquet, "sqlite": proof.sqlite}
    assert not proof.ok
    assert (found[place].lost, found[place].doubled, found[place].wrong) == counts
    assert all(each.ok for name, each in found.items() if name != place)
    assert proof.totals.ok


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE totals SET cents = cents + 1 WHERE category = 'tea'",
        "UPDATE totals SET orders = orders - 1 WHERE category = 'tea'",
        "DELETE FROM totals WHERE category = 'tea'",
        "INSERT INTO totals VALUES ('1999-01-01', 'tea', 1, 1)",
    ],
)
def test_a_wrong_total_is_found(tmp_path: Path, orders: Orders, statement: str) -> None:
    outputs, rows = Outputs(tmp_path), list(orders.rows())
    write(outputs, rows, rows, orders)
    with closing(sqlite3.connect(outputs.sqlite)) as shop, shop:
        shop.execute(statement)
    proof = proven(outputs, orders)
    assert proof.totals.wrong >= 1
    assert not proof.ok


# --- the bug and the rewind ------------------------------------------------------------------------------------------

RIGHT = Proof(RowCounts(9, 9, 0, 0, 0), RowCounts(9, 9, 0, 0, 0), Totals(3, 0, 0))
DOUBLED = Proof(RowCounts(11, 9, 0, 2, 0), RowCounts(11, 9, 0, 2, 0), Totals(3, 1, 500))
PLAN = RewindPlan(
    pipeline="orders",
    uid="u",
    timeline=1,
    to="4",
    base="checkpoint 4",
    checkpoint=4,
    digest="d",
    undoes=None,
    only=None,
    leave=(),
    streams=(
        StreamPlan(
            stream="orders",
            timeline=1,
            epoch=9,
            base_timeline=1,
            base_epoch=8,
            epochs=1,
            rows=1234,
            decision="x",
            sinks=(
                SinkPlan(sink="files", kind="FileSink", target=None, action=SinkAction.TAKE_BACK, holds=9, rows=1234),
            ),
        ),
    ),
    problems=(),
)


def corrected(buggy: Proof, rewound: Proof, fixed: Proof) -> Correction:
    return Correction(9, "tea", PLAN, 2, buggy, rewound, fixed)


@pytest.mark.parametrize(
    ("proofs", "ok"),
    [
        ((DOUBLED, RIGHT, RIGHT), True),
        ((RIGHT, RIGHT, RIGHT), False),
        ((DOUBLED, DOUBLED, RIGHT), False),
        ((DOUBLED, RIGHT, DOUBLED), False),
    ],
    ids=["all as it must be", "no bug to be seen", "not taken back", "not fixed"],
)
@pytest.mark.parametrize("killed", [RIGHT, DOUBLED], ids=["right", "wrong"])
def test_the_demo_is_ok_only_if_the_bug_was_seen_and_taken_back_and_fixed(
    tmp_path: Path, proofs: tuple[Proof, Proof, Proof], ok: bool, killed: Proof
) -> None:
    after_kills = Comparison((), {"holdfast": killed, "plain": DOUBLED})
    outcome = Outcome(tmp_path, 1, 2.0, 9, 1, 1, after_kills, corrected(*proofs))
    assert outcome.correction.ok is ok
    assert outcome.ok is (ok and killed.ok)
    assert outcome.to_dict()["rewind"]["ok"] is ok


def told(tell: Callable[[Console], None]) -> str:
    out = io.StringIO()
    tell(Console(file=out, width=200))
    return out.getvalue()


def test_what_is_told_of_the_bug_and_the_rewind_is_what_was_found() -> None:
    assert "Wrong totals: 1 of 3, 5.00 too high" in told(lambda console: story.show_harm(console, DOUBLED))
    assert "cannot be seen" in told(lambda console: story.show_harm(console, RIGHT))
    rewound = told(lambda console: story.show_rewind(console, PLAN, RIGHT))
    assert "checkpoint 4" in rewound
    assert "1 epoch, 1,234 rows" in rewound
    assert "takes back 1,234 rows" in rewound
    assert "as they were before the bug" in rewound
    assert "not as they were before the bug" in told(lambda console: story.show_rewind(console, PLAN, DOUBLED))


# --- the folder, and what is needed ----------------------------------------------------------------------------------


def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(NotSupported, match="not from a demo"):
        DemoFolder(tmp_path).clear()
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_former_demo_is_replaced(tmp_path: Path) -> None:
    place = DemoFolder(tmp_path / "demo")
    place.clear(seed=1)
    (place.folder / "input").mkdir()
    place.clear(seed=2)
    assert sorted(each.name for each in place.folder.iterdir()) == [MARK, "logs"]


@pytest.mark.parametrize("mark", ['{"mine": 1}', '{"holdfast_demo": true}', "[]", ""])
def test_a_mark_that_may_be_anybodys_lets_nobody_delete(tmp_path: Path, mark: str) -> None:
    (tmp_path / MARK).write_text(mark)
    (tmp_path / "thesis.txt").write_text("years of work")
    for touch in (DemoFolder(tmp_path).clear, DemoFolder(tmp_path).locked):
        with pytest.raises(NotSupported, match="choose another folder"):
            touch()
    assert sorted(each.name for each in tmp_path.iterdir()) == [MARK, "thesis.txt"]


def test_a_second_demo_in_a_folder_is_refused(tmp_path: Path) -> None:
    with DemoFolder(tmp_path / "demo").locked(), pytest.raises(Locked, match="the demo in"):
        DemoFolder(tmp_path / "demo").locked()
    DemoFolder(tmp_path / "demo").clear()


def test_without_pyspark_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"holdfast-spark\[spark\]"):
        needs.require()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("part", "worker"), [("kills", 1), ("kills", 2), ("bug", 1)])
def test_interrupted_while_it_starts_a_worker_it_ends_that_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, part: str, worker: int
) -> None:
    """The signal comes when the process is there and nobody knows it yet."""
    if part == "bug":
        monkeypatch.setattr(show, "_compare", lambda *_: Comparison((), {}))
        monkeypatch.setattr(correction, "_last_checkpoint", lambda _: 1)
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            if len(started) == worker:
                os.kill(os.getpid(), number)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    monkeypatch.setattr(needs, "require", lambda: None)  # the workers need not live to see Java
    out = io.StringIO()
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]  # PySpark may have set its own
    with pytest.raises(SystemExit) as ended:
        demo(tmp_path / "demo", fast=True, seed=1, kills=1, console=Console(file=out))
    assert ended.value.code == 130
    assert "Interrupted" in out.getvalue()
    assert [each.poll() for each in started] == [-signal.SIGKILL] * len(started)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("kills", [0, -1, 1000])
def test_a_number_of_kills_that_makes_no_sense_is_refused(tmp_path: Path, kills: int) -> None:
    with pytest.raises(BadValue, match="kills"):
        demo(tmp_path / "demo", fast=True, seed=1, kills=kills, console=Console(quiet=True))
    assert not (tmp_path / "demo").exists()

"""A log source that limits itself, as on Spark 4.1: driven by a model of Spark, with crashes at every point."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import LogDiverged, NotSupported
from holdfast.eventlog import EventLog
from holdfast.eventlog.homes import home_of
from holdfast.spark import adapter
from holdfast.spark.adapter.limits_of_source import SelfLimitedReader
from holdfast.spark.backlog import Backlog
from holdfast.spark.logsource import LogReader, spark_schema
from support import events, new_log

Offset = dict[str, Any]


def reader_of(log: Path, rows: int | None) -> Any:
    """Return a reader that limits itself, whichever version of Spark is installed."""
    kind: Any = LogReader
    if adapter.FACTS.passes_read_limits:
        kind = type("OwnLimits", (SelfLimitedReader, LogReader), {})
    return kind(home_of(log), spark_schema(home_of(log)), rows, 2)


class Crash(Exception):
    """The query has ended."""


@dataclass
class ModelSpark:
    """The order in which Spark 4.1 calls a source, and the logs that survive a crash."""

    log: Path
    rows: int | None
    logged: list[Offset] = field(default_factory=list)  # offsets, one for each batch that was begun
    committed: int = 0  # batches
    read: dict[int, list[int]] = field(default_factory=dict)  # batch -> the sequences of its last attempt
    reader: Any = None

    def start(self) -> None:
        """Start the query, and run the batch in doubt."""
        self.reader = reader_of(self.log, self.rows)
        if self.logged:
            self.reader.partitions(self.logged[-1], self.logged[-1])
        if self.committed < len(self.logged):
            self.run("nowhere")

    def trigger(self, crash: str = "nowhere", *, planned: bool = True) -> bool:
        """Run a batch if there is a new offset; return whether there was."""
        end = self.reader.latestOffset()
        self.die("asked", crash)
        if self.logged and end == self.logged[-1]:
            return False
        self.logged.append(end)
        self.die("logged", crash)
        self.run(crash, planned=planned)
        return True

    def run(self, crash: str, *, planned: bool = True) -> None:
        batch = len(self.logged) - 1
        start = self.logged[batch - 1] if batch else self.reader.initialOffset()
        if planned:
            self.read[batch] = self.sequences(start, self.logged[batch])
        self.die("read", crash)
        self.committed = len(self.logged)

    def sequences(self, start: Offset, end: Offset) -> list[int]:
        runs = self.reader.partitions(start, end)
        pieces = [piece for run in runs for piece in run.pieces]
        return [piece.segment.first + row for piece in pieces for row in range(piece.start, piece.stop)]

    def die(self, here: str, crash: str) -> None:
        if here == crash:
            self.reader = None
            raise Crash


def model(log: EventLog, rows: int | None) -> ModelSpark:
    spark = ModelSpark(log.path, rows)
    spark.start()
    return spark


def test_a_new_query_begins_with_the_first_event_and_keeps_the_limit(tmp_path: Path) -> None:
    spark = model(new_log(tmp_path / "log", events(*"abc"), events(*"de")), rows=2)
    while spark.trigger():
        pass
    assert spark.read == {0: [0, 1], 1: [2, 3], 2: [4]}


def test_without_a_limit_everything_is_one_batch(tmp_path: Path) -> None:
    spark = model(new_log(tmp_path / "log", events(*"abc"), events(*"de")), rows=None)
    assert [spark.trigger(), spark.trigger()] == [True, False]
    assert spark.read == {0: [0, 1, 2, 3, 4]}


STEPS = st.sampled_from(["append", "trigger", "unplanned", "asked", "logged", "read"])


@given(st.lists(STEPS, max_size=25), st.sampled_from([1, 2, 3, None]))
def test_every_event_is_read_once_whatever_crashes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], rows: int | None
) -> None:
    log = new_log(tmp_path_factory.mktemp("model") / "log", events("a"))
    spark, names = model(log, rows), (f"e{n}" for n in count())
    for step in steps:
        if step == "append":
            with log.writer() as writer:
                writer.append(events(next(names), next(names)))
            continue
        before = len(spark.logged)
        try:
            spark.trigger(step, planned=step != "unplanned")
        except Crash:
            spark.start()
        if step == "unplanned" and len(spark.logged) > before:  # the program did not use the rows of this batch
            start = spark.logged[before - 1] if before else spark.reader.initialOffset()
            spark.read[before] = spark.sequences(start, spark.logged[before])
    while spark.trigger():
        pass
    batches = [spark.read[batch] for batch in range(len(spark.logged))]
    assert [each for batch in batches for each in batch] == list(range(log.refresh()))
    assert rows is None or all(len(batch) <= rows for batch in batches)


def test_rows_of_an_earlier_batch_that_are_read_again_do_not_move_the_query(tmp_path: Path) -> None:
    spark = model(new_log(tmp_path / "log", events(*"abcdef")), rows=2)
    spark.trigger()
    spark.trigger()
    first = spark.reader.initialOffset()
    assert spark.sequences(first, spark.logged[0]) == [0, 1]
    spark.trigger()
    assert spark.read[2] == [4, 5]


def test_the_first_offset_stays_when_events_are_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks for it a second time, after it has logged the end of the first batch."""
    floors = iter([0, 2])
    monkeypatch.setattr("holdfast.eventlog.local_home.read_floor", lambda _: next(floors))
    spark = model(new_log(tmp_path / "log", events(*"ab"), events(*"cd")), rows=3)
    spark.trigger()
    assert spark.read == {0: [0, 1, 2]}


def test_a_query_that_is_asked_for_its_end_before_its_start_is_known_reads_nothing_twice(tmp_path: Path) -> None:
    """As with a setting of Spark that pipelines do not use."""
    log = new_log(tmp_path / "log", events(*"abcdef"))
    spark = model(log, rows=2)
    while spark.trigger():
        pass
    reader = reader_of(log.path, 2)
    end = reader.latestOffset()
    with pytest.raises(NotSupported, match="triggerAvailableNowWrapper"):
        reader.partitions(spark.logged[-1], end)


def test_a_restarted_query_refuses_another_log_before_it_logs_an_offset(tmp_path: Path) -> None:
    spark = model(new_log(tmp_path / "log", events(*"abcd")), rows=2)
    spark.trigger()
    spark.log = new_log(tmp_path / "other", events(*"wxyz")).path
    with pytest.raises(LogDiverged):
        spark.start()
    assert len(spark.logged) == 1


# --- the available input ---------------------------------------------------------------------------------------------


def ends(*sequences: int | None) -> Iterator[str | None]:
    for number, each in enumerate(sequences):
        yield None if each is None else f'{{"log": "{number}", "sequence": {each}, "chain": ""}}'


@pytest.mark.parametrize(
    ("read", "left"),
    [((3, 5), False), ((4, 9), False), ((2, 5), True), ((3, None), True), ((), True)],
)
def test_a_backlog_is_left_until_every_log_was_read_to_the_tail_that_it_had(
    read: tuple[int | None, ...], left: bool
) -> None:
    assert Backlog({"0": 3, "1": 5}).is_left(list(ends(*read))) is left
    assert not Backlog({}).is_left(list(ends(*read))), "Spark processes it by itself"


def test_two_sources_of_one_log_must_both_have_read_it() -> None:
    (slow,), (fast,) = ends(2), ends(3)
    assert Backlog({"0": 3}).is_left([slow, fast])
    assert Backlog({"0": 3}).is_left([fast, slow])
    assert not Backlog({"0": 3}).is_left([fast, fast])

"""The oldest events of a log are removed once no reader of the pipeline needs them, and never earlier."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fabricated import Fabricated
from holdfast import Retention
from holdfast.cli.app import app
from holdfast.epoch import Attempt, Decision, Facts, Verdict
from holdfast.errors import BadValue, LogCorrupt, LogTrimmed, RecordCorrupt
from holdfast.eventlog import Cursor, DurableCursor, EventLog, Region
from holdfast.eventlog.keeping import FLOOR, KEEP, read_floor, read_keep, set_keep
from holdfast.eventlog.trimming import apply_trim, plan_trim
from holdfast.pruning import apply_prune, plan_prune
from holdfast.repository import Decisions, Lease, LocalRepository
from holdfast.repository.targets import record_targets
from holdfast.sinks.log import LogSink
from support import events, new_log

ALL = Region.everything()


def log_of(folder: Path, appends: int = 5, keep: float | None = 0.0) -> EventLog:
    """A log with two events an append."""
    log = new_log(folder, *(events(f"a{number}", f"b{number}") for number in range(appends)))
    for number, path in enumerate(sorted((folder / "segments").rglob("*.parquet"))):
        os.utime(path, (1000 + number, 1000 + number))
    set_keep(folder, keep)
    return log


def sequences(folder: Path, start: int = 0) -> list[int]:
    return [each.sequence for each in EventLog.open(folder).read(ALL, start)]


def test_only_whole_segments_before_the_need_go_and_the_rest_reads_on(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log")
    reader = Cursor(log, ALL)
    trim = plan_trim(log.path, 5)
    assert trim is not None
    assert (trim.floor, trim.segments) == (4, 2)
    assert read_floor(log.path) == 0  # a plan changes nothing
    apply_trim(trim)
    apply_trim(trim)
    assert plan_trim(log.path, 5) is None
    assert sequences(log.path, 4) == [4, 5, 6, 7, 8, 9]
    for behind in (lambda: sequences(log.path), lambda: sequences(log.path, 3), reader.poll):
        with pytest.raises(LogTrimmed, match="it begins with 4"):
            behind()
    with log.writer() as writer:
        writer.append(events("c"))
    assert sequences(log.path, 9) == [9, 10]
    assert EventLog.open(log.path).chain_at(0) == log.chain_at(0)


def test_a_log_without_keep_and_young_events_stay(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log", keep=None)
    assert plan_trim(log.path, 10) is None
    set_keep(log.path, 100.0)
    assert plan_trim(log.path, 10, clock=lambda: 1101.5).floor == 4  # type: ignore[union-attr]
    set_keep(log.path, None)
    assert read_keep(log.path) is None
    assert plan_trim(log.path, 10) is None


def test_a_trim_that_was_cut_off_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path / "log")
    trim = plan_trim(log.path, 8)
    assert trim is not None
    unlink, left = Path.unlink, [2]

    def dying(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".parquet":
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dying)
        with pytest.raises(KeyboardInterrupt):
            apply_trim(trim)
    with pytest.raises(LogTrimmed):
        sequences(log.path)
    again = plan_trim(log.path, 8)
    assert again is not None and (again.floor, again.segments) == (8, 2)
    apply_trim(again)
    assert sequences(log.path, 8) == [8, 9]


def test_a_missing_segment_above_the_floor_is_damage(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log")
    trim = plan_trim(log.path, 4)
    assert trim is not None
    apply_trim(trim)
    sorted((log.path / "segments").rglob("*.parquet"))[0].unlink()
    with pytest.raises(LogCorrupt, match="its file is missing"):
        sequences(log.path, 4)
    for name in (FLOOR, KEEP):
        (log.path / name).write_text("{}")
        with pytest.raises(LogCorrupt, match=name):
            plan_trim(log.path, 4)
        (log.path / name).unlink()


def offset(log: EventLog, sequence: int) -> str:
    return json.dumps({"log": log.identity, "sequence": sequence, "chain": "0" * 16})


class Needed:
    """A pipeline whose stream `totals` reads the log of `orders`."""

    def __init__(self, folder: Path) -> None:
        self.made = Fabricated(LocalRepository(folder / "root"))
        self.repository = self.made.repository
        self.log = log_of(folder / "log")
        record_targets(self.repository, "orders", 1, {"log": f"log {self.log.path}"})
        self.decide("orders", 1, ["{}"], ["{}"])

    def decide(
        self, stream: str, epoch: int, start: list[str | None], end: list[str | None], timeline: int = 1
    ) -> None:
        attempt = Attempt(stream=stream, timeline=timeline, epoch=epoch, attempt=1)
        facts = Facts(start=start, end=end, offsets_digest="", source_log={}, source_entries={}, sinks={}, rows=0)
        Decisions(self.repository).close(
            Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=facts.plain())
        )

    def plan(self) -> Any:
        return plan_prune(self.repository, Retention(last=1))

    def floor(self) -> int:
        made = self.plan()
        assert made.logs_blocked is None
        return made.logs[0].floor if made.logs else 0


def test_each_reader_of_the_pipeline_holds_its_events(tmp_path: Path) -> None:
    needed = Needed(tmp_path)
    assert needed.floor() == 10  # no stream reads it
    needed.decide("totals", 1, [None], [offset(needed.log, 6)])
    assert needed.floor() == 0  # its first epoch may be replayed
    needed.decide("totals", 2, [offset(needed.log, 6)], [offset(needed.log, 9)])
    assert needed.floor() == 6
    needed.decide("late", 2, [offset(needed.log, 4)], [offset(needed.log, 9)], timeline=2)  # of another timeline
    assert needed.floor() == 4
    with DurableCursor(needed.repository, "billing", needed.log, ALL) as cursor:
        for _ in range(3):
            cursor.poll()
        cursor.commit()
    assert needed.floor() == 2
    with Lease.take(needed.repository) as lease:
        pruned = apply_prune(needed.repository, needed.plan(), lease)
    assert (pruned.segments, read_floor(needed.log.path)) == (1, 2)
    assert "1 segments of event logs" in pruned.summary()
    with DurableCursor(needed.repository, "billing", needed.log, ALL) as cursor:
        assert cursor.poll().sequence == 3  # type: ignore[union-attr]


def test_the_command_shows_what_it_will_remove_from_event_logs(tmp_path: Path) -> None:
    needed = Needed(tmp_path)
    words = ["prune", "--repo", str(tmp_path / "root"), "--dry-run"]
    shown = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert re.search(r"5 segments, .* before sequence 10", shown.stdout)
    [trim] = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["result"]["logs"]
    assert (trim["path"], trim["floor"], trim["segments"]) == (str(needed.log.path), 10, 5)
    (tmp_path / "root/timelines/1/streams/new/spark").mkdir(parents=True)
    assert "has not decided an epoch" in CliRunner().invoke(app, words, env={"COLUMNS": "200"}).stdout
    answer = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["result"]
    assert (answer["logs"], "has not decided" in answer["logs_blocked"]) == ([], True)


def test_what_cannot_be_known_holds_everything(tmp_path: Path) -> None:
    needed = Needed(tmp_path)
    needed.decide("totals", 2, [offset(needed.log, 6)], [offset(needed.log, 9)])
    (tmp_path / "root/timelines/1/streams/new/spark").mkdir(parents=True)
    made = needed.plan()
    assert made.logs == ()
    assert "stream new has not decided an epoch" in made.logs_blocked
    assert "no events of event logs are deleted" in made.summary()
    (tmp_path / "root/timelines/1/streams/new/spark").rmdir()
    (tmp_path / "root/timelines/1/streams/new").rmdir()
    assert needed.floor() == 6
    path = next((tmp_path / "root/timelines/1/streams/totals/epochs").glob("*.json"))
    path.write_bytes(path.read_bytes().replace(b"commit", b"commix"))
    try:
        assert needed.plan().logs == ()
    except RecordCorrupt:
        pytest.fail("a damaged record must not stop a prune")


def test_the_sink_takes_a_time_to_keep(tmp_path: Path) -> None:
    assert LogSink(tmp_path / "a").keep is None
    assert LogSink(tmp_path / "a", keep="7d").keep == 7 * 86400
    assert LogSink(tmp_path / "a", keep=0).keep == 0
    for bad in ("soon", -1, True):
        with pytest.raises(BadValue):
            LogSink(tmp_path / "a", keep=bad)

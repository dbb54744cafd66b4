"""Programs whose output the benchmarks watch. A small program in Python takes the place of Spark and Flink."""

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import report
from bench.compare import CannotMeasure, Result
from bench.document import Document, Measured
from bench.group import Group
from bench.killed import FIRST, archive_of, first_killed, killed, ours
from bench.pages import MAIN, PEERS
from bench.peers import flink
from bench.peers.bulk import cold, make_input, warm
from bench.peers.flink_job import newest
from bench.visible import Turn
from bench.watched import Output, Program, ProgramFailed, Watched, watched
from holdfast.spark.class_archive import VARIABLE, reason_against_folder

# Copies input files to the output, each once; with a second argument, each row that many times.
COPIES = """
import pathlib, sys, time
folder, times = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1
out = folder / "out"
out.mkdir(exist_ok=True)
while True:
    for path in sorted((folder / "in").glob("[!.]*.csv")):
        epoch = out / f"epoch={path.stem}"
        staged = out / f"_{path.stem}"
        if not epoch.exists() and not (folder / "done" / path.stem).exists():
            staged.mkdir(exist_ok=True)
            (staged / "part").write_text(path.read_text() * times)
            staged.rename(epoch)
            (folder / "done").mkdir(exist_ok=True)
            (folder / "done" / path.stem).touch()
    time.sleep(0.002)
"""


def program(text: str = COPIES, *arguments: str, exactly_once: bool = True) -> Program:
    return Program("a program", (sys.executable, "-c", text), arguments, exactly_once)


@contextlib.contextmanager
def running(folder: Path, made: Program) -> Iterator[Watched]:
    with watched(folder, [made]) as found:
        yield found[made.name]


# --- a process group -------------------------------------------------------------------------------------------------


def test_the_cpu_time_of_a_group_includes_its_children_and_stops_with_it() -> None:
    busy = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])"
    process = subprocess.Popen([sys.executable, "-c", busy], start_new_session=True)
    group = Group(process.pid)
    try:
        until = time.monotonic() + 60
        while group.cpu_s() < 0.2:
            assert time.monotonic() < until
            time.sleep(0.01)
        group.suspend()
        time.sleep(0.1)
        used = group.cpu_s()
        time.sleep(0.1)
        assert group.cpu_s() == used
    finally:
        group.kill()
        process.wait()
        group.wait()
    assert (group.is_alive(), group.cpu_s()) == (False, 0.0)


# --- what a reader sees ----------------------------------------------------------------------------------------------


def test_a_reader_sees_each_file_once_and_nothing_hidden(tmp_path: Path) -> None:
    out = tmp_path / "out"
    output = Output(out)
    assert output.new() == []  # the folder does not exist yet
    (out / "epoch=1" / "day=2").mkdir(parents=True)
    (out / "_temporary").mkdir()
    for name in (
        "epoch=1/part",
        "epoch=1/.part.crc",
        "epoch=1/_key",
        "epoch=1/day=2/part",
        "_temporary/part",
        ".hidden",
    ):
        (out / name).write_text(name)
    (out / "part-2").write_text("flat")
    assert sorted(output.new()) == [b"epoch=1/day=2/part", b"epoch=1/part", b"flat"]
    assert output.new() == []


def test_what_was_read_last_is_not_removed(tmp_path: Path) -> None:
    """A sink checks that its last epoch is still there."""
    output = Output(tmp_path)
    for epoch in ("1", "2", "3"):
        (tmp_path / f"epoch={epoch}").mkdir()
        (tmp_path / f"part-{epoch}").write_text("")
        output.new()
        output.clear()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["epoch=3", "part-3"]


# --- a program -------------------------------------------------------------------------------------------------------


def test_each_row_of_a_turn_is_a_sample_and_each_turn_has_its_cpu_time(tmp_path: Path) -> None:
    with running(tmp_path, program()) as side:
        side.warm_up(2)
        turn = Turn(side, 3)
        found = [*turn(), *turn()]
        assert len(found) == 6
        assert all(0 < each < 60 for each in found)
        assert len(turn.cpu) == 2
        assert set(side.copies.values()) == {1}
        assert len(side.copies) == 2 + 2 * (1 + 3)


def test_a_killed_program_is_started_again_and_shows_a_new_row(tmp_path: Path) -> None:
    with running(tmp_path, program()) as side:
        first = side.group
        seconds = killed(side, lambda low, _: low / 10)
        assert 0 < seconds < 60
        assert not first.is_alive()
        assert side.group.is_alive()
        assert set(side.copies.values()) == {1}
    assert not side.group.is_alive()


def test_before_each_first_kill_there_is_no_archive_of_classes(tmp_path: Path) -> None:
    """The program makes one at each start, as Holdfast does after a kill; it inherits the name of the folder."""
    makes = """
import os, pathlib
folder = pathlib.Path(os.environ["HOLDFAST_CLASS_ARCHIVE"])
folder.mkdir(parents=True, exist_ok=True)
assert not list(folder.glob("*.jsa"))
part = folder / "1.part.jsa"
part.touch()
part.rename(folder / f"1-0-{part.stat().st_mtime_ns // 1_000_000}.jsa")
"""
    named = ours(tmp_path, FIRST)
    assert reason_against_folder(Path(named.variables[VARIABLE])) is None
    made = dataclasses.replace(program(makes + COPIES), variables=named.variables)
    with running(tmp_path / "job", made) as side:
        side.warm_up(1)
        archive_of(made).unlink()
        for _ in range(2):
            assert 0 < first_killed(side, lambda low, _: low / 10) < 60
            assert not list((tmp_path / "classes").rglob("*.jsa"))


def test_rows_that_are_there_twice_are_an_error_where_they_must_not_be(tmp_path: Path) -> None:
    with running(tmp_path / "a", program(COPIES, "2")) as side:
        side.warm_up(2)
        with pytest.raises(ProgramFailed, match="a program wrote 2 of 2 rows more than once"):
            side.settle()
    with running(tmp_path / "b", program(COPIES, "2", exactly_once=False)) as side:
        side.warm_up(2)
        side.settle()


def test_a_program_that_ends_is_reported_with_its_log(tmp_path: Path) -> None:
    with (
        running(tmp_path, program("raise SystemExit('no such table')")) as side,
        pytest.raises(ProgramFailed, match=r"a program ended with 1\nno such table"),
    ):
        side.warm_up(1)


def test_a_backlog_is_counted_by_a_running_and_by_a_starting_program(tmp_path: Path) -> None:
    files = make_input(tmp_path / "input", 100)
    with running(tmp_path, program()) as side:
        assert warm(side, files, 400) > 0
        assert warm(side, files, 400) > 0
    numbers = iter(range(9))
    assert cold(tmp_path, numbers, program(), files, 400) > 0
    with running(tmp_path / "twice", program(COPIES, "2")) as side, pytest.raises(ProgramFailed, match="rows too many"):
        warm(side, files, 700)  # of 800


# --- Flink -----------------------------------------------------------------------------------------------------------


def test_without_flink_the_next_step_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(flink, "ENVIRONMENT", tmp_path)
    with pytest.raises(CannotMeasure, match="Next: make bench-peers"):
        flink.flink(100)


def test_the_newest_complete_checkpoint_of_flink_is_chosen(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    for number, path in enumerate(("old-job/chk-9", "new-job/chk-2", "new-job/chk-1")):
        (tmp_path / path).mkdir(parents=True)
        made = tmp_path / path / "_metadata"
        made.touch()
        os.utime(made, (100 - number % 2, 100 - number % 2))
    os.utime(tmp_path / "new-job/chk-2/_metadata", (200, 200))
    (tmp_path / "new-job/chk-3").mkdir()  # it was being written
    assert newest(tmp_path) == tmp_path / "new-job/chk-2"


def test_the_peers_have_their_own_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = types.ModuleType("bench.peers.bulk", "How it is done.")
    found = Result("flink bulk", "Holdfast, warm", "Flink", [2.0], [1.0], unit="rows/s")
    module.run = lambda _: [found]  # type: ignore[attr-defined]
    module.VERSIONS = {"Flink": "2"}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bench.peers.bulk", module)
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    assert command.main(["--peers", "--write", "bulk"]) == 0
    assert {each.name for each in tmp_path.iterdir()} == {PEERS.json, PEERS.page, PEERS.plot}
    text = (tmp_path / PEERS.page).read_text()
    assert text.startswith("# Holdfast and Flink\n")
    assert "*`bench/peers/bulk.py`*: How it is done." in text
    assert "| Flink | 2 |" in text
    assert "- Left out of this run: `visible`, `killed`." in text
    with pytest.raises(SystemExit):
        command.main(["--peers", "triggers"])


def test_pages_differ_in_their_texts_and_share_their_form() -> None:
    result = Result("flink killed", "Holdfast, killed", "Flink", [3.0], [2.0], 0.8)
    run = Document("2030-02-01", False, 60.0, {}, {}, [Measured("killed", "By a signal.", 1.0, [result])])
    peers, main = report.page(run, PEERS), report.page(run, MAIN)
    assert re.findall("^## .*", peers, re.MULTILINE) == re.findall("^## .*", main, re.MULTILINE)
    assert "; the goal was ≤ 0.80x." in peers
    assert PEERS.not_in_our_favour in peers
    assert MAIN.not_in_our_favour in main

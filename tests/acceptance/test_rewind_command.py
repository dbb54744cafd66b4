"""`holdfast rewind`, and what the other commands show of it. The epochs are real; the query that ran them is a fake."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from fakespark import install
from holdfast.cli.app import app
from holdfast.cli.programs import find_target, pipeline_of
from holdfast.cli.verbs.asides import Asides
from holdfast.cli.verbs.rewind import Rewind
from holdfast.repository import Identity, LocalRepository
from holdfast.rewind import apply_rewind, plan_rewind
from holdfast.testing import CrashAt, Crashed
from rewindbench import DiskBench

PROGRAM = """
import holdfast as hf

pipeline = hf.Pipeline("repository", root=".")


@pipeline.stream(
    sinks=[hf.FileSink("out", name="files"), hf.SqliteSink("out.db", "rows", epoch_column="epoch", name="table")]
)
def rows(spark):
    return spark.readStream.format("rate").load()
"""
BEFORE, AFTER = [[1, 2]] * 2, [[1, 2, 3, 4]] * 2


class Ran:
    """What a command printed, and how it ended."""

    def __init__(self, words: str, folder: Path) -> None:
        with contextlib.chdir(folder):
            done = CliRunner().invoke(app, words.split(), env={"HOLDFAST_REPO": None, "COLUMNS": None})
        assert done.exception is None or isinstance(done.exception, SystemExit)
        self.code, self.out, self.err = done.exit_code, done.stdout, done.stderr

    @property
    def result(self) -> Any:
        return json.loads(self.out)["result"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskBench:
    """A program and its repository: two epochs, a checkpoint, two more epochs, a checkpoint."""
    install(monkeypatch)
    (tmp_path / "app.py").write_text(PROGRAM)
    Identity.create(LocalRepository(tmp_path / "repository"), "repository")
    made = DiskBench(tmp_path)
    made.add([1], [2])
    made.take()
    made.add([3], [4])
    made.take()
    return made


def test_a_dry_run_shows_the_plan_and_changes_nothing(bench: DiskBench, tmp_path: Path) -> None:
    ran = Ran("rewind app.py:pipeline --to 1 --dry-run", tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert "repository goes back to checkpoint 1" in ran.out
    assert "stream 'rows': from epoch 4 to epoch 2; 2 epochs, 2 rows are abandoned" in ran.out
    assert "sink 'table' (SqliteSink): take back 2 epochs, 2 rows; kept in" in ran.out
    assert "needs --accept-input: source 0 of stream 'rows'" in ran.out
    assert bench.visible() == AFTER
    assert "then with --yes" in Ran("rewind app.py --to 1 --accept-input", tmp_path).err, "no terminal to ask in"
    ran = Ran("rewind app.py --to 1 --yes", tmp_path)
    assert (ran.code, "--accept-input" in ran.err) == (2, True)
    assert bench.lineage.current == 1


def test_a_plan_that_is_no_longer_the_printed_one_is_refused(bench: DiskBench, tmp_path: Path) -> None:
    plan = Ran("rewind app.py --to 1 --accept-input --dry-run --json", tmp_path).result["id"]
    bench.add([5])
    ran = Ran(f"rewind app.py --to 1 --accept-input --yes --plan {plan}", tmp_path)
    assert (ran.code, "PlanOutdated" in ran.err) == (2, True)
    assert bench.lineage.current == 1
    plan = Ran("rewind app.py --to 1 --accept-input --dry-run --json", tmp_path).result["id"]
    assert Ran(f"rewind app.py --to 1 --accept-input --yes --plan {plan}", tmp_path).code == 0
    assert bench.visible() == BEFORE


@pytest.mark.parametrize("option", ["--only rows", "--leave files"])
def test_an_undo_of_a_part_is_refused(bench: DiskBench, tmp_path: Path, option: str) -> None:
    """It was ignored: everything was undone."""
    bench.rewind(1)
    ran = Ran(f"rewind app.py --undo --yes {option}", tmp_path)
    assert (ran.code, f"omit {option.split(maxsplit=1)[0]}" in ran.err) == (2, True)
    assert bench.visible() == BEFORE


def test_rows_that_were_set_aside_are_listed_and_discarded(bench: DiskBench, tmp_path: Path) -> None:
    assert Ran("asides app.py:pipeline", tmp_path).out == "no rows are set aside\n"
    bench.rewind(1)
    ran = Ran("asides app.py:pipeline", tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert [line.split()[:5] for line in ran.out.splitlines()[1:3]] == [
        ["2", "rows", "files", "2", "possible"],
        ["2", "rows", "table", "2", "possible"],
    ]
    assert "an undo needs these rows" in Ran("asides app.py --discard", tmp_path).out
    bench.add()
    assert "without --discard to see the plan, then with --yes" in Ran("asides app.py --discard", tmp_path).err
    found = Ran("asides app.py --discard --yes --why checked --json", tmp_path).result
    document = msgspec.convert(found, Asides)
    assert msgspec.json.decode(msgspec.json.encode(document)) == found, "no field is unknown"
    assert [(each.sink, each.undoable, each.discarded) for each in document.asides] == [
        ("files", False, True),
        ("table", False, True),
    ]
    assert Ran("asides app.py", tmp_path).out == "no rows are set aside\n"
    assert "checked" in Ran("log -r repository", tmp_path).out
    assert bench.visible() == AFTER


def test_what_an_undo_needs_is_discarded_only_on_request(bench: DiskBench, tmp_path: Path) -> None:
    assert Ran("rewind app.py --to 1 --yes --accept-input", tmp_path).code == 0
    assert "discarded 4 rows, in 2 places" in Ran("asides app.py --discard --undoable --yes", tmp_path).out
    ran = Ran("rewind app.py --undo --yes", tmp_path)
    assert (ran.code, "only 0 of the 2 rows that were set aside are left" in ran.err) == (2, True)
    assert bench.visible() == BEFORE


def test_rewind_then_look_then_undo(bench: DiskBench, tmp_path: Path) -> None:
    found = Ran("rewind app.py:pipeline --to 1 --yes --accept-input --why tax --json", tmp_path)
    assert found.code == 0
    assert found.result["rewound"] == {"timeline": 2, "base": "checkpoint 1", "epochs": {"rows": 2}, "undoes": None}
    assert found.result["plan"]["streams"][0]["sinks"][0]["action"] == "take back"
    assert len(found.result["id"]) == 16
    document = msgspec.convert(found.result, Rewind)
    assert msgspec.json.decode(msgspec.json.encode(document)) == found.result, "no field is unknown"
    assert bench.visible() == BEFORE
    listed = Ran("ls -r repository", tmp_path)
    assert listed.code == 0
    assert "repository  timeline 2" in listed.out
    assert "  timeline 2 from checkpoint 1" in listed.out
    assert ": tax  (current)" in listed.out
    lines = [line.split() for line in listed.out.splitlines()]
    assert [line[1] for line in lines if line and line[0] in ("1", "2")] == ["restorable", "abandoned"]
    shown = Ran("show 2 -r repository", tmp_path)
    assert "a rewind has abandoned this checkpoint" in shown.out
    assert "next: choose one that is restorable: holdfast ls" in shown.out
    assert "restore these files" not in shown.out, "nothing is damaged"
    status = Ran("status -r repository --json", tmp_path).result["pipelines"][0]
    assert status["checkpoints"] == 1, "an abandoned one does not count"
    assert Ran("show 1 -r repository --json", tmp_path).result["abandoned"] is False
    assert "rewind" in Ran("log -r repository", tmp_path).out
    ran = Ran("rewind app.py --to 2 --dry-run", tmp_path)
    assert (ran.code, "abandoned branch" in ran.err) == (2, True)
    assert "holdfast rewind app.py --to ID" in ran.err
    assert Ran("rewind app.py --undo --dry-run", tmp_path).out.startswith("plan ")
    ran = Ran("rewind app.py --undo --yes", tmp_path)
    assert (ran.code, "undid the rewind of timeline 2: timeline 4 continues rows after epoch 4" in ran.out) == (0, True)
    assert bench.visible() == AFTER
    tree = Ran("ls -r repository --json", tmp_path).result["pipelines"][0]["timelines"]
    assert [(line["timeline"], line["parent"], line["abandoned"]) for line in tree] == [
        (1, None, False),
        (2, 1, True),
        (4, 1, False),
    ]
    assert [line["what"] for line in Ran("log -r repository --json", tmp_path).result["entries"]][-1] == "undo"


def test_prune_removes_abandoned_branches_only_on_request(bench: DiskBench, tmp_path: Path) -> None:
    Ran("rewind app.py --to 1 --yes --accept-input", tmp_path)
    assert "checkpoints to delete" not in Ran("prune -r repository --dry-run", tmp_path).out
    assert Ran("prune -r repository --dry-run --json", tmp_path).result["drops"] == []
    found = Ran("prune -r repository --abandoned --yes --json", tmp_path).result
    assert (found["drops"], found["timelines"]) == ([2], [])
    assert Ran("rewind app.py --undo --yes", tmp_path).code == 0
    assert bench.visible() == AFTER
    found = Ran("prune -r repository --abandoned --yes --json", tmp_path).result
    assert found["timelines"] == [2]
    assert not (tmp_path / "repository/timelines/2").exists()
    assert bench.lineage.current == 4
    bench.add([5])
    assert bench.visible() == [[1, 2, 3, 4, 5]] * 2


@pytest.fixture
def interrupted(bench: DiskBench, tmp_path: Path) -> DiskBench:
    """A rewind of the program that died after its decision."""
    with contextlib.chdir(tmp_path):
        pipeline = pipeline_of(find_target("app.py"))
        plan = plan_rewind(pipeline, 1)
        with pytest.raises(Crashed):
            apply_rewind(pipeline, plan, accept_input=True, reach=CrashAt("rewind decided"))
    return bench


def test_an_unfinished_rewind_is_reported_and_finished_first(interrupted: DiskBench, tmp_path: Path) -> None:
    listed = Ran("ls -r repository", tmp_path)
    assert (listed.code, "the rewind to checkpoint 1 is unfinished" in listed.out) == (1, True)
    assert "is unfinished" in Ran("show 1 -r repository", tmp_path).out
    for words in ("prune -r repository --yes", "compact -r repository --yes", "rewind app.py --to 1 --dry-run"):
        ran = Ran(words, tmp_path)
        assert (words, ran.code, "RewindUnfinished" in ran.err) == (words, 2, True)
    (tmp_path / "other.py").write_text(PROGRAM.replace("out.db", "other.db"))
    ran = Ran("rewind other.py --to 1 --yes", tmp_path)
    assert (ran.code, "it needs sink 'table'" in ran.err) == (2, True)
    assert interrupted.visible() == AFTER
    ran = Ran("rewind app.py --undo --yes", tmp_path)
    assert ran.code == 0
    assert interrupted.visible() == AFTER
    assert interrupted.lineage.timelines == (1, 4), "the interrupted rewind was finished, then undone"


def test_an_unfinished_rewind_is_completed_without_a_lost_sink(interrupted: DiskBench, tmp_path: Path) -> None:
    (tmp_path / "out.db").unlink()
    ran = Ran("rewind app.py --to 1 --yes", tmp_path)
    assert (ran.code, "holdfast rewind app.py --lost table" in ran.err) == (2, True), ran.err
    ran = Ran("rewind app.py --lost table --yes", tmp_path)
    assert (ran.code, "remove the sink from the program" in ran.err) == (2, True)
    ran = Ran("rewind app.py --to 1 --lost table --yes", tmp_path)
    assert (ran.code, "omit --to" in ran.err) == (2, True)
    (tmp_path / "other.py").write_text(PROGRAM.replace("out.db", "other.db"))
    ran = Ran("rewind other.py --lost table --yes", tmp_path)
    assert (ran.code, "timeline 2" in ran.out, "next: holdfast run other.py" in ran.out) == (0, True, True), ran.err
    assert interrupted.lineage.current == 2
    assert interrupted.in_files() == BEFORE[0]
    entry = Ran("log -r repository --json", tmp_path).result["entries"][-1]
    assert (entry["what"], entry["facts"]["lost"]) == ("rewind", ["table"])


def test_wrong_arguments(bench: DiskBench, tmp_path: Path) -> None:
    for words, text in {
        "rewind app.py": "neither --to nor --undo was given",
        "rewind app.py --to 1 --undo": "pass either --to or --undo",
        "rewind app.py --to 9": "no checkpoint 9",
        "rewind app.py --to nothing": "nothing",
        "rewind app.py --to before:rows": "before:<stream>:<epoch>",
        "rewind app.py --to 1 --only other": "one of rows",
        "rewind app.py --undo": "not started by a rewind",
    }.items():
        ran = Ran(words, tmp_path)
        assert (words, ran.code, text in ran.err) == (words, 2, True), ran.err
    ran = Ran("rewind app.py --to 1 --leave other --dry-run", tmp_path)
    assert (ran.code, "there is no sink 'other' to leave" in ran.out) == (1, True)
    assert bench.visible() == AFTER


def test_a_command_in_another_folder_names_the_folder_as_the_cause(bench: DiskBench, tmp_path: Path) -> None:
    """The root of the program is relative."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "app.py").rename(tmp_path / "elsewhere/app.py")
    ran = Ran("rewind app.py --to 1", tmp_path / "elsewhere")
    assert (ran.code, "RepositoryMissing" in ran.err) == (2, True)
    assert "its root is relative to the current folder" in ran.err
    assert "--repo" not in ran.err, "rewind has no such option"


def test_a_rewind_without_a_base_says_what_to_pass(bench: DiskBench, tmp_path: Path) -> None:
    ran = Ran("rewind app.py", tmp_path)
    assert (ran.code, "neither --to nor --undo was given" in ran.err, "None" in ran.err) == (2, True, False)
    assert "--to ID (holdfast ls lists them)" in ran.err
    ran = Ran("rewind app.py --undo", tmp_path)
    assert (ran.code, "there is no rewind to undo" in ran.err) == (2, True)
    assert "choose another checkpoint" not in ran.err
    for name in ("yesterday", "2026-11-16"):
        ran = Ran(f"rewind app.py --to {name}", tmp_path)
        assert (ran.code, "also accept before:STREAM:EPOCH" in ran.err) == (2, True)

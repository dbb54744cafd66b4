"""The command as a person types it: every verb against a live, a finished, a damaged and an empty repository."""

import contextlib
import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import holdfast as hf
from epochfiles import EpochFiles
from fabricated import Fabricated, flip
from holdfast.cli.answers import VERBS_WITH_REPO
from holdfast.cli.app import GROUPS, VERBS, app, verb_module
from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.formats.manifest import INHERITED
from holdfast.formats.manifest_parts import GapNote, GapNotes
from holdfast.sinks.places import record_places
from holdfast.spark import spec
from webfixture import Sample

HOLDFAST = Path(sys.executable).with_name("holdfast")
LOOKING = ["ls", "show", "verify", "diff 1 3", "log", "gaps", "doubt", "prune --dry-run", "cursor ls"]


class Ran:
    """What a command printed, and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        assert "Traceback" not in out + err

    @property
    def result(self) -> Any:
        return json.loads(self.out)["result"]


def run(words: str, folder: Path, **environment: str) -> Ran:
    """Run a command in this process, which is quicker; `run_alone` starts a real one."""
    env: dict[str, str | None] = {"HOLDFAST_REPO": None, "COLUMNS": None, **environment}
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, words.split(), env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return Ran(done.exit_code, done.stdout, done.stderr)


def run_alone(words: str, folder: Path, **environment: str) -> Ran:
    env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    env |= {"HOME": str(folder), **environment}
    command = [HOLDFAST, *words.split()]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def made(tmp_path: Path) -> Fabricated:
    """A finished pipeline with three checkpoints and a savepoint."""
    found = Fabricated(hf.repository.LocalRepository(tmp_path / "checkpoints/orders"))
    for text in "abc":
        found.take(text, "kept")
    number = found.checkpoints.claim(1, 1)
    found.finish(number, {"orders": ["d"]}, savepoint="before", states={"orders/stage": b"x" * 40})
    hf.repository.Lease.take(found.repository).release()
    return found


@pytest.fixture
def live(made: Fabricated) -> Iterator[Fabricated]:
    """The same, held by a process that lives: this one."""
    with hf.repository.Lease.take(made.repository):
        yield made


# --- finished --------------------------------------------------------------------------------------------------------


def test_a_finished_repository_is_listed(made: Fabricated, tmp_path: Path) -> None:
    ran = run("ls", tmp_path)
    assert ran.code == 0
    assert "orders  timeline 1  not running" in ran.out
    assert re.search(r"^ *3 +restorable .* 3 +\d+ B +orders 3$", ran.out, re.MULTILINE)
    assert re.search(r"^ *4  before +restorable", ran.out, re.MULTILINE)
    found = run("ls --json --last 1", tmp_path)
    [pipeline] = found.result["pipelines"]
    assert [each["savepoint"] for each in pipeline["checkpoints"]] == ["before"]
    assert pipeline["holder"] is None


def test_a_checkpoint_is_shown(made: Fabricated, tmp_path: Path) -> None:
    assert "gaps" not in run("show", tmp_path).out  # not recorded by what took this one
    ran = run("show", tmp_path)
    assert ran.code == 0
    assert "checkpoint 3 of pipeline orders" in ran.out
    assert made.digest(3) in ran.out
    assert "epoch  3, append; 30 rows" in ran.out
    shown = run("show before --files --json", tmp_path).result
    assert shown["manifest"]["savepoint"] == "before"
    assert {each["path"] for each in shown["files"]["orders"]} >= {"metadata"}


def test_fields_of_a_manifest_that_repeat_its_streams_are_explained(made: Fabricated, tmp_path: Path) -> None:
    """They stand in the file for tools of the original system, and none of them is an epoch of a stream."""
    shown = run("show 2 --json", tmp_path).result
    assert shown["manifest"]["epoch"] == 2
    assert set(shown["notes"]) == set(INHERITED) & set(shown["manifest"])
    assert "not an epoch of a stream" in shown["notes"]["epoch"]
    assert {"pipeline", "streams", "parent", "checkpoint_id"}.isdisjoint(shown["notes"])
    known = {each.name for each in dataclasses.fields(hf.Manifest)}
    assert set(INHERITED) <= known
    told = run("show 2", tmp_path).out
    assert told.count("epoch") == 1  # that of its stream


def test_checkpoints_are_verified_and_compared(made: Fabricated, tmp_path: Path) -> None:
    ran = run("verify --all", tmp_path)
    assert (ran.code, ran.out.count("sound")) == (0, 4)
    quick = run("verify 2 --quick --json", tmp_path).result["verifications"]
    assert [(each["checkpoint"], each["grade"], each["ok"]) for each in quick] == [(2, "structure", True)]
    ran = run("diff 1 3", tmp_path)
    assert (ran.code, "10 -> 30 (+20)" in ran.out) == (1, True)
    assert run("diff 2 2", tmp_path).code == 0
    assert (run("diff 1", tmp_path).out, run("diff", tmp_path).out.split()[1:4]) == (ran.out, ["2", "->", "3,"])
    assert run("diff 1 before --json", tmp_path).result["same"] is False


def test_prune_plans_first_and_acts_only_when_told(made: Fabricated, tmp_path: Path) -> None:
    ran = run("prune --last 1 --dry-run", tmp_path)
    assert ran.code == 0
    assert re.search(r"1 +remove", ran.out)
    assert "run the same command without --dry-run" in ran.out
    ran = run("prune --last 1", tmp_path)
    assert (ran.code, "with --yes" in ran.err) == (2, True)
    assert len(made.checkpoints.restorable()) == 3
    ran = run("prune --last 1 --yes --json", tmp_path)
    assert (ran.code, ran.result["pruned"]["dropped"]) == (0, [1, 2])
    assert [each.checkpoint for each in made.checkpoints.restorable()] == [3]
    assert run("verify --all", tmp_path).code == 0
    told = run("log", tmp_path)
    assert (told.code, " prune " in told.out) == (0, True)
    assert "nothing to prune" in run("prune --last 1", tmp_path).out


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ("", "the last 10"),
        ("--last 2", "the last 2"),
        ("--daily 3", "the last 10, one a day for 3 days"),
    ],
)
def test_a_prune_without_rules_keeps_what_a_run_keeps(rules: str, kept: str, made: Fabricated, tmp_path: Path) -> None:
    """A plain `holdfast prune` must not delete checkpoints that a run keeps by default."""
    assert run(f"prune --dry-run --json {rules}", tmp_path).result["retention"] == kept


KEEPING = """
from pathlib import Path
import holdfast as hf

class Recorded(hf.Pipeline):
    def run(self, *_, checkpoint_every, **__):
        Path("kept").write_text(checkpoint_every.retention.summary())
        raise ValueError("only recorded")

pipeline = Recorded("orders", root="checkpoints")
"""


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ("", "the last 10"),
        ("--keep-last 3 --keep-daily 30", "the last 3, one a day for 30 days"),
        ("--keep-hourly 24", "the last 10, one an hour for 24 hours"),
    ],
)
def test_a_run_keeps_the_checkpoints_that_its_options_name(options: str, kept: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(KEEPING)
    with contextlib.chdir(tmp_path):
        done = CliRunner().invoke(app, ["run", "app.py", *options.split()])
    assert (done.exit_code, "only recorded" in done.stderr) == (2, True)
    assert (tmp_path / "kept").read_text() == kept


def test_a_run_keeps_at_least_one_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(KEEPING)
    ran = run("run app.py --keep-last 0", tmp_path)
    assert (ran.code, "--keep-last" in ran.err) == (2, True)


def test_a_word_that_cannot_be_accepted_is_refused_before_the_program_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("raise ValueError('loaded')\n")
    ran = run("run app.py --accept sink", tmp_path)
    assert (ran.code, "did you mean --accept sinks?" in ran.err, "loaded" in ran.err) == (2, True, False)


def test_latest_is_the_newest_checkpoint_for_every_command_that_takes_one(made: Fabricated, tmp_path: Path) -> None:
    assert run("verify latest --json", tmp_path).result["verifications"][0]["checkpoint"] == 3
    assert "checkpoint 3 of pipeline orders" in run("show latest", tmp_path).out
    assert run("diff 1 latest", tmp_path).out == run("diff 1 3", tmp_path).out
    assert run("diff latest 1", tmp_path).out == run("diff 3 1", tmp_path).out


def test_a_name_that_is_no_checkpoint_is_answered_with_the_accepted_forms(made: Fabricated, tmp_path: Path) -> None:
    for words in ("verify yesterday", "show 2026-11-16", "diff 1 yesterday"):
        ran = run(words, tmp_path)
        assert ran.code == 2
        assert "an id, the name of a savepoint, or latest" in ran.err


def test_a_sink_that_got_nothing_of_the_last_epochs_says_so(made: Fabricated, tmp_path: Path) -> None:
    number = made.checkpoints.claim(1, 1)
    sinks = {"table": {"epoch": 2}, "files": {"epoch": number}}
    made.finish(number, {"orders": ["e"]}, cuts={"orders": {"sinks": sinks}})
    shown = run("show", tmp_path).out
    assert f"table  epoch 2; it got no rows of epochs 3 to {number}" in shown
    assert re.search(rf"files  epoch {number}$", shown, re.MULTILINE)


def test_a_root_without_a_repository_is_said_in_one_sentence(tmp_path: Path) -> None:
    ran = run("ls", tmp_path)
    assert "there is no holdfast.json in these two folders, nor in a folder directly below them" in ran.err


@pytest.mark.parametrize("root", ["", " --root trials"])
def test_a_fork_into_the_same_root_says_how_to_name_a_pipeline(root: str, made: Fabricated, tmp_path: Path) -> None:
    ran = run(f"fork --from 2 --as trial{root}", tmp_path)
    assert ran.code == 0
    assert ("several pipelines; name the one you mean: --repo checkpoints/orders" in ran.out) is not bool(root)


def test_of_several_pipelines_the_only_running_one_is_asked(made: Fabricated, tmp_path: Path) -> None:
    Fabricated(hf.repository.LocalRepository(tmp_path / "checkpoints/trial")).take("a", "kept")
    ran = run("stop", tmp_path)
    assert (ran.code, "it contains 2 pipelines: orders, trial" in ran.err) == (2, True)
    with hf.repository.Lease.take(made.repository):
        ran = run("checkpoint --timeout 300ms", tmp_path)
        assert (ran.code, "2 pipelines" in ran.err) == (2, False)
        assert "it contains 2 pipelines" in run("log", tmp_path).err


def test_gaps_and_doubts_are_found(made: Fabricated, tmp_path: Path) -> None:
    assert (run("gaps", tmp_path).out, run("gaps", tmp_path).code) == ("no gaps\n", 0)
    hf.repository.Gaps(made.repository).add("orders", 1, 2, kind="quarantined", why="ValueError: bad row", facts={})
    ran = run("gaps", tmp_path)
    assert (ran.code, "ValueError: bad row" in ran.out) == (1, True)
    assert run("gaps --since 1h", tmp_path).code == 1
    hours_ago = hf.repository.Gaps(made.repository, clock=lambda: time.time() - 7200)
    hours_ago.add("totals", 1, 2, kind="quarantined", why="long ago", facts={})
    assert [gap["stream"] for gap in run("gaps --since 1h --json", tmp_path).result["gaps"]] == ["orders"]
    assert (run("gaps --since soon", tmp_path).code, run("gaps", tmp_path).out.count("long ago")) == (2, 1)
    assert (run("doubt", tmp_path).out, run("doubt", tmp_path).code) == ("no epochs are in doubt\n", 0)
    decide(made, decided_at_ms=int(time.time() * 1000) - 3_600_000)
    ran = run("doubt", tmp_path)
    assert ran.code == 1
    assert re.search(r"orders +4 +files +7 +1h", ran.out)
    [doubt] = run("doubt --json", tmp_path).result["doubts"]
    assert doubt["sinks"] == {"files": 7, "table": 7}
    assert "epoch-in-doubt" in run("verify", tmp_path).out


def decide(made: Fabricated, decided_at_ms: int, rows: int = 7) -> None:
    """Leave epoch 4 decided, as a driver that was killed there does: Spark has committed batch 2 alone."""
    attempt = Attempt(stream="orders", timeline=1, epoch=4, attempt=1)
    share = {"handle": {}, "rows": rows, "stands": 4, "before": 3}
    facts = {"sinks": {"files": share, "table": share}, "decided_at_ms": decided_at_ms}
    hf.repository.Decisions(made.repository).close(
        Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=facts)
    )
    made.repository.put("timelines/1/streams/orders/spark/commits/2", b"v1")


def test_cursors_are_shown(made: Fabricated, tmp_path: Path) -> None:
    log = hf.eventlog.EventLog.create(tmp_path / "orders.log")
    with log.writer() as writer:
        writer.append([hf.eventlog.NewEvent("order:1", b"paid"), hf.eventlog.NewEvent("order:2", b"open")])
    region = hf.eventlog.Region(entity="order")
    with hf.eventlog.DurableCursor(made.repository, "billing", log, region) as cursor:
        cursor.poll()
        cursor.commit()
        ran = run("cursor show billing --log orders.log", tmp_path)
        assert ran.code == 0
        assert re.search(rf"owner +process {os.getpid()}", ran.out)
        assert re.search(r"lag +1 sequence numbers", ran.out)
    [line] = run("cursor ls --json", tmp_path).result["cursors"]
    assert (line["cursor"], line["position"], line["owner_pid"]) == ("billing", 0, None)
    flip(made.repository, "cursors/billing.ckpt")
    assert (run("cursor ls", tmp_path).code, run("cursor show billing", tmp_path).code) == (1, 1)
    ran = run("cursor show nobody", tmp_path)
    assert (ran.code, "holdfast cursor ls --repo" in ran.err) == (2, True)


def test_a_cursor_past_a_rewind_is_reset(made: Fabricated, tmp_path: Path) -> None:
    """The error names the command, which shows where the cursor goes and asks first."""
    log = hf.eventlog.EventLog.create(tmp_path / "orders.log")
    with log.writer() as writer:
        for name in ("order:1", "order:2", "order:3"):
            writer.append([hf.eventlog.NewEvent(name, b"paid")])
    region = hf.eventlog.Region(entity="order")
    with hf.eventlog.DurableCursor(made.repository, "billing", log, region) as cursor:
        assert len(cursor.poll_batch(3)) == 3
        cursor.commit()
        assert run("cursor reset billing --to 0 --yes", tmp_path).code == 2  # it is in use
    with log.writer() as writer:
        writer.rewind("key", [(1, 1), (2, 1)])
    with pytest.raises(hf.errors.LogRewound, match="holdfast cursor reset billing"):
        hf.eventlog.DurableCursor(made.repository, "billing", log, region)
    moved = "cursor billing reads sequence 1 next, instead of 3"
    assert moved in run("cursor reset billing --log orders.log --dry-run", tmp_path).out
    assert "--yes" in run("cursor reset billing --log orders.log", tmp_path).err
    assert moved in run("cursor reset billing --log orders.log --yes", tmp_path).out
    assert "it is not moved" in run("cursor reset billing --log orders.log", tmp_path).out
    with hf.eventlog.DurableCursor(made.repository, "billing", log, region) as cursor:
        assert cursor.poll_batch(3) == []
    assert run("cursor reset billing --to 0 --yes --json", tmp_path).result["after"] == 0
    assert run("cursor reset nobody --to 0", tmp_path).code == 2


def test_compact_plans_first_and_acts_only_when_told(tmp_path: Path) -> None:
    files = EpochFiles(tmp_path)
    files.commit(1, 2, 3, 4, 5)
    before = files.rows()
    ran = run("compact -r root", tmp_path)
    assert (ran.code, "there is no FileSink folder" in ran.err) == (2, True)
    record_places(files.repository, "s", 1, [files.sink])
    ran = run("compact -r root --dry-run", tmp_path)
    assert (ran.code, bool(re.search(r"out +s +1-3 +6 +6 +1", ran.out))) == (0, True)
    ran = run("compact -r root", tmp_path)
    assert (ran.code, "then with --yes" in ran.err) == (2, True)
    assert files.folders() == [1, 2, 3, 4, 5]
    done = run("compact -r root out --yes --grace 0 --json", tmp_path).result["sinks"][0]
    assert (done["done"]["epochs"], done["done"]["files_after"]) == (3, 1)
    assert (files.folders(), files.rows()) == ([3, 4, 5], before)
    assert run("compact -r root", tmp_path).out == "nothing to merge\n"
    assert re.search(r" compact +path: .*/out, epochs: 3", run("log -r root", tmp_path).out)
    for words in ("--target lots", "--keep-last 1", "--grace soon", "nowhere"):
        assert run(f"compact -r root {words}", tmp_path).code == 2
    flip_file(next(files.path.glob("hf_epoch=*4/_holdfast.key")))
    assert run("compact -r root --dry-run", tmp_path).code == 1


def test_counts_and_sizes_are_written_one_way_by_every_verb(made: Fabricated, tmp_path: Path) -> None:
    for rows in (20_000, 36_000):
        number = made.checkpoints.claim(1, 1)
        made.finish(number, {"orders": [str(rows) * 5000]}, cuts={"orders": {"rows": rows}})
    decide(made, decided_at_ms=int(time.time() * 1000) - 3_600_000, rows=20_000)
    for words in (
        "ls",
        "show --files",
        "verify --all",
        "diff 5 6",
        "doubt",
        "prune --last 1 --dry-run",
        "prune --last 1 --yes",
    ):
        told = re.sub(r"\d{4}-\d\d-\d\d|\d+d|[0-9a-f]{8,}|process \d+", "", run(words, tmp_path).out)
        assert not re.search(r"\d{4}| bytes", told), told


def flip_file(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# --- live ------------------------------------------------------------------------------------------------------------


def test_whatever_only_looks_works_on_a_live_repository_and_changes_nothing(live: Fabricated, tmp_path: Path) -> None:
    before = content(tmp_path)
    for words in LOOKING:
        ran = run_alone(words, tmp_path)
        assert (words, ran.code, ran.err) == (words, 1 if words.startswith("diff") else 0, "")
    assert f"process {os.getpid()} on" in run("ls", tmp_path).out
    assert run("ls --json", tmp_path).result["pipelines"][0]["holder"]["pid"] == os.getpid()
    assert content(tmp_path) == before


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_whether_a_shared_pipeline_of_another_machine_runs_is_unknown(made: Fabricated, tmp_path: Path) -> None:
    taken = hf.repository.Lease.take(made.repository, locker=lambda: None, shared=True, why="run")
    elsewhere = msgspec.structs.replace(taken.record, number=3, host="elsewhere", pid=os.getpid())
    made.repository.put("lease/00000003.json", elsewhere.sealed())
    assert (
        f"shared: process {os.getpid()} on elsewhere, lease 3, cannot be checked from here" in run("ls", tmp_path).out
    )
    holder = run("ls --json", tmp_path).result["pipelines"][0]["holder"]
    assert (holder["certain"], holder["shared"]) == (False, True)
    assert re.search(r" run +took lease 2", run("log", tmp_path).out)


def test_a_shared_pipeline_of_this_machine_runs_while_its_process_lives(made: Fabricated, tmp_path: Path) -> None:
    take = (
        "import sys; from holdfast.repository import Lease, LocalRepository; "
        "Lease.take(LocalRepository(sys.argv[1]), locker=lambda: None, shared=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"{take}; print('taken', flush=True); sys.stdin.read()", made.repository.where],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"taken\n"
        assert re.search(rf"shared: process {process.pid} on this machine, lease 2, is alive", run("ls", tmp_path).out)
        holder = run("ls --json", tmp_path).result["pipelines"][0]["holder"]
        assert (holder["pid"], holder["certain"], holder["shared"]) == (process.pid, True, True)
    assert "orders  timeline 1  not running" in run("ls", tmp_path).out
    assert run("ls --json", tmp_path).result["pipelines"][0]["holder"] is None


def test_a_process_that_is_younger_than_a_shared_lease_did_not_take_it(made: Fabricated, tmp_path: Path) -> None:
    """As after a reboot: another process has its number."""
    hf.repository.Lease.take(made.repository, locker=lambda: None, shared=True, clock=lambda: 1_000_000.0)
    assert "not running" in run("ls", tmp_path).out


def test_a_doubt_of_a_moment_in_a_running_pipeline_is_no_alarm(
    live: Fabricated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb_module("doubt"), "SETTLES_S", 600.0)
    decide(live, decided_at_ms=int(time.time() * 1000))
    ran = run("doubt", tmp_path)
    assert (ran.code, "is committing them now" in ran.out) == (0, True)


def test_a_prune_of_a_live_pipeline_asks_it_and_says_so_where_it_does_not_answer(
    live: Fabricated, tmp_path: Path
) -> None:
    ran = run("prune --last 1 --yes --timeout 300ms", tmp_path)
    assert ran.code == 2
    assert "was not answered within 0.3 s" in ran.err
    assert "holdfast prune --timeout" in ran.err
    assert len(live.checkpoints.restorable()) == 3


# --- damaged ---------------------------------------------------------------------------------------------------------


def test_damage_is_found_by_every_verb_that_meets_it(made: Fabricated, tmp_path: Path) -> None:
    flip(made.repository, "timelines/1/checkpoints/3/manifest.json")
    ran = run("ls", tmp_path)
    assert (ran.code, bool(re.search(r"3 +damaged", ran.out))) == (1, True)
    for words in ("show", "show 3", "diff 1 3"):
        ran = run(words, tmp_path)
        assert (words, ran.code) == (words, 1)
        assert "error: checkpoint 3 is damaged" in ran.err
        assert "next:  restore the files from a copy, or use the previous checkpoint: holdfast verify 2" in ran.err
    ran = run("verify --all", tmp_path)
    assert (ran.code, ran.out.count("CANNOT BE RESTORED")) == (1, 1)
    assert "manifest-damaged" in ran.out
    assert run("verify --all --json", tmp_path).code == 1
    failure = json.loads(run("show 3 --json", tmp_path).out)
    assert (failure["exit"], failure["error"]["kind"]) == (1, "CheckpointDamaged")


def test_next_steps_name_the_repository_that_was_typed(made: Fabricated, tmp_path: Path) -> None:
    flip(made.repository, "timelines/1/checkpoints/3/manifest.json")
    where = str(made.repository.root.relative_to(tmp_path))
    away = tmp_path / "away"
    away.mkdir()
    typed = f"../{where}"
    assert f"previous checkpoint: holdfast verify --repo {typed} 2" in run(f"show 3 -r {typed}", away).err
    assert f"find a sound one: holdfast verify --repo {typed} --all" in run(f"verify 3 -r {typed}", away).out
    assert f"holdfast verify --repo {typed} --all --record" in run(f"status -r {typed}", away).out
    assert "previous checkpoint: holdfast verify 2" in run("show 3", away, HOLDFAST_REPO=typed).err
    assert run(f"ls {typed}", away, HOLDFAST_REPO="/elsewhere").code == 1  # the argument, not the environment


def test_the_verbs_that_take_a_repository_are_known() -> None:
    verbs = {name: getattr(verb_module(name), name) for name in VERBS if name not in GROUPS}
    takers = [name for name, function in verbs.items() if "repo" in inspect.signature(function).parameters]
    assert sorted(takers) == sorted(VERBS_WITH_REPO)


def test_epochs_without_a_stream_names_the_streams(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    assert "it has no stream yet" in run("epochs -r orders", tmp_path).err
    for stream in sample.streams:
        sample.epochs(stream, 2)
    ran = run("epochs -r orders", tmp_path)
    assert "the pipeline has several streams: orders, totals" in ran.err
    assert "next:  name a stream: holdfast epochs --repo orders orders" in ran.err


def test_the_next_step_of_a_doubt_names_the_program_as_it_was_run(tmp_path: Path) -> None:
    sample = Sample(tmp_path)
    sample.lease(program="jobs/shop.py")
    sample.epochs("orders", 2, committed=False)
    assert run("doubt -r orders", tmp_path).out.endswith("completes them first: holdfast run jobs/shop.py\n")


def test_a_damaged_file_is_found_by_its_bytes_and_not_by_its_size(made: Fabricated, tmp_path: Path) -> None:
    key = next(key for key in keys(made) if made.repository.read(key) == b"c")
    flip(made.repository, key)
    assert run("verify --quick", tmp_path).code == 0
    ran = run("verify", tmp_path)
    assert (ran.code, "file-digest" in ran.out) == (1, True)
    made.repository.delete(key)
    ran = run("verify --quick", tmp_path)
    assert (ran.code, "file-missing" in ran.out) == (1, True)


def keys(made: Fabricated) -> list[str]:
    return [f"objects/{name[:2]}/{name}" for name in made.objects()]


def test_a_damaged_record_is_one_line_and_no_traceback(made: Fabricated, tmp_path: Path) -> None:
    flip(made.repository, "holdfast.json")
    ran = run("log", tmp_path)
    assert ran.code == 1
    assert "error: record" in ran.err
    assert "next:  restore the file from a copy" in ran.err


@pytest.mark.parametrize("key", ["history.jsonl", "lease/00000001.json"])
def test_a_damaged_entry_of_the_history_is_reported_after_the_others(
    made: Fabricated, tmp_path: Path, key: str
) -> None:
    hf.repository.History(made.repository).add("prune", "test")
    flip(made.repository, key)
    ran = run("log", tmp_path)
    assert ran.code == 1
    assert ("test" in ran.out, "took lease 1" in ran.out) == ("lease" in key, "lease" not in key)
    assert re.search(rf"^record '{key}.*' is damaged", ran.out, re.MULTILINE)
    assert "next: restore these files from a copy" in ran.out
    [damaged] = run("log --json", tmp_path).result["damaged"]
    assert key in damaged


# --- empty, and wrong use --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", LOOKING)
def test_an_empty_folder_is_no_repository(tmp_path: Path, words: str) -> None:
    ran = run(words, tmp_path)
    assert ran.code == 2
    assert "there is no pipeline repository" in ran.err
    assert "holdfast ls --repo" in ran.err
    failure = json.loads(run(f"{words} --json", tmp_path).out)
    assert failure["error"]["kind"] == "RepositoryMissing"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", ["ls", "show", "cursor ls"])
def test_a_repository_that_is_missing_is_described_as_it_is(tmp_path: Path, words: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, why in (
        ("nowhere", "the folder does not exist"),
        ("file", "it is not a folder"),
        ("empty", "neither it nor a folder in it has a holdfast.json"),
    ):
        ran = run(f"{words} -r {tmp_path / name}", tmp_path)
        assert (ran.code, f"there is no pipeline repository at {tmp_path / name}: {why}" in ran.err) == (2, True)
    ran = run(words, tmp_path / "empty")
    assert f"at {tmp_path / 'empty'} or {tmp_path / 'empty/checkpoints'}: there is no holdfast.json in" in ran.err


def test_a_repository_without_a_checkpoint_says_how_to_get_one(tmp_path: Path) -> None:
    hf.repository.Identity.create(hf.repository.LocalRepository(tmp_path / "checkpoints/orders"), "orders")
    expected = {"ls": 0, "log": 0, "gaps": 0, "doubt": 0, "cursor ls": 0, "prune --dry-run": 0}
    expected |= {"show": 2, "verify": 2, "verify --all": 2, "diff 1 2": 2}
    for words, code in expected.items():
        ran = run(words, tmp_path)
        assert (words, ran.code) == (words, code)
    assert "--no-checkpoints" in run("ls", tmp_path).out
    assert "--no-checkpoints" in run("show", tmp_path).err


def test_options_of_run_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    done = run("run app.py --no-checkpoints --checkpoint-every 5s", tmp_path)
    assert (done.code, "remove one of the two options" in done.err) == (2, True)


def test_the_repository_is_found_by_option_variable_and_nearness(made: Fabricated, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = made.repository.where
    for words in (f"ls -r {where}", f"ls --repo {Path(where).parent}", f"ls -r file://{where}"):
        assert run(words, elsewhere).code == 0
    assert run("ls", elsewhere, HOLDFAST_REPO=where).code == 0
    assert run("ls", Path(where)).code == 0
    assert run("ls", elsewhere).code == 2


def test_several_pipelines_in_one_root_are_listed_and_not_guessed(made: Fabricated, tmp_path: Path) -> None:
    hf.repository.Identity.create(hf.repository.LocalRepository(tmp_path / "checkpoints/totals"), "totals")
    assert [each["pipeline"] for each in run("ls --json", tmp_path).result["pipelines"]] == ["orders", "totals"]
    ran = run("show", tmp_path)
    assert (ran.code, "name one: --repo checkpoints/orders" in ran.err) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        "show 99",
        "show nobody",
        "show 0",
        "show ../../etc",
        "diff 1 99",
        "verify 1 --all",
        "verify --quick --read-data",
        "ls --last 0",
        "prune --within soon",
        "prune --last 0",
        "ls -r s3://bucket/x",
        "ls -r /dev/null",
        "nonsense",
        "cursor",
        "cursor show ../x",
    ],
)
def test_wrong_use_is_2_with_words(made: Fabricated, tmp_path: Path, words: str) -> None:
    ran = run(words, tmp_path)
    assert (words, ran.code) == (words, 2)
    assert len(ran.err or ran.out) > 20


# --- what a person sees ----------------------------------------------------------------------------------------------


def test_every_verb_teaches_with_an_example(tmp_path: Path) -> None:
    verbs = [name for name in VERBS if name not in GROUPS]
    verbs += [f"{group} {each}" for group, (_, inner) in GROUPS.items() for each in inner]
    for words in verbs:
        ran = run(f"{words} --help", tmp_path)
        assert (words, ran.code) == (words, 0)
        assert re.search(rf"^ {{5}}holdfast {words}\b", ran.out, re.MULTILINE), words
        assert "--json" in ran.out
    assert run("", tmp_path).out.split() == run("--help", tmp_path).out.split()


HELPS = ["", *(verb for verb in VERBS), *(f"{group} {each}" for group, (_, names) in GROUPS.items() for each in names)]


@pytest.mark.parametrize("words", HELPS)
@pytest.mark.parametrize("columns", ["80", "160"])
def test_help_names_what_to_type_and_no_types_of_python(tmp_path: Path, words: str, columns: str) -> None:
    ran = run(f"{words} --help", tmp_path, COLUMNS=columns)
    assert ran.code == 0
    assert not re.search(r"<(?!root>|pipeline>)|[{}]|\[\[|range", ran.out), ran.out


def test_usage_shows_what_must_and_what_may_be_typed(tmp_path: Path) -> None:
    assert "run [OPTIONS] TARGET [-- ARGS]..." in run("run --help", tmp_path, COLUMNS="100").out
    assert "cursor show [OPTIONS] NAME" in run("cursor show --help", tmp_path, COLUMNS="100").out
    assert "compact [OPTIONS] [FOLDER]" in run("compact --help", tmp_path, COLUMNS="100").out


def test_a_slip_of_the_finger_is_told_what_was_meant(tmp_path: Path) -> None:
    ran = run("verfy", tmp_path)
    assert (ran.code, "Did you mean 'verify'?" in ran.err) == (2, True)
    assert run("--version", tmp_path).out == f"holdfast {hf.__version__}\n"


def test_nothing_is_cut_off_on_its_way_into_a_pipe(made: Fabricated, tmp_path: Path) -> None:
    made.take("x" * 10, cuts={"orders": {"offsets": ("y" * 300,)}})
    assert "y" * 300 in run("show", tmp_path).out
    assert max(map(len, run("ls", tmp_path, COLUMNS="80").out.splitlines())) <= 80


def test_a_reader_that_has_read_enough_is_no_error(made: Fabricated, tmp_path: Path) -> None:
    with subprocess.Popen(
        [HOLDFAST, "ls", "--json"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 0)


def in_shell(words: str, folder: Path, **environment: str) -> Ran:
    env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    env |= {"HOME": str(folder), **environment}
    done = subprocess.run(
        ["bash", "-c", f"{HOLDFAST} {words}"],  # noqa: S607 - whichever bash there is
        cwd=folder,
        env=env,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode())


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("ls >&-", 0),
        ("ls --json >&-", 0),
        ("ls -r nowhere 2>&-", 2),
        ("ls -r nowhere 2>/dev/full", 2),
        ("prune --last 1 <&-", 2),
        ("ls --json >/dev/full", 2),
        ("ls >/dev/full", 2),
        ("--help >/dev/full", 2),
    ],
)
def test_what_the_shell_has_closed_or_filled_is_no_traceback(
    made: Fabricated, tmp_path: Path, words: str, code: int
) -> None:
    assert in_shell(words, tmp_path).code == code


def test_whoever_reads_no_more_changes_no_exit_code(made: Fabricated, tmp_path: Path) -> None:
    flip(made.repository, "timelines/1/checkpoints/3/manifest.json")
    assert in_shell("verify --all --json | true; exit ${PIPESTATUS[0]}", tmp_path).code == 1


def test_a_terminal_that_speaks_no_unicode_is_told_all_the_same(made: Fabricated, tmp_path: Path) -> None:
    hf.repository.History(made.repository).add("prune", "caf\u00e9")
    ran = in_shell("log", tmp_path, PYTHONIOENCODING="ascii")
    assert (ran.code, "caf\\xe9" in ran.out) == (0, True)
    entries = in_shell("log --json", tmp_path, PYTHONIOENCODING="ascii").result["entries"]
    assert "caf\u00e9" in {each["why"] for each in entries}


def test_words_of_others_do_not_reach_the_terminal_as_commands(made: Fabricated, tmp_path: Path) -> None:
    hf.repository.History(made.repository).add("prune", "\x1b[31mred\x1b]0;title\x07 [bold]x[/] \u202eback")
    ran = run("log", tmp_path)
    assert "\\x1b[31mred\\x1b]0;title\\x07 [bold]x[/] \\u202eback" in ran.out


@pytest.mark.parametrize("words", ["ls --json --nope", "ls --last 0 --json", "show --json 1 2 3", "lss --json"])
def test_wrong_use_is_a_document_where_json_is_asked_for(tmp_path: Path, words: str) -> None:
    ran = run_alone(words, tmp_path)
    failure = json.loads(ran.out)
    assert (ran.code, failure["exit"], failure["error"]["kind"]) == (2, 2, "UsageError")
    assert failure["error"]["next"].endswith("--help")


def test_one_pipeline_whose_record_is_damaged_hides_no_other(made: Fabricated, tmp_path: Path) -> None:
    hf.repository.Identity.create(other := hf.repository.LocalRepository(tmp_path / "checkpoints/totals"), "totals")
    flip(other, "holdfast.json")
    ran = run("ls", tmp_path)
    assert (ran.code, "restorable" in ran.out, "is damaged" in ran.out) == (1, True, True)
    listed = run("ls --json", tmp_path).result["pipelines"]
    assert [bool(each["damaged"]) for each in listed] == [False, True]


def test_a_folder_that_is_gone_and_a_number_without_end(made: Fabricated, tmp_path: Path) -> None:
    gone = in_shell(f"version; mkdir x; cd x; rmdir ../x; {HOLDFAST} show -r {made.repository.where}", tmp_path)
    assert (gone.code, "checkpoint 3 of" in gone.out) == (0, True)
    assert run(f"show {'9' * 6000}", tmp_path).code == 2
    (tmp_path / "checkpoints/orders/timelines/1/streams/[bold]x").mkdir(parents=True)
    assert [run(words, tmp_path).code for words in ("gaps", "doubt", "ls")] == [0, 0, 0]


def test_completion_offers_the_checkpoints_that_there_are(made: Fabricated, tmp_path: Path) -> None:
    env = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": "holdfast show ", "COMP_CWORD": "2"}
    assert set(run_alone("", tmp_path, **env).out.split()) == {"1", "2", "3", "before"}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("", {"sinks", "gaps", "replay"}), ("s", {"sinks"}), ("x", set())],
    ids=["all", "one", "none"],
)
def test_completion_offers_what_can_be_accepted(tmp_path: Path, typed: str, offered: set[str]) -> None:
    env = {
        "_HOLDFAST_COMPLETE": "complete_bash",
        "COMP_WORDS": f"holdfast run app.py --accept {typed}",
        "COMP_CWORD": "4",
    }
    assert set(run_alone("", tmp_path, **env).out.split()) == offered


def test_what_completion_offers_is_what_a_pipeline_accepts() -> None:
    assert set(verb_module("run").ACCEPT) == set(spec.ACCEPTABLE)


def test_looking_starts_fast_and_without_spark(made: Fabricated, tmp_path: Path) -> None:
    """Not a timed test: what is imported is what costs. The times are in bench/."""
    program = """
import sys
from holdfast.cli import main
for heavy in ("pyspark", "pyarrow", "pandas", "psycopg"):
    sys.modules[heavy] = None  # importing it fails
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
slow = {"holdfast.verification", "holdfast.difference", "holdfast.spark"} & set(sys.modules)
print(len(slow), file=sys.stderr)
"""
    for verb in ("ls", "show"):
        done = subprocess.run(
            [sys.executable, "-c", program, verb], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stderr == "0\n"
    for words in LOOKING:
        blocked = {"PYTHONPATH": str(blocked_packages(tmp_path))}
        assert run_alone(words, tmp_path, **blocked).code in (0, 1), words


def blocked_packages(folder: Path) -> Path:
    """A folder whose pyspark and pyarrow cannot be imported, as where they are not installed."""
    place = folder / "blocked"
    for name in ("pyspark", "pyarrow"):
        (place / name).mkdir(parents=True, exist_ok=True)
        (place / name / "__init__.py").write_text("raise ImportError('blocked')\n")
    return place


def test_show_has_the_gaps_up_to_the_cut(made: Fabricated, tmp_path: Path) -> None:
    facts = {"stream": "orders", "timeline": 1, "kind": "quarantined", "at_ms": 1}
    newest = [GapNote(epoch=epoch, why=f"bad row {epoch}", **facts) for epoch in range(1, 8)]
    made.take("e", gaps=GapNotes(total=30, newest=tuple(newest)))
    ran = run("show", tmp_path)
    assert re.search(r"gap +orders epoch 7, quarantined: bad row 7\n", ran.out)
    assert "bad row 2" not in ran.out and re.search(r"gaps +25 more: holdfast gaps\n", ran.out)
    assert run("show --json", tmp_path).result["manifest"]["gaps"]["total"] == 30
    made.take("f", gaps=GapNotes(total=0))
    assert re.search(r"gaps +none\n", run("show", tmp_path).out)

"""The commands on a repository on S3, as processes without Spark; and `run`, where it must end before Spark starts."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fabricated import Fabricated
from faultproxy import Answer, FaultProxy
from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.repository import Decisions, Gaps, HeldFile, History, Lease, ObjectRepository
from holdfast.repository.base import held_key
from s3fixture import SECRET, S3Place
from storestream import StoreStream

HOLDFAST = Path(sys.executable).with_name("holdfast")
KEPT = ("PATH", "HOME", "PYTHONPATH")
NO_SPARK = "import sys; sys.modules['pyspark'] = None; from holdfast_spark import main; main()"


PROGRAM = """
import holdfast as hf

pipeline = hf.Pipeline("orders", root={root!r})


@pipeline.stream(sinks=[hf.LogSink({root!r} + "/log")])
def totals(spark):
    return spark.readStream.format("rate").load()
"""


class OnStore(Fabricated):
    """Checkpoints of a made-up pipeline whose files are written to a store."""

    def hold(self, contents: list[str], folder: str) -> list[HeldFile]:
        found = []
        for number, text in enumerate(contents):
            digest = hashlib.sha256(text.encode()).hexdigest()
            self.repository.put_new(held_key(folder, digest), text.encode())
            found.append(HeldFile(f"state/0/{number}/{digest[:8]}.delta", len(text), digest))
        return found


def run(words: str, **environment: str) -> tuple[int, str, str]:
    """Run the command as a process in which PySpark cannot be imported."""
    env = {name: value for name, value in os.environ.items() if name.startswith("AWS_") or name in KEPT}
    command = [sys.executable, "-c", NO_SPARK, *words.split()]
    done = subprocess.run(
        command, env={**env, **environment}, capture_output=True, text=True, timeout=60, check=False, cwd="/"
    )
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def made(s3: S3Place) -> OnStore:
    """A pipeline with two checkpoints and a savepoint, an epoch in doubt and a gap."""
    repository: Any = ObjectRepository(s3.url("pipelines/orders"))
    found = OnStore(repository)
    for text in "ab":
        found.take(text, "kept")
    found.finish(found.checkpoints.claim(1, 1), {"orders": ["d"]}, savepoint="before")
    attempt = Attempt(stream="orders", timeline=1, epoch=2, attempt=1)
    Decisions(repository).close(Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1))
    Gaps(repository).add("orders", 1, 1, kind="quarantined", why="poison", facts={})
    History(repository).add("prune", "too many")
    Lease.take(repository, why="run").release()
    return found


def result(words: str, code: int = 0) -> Any:
    returned, out, err = run(f"{words} --json")
    assert returned == code, out + err
    return json.loads(out)["result"]


def test_every_command_that_looks_works_on_a_store(made: OnStore) -> None:
    at = f"--repo {made.repository.where}"
    (listed,) = result(f"ls {at}")["pipelines"]
    assert (listed["pipeline"], listed["where"], listed["holder"]) == ("orders", made.repository.where, None)
    assert [each["checkpoint"] for each in listed["checkpoints"]] == [1, 2, 3]
    assert result(f"show 2 --files {at}")["manifest"]["checkpoint_id"] == 2
    assert result(f"show before {at}")["manifest"]["savepoint"] == "before"
    assert [each["ok"] for each in result(f"verify --all {at}")["verifications"]] == [True, True, True]
    assert result(f"diff 1 2 {at}", 1)["same"] is False
    assert [each["why"] for each in result(f"gaps {at}", 1)["gaps"]] == ["poison"]
    assert [each["epoch"] for each in result(f"doubt {at}", 1)["doubts"]] == [2]
    assert [each["what"] for each in result(f"log {at}")["entries"]] == ["prune", "run"]
    for words in ("status", "top"):  # an epoch is in doubt
        (state,) = result(f"{words} {at}", 1)["pipelines"]
        assert (state["pipeline"], state["checkpoints"], state["gaps"]) == ("orders", 3, 1)
    assert [each["epoch"] for each in result(f"epochs orders {at}")["epochs"]] == [2]
    assert result(f"runs {at}")["runs"]
    for words in ("ls", "show", "verify", "gaps", "doubt", "log", "status", "top", "epochs", "runs"):
        _, out, err = run(f"{words} {at}")
        assert out, err


def test_a_root_lists_its_pipelines(made: OnStore, s3: S3Place) -> None:
    OnStore(ObjectRepository(s3.url("pipelines/returns")))  # type: ignore[arg-type]
    ObjectRepository(s3.url("pipelines/something-else")).put_new("x", b"x")
    for words in (f"ls {s3.url('pipelines')}", f"ls --repo {s3.url('pipelines')}"):
        assert [each["where"] for each in result(words)["pipelines"]] == [
            s3.url("pipelines/orders"),
            s3.url("pipelines/returns"),
        ]
    code, _, err = run(f"show --repo {s3.url('pipelines')}")
    assert code == 2
    assert "orders, returns" in err
    with Lease.take(made.repository):
        holder = result(f"ls {made.repository.where}")["pipelines"][0]["holder"]
        assert (holder["pid"], holder["lease"], holder["certain"]) == (os.getpid(), 2, True)


def test_a_prune_without_a_running_pipeline_takes_the_lease(made: OnStore) -> None:
    at = f"--repo {made.repository.where}"
    planned = result(f"prune --last 1 --dry-run {at}")
    assert (planned["drops"], planned["pruned"]) == ([1], None)
    assert result(f"prune --last 1 --deep --yes {at}")["pruned"]["dropped"] == [1]
    assert [each["checkpoint"] for each in result(f"ls {at}")["pipelines"][0]["checkpoints"]] == [2, 3]
    assert result(f"prune --last 1 --dry-run {at}")["drops"] == []


@pytest.mark.parametrize("words", ["checkpoint", "savepoint later", "stop", "cancel"])
def test_what_a_running_pipeline_would_do_is_refused_if_none_runs(made: OnStore, words: str) -> None:
    code, out, err = run(f"{words} --repo {made.repository.where}")
    assert "not running" in out + err, (code, out, err)


def test_damage_is_found_on_a_store(made: OnStore, s3: S3Place) -> None:
    folder = s3.folder / "pipelines/orders"
    (path,) = folder.glob(f"timelines/1/checkpoints/1/files/*/{hashlib.sha256(b'a').hexdigest()}")
    made.repository.put_new(str(path.relative_to(folder)), b"damaged")
    verified = result(f"verify --all --repo {made.repository.where}", 1)["verifications"]
    assert [each["ok"] for each in verified] == [False, True, True]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("ls s3://{bucket}/nothing-here", 2, "heads/holdfast"),
        ("ls s3://no-such-bucket-here/x", None, "there is no bucket"),
        ("ls gs://bucket/x", 2, "gs:// is not supported"),
        ("ls s3a://bucket/x", 2, "write s3://bucket/x"),
        ("ls s3://key:hunter2@bucket/x", 2, "AWS_ACCESS_KEY_ID"),
        ("compact --repo s3://{bucket}/x", 2, "object store"),
        ("verify --read-data --repo s3://{bucket}/pipelines/orders", 2, "object store"),
        ("diff 1 2 --keys --repo s3://{bucket}/pipelines/orders", 2, "object store"),
        ("eject s3://{bucket}/pipelines/orders --stream orders --to /tmp/x", 2, "ejecting a stream is not supported"),
        ("doctor s3://{bucket}/pipelines/orders/timelines/1/streams/orders/spark", 2, "s3://"),
        ("ls s3://{bucket}/x --repo s3://{bucket}/y", 2, "remove one"),
    ],
)
def test_what_cannot_be_is_refused_with_the_next_step(
    made: OnStore, s3: S3Place, words: str, code: int | None, text: str
) -> None:
    returned, out, err = run(words.format(bucket=s3.bucket))
    assert returned if code is None else returned == code
    assert text in err
    assert "hunter2" not in out + err


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (None, "BucketMissing"),
        (Answer(403, "AccessDenied"), "StoreDenied"),
        (Answer(400, "AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"), "WrongRegion"),
        (Answer(501, "NotImplemented"), "BucketUnsuitable"),
        ("conditions are ignored", "BucketUnsuitable"),
    ],
    ids=["missing", "denied", "region", "not-implemented", "ignored"],
)
def test_a_run_ends_before_java_starts_if_the_bucket_is_unfit(
    s3: S3Place, s3_faults: FaultProxy, tmp_path: Path, fault: Answer | str | None, kind: str
) -> None:
    if isinstance(fault, Answer):
        s3_faults.fail(fault, "CREATE", times=None)
    s3_faults.ignore_conditions = fault == "conditions are ignored"
    started = tmp_path / "started"
    code, out = run_pipeline(s3.url() if fault else "s3://no-such-bucket/root", tmp_path, started)
    assert code == 2
    assert json.loads(out)["error"]["kind"] == kind
    assert not started.exists()
    assert ObjectRepository(s3.url()).flat() == []


def test_a_run_in_a_sound_bucket_starts_java(s3: S3Place, tmp_path: Path) -> None:
    """The control of the test before: its absence would not show anything otherwise."""
    run_pipeline(s3.url(), tmp_path, tmp_path / "started")
    assert (tmp_path / "started").exists()


def run_pipeline(root: str, folder: Path, started: Path) -> tuple[int, str]:
    """Run a program with a `java` that only leaves a file. Return the exit code and the output."""
    return with_program("run {program}", root, folder, JAVA_HOME=java_that_leaves(started))


def java_that_leaves(started: Path) -> str:
    """Return a JAVA_HOME whose `java` only leaves a file."""
    java = started.parent / "java/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ntouch {started}\nexit 1\n")
    java.chmod(0o755)
    return str(java.parent.parent)


def with_program(words: str, root: str, folder: Path, **environment: str) -> tuple[int, str]:
    """Run a command that loads the program, with PySpark. Return the exit code and the output."""
    program = folder / "app.py"
    program.write_text(PROGRAM.format(root=root))
    command = [HOLDFAST, *words.format(program=program).split(), "--json"]
    env = {**os.environ, **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stdout


def test_a_rewind_is_planned_on_a_store_and_its_undo_is_refused(s3: S3Place, tmp_path: Path) -> None:
    made = StoreStream(s3.url("pipelines/orders"))
    made.run(2)
    made.checkpoint()
    made.run(1)
    before = made.repository.flat()
    code, out = with_program("rewind {program} --to 1 --dry-run", s3.url("pipelines"), tmp_path)
    assert "result" in json.loads(out), out
    assert json.loads(out)["result"]["plan"]["checkpoint"] == 1
    assert json.loads(out)["result"]["rewound"] is None
    code, out = with_program("rewind {program} --undo --dry-run", s3.url("pipelines"), tmp_path)
    assert (code, json.loads(out)["error"]["kind"]) == (2, "NotSupported")
    assert made.repository.flat() == before


def test_a_query_is_not_adopted_on_a_store_and_java_is_not_started(s3: S3Place, tmp_path: Path) -> None:
    (tmp_path / "old/offsets").mkdir(parents=True)
    words = f"adopt {{program}} --stream totals --checkpoint {tmp_path / 'old'} --dry-run"
    java = java_that_leaves(tmp_path / "started")
    code, out = with_program(words, s3.url(), tmp_path, JAVA_HOME=java)
    error = json.loads(out)["error"]
    assert (code, error["kind"]) == (2, "NotSupported"), out
    assert "adopting a query" in error["message"]
    assert not (tmp_path / "started").exists()


def test_a_session_without_the_connector_is_refused_with_the_line_to_add(s3: S3Place, tmp_path: Path) -> None:
    code, out = with_program("run {program}", s3.url(), tmp_path, HOLDFAST_S3A_JARS=str(tmp_path))
    error = json.loads(out.splitlines()[-1])["error"]
    assert (code, error["kind"]) == (2, "NotSupported"), out
    assert "--packages org.apache.hadoop:hadoop-aws:" in error["next"]
    assert ObjectRepository(s3.url()).flat() == []


def test_a_store_that_denies_is_named_without_its_secrets(made: OnStore) -> None:
    code, _, err = run(f"ls {made.repository.where}", AWS_SECRET_ACCESS_KEY="very-wrong-secret")  # noqa: S106
    assert code
    assert "AWS_SECRET_ACCESS_KEY" in err
    assert "very-wrong-secret" not in err

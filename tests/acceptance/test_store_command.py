"""The commands that only look, on a repository on S3, as processes without Spark."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fabricated import Fabricated
from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.repository import Decisions, Gaps, HeldFile, History, Lease, ObjectRepository
from holdfast.repository.base import held_key
from s3fixture import SECRET, S3Place

HOLDFAST = Path(sys.executable).with_name("holdfast")
NO_SPARK = "import sys; sys.modules['pyspark'] = None; from holdfast_spark import main; main()"


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
    env = {name: value for name, value in os.environ.items() if name.startswith("AWS_") or name in ("PATH", "HOME")}
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
    for words in ("ls", "show", "verify", "gaps", "doubt", "log"):
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


def test_a_store_that_denies_is_named_without_its_secrets(made: OnStore) -> None:
    code, _, err = run(f"ls {made.repository.where}", AWS_SECRET_ACCESS_KEY="very-wrong-secret")  # noqa: S106
    assert code
    assert "AWS_SECRET_ACCESS_KEY" in err
    assert "very-wrong-secret" not in err

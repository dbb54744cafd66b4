"""A stateful stream on S3 under load: each checkpoint is restored to another prefix, and compared with a recomputation.

`STORE_CUTS` checkpoints are taken and restored (6); `make soak` takes 60. Clean-up runs with each of them, and treats
epochs as old after a few, so that it deletes while the pipeline runs.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from faultproxy import Fault, FaultProxy
from holdfast import Retention
from holdfast.errors import CheckpointDamaged, CheckpointMissing, Fenced, NotSupported
from holdfast.policy import CheckpointPolicy
from holdfast.pruning import apply_prune, plan_prune
from holdfast.repository import Checkpoints, Lease, ObjectRepository, Status
from holdfast.restore import plan_restore, restore_stream
from holdfast.rewind.apply import apply_rewind
from holdfast.rewind.forking import fork
from holdfast.rewind.planning import plan_rewind
from holdfast.rewind.undo import plan_undo
from holdfast.spark import adapter, housekeeping
from holdfast.spark.statereader import StateFolder, read_data
from holdfast.sparkfiles.places import spark_key
from holdfast.sparkfiles.storefolder import hadoop_root
from holdfast.verification import Grade, verify
from pgfixture import server
from rig import PostgresTarget
from s3fixture import S3Place
from s3spark import StoreRig, connect
from support import eventually

CUTS = int(os.environ.get("STORE_CUTS", "6"))
RETAIN = 4
NAME = "rows"
STATE = f"{spark_key(NAME, 1)}/state/"


def totals(df: DataFrame) -> DataFrame:
    return df.groupBy((f.col("n") % 7).alias("k")).agg(f.sum("n").alias("total"), f.count("n").alias("rows"))


def expected(numbers: list[int]) -> dict[int, tuple[int, int]]:
    return {k: (sum(n for n in numbers if n % 7 == k), count) for k, count in Counter(n % 7 for n in numbers).items()}


class Gate(FaultProxy):
    """A proxy that keeps matching requests back until it is opened."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.held = 0
        self._pattern: re.Pattern[str] | None = None
        self._open = threading.Event()

    def close_for(self, pattern: str) -> None:
        self._open.clear()
        self._pattern = re.compile(pattern)

    def open(self) -> None:
        self._pattern = None
        self._open.set()

    def fault_of(self, kind: str, key: str) -> Any:
        if kind in ("PUT", "CREATE") and self._pattern is not None and self._pattern.search(unquote(key)):
            self.held += 1
            self._open.wait(100)
        return super().fault_of(kind, key)


@pytest.fixture(autouse=True)
def eager(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Spark uploads snapshots often; clean-up runs after each checkpoint, and treats epochs as old after a few."""
    monkeypatch.setattr(housekeeping, "_PRUNE_S", 0.0)
    monkeypatch.setattr(housekeeping, "plan_prune", lambda *a, **k: plan_prune(*a, **{**k, "retain": RETAIN}))
    store: Any = getattr(spark._jvm, "org.apache.spark.sql.execution.streaming.state.StateStore$")  # type: ignore[arg-type]
    settings = {
        f"{adapter.STATE_STORE}.maintenanceInterval": "200ms",
        f"{adapter.STATE_STORE}.minDeltasForSnapshot": "2",
    }
    getattr(store, "MODULE$").stop()
    for name, value in settings.items():  # not `with_settings`: a start of a query waits for that block to end
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)
    getattr(store, "MODULE$").stop()


@pytest.fixture
def rig(spark: SparkSession, s3: S3Place, tmp_path: Path) -> StoreRig:
    return made_rig(spark, s3, tmp_path)


def made_rig(spark: SparkSession, s3: S3Place, folder: Path) -> StoreRig:
    pg = server()
    target = PostgresTarget(pg.dsn(pg.fresh_database()), "totals", create=True, key=["k"])
    return StoreRig(spark, s3, folder, [target], totals, output_mode="update")


def repository_of(rig: StoreRig) -> ObjectRepository:
    return ObjectRepository(f"{rig.root}/torment")


def running(rig: StoreRig, **policy: Any) -> Any:
    options = {"every": None, "epochs": 10**9, "retention": Retention(last=2), **policy}
    return rig.pipeline().start(rig.spark, checkpoint_every=CheckpointPolicy(**options), take_over=True)


def epochs(rig: StoreRig, handle: Any, count: int) -> None:
    """Run epochs of three rows each."""
    before = handle.status().streams[NAME].epoch
    for done in range(1, count + 1):
        rig.add_more(3)
        eventually(lambda done=done: handle.status().streams[NAME].epoch >= before + done, 60)


def forget_state(spark: SparkSession) -> None:
    """Unload all state stores: the next epoch loads them from the store."""
    store: Any = getattr(spark._jvm, "org.apache.spark.sql.execution.streaming.state.StateStore$")  # type: ignore[arg-type]
    getattr(store, "MODULE$").stop()


def state_at(spark: SparkSession, address: Path | str, cut: Any) -> dict[int, tuple[int, int]]:
    state = StateFolder(spark, address, cut.state_format, cut.confs)
    with state.reading():
        rows = state._store("0/default").select("key.*", "value.*").collect()
    return {row[0]: (row[1], row[2]) for row in rows}


def numbers_of(repository: ObjectRepository, folder: str) -> list[int]:
    """Return the input rows that the log of the file source names."""
    found: list[int] = []
    for each in repository.flat(f"{folder}/sources/0"):
        for line in repository.read(each.key).decode().split("\n")[1:]:
            path = Path(unquote(urlsplit(json.loads(line)["path"]).path))
            found += [json.loads(row)["n"] for row in path.read_text().splitlines()]
    return found


def check_cut(rig: StoreRig, number: int, place: str) -> None:
    """Restore a checkpoint to another prefix: its state is what its input gives."""
    repository, spark = repository_of(rig), rig.spark
    plan = plan_restore(repository, number)
    cut = plan.manifest.streams[NAME]
    other = ObjectRepository(f"{rig.root}/{place}")
    restore_stream(repository, plan, NAME, other.where)
    address = hadoop_root(other)
    read = numbers_of(ObjectRepository(rig.root), place)
    assert len(read) == 3 * cut.epoch
    assert state_at(spark, address, cut) == expected(read)


def visible(rig: StoreRig) -> dict[int, tuple[int, int]]:
    return {k: (total, rows) for k, total, rows in rig.targets[0].visible(None, "k total rows")}


def oldest_changelog(repository: ObjectRepository) -> int:
    """Return the oldest version of the state that a changelog is left of."""
    names = [each.key.rpartition("/")[2] for each in repository.flat(f"{STATE}0/0") if each.key.endswith(".changelog")]
    return min((int(name.partition("_")[0]) for name in names), default=0)


def test_each_checkpoint_under_load_is_restored_to_another_prefix_and_is_right(rig: StoreRig, tmp_path: Path) -> None:
    """Clean-up has deleted some of the state at the end: on a busy machine, snapshots are uploaded late."""
    checked: list[int] = []
    repository = repository_of(rig)
    with running(rig, every="1s", epochs=None, retention=Retention(last=3)) as handle:
        while len(checked) < CUTS or oldest_changelog(repository) <= 1:
            assert len(checked) < CUTS + 100, "nothing was cleaned up"
            epochs(rig, handle, 2)
            last = handle.status().checkpoints.last
            if last and last not in checked:
                try:
                    check_cut(rig, last, f"restored-{last}")
                except (CheckpointDamaged, CheckpointMissing):  # retention has dropped it meanwhile
                    continue
                checked.append(last)
        assert handle.status().checkpoints.failed == 0
    kept = [each for each in Checkpoints(repository).all() if each.status is Status.RESTORABLE]
    for each in kept:
        found = verify(repository, each.checkpoint, grade=Grade.READ_DATA, read_data=read_data(rig.spark, repository))
        assert found.ok, found.summary()
    forget_state(rig.spark)
    rig.add_more(3)
    rig.run(take_over=True)
    assert visible(rig) == expected(rig.rows)


def test_a_snapshot_whose_upload_ends_after_a_clean_up_can_be_used(
    spark: SparkSession, s3: S3Place, tmp_path: Path
) -> None:
    with Gate(s3.endpoint) as gate:
        rig = made_rig(spark, s3, tmp_path)
        connect(spark, s3, gate.endpoint)
        with running(rig) as handle:
            epochs(rig, handle, 8)
            handle.checkpoint()
            epochs(rig, handle, 2)
            gate.close_for(r"/state/0/0/\d+_[0-9a-f-]+\.zip")
            eventually(lambda: _one_epoch(rig, handle) and gate.held, 100)
            epochs(rig, handle, RETAIN)
            handle.checkpoint()
            epochs(rig, handle, RETAIN)
            handle.checkpoint()  # and clean up
            gate.open()
            epochs(rig, handle, 4)
            last = handle.checkpoint().checkpoint_id
        assert gate.held
        check_cut(rig, last, "restored")
        forget_state(spark)
        rig.add_more(3)
        rig.run(take_over=True)
        assert visible(rig) == expected(rig.rows)


def _one_epoch(rig: StoreRig, handle: Any) -> bool:
    epochs(rig, handle, 1)
    return True


def test_a_clean_up_of_a_replaced_driver_that_resumes_ten_epochs_later_harms_nothing(rig: StoreRig) -> None:
    repository = repository_of(rig)
    with running(rig, retention=None) as handle:
        for _ in range(3):
            epochs(rig, handle, 5)
            handle.checkpoint()
        late = plan_prune(repository, Retention(last=1), retain=RETAIN)
        assert late.garbage
    with running(rig) as handle:
        epochs(rig, handle, 5)
        handle.checkpoint()
        epochs(rig, handle, 5)
        handle.checkpoint()
        repository.delete_all(late.garbage)  # it had looked at its lease just before it was paused
        epochs(rig, handle, 2)
        last = handle.checkpoint().checkpoint_id
    check_cut(rig, last, "restored")
    forget_state(rig.spark)
    rig.add_more(3)
    rig.run(take_over=True)
    assert visible(rig) == expected(rig.rows)


def test_a_batch_that_a_replaced_driver_commits_after_a_clean_up_can_be_loaded(
    spark: SparkSession, s3: S3Place, tmp_path: Path
) -> None:
    """Its entry of the commit log is on its way while another process takes the lease and cleans up."""
    with Gate(s3.endpoint) as gate:
        rig = made_rig(spark, s3, tmp_path)
        connect(spark, s3, gate.endpoint)
        repository = repository_of(rig)
        with pytest.raises(Fenced), running(rig, retention=None) as handle:
            for _ in range(3):
                epochs(rig, handle, 5)
                handle.checkpoint()
            gate.close_for(r"/spark/commits/\d+")
            rig.add_more(3)
            eventually(lambda: gate.held)
            with Lease.take(repository, take_over=True) as lease:
                plan = plan_prune(repository, Retention(last=1), retain=RETAIN)
                assert apply_prune(repository, plan, lease).objects
            late = len(repository.flat(f"{spark_key(NAME, 1)}/commits"))
            gate.open()
            eventually(lambda: len(repository.flat(f"{spark_key(NAME, 1)}/commits")) > late)
            rig.add_more(3)  # its next epoch finds out that it was replaced
            assert handle.wait(60)
        forget_state(spark)
        rig.run(take_over=True)
        assert visible(rig) == expected(rig.rows)
        with running(rig) as handle:
            epochs(rig, handle, 1)
            last = handle.checkpoint().checkpoint_id
        check_cut(rig, last, "restored")


def test_requests_of_a_checkpoint(spark: SparkSession, s3: S3Place, tmp_path: Path) -> None:
    with FaultProxy(s3.endpoint) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        rig = made_rig(spark, s3, tmp_path)  # Spark itself uses the server without the proxy
        with running(rig) as handle:
            epochs(rig, handle, 5)
            handle.checkpoint()
            epochs(rig, handle, 1)
            time.sleep(1)  # Spark's snapshots are uploaded
            proxy.reset()
            manifest = handle.checkpoint()
            seen = [each for each in list(proxy.seen) if "/heads/" not in each.key]
    counts = Counter(each.kind for each in seen)
    files = manifest.streams[NAME].file_count
    print(f"{files} files: {dict(counts)}")
    state = [each.key for each in seen if each.kind == "GET" and "/spark/state/" in each.key]
    assert len(state) == len(set(state)) <= files
    assert not [each for each in seen if each.kind == "HEAD" and "/state/" in each.key]


def test_a_rewind_copies_the_closure_and_goes_on_from_there(rig: StoreRig) -> None:
    repository = repository_of(rig)
    with running(rig) as handle:
        epochs(rig, handle, 6)
        base = handle.checkpoint()
        epochs(rig, handle, 3)
    pipeline = rig.pipeline()
    with pytest.raises(NotSupported, match="object store"):
        plan_undo(pipeline)
    plan = plan_rewind(pipeline, base.checkpoint_id, leave=["postgres.totals"])
    assert not plan.problems, plan.problems
    done = apply_rewind(pipeline, plan, take_over=True)
    assert done.epochs == {NAME: 6}
    assert repository.flat(spark_key(NAME, done.timeline))
    with running(rig) as handle:
        epochs(rig, handle, 1)
        eventually(lambda: visible(rig) == expected(rig.rows), 60)
        last = handle.checkpoint()
    assert last.streams[NAME].timeline == done.timeline
    found = verify(repository, last.checkpoint_id)
    assert found.ok, found.summary()


def test_a_fork_runs_from_the_checkpoint_into_its_own_target(
    rig: StoreRig, spark: SparkSession, s3: S3Place, tmp_path: Path
) -> None:
    with running(rig) as handle:
        epochs(rig, handle, 5)
        handle.checkpoint()
        epochs(rig, handle, 2)
    made = fork(repository_of(rig), "latest", name="torment", root=s3.url("trials"))
    other = made_rig(spark, s3, tmp_path)
    other.root = s3.url("trials")
    other.rows, other.inputs = list(rig.rows), rig.inputs
    assert made.where == f"{other.root}/torment"
    forget_state(spark)
    other.add_more(3)
    other.run(take_over=True)
    found = visible(other)
    assert found == {k: value for k, value in expected(other.rows).items() if k in found}
    assert found


def test_a_savepoint_survives_the_loss_of_sparks_folder(rig: StoreRig) -> None:
    repository = repository_of(rig)
    with running(rig) as handle:
        epochs(rig, handle, 5)
        handle.savepoint("kept")
    for each in repository.flat(spark_key(NAME, 1)):
        repository.delete(each.key)
    found = verify(repository, "kept", grade=Grade.READ_DATA, read_data=read_data(rig.spark, repository))
    assert found.ok, found.summary()


def test_checkpoints_while_requests_fail(spark: SparkSession, s3: S3Place, tmp_path: Path) -> None:
    """A failed request fails a checkpoint at most: none that is restorable is wrong."""
    with FaultProxy(s3.endpoint) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        rig = made_rig(spark, s3, tmp_path)
        with running(rig) as handle:
            epochs(rig, handle, 4)
            for fault in (Fault.DROP_AFTER, Fault.ANSWER_503, Fault.APPLIED_500):
                proxy.fail(fault, key="/checkpoints/", chance=0.1)
            last = [handle.checkpoint().checkpoint_id for _ in range(3) if _one_epoch(rig, handle)][-1]
            proxy.clear()
        check_cut(rig, last, "restored")

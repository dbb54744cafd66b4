"""Checkpoints of whole pipelines: taken without a stall, given up in time, never taken for more than they are."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast.barriers import BarrierFlags
from holdfast.control import channel, request_prune
from holdfast.coordinator import POINTS, CheckpointRequest
from holdfast.epoch import Decision
from holdfast.errors import (
    AlreadyExists,
    BadValue,
    CheckpointFailed,
    CheckpointsFailed,
    Closed,
    Fenced,
    NotSupported,
    OutcomeUnknown,
    SinkFailed,
    StorageFailed,
    StreamFailed,
)
from holdfast.policy import Backoff, CheckpointPolicy, RestartPolicy, Retention
from holdfast.pruning import plan_prune
from holdfast.repository import Checkpoints, Lease, LocalRepository, Status
from holdfast.repository.checkpoint_keys import place_of
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.sqlite import SqliteSink
from holdfast.spark import checkpoints as checkpointing
from holdfast.spark import control_thread, housekeeping
from holdfast.spark.context import StreamCallbacks
from holdfast.spark.failures import BUDGETED
from holdfast.spark.handle import PipelineHandle
from holdfast.spark.pipeline import Pipeline
from holdfast.stages import CallbackObserver
from holdfast.testing import CrashAt, Crashed
from holdfast.verification import verify, verify_all
from support import eventually

SCHEMA = "n long, text string"


class Chain:
    """Three streams in a row: rows, what they count to, and how often each count came up."""

    def __init__(self, spark: SparkSession, folder: Path, **options: Any) -> None:
        self.spark = spark
        self.folder = folder
        self.options = options
        self.files = 0
        (folder / "in").mkdir()

    @property
    def repository(self) -> LocalRepository:
        return LocalRepository(self.folder / "root" / "chain")

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.repository)

    def add(self, count: int = 5) -> None:
        self.files += 1
        path = self.folder / "in" / f".{self.files:06}.json"
        rows = [{"n": self.files * 1000 + n, "text": f"t{(self.files + n) % 7}"} for n in range(count)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_700_000_000 + self.files,) * 2)
        path.rename(self.folder / "in" / f"{self.files:06}.json")

    def source(self) -> DataFrame:
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.folder / "in"))

    def pipeline(self, on_epoch: dict[str, Any] | None = None) -> Pipeline:
        made = Pipeline("chain", self.folder / "root", restart=RestartPolicy.never(), **self.options)
        for name, build in {"a": self._a, "b": self._b, "c": self._c}.items():
            each = (on_epoch or {}).get(name)
            more: dict[str, Any] = {"stage": 0, "on_epoch": each} if each else {}
            sinks = [FileSink(self.folder / name, changelog=True)]
            made.stream(build(made), name=name, sinks=sinks, output_mode="append" if name == "a" else "update", **more)
        return made

    def _a(self, made: Pipeline) -> Callable[[SparkSession], DataFrame]:
        return lambda _: self.source()

    def _b(self, made: Pipeline) -> Callable[[SparkSession], DataFrame]:
        return lambda _: made.read("a").groupBy("text").agg(f.count("*").alias("c"))

    def _c(self, made: Pipeline) -> Callable[[SparkSession], DataFrame]:
        return lambda _: made.read("b").groupBy("c").agg(f.count("*").alias("often"))


class Single(Chain):
    """One stream, quickly run."""

    def pipeline(self, on_epoch: dict[str, Any] | None = None) -> Pipeline:
        made = Pipeline("chain", self.folder / "root", restart=RestartPolicy.never(), **self.options)
        more: dict[str, Any] = {"stage": 0, "on_epoch": on_epoch["a"]} if on_epoch else {}
        made.stream(lambda _: self.source(), name="a", sinks=[SqliteSink(self.folder / "a.db", "rows")], **more)
        return made


class Slow:
    """An `on_epoch` that takes until its gate is opened."""

    def __init__(self) -> None:
        self.gate, self.inside = threading.Event(), threading.Event()

    def __call__(self, df: DataFrame, stage: Any) -> DataFrame:
        self.inside.set()
        self.gate.wait(300)
        return df


@contextmanager
def running(made: Pipeline, spark: SparkSession, **options: Any) -> Iterator[PipelineHandle]:
    handle = made.start(spark, **{"checkpoint_every": None, **options})
    try:
        yield handle
    finally:
        handle.stop()


def ids(chain: Chain, status: Status = Status.RESTORABLE) -> list[int]:
    return [each.checkpoint for each in chain.checkpoints.all() if each.status is status]


# --- a chain ---


def test_available_now_takes_everything_through_a_chain_upstream_first(spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(spark, tmp_path)
    for _ in range(3):
        chain.add()
    status = chain.pipeline().run(spark, available_now=True, checkpoint_every="1h")
    epochs = {name: stream.epoch for name, stream in status.streams.items()}
    assert epochs["a"] == 3 and epochs["b"] >= 1 and epochs["c"] >= 1
    manifest = chain.checkpoints.latest()  # the last one, because something had gone through
    assert {name: cut.epoch for name, cut in manifest.streams.items()} == epochs
    assert manifest.streams["a"].rows == 15
    cuts = manifest.streams
    assert json.loads(str(cuts["b"].offsets[0]))["sequence"] == cuts["a"].sinks["log"]["tail"] == 15
    assert json.loads(str(cuts["c"].offsets[0]))["sequence"] == cuts["b"].sinks["log"]["tail"]
    assert cuts["c"].reads == ("b",)
    assert cuts["a"].sources[0].startswith("FileSource")
    chain.pipeline().run(spark, available_now=True, checkpoint_every="1h")
    assert chain.checkpoints.latest() == manifest  # nothing new: no other one


def test_a_cycle_and_an_unknown_stream_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(spark, tmp_path)
    made = Pipeline("chain", tmp_path / "root")
    made.stream(lambda _: made.read("two"), name="one", sinks=[FileSink(tmp_path / "1")])
    made.stream(lambda _: made.read("one"), name="two", sinks=[FileSink(tmp_path / "2")])
    with pytest.raises(BadValue, match="reads from"):
        made.start(spark)
    made = Pipeline("chain", tmp_path / "root")
    made.stream(lambda _: chain.source(), name="one", sinks=[FileSink(tmp_path / "1")], reads=["none"])
    with pytest.raises(BadValue, match="no such stream"):
        made.start(spark)
    with pytest.raises(ValueError, match="only known while its function is called"):
        made.read("one")


# --- on by default, and a last one ---


def test_checkpoints_are_on_by_default_and_a_graceful_stop_takes_a_last_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    chain = Single(spark, tmp_path)
    chain.add()
    with chain.pipeline().start(spark) as handle:
        eventually(lambda: handle.status().streams["a"].epoch == 1)
        assert handle._checkpointing._setup.policy.every == "1m"
    assert chain.checkpoints.latest().streams["a"].epoch == 1
    assert handle.status().checkpoints.taken == 1
    chain.pipeline().start(spark).stop()
    assert ids(chain) == [1]  # no stream has advanced
    chain.add()
    chain.pipeline().run(spark, available_now=True)
    assert chain.checkpoints.latest().streams["a"].epoch == 2
    chain.add()
    chain.pipeline().run(spark, available_now=True, checkpoint_every=None)
    assert ids(chain) == [1, 2]


def test_the_last_checkpoint_holds_every_stream_of_a_chain_at_its_end(spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(spark, tmp_path)
    chain.add()
    handle = chain.pipeline().start(spark, checkpoint_every="1h")
    eventually(lambda: all(each.epoch for each in handle.status().streams.values()))
    handle.stop()
    ended = {name: each.epoch for name, each in handle.await_termination().streams.items()}
    assert {name: cut.epoch for name, cut in chain.checkpoints.latest().streams.items()} == ended
    assert all(each.ok for each in verify_all(chain.repository))


@pytest.mark.parametrize("wrong", ["mark", "commit"])
def test_a_last_checkpoint_that_fails_is_reported_and_does_not_fail_the_stop(
    spark: SparkSession, tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Single(spark, tmp_path)
    told: list[str] = []
    chain.options = {"callbacks": StreamCallbacks(on_checkpoint_failed=lambda *facts: told.append(str(facts[1])))}
    chain.add()
    policy = CheckpointPolicy(every="1h", timeout="1h", tolerable_failures=0)
    handle = chain.pipeline().start(spark, checkpoint_every=policy)
    eventually(lambda: handle.status().streams["a"].epoch == 1)

    def fails() -> dict[str, Any]:
        raise OSError("no mark")

    if wrong == "mark":
        monkeypatch.setattr(handle._streams[0].spec.sinks[0], "mark", fails)
    else:
        monkeypatch.setattr(handle._streams[0], "is_committed", lambda _: False)
    handle.stop()
    assert handle.await_termination().streams["a"].state == "stopped"
    assert ids(chain) == [] and ids(chain, Status.ABORTED) == [1]
    (text,) = told
    assert ("no mark" if wrong == "mark" else "ended before Spark committed epoch 1") in text


def test_a_hard_stop_takes_no_last_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    chain = Single(spark, tmp_path)
    chain.add()
    handle = chain.pipeline().start(spark)
    eventually(lambda: handle.status().streams["a"].epoch == 1)
    handle.kill()
    assert handle.wait(120)
    assert chain.checkpoints.all() == []


# --- idle, slow, failing, just started ---


def test_idle_slow_and_just_started_streams_in_one_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    """A stream between two epochs is acknowledged for; a slow one is waited for, and named when it is late."""
    chain = Chain(spark, tmp_path)
    chain.add()
    slow = Slow()
    policy = CheckpointPolicy(every=None, timeout=3)
    with running(chain.pipeline({"b": slow}), spark, checkpoint_every=policy) as handle:
        slow.inside.wait(60)
        eventually(lambda: handle.status().streams["a"].epoch > 0)
        with pytest.raises(CheckpointFailed) as late:
            handle.checkpoint(timeout=120)
        assert late.value.late == ("b",) and "b did not acknowledge" in str(late.value)
        assert ids(chain) == []
        (aborted,) = [each for each in chain.checkpoints.all() if each.status is Status.ABORTED]
        assert "b did not acknowledge" in str(aborted.why)
        slow.gate.set()
        eventually(lambda: handle.status().streams["c"].epoch > 0)
        use_policy(handle, CheckpointPolicy(every=None))
        manifest = handle.checkpoint(timeout=120)
        assert manifest.checkpoint_id == 2  # the first id is burnt
        assert all(cut.epoch for cut in manifest.streams.values())
    assert handle.status().checkpoints.failed == 1


def test_a_fast_stream_is_kept_though_spark_forgets_its_epoch_while_another_is_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a large state takes as long as a fast stream takes for more batches than Spark retains."""
    chain = Chain(spark, tmp_path)
    chain.add()
    made = Pipeline("chain", tmp_path / "root", restart=RestartPolicy.never())
    for name in ("a", "b"):
        made.stream(lambda _: chain.source(), name=name, sinks=[SqliteSink(tmp_path / f"{name}.db", "rows")])
    hold_all = LocalRepository.hold_all
    with running(made, spark, checkpoint_every=CheckpointPolicy(every=None, timeout=30)) as handle:
        eventually(lambda: [each.epoch for each in handle.status().streams.values()] == [1, 1])
        commits = [chain.repository.root / f"timelines/1/streams/{name}/spark/commits/0" for name in ("a", "b")]
        eventually(lambda: all(each.exists() for each in commits))

        def forgotten_meanwhile(*args: Any, **options: Any) -> Any:
            for each in commits:
                if each.exists():
                    each.rename(each.with_name(".0.hidden"))
            attempt = handle._checkpointing._attempt
            assert attempt is not None
            attempt.protocol._deadline = 0.0  # the timeout is for what is waited for
            return hold_all(*args, **options)

        monkeypatch.setattr(LocalRepository, "hold_all", forgotten_meanwhile)
        manifest = handle.checkpoint(timeout=120)
        for each in commits:
            each.with_name(".0.hidden").rename(each)
    assert {name: cut.epoch for name, cut in manifest.streams.items()} == {"a": 1, "b": 1}
    assert all(each.ok for each in verify_all(chain.repository))


def test_streams_that_have_not_started_enter_the_manifest_as_such(spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(spark, tmp_path)
    with running(chain.pipeline(), spark) as handle:
        manifest = handle.checkpoint(timeout=120)
    assert {cut.epoch for cut in manifest.streams.values()} == {0}
    assert {cut.files for cut in manifest.streams.values()} == {None}


def test_a_stream_that_fails_ends_the_attempt(spark: SparkSession, tmp_path: Path) -> None:
    chain = Single(spark, tmp_path)
    inside, gate = threading.Event(), threading.Event()

    def fails(df: DataFrame, stage: Any) -> DataFrame:
        inside.set()
        gate.wait(60)
        raise ZeroDivisionError("on purpose")

    chain.add()
    handle = chain.pipeline({"a": fails}).start(
        spark, checkpoint_every=CheckpointPolicy(every=None, tolerable_failures=0)
    )
    inside.wait(60)
    asked: list[Exception] = []

    def ask() -> None:
        try:
            handle.checkpoint(timeout=120)
        except CheckpointFailed as error:
            asked.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    eventually(lambda: handle.status().checkpoints.under_way == 1)
    gate.set()
    asking.join(30)
    with pytest.raises(StreamFailed):  # and not what came of it
        handle.await_termination(120)
    assert "stream a failed" in str(asked[0])
    assert ids(chain) == []


def test_more_failures_in_a_row_than_are_tolerable_end_the_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    chain = Single(spark, tmp_path)
    told: list[str] = []
    chain.options = {"callbacks": StreamCallbacks(on_checkpoint_failed=lambda *facts: told.append(str(facts[1])))}
    slow = Slow()
    chain.add()
    policy = CheckpointPolicy(every=None, timeout=0.2, tolerable_failures=1)
    handle = chain.pipeline({"a": slow}).start(spark, checkpoint_every=policy)
    slow.inside.wait(60)
    for number in (1, 2):
        with pytest.raises(CheckpointFailed, match=f"checkpoint {number} "):
            handle.checkpoint(timeout=120)
    slow.gate.set()
    with pytest.raises(CheckpointsFailed, match="2 checkpoints in a row"):
        handle.await_termination(120)
    assert len(told) == 2
    assert chain.pipeline({"a": slow}).run(spark, available_now=True).streams["a"].epoch == 1  # no row was lost


def test_a_checkpoint_that_the_end_gives_up_makes_no_failure_of_a_clean_stop(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "_UNDER_WAY_S", 0.0)
    chain = Single(spark, tmp_path)
    handle = chain.pipeline().start(spark, checkpoint_every=CheckpointPolicy(epochs=1, tolerable_failures=0))
    handle._streams[0].is_committed = lambda _: False  # type: ignore[method-assign]
    chain.add()
    eventually(lambda: handle.status().checkpoints.under_way == 1)
    handle.stop()
    assert handle.await_termination(120).checkpoints.last_error is not None
    assert ids(chain, Status.ABORTED) == [1]


def test_the_last_checkpoint_of_what_was_available_counts_as_a_failure_and_is_not_waited_for_in_vain(
    spark: SparkSession, tmp_path: Path
) -> None:
    chain = Single(spark, tmp_path)
    chain.add()
    policy = CheckpointPolicy(every=3600, tolerable_failures=0)
    handle = chain.pipeline().start(spark, available_now=True, checkpoint_every=policy)
    handle._streams[0].is_committed = lambda _: False  # type: ignore[method-assign]
    with pytest.raises(CheckpointsFailed, match="ended before Spark committed epoch 1"):
        handle.await_termination(120)


def test_a_checkpoint_can_be_cancelled(spark: SparkSession, tmp_path: Path) -> None:
    chain = Single(spark, tmp_path)
    slow = Slow()
    chain.add()
    policy = CheckpointPolicy(every=None, tolerable_failures=0)  # what is cancelled has not failed
    with running(chain.pipeline({"a": slow}), spark, checkpoint_every=policy) as handle:
        slow.inside.wait(60)

        def cancel() -> None:
            eventually(lambda: handle.status().checkpoints.under_way is not None)
            handle.cancel_checkpoint()

        threading.Thread(target=cancel).start()
        with pytest.raises(CheckpointFailed, match="cancelled"):
            handle.checkpoint(timeout=120)
        slow.gate.set()
        eventually(lambda: handle.status().streams["a"].epoch == 1)
        assert handle.checkpoint(timeout=120).streams["a"].epoch == 1


# --- savepoints, drain, observers ---


def test_a_savepoint_shares_nothing_with_the_live_files(spark: SparkSession, tmp_path: Path) -> None:
    chain = Single(spark, tmp_path)
    chain.add()
    with running(chain.pipeline(), spark) as handle:
        eventually(lambda: handle.status().streams["a"].epoch == 1)
        linked = handle.checkpoint(timeout=120)
        saved = handle.savepoint("before-the-change", timeout=120)
        with pytest.raises(AlreadyExists):
            handle.savepoint("before-the-change", timeout=120)
    assert saved.savepoint == "before-the-change" and saved.checkpoint_id == 2
    place, _ = chain.checkpoints.find("before-the-change")
    files = chain.checkpoints.files(place, saved.streams["a"], "before-the-change").files
    assert len(files) == saved.streams["a"].file_count > 0
    root = chain.repository.root
    for each in files:
        assert (root / place.object(each.sha256)).stat().st_nlink == 1
    shared = chain.checkpoints.files(place_of(1, 1), linked.streams["a"], 1).files
    assert any((root / place_of(1, 1).object(each.sha256)).stat().st_nlink > 1 for each in shared)


def test_drain_lets_everything_through_and_stops_at_the_last_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(spark, tmp_path)
    for _ in range(3):
        chain.add()
    handle = chain.pipeline().start(spark)
    manifest = handle.drain(timeout=60)
    status = handle.await_termination(120)
    assert {name: cut.epoch for name, cut in manifest.streams.items()} == {
        name: stream.epoch for name, stream in status.streams.items()
    }
    assert manifest.streams["a"].rows == 15
    cuts = manifest.streams
    assert json.loads(str(cuts["b"].offsets[0]))["sequence"] == 15
    assert json.loads(str(cuts["c"].offsets[0]))["sequence"] == cuts["b"].sinks["log"]["tail"]


def test_the_last_checkpoint_of_a_drain_has_the_time_that_the_policy_gives(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams are kept one after the other: what is given to one that is merely under way is over after the first."""
    monkeypatch.setattr(checkpointing, "_UNDER_WAY_S", 0.0)
    chain = Chain(spark, tmp_path)
    chain.add()
    handle = chain.pipeline().start(spark)
    assert set(handle.drain(timeout=60, savepoint="large").streams) == {"a", "b", "c"}
    chain.add()
    handle = chain.pipeline().start(spark, checkpoint_every=3600, available_now=True)
    assert handle.await_termination(60).checkpoints.last == 2


def test_a_checkpoint_that_somebody_waits_for_has_the_time_that_the_policy_gives_also_at_the_end(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "_UNDER_WAY_S", 0.0)
    chain = Single(spark, tmp_path)
    chain.add()
    handle = chain.pipeline().start(spark)
    eventually(lambda: handle.status().streams["a"].epoch == 1)
    gate, keep = threading.Event(), handle._streams[0].snapshots.keep
    monkeypatch.setattr(handle._streams[0].snapshots, "keep", lambda pinned: keep(pinned) if gate.is_set() else None)
    asked = [handle._checkpointing.request(CheckpointRequest(BarrierFlags.FULL_SNAPSHOT, name)) for name in ("x", "y")]
    eventually(lambda: handle.status().checkpoints.under_way == 1)
    stopping = threading.Thread(target=handle.stop)
    stopping.start()
    assert not handle.wait(1)
    gate.set()
    assert [each.result(60).savepoint for each in asked] == ["x", "y"]
    stopping.join()


def test_observers_are_told_around_each_durable_step(spark: SparkSession, tmp_path: Path) -> None:
    told: list[tuple[str, int | None]] = []
    chain = Single(spark, tmp_path, observers=[CallbackObserver(lambda what, lease: told.append((what, lease)))])
    chain.add()
    with running(chain.pipeline(), spark) as handle:
        eventually(lambda: handle.status().streams["a"].epoch == 1)
        handle.checkpoint(timeout=120)
    assert told == [("start", 1), ("complete", 1)] * (len(told) // 2)
    assert len(told) >= 6  # the claim, the files, the manifest


# --- what must not harm ---


def test_a_sink_that_cannot_tell_its_mark_fails_the_checkpoint_and_not_the_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    chain = Single(spark, tmp_path)
    made = chain.pipeline()
    chain.add()
    handle = made.start(spark)
    try:
        eventually(lambda: handle.status().streams["a"].epoch == 1)
        sink = handle._streams[0].spec.sinks[0]
        sink.mark = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        with pytest.raises(CheckpointFailed, match="division by zero"):
            handle.checkpoint(timeout=120)
        del sink.mark
        chain.add()
        eventually(lambda: handle.status().streams["a"].epoch == 2)
        assert handle.checkpoint(timeout=120).streams["a"].epoch == 2
        assert handle.status().streams["a"].restarts == 0
    finally:
        handle.stop()


def test_a_checkpoint_that_cannot_even_begin_is_counted_and_the_streams_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    chain = Single(spark, tmp_path)
    chain.add()
    with running(chain.pipeline(), spark) as handle:
        real = handle._checkpointing._setup.checkpoints.claim
        handle._checkpointing._setup.checkpoints.claim = full_disk  # type: ignore[method-assign]
        with pytest.raises(CheckpointFailed, match="No space left"):
            handle.checkpoint(timeout=120)
        handle._checkpointing._setup.checkpoints.claim = real  # type: ignore[method-assign]
        eventually(lambda: handle.status().streams["a"].epoch == 1)
        assert handle.checkpoint(timeout=120).checkpoint_id == 1
        assert handle.status().checkpoints.failed == 1


def use_policy(handle: PipelineHandle, policy: CheckpointPolicy) -> None:
    """Take the next checkpoints by another policy."""
    checkpointing = handle._checkpointing
    checkpointing._setup = dataclasses.replace(checkpointing._setup, policy=policy)


def full_disk(*_: object) -> int:
    raise StorageFailed(action="write", key="attempt.json", why="No space left on device")


def test_waiting_inside_a_callback_is_refused_and_so_is_asking_after_the_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    asked: list[Exception] = []
    handles: list[PipelineHandle] = []

    def ask(*_: object) -> None:
        try:
            handles[0].checkpoint(timeout=20)
        except (NotSupported, IndexError) as error:
            asked.append(error)

    chain = Single(spark, tmp_path, callbacks=StreamCallbacks(on_epoch=ask, on_checkpoint=ask))
    with running(chain.pipeline(), spark) as handle:
        handles.append(handle)
        chain.add()
        eventually(lambda: handle.status().streams["a"].epoch == 1 and bool(asked))
        handle.checkpoint(timeout=120)
        eventually(lambda: len(asked) == 2)
    assert all("inside a callback" in str(error) for error in asked)
    with pytest.raises(Closed, match="ended"):
        handle.checkpoint()


PRUNER = """
import sys, time
import holdfast as hf
repository = hf.repository.LocalRepository(sys.argv[1])
for _ in range(3):
    print(hf.control.request_prune(repository, hf.Retention(last=2), timeout_s=30).summary(), flush=True)
"""


def test_a_prune_from_another_process_beside_a_running_pipeline_takes_nothing_that_is_needed(
    spark: SparkSession, tmp_path: Path
) -> None:
    chain = Single(spark, tmp_path)
    policy = CheckpointPolicy(every=0.001, retention=None)  # the next one is due before this one has ended
    with running(chain.pipeline(), spark, checkpoint_every=policy) as handle:
        while handle.status().checkpoints.taken < 3:
            chain.add()
            assert not handle.wait(0.2)
        place = str(chain.repository.root)
        asking = subprocess.Popen([sys.executable, "-c", PRUNER, place], stdout=subprocess.PIPE, text=True)
        while asking.poll() is None:
            chain.add()
            time.sleep(0.2)
        said = asking.communicate()[0]
    assert said.count("deleted") == 3 and not said.startswith("deleted 0 checkpoints and 0")
    found = verify_all(chain.repository)
    assert found and all(each.ok for each in found), [each.summary() for each in found]


def test_an_answer_that_lies_there_costs_nothing_until_it_is_old(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_thread, "LOOK_S", 0.02)
    told: list[str] = []
    chain = Single(spark, tmp_path, observers=[CallbackObserver(lambda what, _: told.append(what))])
    with running(chain.pipeline(), spark) as handle:
        handle.checkpoint(timeout=120)
        request_prune(chain.repository, Retention(last=2), timeout_s=60)
        looks: list[str] = []
        listed, read = LocalRepository.list, LocalRepository.read
        monkeypatch.setattr(LocalRepository, "list", lambda self, at="": looks.append(at) or listed(self, at))
        monkeypatch.setattr(LocalRepository, "read", lambda self, key: looks.append(key) or read(self, key))

        folder = f"requests/{handle.status().lease:08}"

        def looked(more: int) -> None:
            seen = looks.count(folder)
            eventually(lambda: looks.count(folder) >= seen + more)

        looked(2)
        before = len(told)
        looks.clear()
        looked(5)
        assert len(told) == before
        assert set(looks) == {folder}
        monkeypatch.setattr(channel, "KEPT_MS", -1)
        handle._control._channel.forget()
        assert listed(chain.repository, folder) == ["open.json"]


def test_retention_is_kept_while_it_runs_and_decisions_that_a_checkpoint_needs_stay(
    spark: SparkSession, tmp_path: Path
) -> None:
    chain = Single(spark, tmp_path)
    for _ in range(5):
        chain.add()
    policy = CheckpointPolicy(epochs=1, retention=Retention(last=2))
    with running(chain.pipeline(), spark, checkpoint_every=policy) as handle:
        eventually(lambda: handle.status().streams["a"].epoch == 5)
        handle.checkpoint(timeout=120)
        taken = handle.status().checkpoints.taken
    assert taken >= 2
    assert len(ids(chain)) == 2
    oldest = min(each.epochs["a"] for each in chain.checkpoints.restorable() if each.epochs)
    assert handle._streams[0].oldest_kept == oldest
    assert plan_prune(chain.repository, Retention(last=2)).empty


def test_where_all_are_kept_a_checkpoint_does_not_read_all_before_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_PRUNE_S", 0.0)
    chain = Single(spark, tmp_path)
    chain.add()
    with running(chain.pipeline(), spark, checkpoint_every=CheckpointPolicy(every=None, retention=None)) as handle:
        eventually(lambda: handle.status().streams["a"].epoch == 1)
        checkpoints, looks = handle._checkpointing._setup.checkpoints, []
        restorable = checkpoints.restorable
        checkpoints.restorable = lambda *at: looks.append(at) or restorable(*at)  # type: ignore[method-assign]
        for _ in range(4):
            handle.checkpoint(timeout=120)
    assert len(looks) == 1
    assert handle._streams[0].oldest_kept == 1


def test_what_failed_attempts_have_kept_is_collected_but_for_what_the_next_one_can_use(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_PRUNE_S", 0.0)
    chain = Single(spark, tmp_path)
    with running(chain.pipeline(), spark) as handle:
        handle._checkpointing._setup.checkpoints.put = full_disk  # type: ignore[method-assign,assignment]
        for number in range(1, 4):
            chain.add()
            eventually(lambda epoch=number: handle.status().streams["a"].epoch == epoch)
            with pytest.raises(CheckpointFailed, match="No space left"):
                handle.checkpoint(timeout=120)
        last = handle._streams[0].snapshots._last
        assert last is not None
        needed = {each.sha256 for each in last.files}
        eventually(lambda: {each.name for each in chain.repository.root.glob("objects/*/*")} == needed, 20)


def test_a_damaged_checkpoint_that_holds_up_the_clean_up_is_told_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(housekeeping, "_PRUNE_S", 0.0)
    chain = Single(spark, tmp_path)
    with running(chain.pipeline(), spark) as handle:
        handle.checkpoint(timeout=120)
        manifest = chain.repository.root / place_of(1, 1).manifest
        sound = manifest.read_bytes()
        for found, times in ((b"{}", 1), (b"{}", 1), (sound, 1), (b"{}", 2)):
            manifest.write_bytes(found)
            for _ in range(2):  # it is cleaned up before the second
                handle.checkpoint(timeout=120)
            told = [each.getMessage() for each in caplog.records if "no objects are collected" in each.getMessage()]
            assert len(told) == times
        manifest.unlink()
        for _ in range(2):
            handle.checkpoint(timeout=120)
        assert ids(chain, Status.ABORTED) == [1], "it was given up, as the warning says"
    assert plan_prune(chain.repository, Retention()).blocked is None
    assert "checkpoint 1 is damaged" in told[0] and "holdfast verify --all" in told[0]


def test_two_savepoints_of_one_name_leave_the_first(spark: SparkSession, tmp_path: Path) -> None:
    chain = Single(spark, tmp_path)
    chain.add()
    with running(chain.pipeline(), spark) as handle:
        eventually(lambda: handle.status().streams["a"].epoch == 1)
        inside, gate = threading.Event(), threading.Event()
        # Neither is taken before both are requested.
        handle._checkpointing.between(lambda: (inside.set(), gate.wait(60)))
        assert inside.wait(60)
        asked = [handle._checkpointing.request(CheckpointRequest(BarrierFlags.FULL_SNAPSHOT, "x")) for _ in range(2)]
        gate.set()
        assert asked[0].result(30).savepoint == "x"
        with pytest.raises(CheckpointFailed, match="already exists"):
            asked[1].result(30)
        assert handle.checkpoint(timeout=120).checkpoint_id == 2
    assert verify(chain.repository, "x").ok


def test_a_savepoint_that_fails_leaves_no_copies_and_gives_up_in_the_space_that_frees(
    spark: SparkSession, tmp_path: Path
) -> None:
    """On a full disk not even the record that it was given up can be written while the copies are there."""
    chain = Single(spark, tmp_path)
    chain.add()
    copies = chain.repository.root / "savepoints/x"
    with running(chain.pipeline(), spark) as handle:
        eventually(lambda: handle.status().streams["a"].epoch == 1)
        checkpoints = handle._checkpointing._setup.checkpoints
        put, abort = checkpoints.put, checkpoints.abort

        def fills_the_disk(*_: object) -> str:
            assert list((copies / "files").iterdir())
            raise StorageFailed(action="write", key="manifest.json", why="No space left on device")

        def aborts_where_there_is_space(*facts: Any) -> Any:
            return full_disk() if copies.exists() else abort(*facts)

        checkpoints.put = fills_the_disk  # type: ignore[method-assign]
        checkpoints.abort = aborts_where_there_is_space  # type: ignore[method-assign]
        with pytest.raises(CheckpointFailed, match="No space left"):
            handle.savepoint("x", timeout=120)
        assert not copies.exists()
        assert ids(chain, Status.ABORTED) == [1]
        checkpoints.put = put  # type: ignore[method-assign]
        assert handle.savepoint("x", timeout=120).checkpoint_id == 2
    assert verify(chain.repository, "x").ok


def test_a_savepoint_that_fails_with_its_manifest_written_is_left_to_the_next_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    chain = Single(spark, tmp_path)
    chain.add()
    with running(chain.pipeline(), spark) as handle:
        eventually(lambda: handle.status().streams["a"].epoch == 1)
        put = handle._checkpointing._setup.checkpoints.put

        def writes_and_fails(*facts: Any) -> str:
            put(*facts)
            raise OutcomeUnknown(action="write", key="manifest.json", why="on purpose")

        handle._checkpointing._setup.checkpoints.put = writes_and_fails  # type: ignore[method-assign]
        with pytest.raises(CheckpointFailed, match="on purpose"):
            handle.savepoint("x", timeout=120)
        assert (chain.repository.root / "savepoints/x/manifest.json").exists()
    with running(chain.pipeline(), spark):
        assert not (chain.repository.root / "savepoints/x").exists()


def test_a_driver_that_was_replaced_deletes_nothing_when_it_gives_up(spark: SparkSession, tmp_path: Path) -> None:
    chain = Single(spark, tmp_path, shared=True)
    slow = Slow()
    chain.add()
    handle = chain.pipeline({"a": slow}).start(spark, checkpoint_every=CheckpointPolicy(every=None, timeout=10))
    slow.inside.wait(60)
    ticket = handle._checkpointing.request(CheckpointRequest(BarrierFlags.FULL_SNAPSHOT, "x"))
    eventually(lambda: handle.status().checkpoints.under_way == 1)
    Lease.take(chain.repository, locker=lambda: None, shared=True)
    others = chain.repository.root / "savepoints/x/manifest.json"
    others.parent.mkdir(parents=True)
    others.write_text("of the newer driver")
    with pytest.raises(Closed):
        ticket.result(120)
    slow.gate.set()
    with pytest.raises(Fenced):
        handle.await_termination(120)
    assert others.exists()
    assert ids(chain, Status.ABORTED) == []


@pytest.mark.parametrize("unknown", [False, True])
def test_nobody_acknowledges_for_a_stream_whose_last_epoch_is_in_doubt(
    spark: SparkSession, tmp_path: Path, unknown: bool
) -> None:
    """Its readers may have that epoch: the cut must lie behind it. Also where it is not known if it was decided."""
    chain = Single(spark, tmp_path, backoff=Backoff(first=0.05, longest=0.05))
    made = chain.pipeline()
    policy = RestartPolicy.bounded(1000, within=600)
    made._streams["a"] = dataclasses.replace(made._streams["a"], restart=dict.fromkeys(BUDGETED, policy))
    handle = made.start(spark, checkpoint_every=CheckpointPolicy(every=None, timeout=1))
    try:
        stream = handle._streams[0]
        sink, close, commit = stream.spec.sinks[0], stream._parts.decisions.close, stream.spec.sinks[0].commit

        def refuse(*_: Any) -> None:
            raise SinkFailed(sink="a", action="commit", why="the server is away")

        def decide(decision: Decision) -> Decision:
            close(decision)
            stream._parts.decisions.close = close  # type: ignore[method-assign]
            raise OutcomeUnknown(action="write", key="epochs/1.1.json", why="on purpose")

        sink.commit = refuse  # type: ignore[method-assign]
        if unknown:
            stream._parts.decisions.close = decide  # type: ignore[method-assign]
        chain.add()
        eventually(lambda: handle.status().streams["a"].restarts > 2)
        with pytest.raises(CheckpointFailed, match="a did not acknowledge"):
            handle.checkpoint(timeout=120)
        sink.commit = commit  # type: ignore[method-assign]
        eventually(lambda: handle.status().streams["a"].epoch == 1)
        use_policy(handle, CheckpointPolicy(every=None))
        assert handle.checkpoint(timeout=120).streams["a"].epoch == 1
    finally:
        handle.stop()


def test_stop_from_a_callback_of_checkpoints_ends_the_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    handles: list[PipelineHandle] = []
    told = StreamCallbacks(on_checkpoint=lambda *_: handles[0].stop())
    chain = Single(spark, tmp_path, callbacks=told)
    handles.append(chain.pipeline().start(spark))
    handles[0].checkpoint(timeout=120)
    assert handles[0].await_termination(120).streams["a"].state == "stopped"


def test_drain_ends_though_input_never_pauses(spark: SparkSession, tmp_path: Path) -> None:
    chain = Single(spark, tmp_path)
    over = threading.Event()

    def feed() -> None:
        while not over.wait(0.02):
            chain.add()

    chain.add()
    handle = chain.pipeline().start(spark)
    eventually(lambda: handle.status().streams["a"].epoch >= 1)
    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        manifest = handle.drain(timeout=1)
    finally:
        over.set()
        feeding.join()
    assert manifest.streams["a"].epoch == handle.await_termination(120).streams["a"].epoch


def test_a_last_checkpoint_that_fails_is_tried_once(spark: SparkSession, tmp_path: Path) -> None:
    chain = Single(spark, tmp_path)
    chain.add()
    chain.repository.root.mkdir(parents=True)
    (chain.repository.root / "objects").write_text("in the way")
    status = chain.pipeline().run(spark, available_now=True, checkpoint_every="1h")
    assert (status.streams["a"].epoch, status.checkpoints.taken, status.checkpoints.failed) == (1, 0, 1)
    assert status.checkpoints.last_error


def test_another_pipelines_stream_is_not_read_by_name(spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(spark, tmp_path)
    made, other = Pipeline("one", tmp_path / "root"), Pipeline("two", tmp_path / "root")
    made.stream(lambda _: chain.source(), name="a", sinks=[FileSink(tmp_path / "a")])
    made.stream(lambda _: other.read("a"), name="b", sinks=[FileSink(tmp_path / "b")])
    with pytest.raises(NotSupported, match="belongs to pipeline 'one'"):
        made.start(spark)


# --- crashes ---


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_leaves_the_last_checkpoint_the_last(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    chain = Single(spark, tmp_path)
    chain.add()
    with running(chain.pipeline(), spark) as handle:
        eventually(lambda: handle.status().streams["a"].epoch == 1)
        first = handle.checkpoint(timeout=120)
    chain.add()
    crash = CrashAt(point)
    handle = chain.pipeline().start(spark, reach=crash)
    eventually(lambda: handle.status().streams["a"].epoch == 2)
    with pytest.raises(Closed):
        if point == "checkpoint aborted":
            handle._streams[0].snapshots = None  # type: ignore[assignment] # so that it cannot be taken
        handle.checkpoint(timeout=120)
    with pytest.raises(Crashed):
        handle.await_termination(120)
    assert crash.died
    written = point == "manifest written"
    assert chain.checkpoints.latest().checkpoint_id == (2 if written else first.checkpoint_id)
    chain.add()
    with running(chain.pipeline(), spark) as handle:
        eventually(lambda: handle.status().streams["a"].epoch == 3)
        third = handle.checkpoint(timeout=120)
    assert third.checkpoint_id == 3  # 2 is burnt, or taken
    assert ids(chain) == ([1, 2, 3] if written else [1, 3])
    assert ids(chain, Status.OPEN) == []
    assert plan_prune(chain.repository, Retention()).empty  # what the crash left was found and collected
    assert all(each.ok for each in verify_all(chain.repository))

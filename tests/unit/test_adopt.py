"""Adopt and eject without a JVM: hand-made folders, a fake query, sinks in memory. All else is the real code."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fakespark
from fakespark import Bench, MemorySink, Rows
from handmade import Handmade
from holdfast import FileSink
from holdfast.cli.app import app
from holdfast.cli.verbs.eject import Ejected
from holdfast.errors import (
    AlreadyExists,
    BadValue,
    LastBatchUnknown,
    NotSupported,
    OffsetsDiverged,
    RepositoryMissing,
    RewindUnfinished,
    SinkAhead,
    SourcesDiffer,
    SparkQueryLive,
    StreamFailed,
)
from holdfast.in_doubt import in_doubt
from holdfast.plainspark import AdoptPlan, eject
from holdfast.repository import Decisions, History, Lease, LocalRepository
from holdfast.repository.local import TEMPORARIES
from holdfast.repository.rewinds import RewindRecord, StreamAim, decide_rewind
from holdfast.spark import adapter
from holdfast.spark.adopting import POINTS, apply_adopt, plan_adopt, require_arguments
from holdfast.spark.kafka_sources import KafkaInputs
from holdfast.spark.pipeline import Pipeline

BATCHES = [[1, 2], [3], [4, 5], [6]]
COMMITTED = 2  # the last batch that plain Spark has committed; the next one was begun


class Died(BaseException):
    """A process that was killed."""


class Old:
    """A plain query that was killed in its last batch, and the program that continues it."""

    def __init__(self, folder: Path, sinks: int = 1, **options: Any) -> None:
        self.bench = Bench(folder, sinks, **options)
        self.bench.source = [list(each) for each in BATCHES]
        self.folder = Handmade(folder / "old")
        self.topic = "t"
        for batch in range(COMMITTED + 2):
            self.begin(batch)
        for batch in range(COMMITTED + 1):
            self.folder.commit(batch)

    def begin(self, batch: int) -> None:
        end = sum(len(rows) for rows in BATCHES[: batch + 1])
        self.folder.put(f"offsets/{batch}", f"v1\n{{}}\n{json.dumps({'t': {'0': end}})}")

    @property
    def pipeline(self) -> Pipeline:
        def rows(_: object) -> Any:
            df = Rows()
            df.isStreaming, df.stateful, df.topic = True, self.bench.stateful, self.topic
            return df

        sinks = [MemorySink(f"sink{n}", place) for n, place in enumerate(self.bench.places)]
        made = Pipeline("pipeline", self.bench.repository.root.parent)
        made.repository = self.bench.repository
        made.stream(rows, sinks=sinks)
        return made

    def plan(self, *answers: str, **options: Any) -> AdoptPlan:
        given = {f"sink{n}": answer for n, answer in enumerate(answers)}
        options = {"last_batch": given, "spark": object(), "pause": 0.001, **options}
        return plan_adopt(self.pipeline, "rows", self.folder.folder, **options)

    def adopt(self, *answers: str, **options: Any) -> Any:
        return apply_adopt(self.pipeline, self.plan(*answers), spark=object(), take_over=True, **options)

    @property
    def stream(self) -> Path:
        return self.bench.repository.root / "timelines/1/streams/rows"

    def rows(self) -> list[dict[int, list[int]]]:
        return [place.visible for place in self.bench.places]


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    fakespark.install(monkeypatch)
    monkeypatch.setattr(adapter, "require_classic", lambda _: None)
    monkeypatch.setattr(adapter, "inputs", lambda df: [("kafka", {"subscribe": getattr(df, "topic", "t")})])
    monkeypatch.setattr(KafkaInputs, "of", lambda _: KafkaInputs())  # there is no broker to compare with


# --- the batch in doubt ----------------------------------------------------------------------------------------------


def test_not_written_the_batch_is_run_again_as_the_first_epoch(tmp_path: Path) -> None:
    old = Old(tmp_path)
    done = old.adopt("not-written")
    assert (done.epoch, done.first_epoch, done.already) == (3, 4, False)
    assert in_doubt(old.bench.repository, "rows", 1) is None
    old.bench.source.append([7])
    old.bench.run()
    assert old.rows() == [{4: [6], 5: [7]}]


def test_written_the_batch_is_replayed_into_nothing(tmp_path: Path) -> None:
    old = Old(tmp_path)
    done = old.adopt("written")
    assert (done.epoch, done.first_epoch) == (4, 5)
    doubt = in_doubt(old.bench.repository, "rows", 1)
    assert doubt is not None and doubt.epoch == 4
    old.bench.source.append([7])
    old.bench.run()
    assert old.rows() == [{5: [7]}]
    assert (old.stream / "spark/commits/3").exists()


def test_a_replayed_batch_runs_for_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[int]] = []
    monkeypatch.setattr(adapter, "run_for_nothing", lambda rows: ran.append(list(rows)))
    old = Old(tmp_path, stateful=True)
    old.folder.put("state/0/0/3.snapshot", "x")
    old.adopt("written")
    old.bench.run()
    assert (ran, old.rows()) == ([[6]], [{}])


def test_written_in_one_sink_and_not_in_the_other(tmp_path: Path) -> None:
    old = Old(tmp_path, sinks=3)
    old.adopt("written", "not-written", "not-written")
    old.bench.source.append([7])
    old.bench.run()
    assert old.rows() == [{5: [7]}, {4: [6], 5: [7]}, {4: [6], 5: [7]}]


@pytest.mark.parametrize("point", ["opened", "all prepared", "durable", "decided", "committed", "all committed"])
def test_a_crash_in_the_epoch_that_only_some_sinks_are_given(tmp_path: Path, point: str) -> None:
    old = Old(tmp_path, sinks=2)
    old.adopt("written", "not-written")

    def die(reached: str) -> None:
        if reached == point:
            raise RuntimeError("on purpose")

    with pytest.raises(StreamFailed):
        old.bench.run(die)
    old.bench.source.append([7])
    old.bench.run()
    assert old.rows() == [{5: [7]}, {4: [6], 5: [7]}]


def test_no_checkpoint_is_taken_before_that_epoch_is_decided(tmp_path: Path) -> None:
    """A checkpoint would not know that a sink has the batch: a restored stream would plan it again."""
    old = Old(tmp_path, sinks=2)
    old.adopt("written", "not-written")
    stream = old.bench.driver()
    stream.recover()
    assert not stream.can_acknowledge
    stream.live()
    assert stream.can_acknowledge
    assert stream.failed is None


def test_that_epoch_must_come_with_the_offsets_of_the_plain_query(tmp_path: Path) -> None:
    old = Old(tmp_path, sinks=2)
    old.adopt("written", "not-written")
    old.bench.source[3] = [6, 8]
    with pytest.raises(StreamFailed) as raised:
        old.bench.run()
    assert isinstance(raised.value.__cause__, OffsetsDiverged)
    assert old.rows() == [{}, {}]


def test_a_written_batch_must_come_with_the_offsets_of_the_plain_query(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.adopt("written")
    old.bench.source[3] = [6, 8]
    with pytest.raises(StreamFailed) as raised:
        old.bench.run()
    assert isinstance(raised.value.__cause__, OffsetsDiverged)


def test_nothing_in_doubt(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.folder.commit(3)
    done = old.adopt()
    assert done.first_epoch == 5
    old.bench.source.append([7])
    old.bench.run()
    assert old.rows() == [{5: [7]}]


@pytest.mark.parametrize(
    ("answers", "rows"),
    [
        (("not-written", "not-written"), [{1: [1, 2], 2: [3], 3: [4, 5], 4: [6]}] * 2),
        (("written", "written"), [{2: [3], 3: [4, 5], 4: [6]}] * 2),
        (("written", "not-written"), [{2: [3], 3: [4, 5], 4: [6]}, {1: [1, 2], 2: [3], 3: [4, 5], 4: [6]}]),
    ],
)
def test_nothing_committed_and_the_first_batch_in_doubt(tmp_path: Path, answers: tuple[str, ...], rows: Any) -> None:
    old = Old(tmp_path, sinks=2)
    for batch in range(1, 4):
        (old.folder.folder / f"offsets/{batch}").unlink()
    for batch in range(3):
        (old.folder.folder / f"commits/{batch}").unlink()
    old.adopt(*answers)
    old.bench.run()
    assert old.rows() == rows


def test_an_answer_is_required_for_each_sink(tmp_path: Path) -> None:
    old = Old(tmp_path, sinks=2)
    with pytest.raises(LastBatchUnknown, match=r"sink1.*--last-batch sink1=written\|not-written"):
        old.plan("written")
    assert not (old.bench.repository.root / "timelines").exists()


# --- what is written -------------------------------------------------------------------------------------------------


def test_the_old_folder_is_not_changed(tmp_path: Path) -> None:
    old = Old(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in old.folder.folder.rglob("*")}
    old.adopt("not-written")
    old.bench.run()
    assert {path: path.stat().st_mtime_ns for path in old.folder.folder.rglob("*")} == before


def test_a_plan_changes_nothing_and_describes_what_happens(tmp_path: Path) -> None:
    old = Old(tmp_path, sinks=2)
    before = sorted(old.bench.repository.root.rglob("*"))
    plan = old.plan("written", "not-written")
    assert sorted(old.bench.repository.root.rglob("*")) == before
    assert (plan.committed, plan.in_doubt, plan.first_epoch) == (2, 3, 4)
    assert "already has batch 3; gets epochs from 5 on" in plan.summary()
    assert "gets batch 3 as epoch 4" in plan.summary()
    data = json.loads(json.dumps(plan.to_dict()))
    assert data["last_batch"] == {"sink0": "written", "sink1": "not-written"}
    assert data["sources"][0]["place"] == "topic t"


def test_an_adoption_is_recorded(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.adopt("written")
    (entry,) = History(old.bench.repository).entries()
    assert (entry.what, entry.facts["last_batch"]) == ("adopt", {"sink0": "written"})


@pytest.mark.parametrize("point", list(POINTS))
def test_a_killed_adoption_has_no_effect_or_its_full_effect_and_can_be_repeated(tmp_path: Path, point: str) -> None:
    old = Old(tmp_path)
    reached: list[str] = []

    def die(at: str) -> None:
        reached.append(at)
        if at == point:
            raise Died

    with pytest.raises(Died):
        old.adopt("not-written", reach=die)
    assert old.stream.exists() == (point == "adopted")
    assert reached == list(POINTS)[: list(POINTS).index(point) + 1]
    done = old.adopt("not-written")
    assert done.already == (point == "adopted")
    assert not list((old.bench.repository.root / TEMPORARIES).glob("adopt-*"))
    old.bench.run()
    assert old.rows() == [{4: [6]}]


def test_repeating_a_complete_adoption_is_harmless_even_after_a_run(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.adopt("not-written")
    old.bench.run()
    old.bench.places[0].visible.clear()  # what a sink holds is not asked
    assert old.adopt("not-written").already


# --- refused ---------------------------------------------------------------------------------------------------------


def test_a_query_that_writes_while_the_plan_is_applied_is_live(tmp_path: Path) -> None:
    old = Old(tmp_path)
    plan = old.plan("not-written")
    old.folder.commit(3)
    reached: list[str] = []
    with pytest.raises(SparkQueryLive, match="commits/3"):
        apply_adopt(old.pipeline, plan, spark=object(), reach=reached.append)
    assert (old.stream.exists(), reached) == (False, [])


def test_a_query_that_writes_during_the_copy_is_live(tmp_path: Path) -> None:
    old = Old(tmp_path)

    def write(point: str) -> None:
        if point == "adoption built":
            old.folder.commit(3)

    with pytest.raises(SparkQueryLive, match="commits/3"):
        old.adopt("not-written", reach=write)
    assert not old.stream.exists()


def test_a_stream_that_exists_is_refused(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.bench.run()
    with pytest.raises(AlreadyExists, match="stream 'rows'"):
        old.plan("not-written")
    other = Old(tmp_path / "other")
    plan = other.plan("not-written")
    other.bench.run()
    with pytest.raises(AlreadyExists, match="stream 'rows'"):
        apply_adopt(other.pipeline, plan, spark=object(), take_over=True)


def test_another_answer_after_the_adoption_is_refused(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.adopt("not-written")
    with pytest.raises(AlreadyExists):
        old.adopt("written")


def test_a_running_pipeline_is_refused(tmp_path: Path) -> None:
    old = Old(tmp_path)
    plan = old.plan("not-written")
    with Lease.take(old.bench.repository), pytest.raises(Exception, match="held by process"):
        apply_adopt(old.pipeline, plan, spark=object())


def test_a_shared_pipeline_needs_a_confirmation(tmp_path: Path) -> None:
    old = Old(tmp_path)
    Lease.take(old.bench.repository, locker=lambda: None, shared=True)
    plan = old.plan("not-written")
    with pytest.raises(NotSupported, match="--take-over"):
        apply_adopt(old.pipeline, plan, spark=object())
    apply_adopt(old.pipeline, plan, spark=object(), take_over=True)
    assert old.stream.exists()


def test_a_sink_that_holds_epochs_of_this_stream_is_refused(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.bench.places[0].visible[3] = [1]
    with pytest.raises(SinkAhead):
        old.adopt("not-written")
    assert not old.stream.exists()


def test_another_topic_is_refused(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.topic = "other"
    with pytest.raises(SourcesDiffer, match="topic t"):
        old.plan("not-written")


def test_state_without_a_stateful_program_and_the_other_way_round(tmp_path: Path) -> None:
    old = Old(tmp_path / "a", stateful=True)
    with pytest.raises(NotSupported, match="the stream keeps state, but the query kept none"):
        old.plan("not-written")
    old = Old(tmp_path / "b")
    old.folder.put("state/0/0/3.snapshot", "x")
    with pytest.raises(NotSupported, match="but the stream keeps none"):
        old.plan("not-written")


def test_wrong_arguments(tmp_path: Path) -> None:
    old = Old(tmp_path)
    with pytest.raises(BadValue, match="the pipeline defines rows"):
        plan_adopt(old.pipeline, "other", old.folder.folder, spark=object())  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="a positive number of seconds"):
        old.plan("not-written", pause=-1)
    with pytest.raises(BadValue, match="Pipeline"):
        plan_adopt("app.py", "rows", old.folder.folder)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="AdoptPlan"):
        apply_adopt(old.pipeline, {})  # type: ignore[arg-type]


# --- eject -----------------------------------------------------------------------------------------------------------


def ejected(old: Old, to: Path, **options: Any) -> Any:
    return eject(old.bench.repository, "rows", to, take_over=True, **options)  # the leases of a bench are shared


def test_an_ejected_checkpoint_continues_with_the_next_batch(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.adopt("not-written")
    old.bench.run()
    (old.stream / "spark/offsets/4").write_text("v1\n{}\n{}")  # begun, and not decided
    done = ejected(old, tmp_path / "plain/rows")
    assert (done.epoch, done.batch, done.rows, done.stage) == (4, 4, 1, False)
    found = sorted(str(each.relative_to(done.path)) for each in Path(done.path).rglob("*") if each.is_file())
    assert found == ["commits/3", "metadata", "offsets/2", "offsets/3"]
    assert [path.name for path in (tmp_path / "plain").iterdir()] == ["rows"]
    assert History(old.bench.repository).entries()[-1].what == "eject"
    old.bench.source.append([7])
    old.bench.run()  # the stream itself is as it was


def test_there_and_back(tmp_path: Path) -> None:
    """A stream that was ejected can be adopted by another pipeline."""
    old = Old(tmp_path / "a")
    old.adopt("not-written")
    old.bench.run()
    other = Old(tmp_path / "b")
    shutil.rmtree(other.folder.folder)
    ejected(old, other.folder.folder)
    other.adopt()
    other.bench.source.append([7])
    other.bench.run()
    assert other.rows() == [{5: [7]}]


def test_an_epoch_in_doubt_is_refused(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.adopt("written")
    with pytest.raises(NotSupported, match=r"epoch 4 is in doubt.*holdfast run.*holdfast doubt"):
        ejected(old, tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


def test_an_adopted_batch_that_only_some_sinks_have_is_refused(tmp_path: Path) -> None:
    old = Old(tmp_path, sinks=2)
    old.adopt("written", "not-written")
    with pytest.raises(NotSupported, match="batch 3 of the adopted query is in some of its sinks"):
        ejected(old, tmp_path / "plain")
    old.bench.run()
    assert ejected(old, tmp_path / "plain").batch == 4


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("/nowhere")])
def test_an_existing_target_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    old = Old(tmp_path)
    old.adopt("not-written")
    make(tmp_path / "plain")
    with pytest.raises(AlreadyExists, match="plain"):
        ejected(old, tmp_path / "plain")
    assert os.path.lexists(tmp_path / "plain")


@pytest.mark.parametrize("point", ["eject built", "ejected"])
def test_a_killed_eject_leaves_no_target_or_a_complete_one(tmp_path: Path, point: str) -> None:
    old = Old(tmp_path)
    old.adopt("not-written")

    def die(at: str) -> None:
        if at == point:
            raise Died

    with pytest.raises(Died):
        ejected(old, tmp_path / "plain", reach=die)
    assert (tmp_path / "plain").exists() == (point == "ejected")
    if point == "eject built":
        assert ejected(old, tmp_path / "plain").batch == 3
    assert [each.name for each in tmp_path.iterdir() if "eject" in each.name] == []


def test_a_stream_without_a_committed_epoch_and_an_unknown_one(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.adopt("not-written")
    with pytest.raises(BadValue, match="the pipeline has rows"):
        eject(old.bench.repository, "other", tmp_path / "plain")
    with pytest.raises(RepositoryMissing):
        eject(LocalRepository(tmp_path / "nowhere"), "rows", tmp_path / "plain")


def test_nothing_is_ejected_while_a_rewind_is_unfinished(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.adopt("not-written")
    old.bench.run()
    aims = {"rows": StreamAim(ends=1, timeline=1, epoch=3, facts=None, sinks={})}
    decide_rewind(old.bench.repository, RewindRecord(timeline=2, parent=1, leaves=1, streams=aims, to="checkpoint 1"))
    with pytest.raises(RewindUnfinished):
        ejected(old, tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


def test_a_damaged_stream_is_refused(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.adopt("not-written")
    shutil.rmtree(old.stream / "spark")
    with pytest.raises(NotSupported, match="epoch 3 is in doubt"):  # only the sinks know whether they have it
        ejected(old, tmp_path / "plain")


@pytest.mark.parametrize(("answer", "last"), [("not-written", 2), ("written", 3)])
def test_the_decision_names_the_source_entries_up_to_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, last: int
) -> None:
    """An entry of the begun batch belongs to its own epoch: a replay compares it."""
    monkeypatch.setattr(adapter, "inputs", lambda _: [("FileSource[/in]", {"path": "/in"})])
    old = Old(tmp_path)
    for batch in range(4):
        old.folder.begin(batch, f'{{"logOffset":{batch}}}')
        old.folder.put(f"sources/0/{batch}", f'v1\n{{"path":"file:///in/{batch}","timestamp":1,"batchId":{batch}}}')
    old.adopt(answer)
    decision = Decisions(old.bench.repository).newest("rows", 1)
    assert decision is not None
    assert decision.facts["source_log"] == {"0": last}
    assert sorted(decision.facts["source_entries"]) == [f"0/{entry}" for entry in range(last + 1)]
    assert (old.stream / "spark/sources/0/3").exists()


def test_the_decision_of_an_adopted_stream_is_like_any_other(tmp_path: Path) -> None:
    old = Old(tmp_path)
    old.adopt("not-written")
    decision = Decisions(old.bench.repository).newest("rows", 1)
    assert decision is not None
    assert decision.facts["end"] == ['{"t": {"0": 5}}']
    assert decision.facts["start"] == ['{"t": {"0": 3}}']
    assert decision.facts["sinks"]["sink0"]["given"] is False


# --- the command -----------------------------------------------------------------------------------------------------


def typed(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        app([str(each) for each in words])
    return int(ended.value.code or 0)


def test_the_command_ejects_from_a_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = Old(tmp_path)
    old.adopt("not-written")
    where = old.bench.repository.root
    command = ["eject", where, "--stream", "rows", "--take-over", "--to"]
    assert typed(*command, tmp_path / "one", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["result"]["batch"], printed["repository"]) == (3, str(where))
    assert msgspec.convert(printed["result"], Ejected, strict=True).path == str(tmp_path / "one")
    assert typed(*command, tmp_path / "two") == 0
    assert "next batch   3" in capsys.readouterr().out
    assert typed(*command, tmp_path / "two") == 2
    assert "two already exists" in capsys.readouterr().err.replace("\n", "")


def test_a_wrong_answer_is_refused_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("table", "=written"):
        assert typed("adopt", "app.py", "--stream", "s", "--checkpoint", "old", "--last-batch", wrong) == 2
        assert "expected SINK=written or SINK=not-written" in capsys.readouterr().err
    both = ["--last-batch", "a=written", "--last-batch", "a=not-written"]
    assert typed("adopt", "app.py", "--stream", "s", "--checkpoint", "old", *both) == 2
    assert "two different answers for sink a" in capsys.readouterr().err


def test_a_misspelled_stream_is_told_what_was_meant(tmp_path: Path) -> None:
    pipeline = Pipeline("shop", root=tmp_path / "root")

    @pipeline.stream(sinks=[FileSink(tmp_path / "out")])
    def orders(spark: Any) -> Any: ...

    with pytest.raises(BadValue, match=r"did you mean 'orders'\?"):
        require_arguments(pipeline, "order", tmp_path)
    with pytest.raises(BadValue) as refused:
        require_arguments(pipeline, "payments", tmp_path)
    assert "did you mean" not in str(refused.value)

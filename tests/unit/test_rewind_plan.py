"""The plan of a rewind of several streams: which ones go back, which input and which readers are past the cut."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import holdfast as hf
from fabricated import Fabricated
from holdfast.epoch import Attempt, Decision, Facts, Share, Verdict
from holdfast.errors import BadValue, NotSupported, RewindRefused
from holdfast.eventlog._cursor_file import CursorRecord
from holdfast.eventlog._cursor_slot import cursor_key
from holdfast.formats.sealed_json import seal
from holdfast.repository import Decisions, Lineage, LocalRepository
from holdfast.repository.decisions import slot_key, stream_folder
from holdfast.repository.verdicts import LastVerify, Verdicts
from holdfast.rewind import Program, ProgramStream, Readable, apply_rewind, plan_rewind
from holdfast.rewind.inputs import EntryDigests
from rewindbench import TimelinePlace, TimelineSink


class Shop:
    """Two chained streams and one beside them, each with one sink; checkpoint 1 at epoch 2, then two more epochs."""

    def __init__(self, folder: Path) -> None:
        self.made = Fabricated(LocalRepository(folder / "root"))
        self.repository: LocalRepository = self.made.repository  # type: ignore[assignment]
        self.names = ["orders", "totals", "alone"]
        self.reads: dict[str, tuple[str, ...]] = {}
        self.edges: dict[str, tuple[str, ...]] = {"totals": ("orders",)}
        self.places = {name: TimelinePlace() for name in self.names}
        self.shared = False
        self.decided_entries: dict[str, str] = {}
        for epoch in (1, 2):
            self.epoch(epoch)
        self.checkpoint(2)
        for epoch in (3, 4):
            self.epoch(epoch)

    @property
    def program(self) -> Program:
        streams = {
            name: ProgramStream(name, (TimelineSink("sink", self.places[name]),), self.reads.get(name, ()))
            for name in self.names
        }
        return Program("orders", self.repository, self.shared, streams)

    def epoch(self, epoch: int) -> None:
        for name in self.places:
            share = Share(handle={}, rows=10, stands=epoch, before=epoch - 1)
            end: list[str | None] = [json.dumps({"logOffset": epoch - 1})]
            facts = Facts(
                start=end,
                end=end,
                offsets_digest="",
                source_log={},
                source_entries=self.decided_entries,
                sinks={"sink": share},
                rows=10,
                total_rows=epoch * 10,
            )
            attempt = Attempt(stream=name, timeline=1, epoch=epoch, attempt=1)
            decision = Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=facts.plain())
            Decisions(self.repository).close(decision)
            self.places[name].visible[1, epoch] = list(range(10))
            self.repository.put(f"{stream_folder(name, 1)}/spark/offsets/{epoch - 1}", b"v1")
            self.repository.put(f"{stream_folder(name, 1)}/spark/sources/0/{epoch - 1}", self.entry(name, epoch))
            self.input(name, epoch).touch()

    def entry(self, stream: str, epoch: int) -> bytes:
        """Return the entry of the source's log for an epoch."""
        file = {"path": f"file://{self.input(stream, epoch)}", "timestamp": 1, "batchId": epoch - 1}
        return b"v1\n" + json.dumps(file).encode()

    def input(self, stream: str, epoch: int) -> Path:
        return self.repository.root / f"input {stream} {epoch}"

    def checkpoint(self, epoch: int, **sinks: Any) -> int:
        number = self.made.checkpoints.claim(1, 1)
        cuts: dict[str, dict[str, Any]] = {
            name: {
                "epoch": epoch,
                "rows": epoch * 10,
                "offsets": (json.dumps({"logOffset": epoch - 1}),),
                "reads": self.edges.get(name, ()),
                "sinks": {"sink": {"epoch": epoch, **sinks}},
            }
            for name in self.places
        }
        self.made.finish(number, {name: [name] for name in self.places}, cuts=cuts)
        return number


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_all_streams_go_back_by_default(shop: Shop) -> None:
    plan = plan_rewind(shop, 1)
    assert [(each.stream, each.epochs, each.rows) for each in plan.streams] == [
        ("orders", 2, 20),
        ("totals", 2, 20),
        ("alone", 2, 20),
    ]
    assert plan.problems == ()
    assert all(source.readable is Readable.YES for each in plan.streams for source in each.sources)


def test_a_reader_must_go_back_with_the_stream_that_it_reads(shop: Shop) -> None:
    assert plan_rewind(shop, 1, only=["orders"]).problems == (
        "stream 'totals' reads from a stream that goes back, and must go back too: add --only totals",
    )
    assert plan_rewind(shop, 1, only=["totals"]).problems == ()
    assert [each.stream for each in plan_rewind(shop, 1, only=["totals", "orders"]).streams] == ["orders", "totals"]
    assert plan_rewind(shop, 1, only=["alone"]).problems == ()
    with pytest.raises(BadValue, match="one of orders, totals, alone"):
        plan_rewind(shop, 1, only=["other"])


def test_edges_come_from_the_base_the_newest_checkpoint_and_the_program(shop: Shop) -> None:
    shop.edges = {"totals": ("orders",), "alone": ("totals",)}
    shop.checkpoint(4)
    assert len(plan_rewind(shop, 1, only=["orders"]).problems) == 2, "through another stream too"
    shop.reads = {"orders": ("alone",)}
    assert "stream 'orders'" in plan_rewind(shop, 1, only=["alone", "totals"]).problems[0]


def test_only_some_streams_begin_the_next_timeline(shop: Shop) -> None:
    apply_rewind(shop, plan_rewind(shop, 1, only=["totals"]))
    lineage = Lineage.load(shop.repository)
    assert [lineage.timeline_of(name) for name in shop.names] == [1, 2, 1]
    assert sorted(shop.places["totals"].visible) == [(1, 1), (1, 2)]
    assert len(shop.places["orders"].visible) == 4
    assert Decisions(shop.repository).has_ended("totals", 1, 4)
    assert not Decisions(shop.repository).has_ended("orders", 1, 4)


def test_a_stream_that_the_program_lacks(shop: Shop) -> None:
    shop.names.remove("alone")
    plan = plan_rewind(shop, 1)
    assert "stream 'alone' has decided epochs after the base, but is not in the program" in plan.problems[0]
    with pytest.raises(RewindRefused):
        apply_rewind(shop, plan)
    assert plan_rewind(shop, 1, only=["orders", "totals"]).problems == ()


def test_a_stream_that_the_checkpoint_lacks_begins_again(shop: Shop) -> None:
    shop.names.append("new")
    shop.places["new"] = TimelinePlace()
    decided = Decisions(shop.repository).committed("alone", 1, 1)
    assert decided is not None
    attempt = Attempt(stream="new", timeline=1, epoch=1, attempt=1)
    facts = decided.facts
    Decisions(shop.repository).close(Decision(attempt=attempt, verdict=Verdict.COMMIT, lease=1, facts=facts))
    shop.places["new"].visible[1, 1] = list(range(10))
    plan = plan_rewind(shop, 1)
    last = plan.streams[-1]
    assert (last.stream, last.base_epoch, last.epochs) == ("new", 0, 1)
    assert last.notes == ("it is not in the checkpoint: it starts again with its first epoch",)
    apply_rewind(shop, plan, accept_input=True)
    assert shop.places["new"].visible == {}
    assert Decisions(shop.repository).newest("new", 2) is None


def test_a_sink_that_another_stream_reads_cannot_be_left(shop: Shop) -> None:
    shop.names = ["orders", "totals"]
    shop.reads = {"totals": ("orders",)}
    plan = plan_rewind(shop, 1, only=["orders", "totals"], leave=["sink"])
    assert plan.problems == (
        "sink 'sink' of stream 'orders' cannot be left: another stream reads it, and would read the rows twice",
    )


def test_input_that_is_gone_is_refused_and_input_that_cannot_be_asked_is_unknown(shop: Shop) -> None:
    shop.input("orders", 3).unlink()
    (problem,) = plan_rewind(shop, 1).problems
    assert "source 0 of stream 'orders' can no longer be read" in problem
    shop.input("orders", 3).touch()
    shop.input("orders", 2).unlink()
    assert plan_rewind(shop, 1).problems == (), "it is before the base"
    shop.repository.clear(f"{stream_folder('orders', 1)}/spark/sources")
    plan = plan_rewind(shop, 1)
    assert plan.streams[0].sources[0].readable is Readable.UNKNOWN
    assert plan.streams[1].sources[0].readable is Readable.YES


def test_a_damaged_log_of_a_source_does_not_show_that_input_is_gone(shop: Shop) -> None:
    """A bit was flipped in the name of a file: the name that is read now belongs to no file that was ever there."""
    name, folder = "orders", stream_folder("orders", 1)
    shop.decided_entries = {"0/4": hashlib.sha256(shop.entry(name, 5)).hexdigest()}
    shop.epoch(5)
    path = shop.repository.root / folder / "spark/sources/0/4"
    path.write_bytes(path.read_bytes().replace(b"input", b"inpvt"))
    plan = plan_rewind(shop, 1)
    assert plan.problems == ()
    assert plan.streams[0].sources[0].readable is Readable.UNKNOWN
    assert "sources/0/4 is damaged" in plan.streams[0].sources[0].why
    shop.input("orders", 3).unlink()  # its entry is not damaged, as far as is known
    assert "can no longer be read" in "".join(plan_rewind(shop, 1).problems)


def test_a_decision_that_cannot_be_read_does_not_prevent_the_comparison_with_the_others(shop: Shop) -> None:
    """The disk is damaged: an entry of the source's log, and a decision."""
    name, folder = "orders", stream_folder("orders", 1)
    shop.decided_entries = {"0/3": hashlib.sha256(shop.entry(name, 4)).hexdigest()}
    shop.epoch(5)
    shop.decided_entries = {}
    for epoch in (6, 7, 8):
        shop.epoch(epoch)
    path = shop.repository.root / folder / "spark/sources/0/3"
    path.write_bytes(path.read_bytes().replace(b"input", b"inpvt"))
    attempts = [Attempt(stream=name, timeline=1, epoch=epoch, attempt=1) for epoch in (6, 7)]
    loop, later = [shop.repository.root / slot_key(each) for each in attempts]
    loop.unlink()
    loop.symlink_to(loop)
    later.write_bytes(Decision(attempt=attempts[1], verdict=Verdict.COMMIT, lease=1, version=99).sealed())
    entries = EntryDigests(shop.repository, name, 1, 2, Decisions(shop.repository).seen(name, 1))
    assert entries.is_damaged("0/3", path.read_bytes())


def test_an_input_that_cannot_be_looked_up_is_unknown(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, exists = shop.input("orders", 3), Path.exists

    def denied(self: Path) -> bool:
        if self == lost:
            raise PermissionError(13, "Permission denied")
        return exists(self)

    monkeypatch.setattr(Path, "exists", denied)
    plan = plan_rewind(shop, 1)
    assert plan.streams[0].sources[0].readable is Readable.UNKNOWN
    assert plan.problems == ()


def test_a_base_that_was_found_unsound_is_refused(shop: Shop) -> None:
    checked = LastVerify(checkpoint="1", ok=False, grade="digests", at_ms=1, text="a file has other bytes")
    Verdicts(shop.repository).record([checked])
    (problem,) = plan_rewind(shop, 1).problems
    assert "checkpoint 1 was verified and is unsound: a file has other bytes" in problem
    assert "holdfast verify 1 --record" in problem
    Verdicts(shop.repository).record([structs.replace(checked, ok=True, at_ms=2)])
    assert plan_rewind(shop, 1).problems == ()


def test_a_base_is_refused_only_for_an_error_that_shows_that_it_cannot_be_restored(shop: Shop) -> None:
    checked = LastVerify(checkpoint="1", ok=False, conclusive=False, grade="digests", at_ms=1, text="error: no disk")
    Verdicts(shop.repository).record([checked])
    assert plan_rewind(shop, 1).problems == ()


def test_a_verdict_that_an_earlier_version_recorded_still_refuses_a_base(shop: Shop) -> None:
    """Its record does not state which kind of error was found."""
    old = {"checkpoint": "1", "ok": False, "grade": "read data", "at_ms": 1, "text": "error: a file has other bytes"}
    data = seal({"version": 1, "verdicts": [old]})
    shop.repository.put(f"activity/verdicts/{'a' * 32}.json", data)
    (problem,) = plan_rewind(shop, 1).problems
    assert "checkpoint 1 was verified and is unsound: a file has other bytes" in problem
    assert "run holdfast verify 1 --read-data --record" in problem, "a lower grade would not replace the verdict"


def test_a_compacted_log_of_a_source_is_read(shop: Shop) -> None:
    folder = f"{stream_folder('orders', 1)}/spark/sources/0"
    entries = [shop.repository.read(f"{folder}/{number}").split(b"\n")[1] for number in range(4)]
    shop.repository.clear(folder)
    shop.repository.put(f"{folder}/3.compact", b"v1\n" + b"\n".join(entries))
    assert plan_rewind(shop, 1).streams[0].sources[0].readable is Readable.YES
    shop.input("orders", 4).unlink()
    assert plan_rewind(shop, 1).streams[0].sources[0].readable is Readable.NO


def test_readers_of_an_event_log_that_stand_past_the_cut_are_listed(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    number = shop.checkpoint(4, log="uid", tail=20, path=str(tmp_path))
    for name, position in {"near": 20, "far": 25}.items():
        cursor = CursorRecord(position=position, started=True, region_identity=None, log_identity="uid")
        shop.repository.put(cursor_key(name), cursor.to_bytes())
    assert plan_rewind(shop, number).cursors == ("cursor 'far' is at sequence 25, and the log goes back to 20",)


def test_a_shared_pipeline_needs_the_word_that_its_driver_is_gone(shop: Shop) -> None:
    shop.shared = True
    plan = plan_rewind(shop, 1)
    with pytest.raises(NotSupported, match="--take-over"):
        apply_rewind(shop, plan)
    assert apply_rewind(shop, plan, take_over=True).timeline == 2


def test_another_pipelines_repository_is_refused(shop: Shop) -> None:
    class Other:
        program = Program("other", shop.repository, False, {})

    with pytest.raises(BadValue, match="belongs to pipeline 'orders'"):
        plan_rewind(Other(), 1)


def test_a_sink_that_keeps_its_ledger_in_the_repository_is_told_where(tmp_path: Path) -> None:
    pipeline = hf.Pipeline("p", tmp_path)
    pipeline.stream(lambda spark: spark, name="rows", sinks=hf.ForeachSink(lambda *_: None, name="call"))
    [sink] = pipeline.program.streams["rows"].sinks
    assert sink.inspect(hf.StreamIdentity("p", "0" * 32, "rows"), 1).epoch == 0
    assert sink.folder == tmp_path / "p/sinks/rows/call"  # type: ignore[attr-defined]

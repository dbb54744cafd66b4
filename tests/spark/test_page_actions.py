"""The actions of the page on a real pipeline: requests to its driver, and a rewind by its program."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra `page` is not installed")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import holdfast as hf
from holdfast.repository import Checkpoints
from holdfast.web.acting.control import PageControl
from holdfast.web.listening import Listening, RunningPage
from sparkfixture import session
from visiting import Visitor

PROGRAM = """
import holdfast as hf

pipeline = hf.Pipeline("orders", root="{folder}/root")


@pipeline.stream(sinks=[hf.FileSink("{folder}/out")])
def orders(spark):
    return spark.readStream.schema("n long").json("{folder}/in")
"""


def program(folder: Path) -> tuple[hf.Pipeline, Path]:
    """Write the program, and return the same pipeline for the session of the tests."""
    (folder / "in").mkdir()
    path = folder / "app.py"
    path.write_text(PROGRAM.format(folder=folder))
    made = hf.Pipeline("orders", folder / "root")
    made.stream(
        lambda spark: spark.readStream.schema("n long").json(str(folder / "in")),
        name="orders",
        sinks=[hf.FileSink(folder / "out")],
    )
    return made, path


def give(folder: Path, handle: hf.PipelineHandle, number: int) -> None:
    (folder / "in" / f"{number}.json").write_text('{"n": 1}\n')
    until = time.monotonic() + 60
    while handle.status().streams["orders"].epoch < number:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_checkpoint_savepoint_cancel_prune_stop_rewind_and_undo_from_the_page(tmp_path: Path) -> None:
    made, path = program(tmp_path)
    control = PageControl(programs={"orders": f"{path}:pipeline"})
    with RunningPage([str(tmp_path / "root")], Listening(port=0), control) as page:
        visitor = Visitor(page, control.token.text)
        handle = made.start(session(), checkpoint_every=None)
        try:
            give(tmp_path, handle, 1)
            assert "checkpoint 1 was taken: orders at epoch 1" in visitor.applied(
                "checkpoint", visitor.planned("checkpoint", why="the first")[1]
            )
            give(tmp_path, handle, 2)
            assert "savepoint before (checkpoint 2) was taken" in visitor.applied(
                "savepoint", visitor.planned("savepoint")[1]
            )
            assert "no checkpoint is being taken" in visitor.applied("cancel", visitor.planned("cancel")[1])
            give(tmp_path, handle, 3)
            for _ in range(2):
                visitor.applied("checkpoint", visitor.planned("checkpoint")[1])
            plan, ticket = visitor.planned("prune", last="2")
            assert "remove" in plan
            assert "s-done" in visitor.applied("prune", ticket, name="orders")
            assert [each.checkpoint for each in Checkpoints(made.repository).restorable()] == [3, 4]
            refused, ticket = visitor.planned("rewind", to="before")
            assert "holdfast stop" in refused
            assert not ticket, "the pipeline runs"
            assert "pipeline orders has stopped: orders at epoch 3" in visitor.applied(
                "stop", visitor.planned("stop", savepoint="", why="a bug")[1]
            )
            assert handle.wait(30)
            assert handle.stop_request is not None
            assert "on the page: a bug" in handle.stop_request.summary
        finally:
            handle.stop()
        plan, ticket = visitor.planned("rewind", to="before", why="a bug")
        assert "goes back to savepoint before" in plan
        assert "1 epoch" in plan or "epoch 3" in plan
        assert visitor.post("/p/orders/actions/rewind/apply", {"ticket": ticket, "name": "x"})[0] == 400
        _, ticket = visitor.planned("rewind", to="before", why="a bug")
        assert "timeline 2 continues orders after epoch 2" in visitor.applied("rewind", ticket, name="orders")
        assert "a bug" in visitor.get("/p/orders/timelines")[1]
        _, stale = visitor.planned("undo")
        _, ticket = visitor.planned("undo")
        assert "undid the rewind" in visitor.applied("undo", ticket, name="orders")
        end = visitor.applied("undo", stale, name="orders")
        assert "Next:" in end, "the plan of a ticket is compared again"
        assert "s-failed" in end
    assert made.run(session(), available_now=True).streams["orders"].epoch == 3


def test_a_stop_on_the_page_while_the_program_waits_ends_the_run(tmp_path: Path) -> None:
    made, _ = program(tmp_path)
    control, ended = PageControl(), []
    with RunningPage([str(tmp_path / "root")], Listening(port=0), control) as page:
        visitor = Visitor(page, control.token.text)
        handle = made.start(session(), checkpoint_every=None)
        waiting = threading.Thread(target=lambda: ended.append(handle.await_termination()))
        waiting.start()
        give(tmp_path, handle, 1)
        assert "pipeline orders has stopped" in visitor.applied("drain", visitor.planned("drain", savepoint="end")[1])
        waiting.join(30)
        assert ended[0].streams["orders"].epoch == 1
    assert Checkpoints(made.repository).read("end").streams["orders"].epoch == 1


def test_a_real_run_makes_traces_of_its_epochs_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    made, _ = program(tmp_path)
    told: list[tuple[str, hf.EpochTimes]] = []
    callbacks = hf.StreamCallbacks(on_epoch_times=lambda stream, times: told.append((stream, times)))
    with made.start(session(), checkpoint_every=None, callbacks=callbacks) as handle:
        give(tmp_path, handle, 1)
        handle.checkpoint()
        handle.watch(every=0.1, seconds=0.3)
    assert "orders: orders running at epoch 1, 1 row" in capsys.readouterr().out
    (told_of,) = told
    assert (told_of[0], told_of[1].epoch, told_of[1].rows) == ("orders", 1, 1)
    names = [each.name for each in kept.get_finished_spans()]
    assert {"epoch orders", "prepare", "prepare files", "commit files", "checkpoint", "checkpoint orders"} <= {
        each if not each.startswith(("prepare ", "commit ")) else f"{each.split()[0]} files" for each in names
    }

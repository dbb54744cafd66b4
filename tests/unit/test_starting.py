"""The start of a pipeline, up to the point at which it needs Spark."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from holdfast.control.records import is_closed
from holdfast.errors import ExecutorsUnfit, HoldfastError, RewindUnfinished, SparkFileDamaged, StorageFailed
from holdfast.policy import Backoff
from holdfast.repository import Identity, Lease, LocalRepository
from holdfast.repository.activity import START_FAILED, Activity
from holdfast.spark import adapter, starting
from holdfast.spark.context import StreamCallbacks
from holdfast.spark.options import START_DEFAULTS
from holdfast.spark.starting import PipelineDefinition, RunSettings, start_pipeline


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("require_cluster", ExecutorsUnfit(problems=("worker-1: no package obstore",))),
        ("finish_rewind", RewindUnfinished(timeline=2, to="checkpoint 1", why="a sink is missing")),
    ],
)
def test_a_start_that_is_refused_before_its_streams_are_built_does_not_look_like_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: HoldfastError
) -> None:
    repository = LocalRepository(tmp_path)
    Identity.create(repository, "orders")

    def refused(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(adapter, "require_retention", lambda _: 100)
    monkeypatch.setattr(starting, "prepare_session", lambda *_: None)
    monkeypatch.setattr(starting, "take_lease", lambda *_, **__: Lease.take(repository, why="run"))
    monkeypatch.setattr(starting, "require_cluster", lambda *_: None)
    monkeypatch.setattr(starting, step, refused)
    session: Any = None
    pipeline = PipelineDefinition(
        name="orders",
        repository=repository,
        shared=False,
        backoff=Backoff(),
        callbacks=StreamCallbacks(),
        observers=(),
        streams={},
    )
    with pytest.raises(type(error)):
        start_pipeline(pipeline, session, RunSettings.checked(START_DEFAULTS), contextlib.ExitStack())
    (event,) = Activity(repository).events()[0]
    assert (event.kind, event.lease, event.error) == (START_FAILED, 1, type(error).__name__)
    assert not is_closed(repository, 1)
    Lease.take(repository).release()


def test_the_error_of_a_start_is_reported_although_the_search_for_a_way_back_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object) -> NoReturn:
        raise StorageFailed(action="list", key="timelines", why="Input/output error")

    monkeypatch.setattr(starting, "way_back", failing)
    run: Any = SimpleNamespace(repository=None, lineage=None)
    damaged = SparkFileDamaged(stream="orders", path="offsets/1")
    with pytest.raises(SparkFileDamaged, match="offsets/1"), starting._naming_the_way_back(run):
        raise damaged
    monkeypatch.setattr(starting, "way_back", lambda *_: "go back to checkpoint 1")
    with pytest.raises(SparkFileDamaged, match="go back to checkpoint 1"), starting._naming_the_way_back(run):
        raise damaged

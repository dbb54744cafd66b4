"""Prunes on an object store. The store is in memory."""

from __future__ import annotations

import pytest

from holdfast import Retention
from holdfast.pruning import apply_prune, plan_prune
from holdfast.repository import History, Lease, ObjectRepository, TimelineRecord
from holdfast.repository.lineage import begin_timeline, branches
from memorystore import store_repository


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> ObjectRepository:
    return store_repository(monkeypatch)


def test_an_abandoned_timeline_is_deleted_once(repository: ObjectRepository) -> None:
    """Its record remains, because such records are never removed."""
    for number in (2, 3):
        begin_timeline(repository, TimelineRecord(timeline=number, parent=1, bases={"orders": 0}))
        repository.put_new(f"timelines/{number}/streams/orders/stream.json", b"a stream")
    with Lease.take(repository) as lease:
        plan = plan_prune(repository, Retention(last=1), abandoned=True)
        assert plan.timelines == (2,)
        apply_prune(repository, plan, lease)
    assert [each.key for each in repository.flat("timelines")] == ["timelines/3/streams/orders/stream.json"]
    assert sorted(branches(repository)) == [2, 3]
    assert plan_prune(repository, Retention(last=1), abandoned=True).empty
    assert [each.what for each in History(repository).entries()] == ["prune"]

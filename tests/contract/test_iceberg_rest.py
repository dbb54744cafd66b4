"""Iceberg tables of a real REST catalog, that of the Iceberg project: the contract, races, and lost answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from faultproxy import Fault, FaultProxy
from holdfast.errors import SinkFailed
from holdfast.sinks.base import Sink
from holdfast.sinks.iceberg.changes import is_own
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.testing.take_back import at_once
from icebergrest import new_namespace, server
from icebergstaged import OWNER, IcebergByHand, context_for, frame_of, key_of, rows_of, table_of_sink

pytestmark = pytest.mark.jvm
LOST = [Fault.DROP_BEFORE, Fault.DROP_AFTER, Fault.ANSWER_500, Fault.APPLIED_500, Fault.ANSWER_503, Fault.APPLIED_503]


@pytest.fixture
def spark() -> None:
    return None


class TestIcebergRest(IcebergByHand):
    def make(self, folder: Path) -> Sink:
        if not hasattr(self, "namespaces"):
            self.namespaces: dict[Path, str] = {}
        namespace = self.namespaces.setdefault(folder, new_namespace())
        return IcebergSink(f"{namespace}.rows", catalog={"type": "rest", "uri": server().uri})


@pytest.fixture
def namespace() -> str:
    return new_namespace()


@pytest.fixture
def faults() -> Iterator[FaultProxy]:
    with FaultProxy(server().uri) as proxy:
        yield proxy


def opened(namespace: str, uri: str | None = None, **options: int) -> IcebergSink:
    sink = IcebergSink(f"{namespace}.rows", catalog={"type": "rest", "uri": uri or server().uri}, **options)
    sink.open(context_for())
    return sink


def seen(sink: IcebergSink) -> list[int]:
    return sorted(n for n, _ in rows_of(sink))


def test_two_drivers_commit_one_handle_at_the_same_moment(namespace: str) -> None:
    sinks = [opened(namespace) for _ in range(2)]
    for epoch in range(1, 11):
        handle = sinks[0].prepare(frame_of(epoch), key_of(epoch)).handle
        assert at_once([lambda sink=sink: sink.commit(key_of(epoch), handle) for sink in sinks]) == []  # noqa: B023
    assert seen(sinks[0]) == list(range(1, 11))
    assert table_of_sink(sinks[0]).metadata.last_sequence_number == 10


def test_old_snapshots_are_expired_by_the_server(namespace: str) -> None:
    sink = opened(namespace, keep_snapshots=3)
    for epoch in range(1, 8):
        sink.commit(key_of(epoch), sink.prepare(frame_of(epoch), key_of(epoch)).handle)
    assert len([each for each in table_of_sink(sink).metadata.snapshots if is_own(each, OWNER)]) == 3
    lower = opened(namespace, keep_snapshots=1)
    lower.commit(key_of(8), lower.prepare(frame_of(8), key_of(8)).handle)
    assert len(table_of_sink(sink).metadata.snapshots) == 1
    assert seen(sink) == list(range(1, 9))


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
def test_an_answer_of_the_catalog_that_gets_lost(fault: Fault, namespace: str, faults: FaultProxy) -> None:
    """The catalog has committed or not, and the client cannot tell. The rows are there once, and can be read."""
    sink = opened(namespace, faults.endpoint)
    for epoch in range(1, 5):
        key = key_of(epoch)
        handle = sink.prepare(frame_of(epoch), key).handle
        faults.fail(fault, "DELETE", key="/tables/rows", times=1 + epoch % 2)  # its name for a POST
        for _ in range(10):
            try:
                sink.commit(key, handle)
                break
            except SinkFailed:
                continue
        else:
            pytest.fail("it was never committed")
        faults.clear()
        opened(namespace).commit(key, handle)
        assert seen(sink) == list(range(1, epoch + 1))
    assert sum(each.fault is fault for each in faults.seen) >= 4

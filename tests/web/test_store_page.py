"""The page of pipelines on S3."""

import http.client
import json
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `page` is not installed")

from fabricated import Fabricated
from holdfast.repository import Lease, ObjectRepository
from holdfast.web.acting.control import PageControl
from holdfast.web.listening import Listening, RunningPage
from holdfast.web.places import Places
from madeup import TAKEN, MadeUpDriver
from s3fixture import S3Place
from visiting import Visitor


@pytest.fixture
def orders(s3: S3Place) -> ObjectRepository:
    """A pipeline that has run and stopped, beside a folder that is no pipeline."""
    repository: Any = ObjectRepository(s3.url("pipelines/orders"))
    Fabricated(repository).checkpoints.claim(1, 1)
    Lease.take(repository, why="run").release()
    ObjectRepository(s3.url("pipelines/something-else")).put_new("x", b"x")
    return repository  # type: ignore[no-any-return]


def got(page: RunningPage, path: str) -> str:
    port = int(page.addresses[0].rsplit(":", 1)[1].strip("/"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200, path
        return answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("below", [True, False])
def test_a_pipeline_on_a_store_is_found_below_a_root_and_by_its_own_address(
    orders: ObjectRepository, s3: S3Place, below: bool
) -> None:
    root = s3.url("pipelines") if below else orders.where
    assert {slug: each.repository.where for slug, each in Places([root]).all().items()} == {"orders": orders.where}


def test_every_view_of_a_pipeline_on_a_store_is_served(orders: ObjectRepository) -> None:
    with RunningPage([orders.where], Listening(port=0)) as page:
        for path in ("/", "/p/orders", "/p/orders/checkpoints", "/p/orders/runs", "/p/orders/timelines"):
            assert "orders" in got(page, path)
        assert f'repository="{orders.where}"' in got(page, "/metrics")
        (listed,) = json.loads(got(page, "/api/p/orders/ls"))["result"]["pipelines"]
        assert listed["where"] == orders.where


def test_a_pipeline_on_a_store_has_the_same_actions(orders: ObjectRepository) -> None:
    control = PageControl()
    with RunningPage([orders.where], Listening(port=0), control) as page:
        visitor = Visitor(page, control.token.text)
        assert "NotRunning" in visitor.post("/p/orders/actions/checkpoint", {})[2]
        running = MadeUpDriver(orders, lambda _: dict(TAKEN.to_dict()))
        try:
            plan, ticket = visitor.planned("checkpoint", why="before the upgrade")
            assert f"holdfast checkpoint -r {orders.where}" in plan
            assert "checkpoint 7" in visitor.applied("checkpoint", ticket)
            assert [each.kind for each in running.seen] == ["checkpoint"]
        finally:
            running.end()
        _, ticket = visitor.planned("prune", last="2")
        assert "s-done" in visitor.applied("prune", ticket, name="orders")

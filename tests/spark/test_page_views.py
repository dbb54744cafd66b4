"""Every view of a pipeline that really runs, in a real Chromium."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `page` is not installed")
pytest.importorskip("playwright", reason="playwright is not installed")

import holdfast as hf
from browsing import Watched, browser, chromium
from holdfast.web.acting.control import PageControl
from holdfast.web.listening import Listening, RunningPage
from sparkfixture import session

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no chromium on this machine")

VIEWS = (
    "/",
    "/p/orders",
    "/p/orders/streams/orders",
    "/p/orders/streams/orders?span=7d&sort=slowest",
    "/p/orders/streams/orders?epoch=2",
    "/p/orders/streams/totals",
    "/p/orders/checkpoints",
    "/p/orders/checkpoints/1",
    "/p/orders/checkpoints/before-sale",
    "/p/orders/diff?a=1&b=before-sale",
    "/p/orders/runs",
    "/p/orders/ledger",
    "/p/orders/timelines",
    "/p/orders/actions",
)


def pipeline(folder: Path) -> hf.Pipeline:
    """Two streams: one without state into two sinks, and one with state into a table."""
    (folder / "in").mkdir()
    made = hf.Pipeline("orders", folder / "root")
    made.stream(
        lambda spark: spark.readStream.schema("n long").json(str(folder / "in")),
        name="orders",
        sinks=[hf.FileSink(folder / "out"), hf.SqliteSink(folder / "out.db", table="orders")],
    )
    made.stream(
        lambda spark: spark.readStream.schema("n long").json(str(folder / "in")).groupBy("n").count(),
        name="totals",
        output_mode="update",
        sinks=[hf.SqliteSink(folder / "totals.db", table="totals", key="n")],
    )
    return made


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the pipeline for a few epochs with a checkpoint and a savepoint; it keeps running during the tests."""
    folder = tmp_path_factory.mktemp("running")
    with pipeline(folder).start(session(), checkpoint_every=None) as handle:
        for number in (1, 2, 3):
            (folder / "in" / f"{number}.json").write_text('{"n": 1}\n{"n": 2}\n')
            while min(each.epoch for each in handle.status().streams.values()) < number:
                time.sleep(0.02)
            if number == 1:
                handle.checkpoint()
        handle.savepoint("before-sale")
        with RunningPage([str(folder / "root")], Listening(port=0), PageControl()) as page:
            yield page.addresses[0].rstrip("/")


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.mark.parametrize("width", [360, 1600])
def test_every_view_of_a_pipeline_that_runs(chrome: Any, origin: str, width: int) -> None:
    watched = Watched(chrome, origin, viewport={"width": width, "height": 900})
    try:
        for view in VIEWS:
            assert watched.open(view).status == 200, view
            assert watched.overflow <= 0, f"{view} is wider than {width} pixels"
            if "actions" not in view:  # a view with forms is not live
                watched.page.wait_for_selector("#live.on")
        watched.open("/p/orders")
        assert watched.page.locator("main .badge").first.inner_text() == "running"
        assert watched.page.locator(".problem").count() == 0
        watched.open("/p/orders/streams/orders")
        assert watched.page.locator("svg .ph-prepare").count() >= 3, "the phases of real epochs are drawn"
        assert (watched.errors, watched.foreign) == ([], [])
    finally:
        watched.close()

"""Six pipelines that are really broken, seen by a first-time visitor: what went wrong and what to do is on the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `page` is not installed")
pytest.importorskip("playwright", reason="playwright is not installed")

from brokenpipelines import Broken
from browsing import Watched, browser, chromium
from holdfast.web.listening import Listening, RunningPage
from pgfixture import server
from sparkfixture import session

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no chromium on this machine")

AGAIN = "holdfast run app.py:pipeline"
# By pipeline: its state, words about what went wrong, and words about what to do next.
EXPECTED = {
    "poison": ("failed", ["no price for 13", "epoch 2"], ["fix the cause", AGAIN, "after the last committed epoch"]),
    "server-down": ("failed", ["sink", "outage"], [AGAIN]),
    "damaged": ("stopped", ["checkpoint 2 is damaged"], ["holdfast verify --all"]),
    "input-gone": ("failed", ["Path does not exist", "in-input-gone"], ["fix the cause", AGAIN]),
    "in-doubt": ("killed", ["it was killed", "epoch 1 of stream orders is in doubt"], [AGAIN]),
    "foreign": (
        "failed",
        ["out-foreign", "belongs to stream 'orders' of pipeline 'foreign' with the uid"],
        ["use that pipeline's repository, or choose another target", "would write rows twice", AGAIN],
    ),
}


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = Broken(tmp_path_factory.mktemp("broken"), session()).make(server())
    with RunningPage([str(root)], Listening(port=0)) as page:
        yield page.addresses[0].rstrip("/")


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_what_went_wrong_and_what_to_do_next_is_found_from_the_first_view(
    chrome: Any, origin: str, width: int, scheme: str, tmp_path: Path
) -> None:
    watched = Watched(chrome, origin, viewport={"width": width, "height": 900}, color_scheme=scheme)
    try:
        watched.open("/")
        assert watched.page.locator("article.card").count() == len(EXPECTED)
        assert watched.overflow <= 0
        for name, (state, wrong, next_step) in EXPECTED.items():
            watched.open("/")
            card = watched.page.locator("article.card", has=watched.page.locator(f"a:text-is('{name}')"))
            assert "Next:" in card.inner_text(), name
            card.locator("h2 a").click()
            watched.page.wait_for_url(f"**/p/{name}")
            assert watched.page.locator("main .badge").first.inner_text() == state, name
            found = watched.page.inner_text(".problems")
            for words in (*wrong, *next_step):
                assert words in found, f"{name}: {words!r} is not in {found}"
            top = watched.page.evaluate("document.querySelector('.problems').getBoundingClientRect().y")
            assert top < 900, "without scrolling"
            assert watched.overflow <= 0, name
            for view in ("runs", "ledger", "checkpoints"):
                watched.open(f"/p/{name}/{view}")
                assert watched.overflow <= 0, (name, view)
        assert (watched.errors, watched.foreign) == ([], [])
    finally:
        watched.close()

"""Every view in a real Chromium: no console error, no request to another host, no wider than the window."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `page` is not installed")
pytest.importorskip("playwright", reason="playwright is not installed")

from browsing import Watched, browser, chromium
from holdfast.web.acting.control import PageControl
from holdfast.web.listening import Listening, RunningPage
from madeup import TAKEN, MadeUpDriver
from webfixture import Sample, started, troubled

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no chromium on this machine")

VIEWS = ("", "/streams/orders", "/checkpoints", "/checkpoints/3", "/diff?a=2&b=4", "/runs", "/ledger", "/timelines")
LARGE = (
    "/",
    "/p/large",
    "/p/large/streams/orders?span=7d",
    "/p/large/streams/orders?span=7d&sort=slowest",
    "/p/large/streams/orders?epoch=37",
    "/p/large/checkpoints",
    "/p/large/checkpoints/500",
    "/p/large/diff?a=1&b=1000",
    "/p/large/runs",
    "/p/large/ledger",
    "/p/large/timelines",
)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("pipelines")
    troubled(root)
    with RunningPage([str(root)], Listening(port=0)) as page:
        yield page.addresses[0].rstrip("/")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_every_view_of_every_condition(chrome: Any, origin: str, width: int, scheme: str) -> None:
    watched = Watched(chrome, origin, viewport={"width": width, "height": 900}, color_scheme=scheme)
    try:
        addresses = ["/", "/p/new"]
        for name in ("stopped", "failed", "killed", "damaged", "rewound"):
            addresses += [f"/p/{name}{view}" for view in VIEWS]
        for address in addresses:
            answer = watched.open(address)
            assert answer.status == 200, address
            assert watched.page.locator("h1").count() == 1
            assert watched.overflow <= 0, f"{address} is wider than {width} pixels"
        watched.page.wait_for_selector("#live.on")
        assert (watched.errors, watched.foreign) == ([], [])
    finally:
        watched.close()


@pytest.mark.parametrize("width", [360, 1600])
def test_a_damaged_checkpoint_has_a_view_with_the_next_step(chrome: Any, origin: str, width: int) -> None:
    watched = Watched(chrome, origin, viewport={"width": width, "height": 900})
    try:
        assert watched.open("/p/damaged/checkpoints/6").status == 500
        text = watched.page.inner_text(".problem.error")
        assert "CheckpointDamaged" in text
        assert "holdfast verify" in text
        assert watched.overflow <= 0
        watched.page.click("nav.tabs >> text=Checkpoints")
        watched.page.wait_for_selector("text=damaged")
        assert (watched.errors_but_status, watched.foreign) == ([], [])
    finally:
        watched.close()


def test_what_went_wrong_and_what_to_do_is_found_from_the_first_view(chrome: Any, origin: str) -> None:
    """As a visitor would: open the page, follow the link of the pipeline that looks bad, read."""
    expected = {
        "failed": "correct the table",
        "killed": "start the pipeline again",
        "damaged": "holdfast verify --all",
        "rewound": "holdfast gaps",
    }
    watched = Watched(chrome, origin)
    try:
        for name, advice in expected.items():
            watched.open("/")
            watched.page.click(f"a:text-is('{name}')")
            watched.page.wait_for_url(f"**/p/{name}")
            assert advice in watched.page.inner_text(".problems")
    finally:
        watched.close()


@pytest.mark.parametrize("width", [360, 1600])
def test_the_longest_names_and_the_smallest_graph_fit(chrome: Any, tmp_path: Path, width: int) -> None:
    long = Sample(tmp_path, "long", streams=("x" * 64, "y" * 64)).healthy(3, 2)
    long.program(long.streams[0], reads="/データ/注文/二〇二六年/とても長いフォルダ名/ファイル", kind="x" * 64)
    Sample(tmp_path, "small").epochs("orders", 1)
    with RunningPage([str(tmp_path)], Listening(port=0)) as page:
        watched = Watched(chrome, page.addresses[0].rstrip("/"), viewport={"width": width, "height": 900})
        try:
            for view in ("", f"/streams/{'x' * 64}", "/checkpoints", "/checkpoints/2", "/runs", "/ledger"):
                assert watched.open(f"/p/long{view}").status == 200, view
                assert watched.overflow <= 0, view
            watched.open("/p/long")
            outside = watched.page.evaluate(
                "[...document.querySelectorAll('.node text')].filter(each => each.getBoundingClientRect().right > "
                "each.parentNode.querySelector('rect').getBoundingClientRect().right).map(each => each.textContent)"
            )
            assert outside == []
            watched.open("/p/small")
            small = "document.querySelector('svg.graph').getBoundingClientRect().width"
            assert watched.page.evaluate(small) == 182, "it is not enlarged"
        finally:
            watched.close()


def focus_by_tab(tab: Any, is_it: str) -> None:
    """Press Tab until the focused element is the wanted one."""
    for _ in range(40):
        tab.keyboard.press("Tab")
        if tab.evaluate(f"(each => {is_it})(document.activeElement)"):
            return
    raise AssertionError(f"Tab does not reach it: {is_it}")


def test_the_page_works_by_keyboard(chrome: Any, origin: str) -> None:
    watched = Watched(chrome, origin)
    tab = watched.page
    try:
        watched.open("/p/stopped")
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.className") == "skip"
        tab.keyboard.press("Enter")
        assert tab.evaluate("document.activeElement.id") == "main"
        focus_by_tab(
            tab, "each.closest('.node.stream, svg a') && each.getAttribute('href').endsWith('/streams/orders')"
        )
        tab.keyboard.press("Enter")
        tab.wait_for_url("**/p/stopped/streams/orders")
        watched.open("/p/stopped")
        focus_by_tab(tab, "each.textContent === 'Checkpoints'")
        tab.keyboard.press("Enter")
        tab.wait_for_url("**/p/stopped/checkpoints")
        assert (watched.errors, watched.foreign) == ([], [])
    finally:
        watched.close()


def test_a_strip_is_one_stop_of_the_keyboard_and_arrows_move_inside(chrome: Any, origin: str) -> None:
    watched = Watched(chrome, origin)
    tab = watched.page
    try:
        watched.open("/p/stopped/streams/orders?sort=slowest")
        assert tab.locator(".chart a").count() == 120
        assert tab.evaluate("[...document.querySelectorAll('.chart a')].filter(each => each.tabIndex >= 0).length") == 1
        assert tab.locator(".chart [role=img] a").count() == 0, "what an image contains is not announced"
        focus_by_tab(tab, "each.closest('.chart a')")
        assert "epoch 120:" in tab.inner_text(".chart .at"), "it begins at the newest"
        for key, epoch in (("ArrowLeft", 119), ("ArrowLeft", 118), ("Home", 1), ("ArrowLeft", 1), ("ArrowRight", 2)):
            tab.keyboard.press(key)
            assert f"epoch {epoch}:" in tab.inner_text(".chart .at"), key
        tab.keyboard.press("End")
        tab.keyboard.press("Shift+Tab")
        assert not tab.evaluate("Boolean(document.activeElement.closest('.chart'))"), "one key leaves it"
        tab.keyboard.press("Tab")
        tab.keyboard.press("ArrowLeft")
        tab.keyboard.press("Enter")
        tab.wait_for_url("**#epoch-119")
        assert tab.evaluate("document.getElementById('epoch-119').getBoundingClientRect().top < window.innerHeight")
        assert (watched.errors, watched.foreign) == ([], [])
    finally:
        watched.close()


def test_an_opened_part_and_the_focus_survive_an_update(chrome: Any, tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy()
    with RunningPage([str(tmp_path)], Listening(port=0)) as page:
        watched = Watched(chrome, page.addresses[0].rstrip("/"))
        try:
            watched.open("/p/orders/checkpoints/3")
            watched.page.wait_for_selector("#live.on")
            watched.page.click("summary >> nth=0")
            sample.checkpoint(6)
            watched.page.wait_for_selector("option[value='6']", state="attached", timeout=5000)
            assert watched.page.evaluate("document.querySelector('details').open")
            assert watched.errors == []
        finally:
            watched.close()


def test_opened_facts_stay_those_of_their_gap(chrome: Any, tmp_path: Path) -> None:
    sample = Sample(tmp_path).healthy()
    sample.gap("orders", 3)
    with RunningPage([str(tmp_path)], Listening(port=0)) as page:
        watched = Watched(chrome, page.addresses[0].rstrip("/"))
        try:
            watched.open("/p/orders/ledger")
            watched.page.wait_for_selector("#live.on")
            watched.page.click("summary")
            sample.now_ms += 5_000
            sample.gap("orders", 4)
            watched.page.wait_for_selector("details >> nth=1", timeout=5000)
            opened = watched.page.evaluate("[...document.querySelectorAll('details')].map(each => each.open)")
            assert opened == [False, True], "the newer gap is above it"
        finally:
            watched.close()


@pytest.mark.parametrize("focused", [".chart a[href='#epoch-57']", "td a[href='#epoch-57']"])
def test_the_focus_on_an_epoch_survives_an_update(chrome: Any, tmp_path: Path, focused: str) -> None:
    """The strip and the table of the slowest epochs may have the same link; the focus stays in its own."""
    sample = Sample(tmp_path).healthy(60, 1)  # the slowest epoch of the second minute is 57
    with RunningPage([str(tmp_path)], Listening(port=0)) as page:
        watched = Watched(chrome, page.addresses[0].rstrip("/"))
        try:
            watched.open("/p/orders/streams/orders")
            watched.page.wait_for_selector("#live.on")
            watched.page.focus(focused)
            sample.epochs("orders", 61, first=61)
            watched.page.wait_for_selector("#epoch-61", state="attached", timeout=5000)
            assert watched.page.evaluate("each => document.activeElement.matches(each)", focused)
            if "chart" in focused:
                assert "epoch 57:" in watched.page.inner_text(".chart .at")
        finally:
            watched.close()


PAPER = {"width": 718, "height": 1000}  # A4 without margins


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_prints_in_black_on_white_and_nothing_is_cut_off(chrome: Any, origin: str, scheme: str) -> None:
    watched = Watched(chrome, origin, viewport=PAPER, color_scheme=scheme)
    tab = watched.page
    try:
        for view in VIEWS:
            watched.open(f"/p/stopped{view}")
            tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
            tab.emulate_media(media="print")
            assert not tab.is_visible(".tabs")
            assert tab.is_visible("h1")
            colours = tab.evaluate(
                "[...document.querySelectorAll('body, section, td, pre')].map(each => "
                "[getComputedStyle(each).color, getComputedStyle(each).backgroundColor])"
            )
            assert {dark for dark, _ in colours} <= {"rgb(0, 0, 0)"}, view
            assert {light for _, light in colours} <= {"rgb(255, 255, 255)", "rgba(0, 0, 0, 0)"}, view
            wide = tab.evaluate(
                "[...document.querySelectorAll('.scroll, pre, .chart, section')].filter(each => "
                "each.scrollWidth > each.clientWidth + 1 || each.scrollHeight > each.clientHeight + 1)"
                ".map(each => each.className + ' ' + each.tagName + ' ' + each.scrollWidth + ' ' + each.clientWidth)"
            )
            assert wide == [], view
            assert len(tab.pdf()) > 10_000
            tab.emulate_media(media="screen")
    finally:
        watched.close()


def test_a_killed_pipeline_is_seen_within_two_seconds_and_so_is_its_return(chrome: Any, tmp_path: Path) -> None:
    process = started(tmp_path)
    with RunningPage([str(tmp_path)], Listening(port=0)) as page:
        watched = Watched(chrome, page.addresses[0].rstrip("/"))
        try:
            watched.open("/p/repository")
            watched.page.wait_for_selector("main .s-running")
            epoch = watched.page.inner_text("table tbody tr:first-child td:nth-child(3)")
            watched.page.wait_for_function(
                "before => document.querySelector('table tbody td:nth-child(3)').textContent !== before", arg=epoch
            )
            process.kill()
            began = time.monotonic()
            watched.page.wait_for_selector("main .s-killed", timeout=5000)
            assert time.monotonic() - began < 2.0
            process.wait()
            again = started(tmp_path)
            try:
                watched.page.wait_for_selector("main .s-running", timeout=10_000)
                watched.open("/p/repository/runs")
                assert "continues after epoch" in watched.page.inner_text("main")
            finally:
                again.kill()
                again.wait()
            assert (watched.errors, watched.foreign) == ([], [])
        finally:
            watched.close()
    for each in (process, again):
        assert each.stdout is not None
        each.stdout.close()


def test_ten_thousand_epochs_and_a_thousand_checkpoints(chrome: Any, tmp_path: Path) -> None:
    sample = Sample(tmp_path, "large")
    sample.lease()
    sample.program("orders")
    for name in sample.streams:
        sample.epochs(name, 10_000)
    for number in range(1, 1001):
        sample.checkpoint(number, ago_s=(1000 - number) * 60, files=2)
    sample.periods(600)
    with RunningPage([str(tmp_path)], Listening(port=0)) as page:
        watched = Watched(chrome, page.addresses[0].rstrip("/"))
        try:
            for view in LARGE:
                assert watched.open(view).status == 200, view
                watched.page.wait_for_selector("#live.on")
                assert watched.overflow <= 0, view
            assert (watched.errors, watched.foreign) == ([], [])
        finally:
            watched.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_an_action_from_its_form_to_its_end(chrome: Any, tmp_path: Path, width: int, scheme: str) -> None:
    """In a real browser: the origin of a form, the policy for scripts, and the token that the tab remembers."""
    sample = Sample(tmp_path).healthy()
    driver = MadeUpDriver(sample.repository, lambda _: dict(TAKEN.to_dict()))
    control = PageControl()
    with RunningPage([str(tmp_path)], Listening(port=0), control) as page:
        origin = page.addresses[0].rstrip("/")
        watched = Watched(chrome, origin, viewport={"width": width, "height": 900}, color_scheme=scheme)
        tab = watched.page
        try:
            watched.open("/p/orders")
            tab.click("nav.tabs >> text=Actions")
            assert watched.overflow <= 0
            tab.fill("#do-checkpoint input[name=why]", "before the <b>sale</b>")
            tab.fill("#do-checkpoint input[name=token]", control.token.text)
            tab.click("#do-checkpoint button")
            tab.wait_for_selector("text=takes a checkpoint of all streams now")
            assert watched.overflow <= 0
            assert driver.seen == []
            assert tab.input_value("input[name=token]") == control.token.text, "the tab remembers it"
            ticket = tab.get_attribute("input[name=ticket]", "value")
            tab.click("button.do")
            tab.wait_for_selector("text=checkpoint 7 was taken")
            assert watched.overflow <= 0
            assert [each.why for each in driver.seen] == ["on the page: before the <b>sale</b>"]
            replayed = tab.evaluate(
                "form => fetch('/p/orders/actions/checkpoint/apply', {method: 'POST', "
                "body: new URLSearchParams(form)}).then(answer => answer.status)",
                {"ticket": ticket, "token": control.token.text},
            )
            assert replayed == 409
            assert len(driver.seen) == 1
            assert (watched.errors_but_status, watched.foreign) == ([], [])
            assert tab.evaluate("document.cookie") == ""
        finally:
            watched.close()
            driver.end()


def test_a_form_on_another_website_cannot_act(chrome: Any, tmp_path: Path) -> None:
    """A website that even knows the token: the browser names its origin, and the server refuses."""
    sample = Sample(tmp_path).healthy()
    driver = MadeUpDriver(sample.repository, lambda _: dict(TAKEN.to_dict()))
    control = PageControl()
    with RunningPage([str(tmp_path)], Listening(port=0), control) as page:
        port = page.addresses[0].rstrip("/").rsplit(":", 1)[1]
        context = chrome.new_context()
        tab = context.new_page()
        try:
            action = f"http://127.0.0.1:{port}/p/orders/actions/checkpoint"
            text = (
                f'<form method="post" action="{action}"><input name="token" value="{control.token.text}">'
                "<button>prizes</button></form>"
            )
            tab.route("http://evil.example/", lambda route: route.fulfill(body=text, content_type="text/html"))
            tab.goto("http://evil.example/")
            with tab.expect_response(action) as answer:
                tab.click("button")
            assert answer.value.status == 403
            assert driver.seen == []
        finally:
            context.close()
            driver.end()

"""Repositories and readers that were made to break the page: names with HTML, nonsense, readers that stall."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra `page` is not installed")

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from holdfast.epoch import Attempt, Decision, Verdict
from holdfast.formats.sealed_json import seal
from holdfast.program.description import SinkDescription, SourceDescription, StreamDescription
from holdfast.program.records import ProgramRecord
from holdfast.repository import Repository
from holdfast.repository.gaps import GapRecord
from holdfast.web import book
from holdfast.web import places as roots
from holdfast.web.listening import Listening, RunningPage
from holdfast.web.places import Places
from webclient import Client, next_event
from webfixture import Sample

BAD = "<img src=x onerror=alert(1)>\"'&"
VIEWS = (
    "/",
    "/p/orders",
    "/p/orders/streams/orders",
    "/p/orders/streams/orders?epoch=3",
    "/p/orders/streams/totals?span=7d&sort=slowest",
    "/p/orders/checkpoints",
    "/p/orders/checkpoints/3",
    "/p/orders/diff?a=2&b=4",
    "/p/orders/runs",
    "/p/orders/ledger",
    "/p/orders/timelines",
)


class Tags(HTMLParser):
    """Reads HTML as a browser does, and notes what could run a script."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name.startswith("on") or name == "style" or "script:" in (value or "").lower():
                self.found.add(f"{tag} {name}={value}")
        if tag not in KNOWN or (tag == "img" and dict(attrs).get("src") != "/static/icon.svg"):
            self.found.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


TAGS = """
a article b body button code datalist dd defs details div dl dt figcaption figure form g h1 h2 h3 head header html img
input label li link main marker meta nav ol option p path polyline pre rect script section span summary svg table tbody
td text th thead time title tr ul
"""
KNOWN = set(TAGS.split())


def suspicious(text: str) -> set[str]:
    tags = Tags()
    tags.feed(text)
    return tags.found


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no rendered view: a change is shown at the next request."""
    monkeypatch.setattr(book, "_FRESH_S", 0)


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return Sample(tmp_path / "root").healthy(12, 5)


@pytest.fixture
def client(sample: Sample) -> Iterator[Client]:
    with RunningPage([str(sample.root)], Listening(port=0)) as page:
        yield Client(page)


def check(client: Client, *more: str) -> None:
    """Every view is HTML of the page's own tags, and the metrics are served."""
    for view in (*VIEWS, *more):
        status, _, text = client.get(view)
        assert status in (200, 400, 404, 500), view
        assert text.startswith("<!doctype html>"), f"{view}: {text[:300]}"
        assert suspicious(text) == set(), view
    assert client.get("/metrics")[0] == 200
    assert client.get("/api/status")[0] == 200


def test_the_check_finds_a_script() -> None:
    assert suspicious("<p>&lt;img src=x onerror=1&gt;</p>") == set()
    assert suspicious("<p><img src=x onerror=1></p>") == {"img", "img onerror=1"}
    assert suspicious('<a href="javascript:x">') == {"a href=javascript:x"}


# --- names ---


def test_html_in_the_name_of_the_pipeline(client: Client, sample: Sample) -> None:
    sample.write("holdfast.json", seal({"version": 1, "pipeline": BAD, "uid": "0" * 32}))
    check(client)


def test_html_in_the_names_of_streams_sinks_and_savepoints(client: Client, sample: Sample) -> None:
    folder = "<img src=x onerror=alert(1)>"
    sample.write(f"timelines/1/streams/{folder}/epochs/1.1.json", b"{}")
    sample.write(f"programs/{folder}/0000000001.json", b"{}")
    sample.write(f"savepoints/{folder}/manifest.json", sample.checkpoint(6).read_bytes())
    named = json.loads(sample.checkpoint(7, savepoint="named").read_bytes())
    named["savepoint"] = BAD
    named["streams"][BAD] = {**named["streams"].pop("orders"), "sources": [BAD], "offsets": [BAD]}
    named.pop("digest")
    sample.write("savepoints/named/manifest.json", seal(named))
    description = StreamDescription(
        sources=[SourceDescription(kind=BAD, reads=BAD)],
        sinks={BAD: SinkDescription(kind=BAD, target=BAD)},
        columns=[],
        state=[],
        output_mode=BAD,
    )
    record = ProgramRecord(stream="orders", timeline=1, epoch=1, description=description, at_ms=sample.now_ms)
    sample.write("programs/orders/0000000001.json", record.sealed())
    newest = json.loads((sample.folder / "timelines/1/streams/orders/epochs/12.1.json").read_bytes())
    newest["facts"]["times"]["sinks"] = {BAD: 1.0}
    newest["facts"]["last_commit"]["sinks"] = {BAD: 1.0}
    newest["facts"]["quarantined"] = BAD
    newest.pop("digest", None)
    sample.write("timelines/1/streams/orders/epochs/12.1.json", seal(newest))
    check(client, "/p/orders/checkpoints/named", f"/p/orders/checkpoints/{folder.replace(' ', '%20')}")
    tags = Tags()
    tags.feed(client.get("/p/orders/streams/orders")[2])
    assert f"{BAD}" in tags.text, "it is shown, as text"


# --- roots ---


def test_a_repository_below_two_roots_is_shown_once(sample: Sample) -> None:
    roots = [str(sample.root), str(sample.folder), f"{sample.root}/."]
    with RunningPage(roots, Listening(port=0)) as page:
        client = Client(page)
        assert client.get("/")[2].count("<article") == 1
        families = text_string_to_metric_families(client.get("/metrics")[2])
        assert sum(each.name == "holdfast_pipeline_timeline" for each in families) == 1


def test_a_root_that_cannot_be_read_is_named_with_the_next_step(sample: Sample, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with RunningPage([str(loop), str(sample.root)], Listening(port=0)) as page:
        text = Client(page).get("/")[2]
        assert f"the pipelines below {loop} cannot be listed" in text
        assert "fix the storage" in text
        assert 'href="/p/orders"' in text
    with RunningPage([str(loop)], Listening(port=0)) as page:
        assert "There is no pipeline here yet" not in Client(page).get("/")[2]


def test_pipelines_keep_their_views_while_their_root_cannot_be_read(sample: Sample) -> None:
    now = 0.0
    places = Places([str(sample.root)], clock=lambda: now)
    before = places.all()
    away = sample.root.rename(sample.root.with_name("away"))
    sample.root.symlink_to(sample.root)
    now = 3.0
    assert places.all() == before
    assert len(places.unreadable) == 1
    sample.root.unlink()
    away.rename(sample.root)
    now = 6.0
    assert places.all() == before
    assert len(places.unreadable) == 0


def test_a_folder_whose_name_is_not_unicode_has_views(sample: Sample) -> None:
    folder = os.fsdecode(os.fsencode(sample.root / "caf") + b"\xe9")
    sample.folder.rename(folder)
    with RunningPage([folder], Listening(port=0)) as page:
        client = Client(page)
        (address,) = re.findall(r'<h2><a href="([^"]+)"', client.get("/")[2])
        assert client.get(address)[0] == 200


# --- records ---

NONSENSE = {
    "empty": b"",
    "deep": b"[" * 100_000,
    "not text": b"\xff\xfe{}",
    "not sealed": b"{}",
    "a list": b"[1, 2]",
    "unknown version": seal({"version": 99}),
    "wrong types": seal({"version": 1, "at_ms": "x", "attempt": [], "period": 3, "number": {}, "facts": "x"}),
}
RECORDS = (
    "timelines/1/streams/orders/epochs/12.1.json",
    "timelines/1/streams/orders/gaps/0000000003.quarantined.json",
    "timelines/2/lineage.json",
    "lease/00000001.json",
    "lease/00000002.json",
    "requests/00000001/closed.json",
    "programs/orders/0000000001.json",
    "holdfast.json",
)
NAMED = ("activity/periods", "activity/events")  # one of their files, whatever its name


@pytest.mark.parametrize("key", [*RECORDS, *NAMED])
def test_records_of_nonsense_break_only_themselves(client: Client, sample: Sample, key: str) -> None:
    path = min((sample.folder / key).iterdir()) if key in NAMED else sample.folder / key
    for data in NONSENSE.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        check(client)


@pytest.mark.parametrize("folder", ["activity", "lease", "timelines/1/checkpoints", "timelines/1/streams"])
def test_a_folder_that_cannot_be_listed_breaks_no_other_pipeline(sample: Sample, folder: str) -> None:
    Sample(sample.root, "sound").healthy(3, 1)
    shutil.rmtree(sample.folder / folder)
    (sample.folder / folder).write_bytes(b"")
    with RunningPage([str(sample.root)], Listening(port=0)) as page:
        client = Client(page)
        status, _, text = client.get("/")
        assert (status, 'href="/p/sound"' in text) == (200, True)
        status, _, text = client.get("/p/orders")
        assert (status, f"list &#x27;{folder}" in text) == (200, True)
        assert 'pipeline="sound"' in client.get("/metrics")[2]
        check(client)


def test_a_stream_that_cannot_be_read_has_a_view_of_the_problems(client: Client, sample: Sample) -> None:
    """An event stream of it goes on, and shows the stream again once it can be read."""
    path = sample.folder / "timelines/1/streams/orders/epochs/12.1.json"
    sound = path.read_bytes()
    path.write_bytes(b"junk")
    with client.stream("/p/orders/streams/orders") as answer:
        assert "epochs/12.1.json" in next_event(answer, "view")
        path.write_bytes(sound)
        assert "Slowest epochs" in next_event(answer, "view")
    assert client.get("/p/orders/streams/other")[0] == 404


def test_streams_whose_state_is_not_known_have_no_empty_badge(client: Client, sample: Sample) -> None:
    sample.write("lease/00000001.json", b"junk")
    text = client.get("/p/orders")[2]
    assert "state not known" in text
    assert '"badge s-"' not in text


NUMBERS = (10**30, 2**63, -1, 1e308)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_that_cannot_be_break_only_themselves(client: Client, sample: Sample, number: float) -> None:
    """In a decision, a period and a lease whose seals are right."""
    decision = sample.folder / "timelines/1/streams/orders/epochs/12.1.json"
    period = min((sample.folder / "activity/periods").iterdir())
    lease = sample.folder / "lease/00000001.json"
    for path, places in {
        decision: [("facts", "rows"), ("facts", "decided_at_ms"), ("facts", "times", "prepare"), ("lease",)],
        period: [
            ("period", "start_ms"),
            ("period", "streams", "orders", "slowest"),
            ("period", "streams", "orders", "rows"),
        ],
        lease: [("taken_at_ms",), ("pid",)],
    }.items():
        sound = path.read_bytes()
        for place in places:
            found = json.loads(sound)
            inner = found
            for name in place[:-1]:
                inner = inner[name]
            assert place[-1] in inner, place
            inner[place[-1]] = number
            found.pop("digest", None)
            path.write_bytes(seal(found))
            check(client)
        path.write_bytes(sound)


def test_a_decision_that_names_another_epoch_or_only_ends_the_timeline(client: Client, sample: Sample) -> None:
    for epoch, verdict in ((999, Verdict.COMMIT), (12, Verdict.ABORT), (12, Verdict.END)):
        attempt = Attempt(stream="orders", timeline=1, epoch=epoch, attempt=1)
        decision = Decision(attempt=attempt, verdict=verdict, lease=1, facts={})
        sample.write("timelines/1/streams/orders/epochs/12.1.json", decision.sealed())
        check(client)


# --- readers ---


def test_two_hundred_event_streams_of_different_views(sample: Sample) -> None:
    with RunningPage([str(sample.root)], Listening(port=0)) as page, contextlib.ExitStack() as stack:
        client = Client(page)
        answers = [
            stack.enter_context(client.stream(f"/p/orders/streams/orders%3Fspan=1d%26epoch={number}"))
            for number in range(1, 201)
        ]
        for number, answer in enumerate(answers, 1):
            assert f'id=\\"epoch-{number}\\"' in next_event(answer, "view"), number
        assert page.page.streams == 200
        began = time.monotonic()
        assert client.get("/p/orders")[0] == 200
        assert time.monotonic() - began < 10
        assert len(page.page.book._rendered) <= book._MOST
        assert len(page.page.book._locks) <= book._MOST


def big_gap(sample: Sample, number: int, why: str) -> None:
    facts = {"end": ["x" * 19_000]}
    at_ms = sample.now_ms + number
    record = GapRecord(stream="orders", timeline=1, epoch=number, kind="quarantined", why=why, at_ms=at_ms, facts=facts)
    sample.write(f"timelines/1/streams/orders/gaps/{number:010}.quarantined.json", record.sealed())


def test_views_that_are_no_longer_new_are_not_kept(sample: Sample) -> None:
    """Any query makes another address: without this, 256 copies of a large view stayed in memory."""
    for number in range(200):
        big_gap(sample, number + 1, "é")
    with RunningPage([str(sample.root)], Listening(port=0)) as page:
        client = Client(page)
        for number in range(10):
            assert len(client.get(f"/p/orders/ledger?{number}")[2]) > 3_000_000
        assert len(page.page.book._rendered) == len(page.page.book._locks) == 1


def stalled(port: int) -> socket.socket:
    """Ask for an event stream and read nothing of it; the window is small, so that the kernel takes little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", port))
    sock.sendall(b"GET /events?view=/p/orders/ledger HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return sock


def memory() -> int:
    gc.collect()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) * 1000


def test_a_reader_that_stalls_gets_the_newest_view_and_nothing_waits_for_it(sample: Sample) -> None:
    """The changes are larger than what the kernel buffers for a connection, so the server must wait for the reader."""
    changes, readers = 24, 8
    for number in range(50):
        big_gap(sample, number + 1, "before")
    with RunningPage([str(sample.root)], Listening(port=0)) as page, contextlib.ExitStack() as stack:
        page.page._poll_s = 0.01
        client = Client(page)
        fast = stack.enter_context(client.stream("/p/orders/ledger"))
        size = len(next_event(fast, "view"))
        assert size > 900_000
        slow = [stack.enter_context(stalled(client.port)) for _ in range(readers)]
        before = 0
        for number in range(changes):
            big_gap(sample, 1, f"change {number}")
            while f"change {number}" not in next_event(fast, "view"):
                pass
            if number == 5:
                before = memory()
        assert memory() - before < changes * readers * size / 3, "what was not read is not kept"
        began = time.monotonic()
        assert client.get("/p/orders")[0] == 200
        assert time.monotonic() - began < 5
        reading = slow[0].makefile("rb")
        last, seen = f"change {changes - 1}", 0
        while line := reading.readline():
            seen += line.startswith(b"event: view")
            if last.encode() in line:
                break
        assert 1 <= seen < changes, "it skipped the changes that it was too slow for"


def test_a_root_that_does_not_answer_holds_up_no_view_of_another(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to a store that is down is repeated for a minute."""
    answers, real, now = threading.Event(), roots.found_at, 0.0
    answers.set()

    def slow(address: str) -> list[Repository]:
        answers.wait(60)
        return real(address) if "://" not in address else []

    monkeypatch.setattr(roots, "found_at", slow)
    monkeypatch.setattr(roots, "_WAIT_S", 0.2)
    found = Places([str(sample.root), "s3://bucket/down"], clock=lambda: now)
    before = found.all()
    answers.clear()
    now = 3.0
    began = time.monotonic()
    for _ in range(20):
        assert found.all() == before
    assert time.monotonic() - began < 5
    Sample(sample.root, "second")
    answers.set()
    until = time.monotonic() + 30
    while found.get("second") is None and time.monotonic() < until:
        time.sleep(0.05)
        now += 1.0
    assert found.get("second") is not None

"""The server of the page, asked as a browser and as an attacker would."""

from __future__ import annotations

import html
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urljoin

import pytest

pytest.importorskip("starlette", reason="the extra `page` is not installed")

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from holdfast.web import book
from holdfast.web import server as servers
from holdfast.web.listening import Listening, RunningPage
from holdfast.web.metrics import METRICS
from holdfast.web.server import HEADERS, host_of
from webclient import Client, next_event
from webfixture import Sample, started

VIEWS = (
    "/",
    "/p/orders",
    "/p/orders/streams/orders",
    "/p/orders/streams/totals?span=7d&sort=slowest",
    "/p/orders/checkpoints",
    "/p/orders/checkpoints/3",
    "/p/orders/diff?a=2&b=4",
    "/p/orders/runs",
    "/p/orders/ledger",
    "/p/orders/timelines",
)
HREF = re.compile(r'href="([/#?][^"]*)"')
DOCUMENTS = ("status", "ls", "show", "show/3", "diff?a=2&b=4", "log", "gaps", "doubt", "runs", "epochs/orders")


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return Sample(tmp_path / "root").healthy()


@pytest.fixture
def client(sample: Sample) -> Iterator[Client]:
    with RunningPage([str(sample.root)], Listening(port=0)) as page:
        yield Client(page)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no rendered view: a change is shown at the next request."""
    monkeypatch.setattr(book, "_FRESH_S", 0)


@pytest.fixture
def link_to_another_root(sample: Sample) -> None:
    Sample(sample.root.parent / "elsewhere", name="secret").healthy(3, 1)
    (sample.root / "outside").symlink_to(sample.root.parent / "elsewhere" / "secret")


# --- views ---


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_complete_html_with_the_security_headers(client: Client, view: str) -> None:
    status, headers, text = client.get(view)
    assert status == 200
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>")
    assert "<script>" not in text
    assert " style=" not in text
    assert " onclick" not in text
    for address in re.findall(r'(?:href|src|action)="([^"]*)"', text):
        assert address.startswith(("/", "#")), address


def test_an_epoch_in_doubt_is_not_called_committed(tmp_path: Path) -> None:
    sample = Sample(tmp_path / "root")
    sample.lease(closed=False)
    sample.epochs("orders", 2, committed=False)
    with RunningPage([str(sample.root)], Listening(port=0)) as page:
        for query, rows in (("", 1), ("?epoch=2", 2)):  # the chosen epoch is in the list too
            text = Client(page).get(f"/p/orders/streams/orders{query}")[2]
            assert text.count("s-in-doubt") == rows
            assert "s-committed" in text
            assert "epoch in doubt" in text


def dead_links(client: Client, views: Iterable[str]) -> tuple[int, list[str]]:
    """Follow every link of some views. Return how many there are, and those whose document or whose part is missing."""
    links = {urljoin(view, html.unescape(each)) for view in views for each in HREF.findall(client.get(view)[2])}
    parts: dict[str, set[str]] = {}
    for address, _, part in (each.partition("#") for each in sorted(links)):
        parts.setdefault(address, set()).add(part)
    dead = []
    for address, wanted in parts.items():
        status, _, text = client.get(address)
        dead += [address] if status != 200 else []
        dead += [f"{address}#{part}" for part in sorted(wanted - {""}) if text.count(f'id="{part}"') != 1]
    return len(links), dead


def test_every_link_of_every_view_leads_somewhere(client: Client) -> None:
    links, dead = dead_links(client, VIEWS)
    assert links > 15
    assert dead == []


@pytest.mark.parametrize("query", ["", "?span=7d", "?span=1d&sort=slowest"])
def test_every_epoch_of_a_strip_is_found_by_its_link(tmp_path: Path, query: str) -> None:
    """Also where the strip has more epochs than the table below it; the span and the order stay as they are."""
    Sample(tmp_path, streams=("orders",)).healthy(140, 1)
    with RunningPage([str(tmp_path)], Listening(port=0)) as page:
        client, view = Client(page), f"/p/orders/streams/orders{query}"
        epochs = re.findall(r'href="([^"]*)#epoch-\d+" tabindex', client.get(view)[2])
        assert len(epochs) == (140 if "slowest" in query else 120)
        for each in set(epochs) - {""}:
            assert html.unescape(each).partition("?")[2].startswith(query[1:]), each
        assert dead_links(client, [view])[1] == []


@pytest.mark.usefixtures("at_once")
def test_an_epoch_whose_decision_is_gone_or_never_was_is_reported_as_such(client: Client, sample: Sample) -> None:
    (sample.folder / "timelines/1/streams/orders/epochs/1.1.json").unlink()
    for epoch in ("1", "999", "0", "-4", "x", "9" * 40, "%3Cb%3E"):
        status, _, text = client.get(f"/p/orders/streams/orders?epoch={epoch}")
        assert status == 200, epoch
        assert ("is not kept" in text) == (epoch in ("1", "999")), epoch
    assert 'id="epoch-60"' in client.get("/p/orders/streams/orders?epoch=60")[2]


def test_a_list_that_is_cut_off_names_the_command_that_shows_the_rest(tmp_path: Path) -> None:
    sample = Sample(tmp_path, streams=("orders",)).healthy(3, 0)
    for number in range(1, 203):
        sample.checkpoint(number, files=502 if number == 7 else 1)
        sample.gap("orders", number)
        sample.event("restart", "again", stream="orders", error="E", ago_s=300, n=number)
    sample.checkpoint(203, savepoint="before-sale", files=503)
    with RunningPage([str(tmp_path)], Listening(port=0)) as page:
        client = Client(page)
        expected = {
            "checkpoints": "the newest 200 of 203: <code>holdfast ls --all</code>",
            "checkpoints/7": "and 2 more: <code>holdfast show 7 --files</code>",
            "checkpoints/before-sale": "and 3 more: <code>holdfast show before-sale --files</code>",
            "ledger": "the newest 200 of 202: <code>holdfast gaps</code>",
            "runs": "the newest 200 of 202: <code>holdfast runs --last 500</code>",
        }
        for view, words in expected.items():
            assert words in client.get(f"/p/orders/{view}")[2], view


def test_a_checkpoint_can_be_compared_with_one_that_no_list_has(tmp_path: Path) -> None:
    sample = Sample(tmp_path, streams=("orders",)).healthy(3, 0)
    for number in range(1, 204):
        sample.checkpoint(number, files=1)
    with RunningPage([str(tmp_path)], Listening(port=0)) as page:
        client = Client(page)
        form = re.findall(r'<form action="/p/orders/diff">.*?</form>', client.get("/p/orders/checkpoints/203")[2])[0]
        assert 'value="1"' not in form
        assert re.search(r'<input name="a" value="202"[^>]* list="others"', form)
        assert client.get("/p/orders/diff?a=1&b=203")[0] == 200
        assert client.get("/p/orders/diff?a=999&b=203")[0] == 404
        assert client.get("/p/orders/diff?a=..%2Fx&b=203")[0] in (400, 404)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_api_returns_what_the_command_prints(client: Client, sample: Sample, document: str) -> None:
    path, _, query = document.partition("?")
    arguments = [*path.split("/"), *[each.partition("=")[2] for each in query.split("&") if each]]
    command = [sys.executable, "-m", "holdfast", *arguments, "--repo", str(sample.folder), "--json"]
    printed = json.loads(subprocess.run(command, capture_output=True, check=False).stdout)
    status, headers, text = client.get(f"/api/p/orders/{document}")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(text) == printed


def test_the_api_names_errors_and_never_a_traceback(client: Client) -> None:
    status, _, text = client.get("/api/p/orders/show/999")
    assert status == 404
    assert json.loads(text)["error"]["kind"] == "CheckpointMissing"
    assert client.get("/api/p/orders/ls?last=x")[0] == 400
    assert client.get("/api/p/other/ls")[0] == 404
    assert client.get("/api/p/orders/prune")[0] == 404
    assert json.loads(client.get("/api/status")[2])["result"]["pipelines"][0]["pipeline"] == "orders"


@pytest.mark.usefixtures("at_once")
def test_a_damaged_checkpoint_and_a_missing_one_have_a_page_with_the_next_step(client: Client, sample: Sample) -> None:
    status, _, text = client.get("/p/orders/checkpoints/77")
    assert status == 404
    assert "Next:" in text
    path = sample.folder / "timelines/1/checkpoints/3/manifest.json"
    path.write_bytes(path.read_bytes()[:-9])
    status, _, text = client.get("/p/orders/checkpoints/3")
    assert status == 500
    assert "CheckpointDamaged" in text
    assert client.get("/p/orders/nothing")[0] == 404
    assert client.get("/p/orders/streams/nothing")[0] == 404


# --- metrics ---


def test_metrics_are_valid_openmetrics_and_each_is_documented(client: Client) -> None:
    status, headers, text = client.get("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("application/openmetrics-text")
    families = {each.name: each for each in text_string_to_metric_families(text)}
    documented = {each.name: each for each in METRICS}
    assert families.keys() <= documented.keys()
    missing = documented.keys() - families.keys()
    lags = {f"holdfast_stream_lag_{each}" for each in ("files", "bytes", "seconds")}
    assert missing == lags, "the sample reads neither files nor Kafka: test_metrics.py has those"
    page = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    assert [each for each in documented if f"`{each}" not in page] == []
    rows = {each.labels["stream"]: each.value for each in families["holdfast_stream_rows"].samples}
    assert rows == {"orders": 6000, "totals": 6000}
    states = {
        each.labels["holdfast_pipeline_state"]: each.value for each in families["holdfast_pipeline_state"].samples
    }
    assert states.pop("stopped") == 1
    assert set(states.values()) == {0}


def test_metrics_may_have_a_port_of_their_own(sample: Sample) -> None:
    with RunningPage([str(sample.root)], Listening(port=0, metrics_port=0)) as page:
        other = Client(page)
        other.port = int(re.findall(r":(\d+)/metrics", page.addresses[1])[0])
        assert other.get("/metrics")[0] == 200
        assert other.get("/")[0] == 404


# --- attacks ---


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:1", "", "user@localhost", "localhost/x", "[::1"],
)
def test_a_request_for_another_host_is_refused(client: Client, host: str) -> None:
    answer = client.raw(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert answer.split(b" ", 2)[1] in (b"421", b"400")
    assert b"orders" not in answer


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:80"])
def test_a_request_for_this_machine_is_answered(client: Client, host: str) -> None:
    answer = client.raw(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert answer.split(b" ", 2)[1] == b"200"


def test_two_host_headers_or_none_are_refused(client: Client) -> None:
    two = client.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
    none = client.raw(b"GET / HTTP/1.0\r\n\r\n")
    assert {each.split(b" ", 2)[1] for each in (two, none)} <= {b"400", b"421"}
    assert host_of("a b") == host_of("x/y") == ""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_reading_is_possible(client: Client, method: str) -> None:
    assert client.get("/p/orders", method)[0] == 405
    assert client.get("/api/p/orders/ls", method)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "/p/..",
        "/p/../secret",
        "/p/%2e%2e/secret",
        "/p/orders/checkpoints/..%2f..%2fholdfast.json",
        "/p/%2fetc/passwd",
        "/static/../server.py",
        "/static/%2e%2e%2fserver.py",
        "/static/page.py",
        "/p/outside",
        "/p/orders%00",
        "/api/p/../ls",
        "/api/p/orders/show/..%2f..%2f..%2fetc%2fpasswd",
        "/events?view=//evil.example/",
    ],
)
@pytest.mark.usefixtures("link_to_another_root")
def test_no_path_leads_out_of_the_roots(client: Client, path: str) -> None:
    answer = client.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.split(b" ", 2)[1] in (b"404", b"400") or b"event: gone" in answer
    assert b"root:" not in answer
    assert b"import" not in answer


def test_names_with_html_are_escaped_everywhere(client: Client, sample: Sample) -> None:
    bad = "<img src=x onerror=alert(1)>\"'&\u202e\x00"
    sample.event("failed", bad, stream=bad, next=bad, error=bad, ago_s=0.5)
    sample.gap("orders", 7, why=bad)
    sample.program("orders", reads=bad, kind=bad)
    sample.timeline(2, 1, checkpoint=2, why=bad, who=bad)
    sample.checkpoint(9, savepoint=None)
    for view in VIEWS:
        text = client.get(view)[2]
        assert "<img src=x" not in text
        assert "onerror=alert(1)>" not in text.replace("&gt;", "")
        assert "\x00" not in text


@pytest.mark.usefixtures("at_once")
def test_manifests_made_to_break_the_page_break_only_themselves(client: Client, sample: Sample) -> None:
    from holdfast.formats.sealed_json import seal

    folder = sample.folder / "timelines/1/checkpoints"
    hostile: list[bytes] = [
        b"",
        b"[" * 100_000,
        b"\xff\xfe{}",
        seal({"version": 2, "checkpoint_id": 6, "timestamp_ms": 10**30}),
        seal({"version": 2, "checkpoint_id": 6, "timestamp_ms": 2**63, "timeline": 1, "epoch": 1, "streams": {}}),
        seal({"version": 2, "checkpoint_id": 6, "timestamp_ms": 5, "timeline": 1, "times": {"seconds": "x"}}),
        seal({"version": 2, "checkpoint_id": 6, "timestamp_ms": 5, "timeline": 1, "times": {"seconds": -1e308}}),
        seal({"version": 99, "checkpoint_id": 6, "timestamp_ms": 5}),
    ]
    for each in hostile:
        (folder / "6").mkdir(exist_ok=True)
        (folder / "6/manifest.json").write_bytes(each)
        assert client.get("/p/orders/checkpoints")[0] == 200
        assert client.get("/p/orders")[0] == 200
        assert client.get("/p/orders/checkpoints/6")[0] in (200, 404, 500)
        assert client.get("/metrics")[0] == 200


def test_a_long_address_and_garbage_are_refused(client: Client) -> None:
    assert client.get("/p/" + "a" * 5000)[0] == 414
    assert client.raw(b"\x00\x01garbage\r\n\r\n").split(b" ", 2)[1] == b"400"
    assert client.get("/")[0] == 200


# --- event streams ---


@pytest.mark.parametrize("path", ["//[", "//[1", "///[x]?y", "/p/[", "http://[/"])
def test_an_address_that_is_no_url_is_not_found(client: Client, path: str) -> None:
    answer = client.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404"), answer[:80]


def test_the_head_of_an_event_stream_ends(client: Client) -> None:
    """A connection that asked for it can be used for the next request."""
    host = b"HTTP/1.1\r\nHost: localhost\r\n"
    answer = client.raw(b"HEAD /events?view=/ " + host + b"\r\nGET / " + host + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert b"text/event-stream" in answer


def test_a_view_is_sent_again_when_it_changes_and_only_then(client: Client, sample: Sample) -> None:
    with client.stream("/p/orders") as answer:
        assert answer.getheader("content-type", "").startswith("text/event-stream")
        first = json.loads(next_event(answer, "view"))
        sample.gap("orders", 3)
        second = json.loads(next_event(answer, "view"))
        assert first != second
        assert "holdfast gaps" in second


def test_the_ages_alone_are_no_change(client: Client, sample: Sample) -> None:
    versions = set()
    for _ in range(3):
        rendered = client_book(sample).look("/p/orders/runs")
        assert rendered is not None
        versions.add(rendered.version)
        time.sleep(1.0)
    assert len(versions) == 1


def client_book(sample: Sample):  # type: ignore[no-untyped-def]
    from holdfast.web.book import Book
    from holdfast.web.places import Places

    return Book(Places([str(sample.root)]))


def test_two_hundred_streams_and_slow_readers_do_not_stop_the_page(sample: Sample) -> None:
    with RunningPage([str(sample.root)], Listening(port=0)) as page:
        client = Client(page)
        answers = []
        for _ in range(200):
            connection = socket.create_connection(("127.0.0.1", client.port), timeout=30)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.sendall(b"GET /events?view=/p/orders HTTP/1.1\r\nHost: localhost\r\n\r\n")  # and never reads
            answers.append(connection)
        with client.stream("/p/orders") as reader:
            next_event(reader, "view")
            sample.gap("orders", 4)
            began = time.monotonic()
            next_event(reader, "view")
            assert time.monotonic() - began < 10
            assert client.get("/p/orders")[0] == 200
            until = time.monotonic() + 10
            while page.page.streams < 201 and time.monotonic() < until:
                time.sleep(0.05)
            assert page.page.streams == 201
        for each in answers:
            each.close()
        until = time.monotonic() + 20
        while page.page.streams and time.monotonic() < until:
            time.sleep(0.1)
        assert page.page.streams == 0, "a reader that has gone is forgotten"


def test_too_many_streams_are_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MOST_STREAMS", 0)
    with client.stream("/") as answer:
        assert answer.status == 503


def test_a_killed_pipeline_is_reported_within_two_seconds_and_its_recovery_is_shown(tmp_path: Path) -> None:
    process = started(tmp_path)
    with RunningPage([str(tmp_path)], Listening(port=0)) as page:
        client = Client(page)
        with client.stream("/p/repository") as answer:
            view = json.loads(next_event(answer, "view"))
            assert 's-running">running' in view
            process.kill()
            began = time.monotonic()
            process.wait()
            while "s-killed" not in view:
                view = json.loads(next_event(answer, "view"))
            assert time.monotonic() - began < 2.0
            again = started(tmp_path)
            try:
                while 's-running">running' not in view:
                    view = json.loads(next_event(answer, "view"))
                text = client.get("/p/repository/runs")[2]
                assert "continues after epoch" in text
                assert "it was killed" in text
            finally:
                again.kill()
                again.wait()
    for each in (process, again):
        assert each.stdout is not None
        each.stdout.close()


# --- the command ---


def test_the_command_serves_until_its_input_is_closed(sample: Sample) -> None:
    command = [sys.executable, "-m", "holdfast", "serve", str(sample.root), "--port", "0", "--until-closed"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    assert process.stdin is not None
    address = process.stdout.readline().decode().split()[1]
    port = int(address.rsplit(":", 1)[1].strip("/"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/")
    assert connection.getresponse().status == 200
    connection.close()
    process.stdin.close()
    assert process.wait(20) == 0
    process.stdout.close()


def test_the_command_ends_without_a_traceback_while_a_view_is_open(sample: Sample) -> None:
    command = [sys.executable, "-m", "holdfast", "serve", str(sample.root), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    port = int(process.stdout.readline().decode().rsplit(":", 1)[1].strip().strip("/"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/events?view=/")
    next_event(connection.getresponse(), "view")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out.splitlines()[-1], err) == (0, b"stopped", b"")
    connection.close()


def test_a_root_that_does_not_exist_is_served_with_a_warning(tmp_path: Path) -> None:
    """A pipeline may be started there later."""
    command = [sys.executable, "-m", "holdfast", "serve", str(tmp_path / "none"), "--port", "0", "--until-closed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 0
    assert "none does not exist" in done.stderr


def test_a_port_that_is_taken_and_a_public_address_without_a_name_are_refused(sample: Sample) -> None:
    def run(*options: str) -> str:
        command = [sys.executable, "-m", "holdfast", "serve", str(sample.root), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        return done.stderr

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "choose another port" in run("--port", str(taken.getsockname()[1]))
    for port in ("-1", "99999"):
        assert "65535" in run("--port", port)
    assert "--allow-host" in run("--host", "0.0.0.0")  # noqa: S104 - it is refused


def test_threads_end_with_the_page(sample: Sample) -> None:
    with RunningPage([str(sample.root)], Listening(port=0)) as page:
        Client(page).get("/")
    assert [each for each in threading.enumerate() if each.name == "holdfast-page"] == []

"""The actions of the page: what they do, and what an attacker can do with them."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("starlette", reason="the extra `page` is not installed")

from fakespark import install
from holdfast.control.records import ControlRequest
from holdfast.control.results import CheckpointCancelled, PipelineStopped
from holdfast.repository import Identity, LocalRepository
from holdfast.repository.verdicts import Verdicts
from holdfast.web.acting import routes
from holdfast.web.acting.access import LONGEST_FORM, ControlToken, FormRefused, is_own_origin
from holdfast.web.acting.control import PageControl
from holdfast.web.acting.jobs import MOST_RUNNING, ActionJobs
from holdfast.web.acting.plans import ActionEnd, ActionPlan
from holdfast.web.acting.tickets import LASTS_S, PlannedAction, PlanTickets
from holdfast.web.listening import Listening, RunningPage
from madeup import TAKEN, MadeUpDriver
from rewindbench import DiskBench
from visiting import FILLED, Visitor
from webfixture import Sample

ACTIONS = ("checkpoint", "savepoint", "cancel", "stop", "drain", "verify", "prune", "rewind", "undo")


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return Sample(tmp_path / "root").healthy()


@pytest.fixture
def control() -> PageControl:
    return PageControl()


@pytest.fixture
def visitor(sample: Sample, control: PageControl) -> Iterator[Visitor]:
    with RunningPage([str(sample.root)], Listening(port=0), control) as page:
        yield Visitor(page, control.token.text)


@pytest.fixture
def driver(sample: Sample) -> Iterator[Callable[[Any], MadeUpDriver]]:
    made: list[MadeUpDriver] = []

    def start(result: Any) -> MadeUpDriver:
        def carry(request: ControlRequest) -> dict[str, Any]:
            del request
            return dict(result.to_dict())

        made.append(MadeUpDriver(sample.repository, carry))
        return made[-1]

    yield start
    for each in made:
        each.end()


# --- without control ---


def test_without_the_flag_there_is_no_action_and_no_button(sample: Sample) -> None:
    with RunningPage([str(sample.root)], Listening(port=0)) as page:
        reader = Visitor(page, "any")
        for view in ("/", "/p/orders", "/p/orders/checkpoints/3"):
            text = reader.get(view)[1]
            assert "actions" not in text
            assert 'method="post"' not in text
        assert reader.get("/p/orders/actions")[0] == 404
        for action in ACTIONS:
            for path in (f"/p/orders/actions/{action}", f"/p/orders/actions/{action}/apply"):
                assert reader.post(path, FILLED)[0] == 405
                assert reader.get(path)[0] == 404


def test_the_forms_name_every_action(visitor: Visitor, control: PageControl) -> None:
    status, text = visitor.get("/p/orders/actions")
    assert status == 200
    assert tuple(control.actions) == ACTIONS
    for action in ACTIONS:
        assert f'action="/p/orders/actions/{action}"' in text
    assert text.count('type="password" name="token"') == len(ACTIONS)
    assert control.token.text not in text
    assert "data-live" not in text, "a form is not replaced while it is filled in"
    assert 'href="/p/orders/actions"' in visitor.get("/p/orders")[1]
    assert "#do-rewind" in visitor.get("/p/orders/checkpoints/3")[1]
    filled = visitor.get("/p/orders/actions?to=3&checkpoint=%22%3E%3Cimg%3E")[1]
    assert 'name="to" value="3"' in filled
    assert "<img>" not in filled


# --- what the actions do ---


def test_a_checkpoint_is_requested_after_its_plan_was_confirmed(
    visitor: Visitor, sample: Sample, driver: Callable[[Any], MadeUpDriver]
) -> None:
    running = driver(TAKEN)
    plan, ticket = visitor.planned("checkpoint", why="before the sale")
    assert "takes a checkpoint of all streams now" in plan
    assert "holdfast checkpoint -r" in plan
    assert running.seen == [], "a plan changes nothing"
    end = visitor.applied("checkpoint", ticket)
    assert "checkpoint 7 was taken: orders at epoch 3; 1,200 rows" in end
    (request,) = running.seen
    assert (request.kind, request.why) == ("checkpoint", "on the page: before the sale")
    assert request.id in end or visitor.get(f"/p/orders/actions/{request.id}")[0] == 200


@pytest.mark.parametrize(
    "case",
    [
        ("savepoint", TAKEN, "was taken", {"savepoint": "before"}),
        ("cancel", CheckpointCancelled(checkpoint=6, cancelled=True), "checkpoint 6 was aborted", {}),
        (
            "stop",
            PipelineStopped(epochs={"orders": 9}, last_checkpoint=5),
            "pipeline orders has stopped: orders at epoch 9",
            {"drain": False, "savepoint": "before", "drain_timeout_s": 60.0},
        ),
        (
            "drain",
            PipelineStopped(epochs={"orders": 9}, taken=TAKEN),
            "checkpoint 7 was taken",
            {"drain": True, "savepoint": "before", "drain_timeout_s": 60.0},
        ),
    ],
)
def test_each_request_reaches_the_driver_through_the_control_channel(
    visitor: Visitor, driver: Callable[[Any], MadeUpDriver], case: tuple[str, Any, str, dict[str, Any]]
) -> None:
    action, result, expected, arguments = case
    running = driver(result)
    _, ticket = visitor.planned(action)
    assert expected in visitor.applied(action, ticket)
    (request,) = running.seen
    assert request.arguments == arguments


@pytest.mark.parametrize("action", ["checkpoint", "savepoint", "cancel", "stop", "drain"])
def test_a_pipeline_that_does_not_run_gets_no_ticket_but_the_next_step(visitor: Visitor, action: str) -> None:
    status, _, text = visitor.post(f"/p/orders/actions/{action}", FILLED)
    assert status == 409
    assert "is not running" in text
    assert "Next:" in text
    assert "NotRunning" in text
    assert "ticket" not in text


def test_a_driver_that_ends_between_plan_and_confirmation_is_an_error_with_a_next_step(
    visitor: Visitor, driver: Callable[[Any], MadeUpDriver]
) -> None:
    running = driver(TAKEN)
    _, ticket = visitor.planned("checkpoint")
    running.end()
    end = visitor.applied("checkpoint", ticket)
    assert "is not running" in end
    assert "holdfast run" in end


def test_verify_reads_a_checkpoint_and_records_its_verdict(visitor: Visitor, sample: Sample) -> None:
    plan, ticket = visitor.planned("verify", checkpoint="3")
    assert "reads checkpoint 3: 6 files" in plan
    assert Verdicts(sample.repository).shown() == {}
    assert "sound" in visitor.applied("verify", ticket)
    assert Verdicts(sample.repository).shown()["3"].ok
    _, ticket = visitor.planned("verify", every="1", quick="1")
    assert visitor.applied("verify", ticket).count("sound") >= 5
    assert visitor.post("/p/orders/actions/verify", {"checkpoint": "77"})[0] == 409


def test_verify_reads_the_checkpoint_of_its_plan_although_there_is_a_newer_one(
    visitor: Visitor, sample: Sample
) -> None:
    newest = len(sample.repository.list("timelines/1/checkpoints"))
    plan, ticket = visitor.planned("verify", checkpoint="")
    assert f"reads checkpoint {newest}:" in plan
    sample.checkpoint(newest + 1)
    visitor.applied("verify", ticket)
    assert list(Verdicts(sample.repository).shown()) == [str(newest)]


def test_prune_shows_what_it_removes_and_needs_the_name_of_the_pipeline(visitor: Visitor, sample: Sample) -> None:
    plan, ticket = visitor.planned("prune", last="2")
    assert re.search(r"1\s+remove\s+no rule keeps it", plan)
    assert "holdfast prune -r" not in plan
    assert "--last 2" in plan
    before = sorted(each.name for each in (sample.folder / "timelines/1/checkpoints").iterdir())
    status, _, again = visitor.post("/p/orders/actions/prune/apply", {"ticket": ticket, "name": "order"})
    assert status == 400
    assert sorted(each.name for each in (sample.folder / "timelines/1/checkpoints").iterdir()) == before
    (ticket,) = re.findall(r'name="ticket" value="([^"]+)"', again)
    end = visitor.applied("prune", ticket, name="orders")
    assert "s-done" in end
    kept = sorted(each.name for each in (sample.folder / "timelines/1/checkpoints").iterdir())
    assert len(kept) < len(before)
    assert "prune" in (sample.folder / "history.jsonl").read_text()
    text, ticket = visitor.planned("prune", last="2")
    assert "nothing to prune" in text
    assert not ticket


def test_the_name_to_type_is_that_of_the_pipeline_where_two_roots_have_the_same(
    sample: Sample, tmp_path: Path, control: PageControl
) -> None:
    other = Sample(tmp_path / "other").healthy()
    with RunningPage([str(sample.root), str(other.root)], Listening(port=0), control) as page:
        visitor = Visitor(page, control.token.text, pipeline="orders~2")
        plan, ticket = visitor.planned("prune", last="2")
        assert "Type <b>orders</b> to confirm" in plan
        assert str(other.folder) in plan
        assert "s-done" in visitor.applied("prune", ticket, name="orders")
    assert len(list((other.folder / "timelines/1/checkpoints").glob("*/manifest.json"))) == 2
    assert len(list((sample.folder / "timelines/1/checkpoints").glob("*/manifest.json"))) == 5


@pytest.mark.parametrize("form", [{"last": "0"}, {"last": "-1"}, {"last": "x"}, {"within": "soon"}, {"last": "9" * 10}])
def test_values_that_cannot_be_are_refused_with_the_next_step(visitor: Visitor, form: dict[str, str]) -> None:
    status, _, text = visitor.post("/p/orders/actions/prune", form)
    assert status == 409
    assert "BadValue" in text


def test_a_rewind_without_its_program_shows_the_command_to_type(visitor: Visitor) -> None:
    text, ticket = visitor.planned("rewind", to="3", why="a bug", only="orders", leave="files table")
    assert not ticket
    assert "orders: epoch 3, timeline 1" in text
    assert (
        "holdfast rewind app.py:pipeline --to 3 --only orders --leave files --leave table --why &#x27;a bug&#x27;"
        in text
    )
    assert "--program orders=app.py:pipeline" in text
    assert not visitor.planned("undo")[1]


def test_a_program_that_fails_is_reported_with_its_error(sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("raise RuntimeError('<b>no</b>')\n")
    control = PageControl(programs={"orders": str(tmp_path / "app.py")})
    with RunningPage([str(sample.root)], Listening(port=0), control) as page:
        text, ticket = Visitor(page, control.token.text).planned("rewind", to="3")
        assert not ticket
        assert "cannot be carried out" in text
        assert "&lt;b&gt;no&lt;/b&gt;" in text


REWOUND = """
import holdfast as hf

pipeline = hf.Pipeline("repository", root="{folder}")


@pipeline.stream(
    sinks=[hf.FileSink("{folder}/out", name="files"), hf.SqliteSink("{folder}/out.db", "rows", epoch_column="epoch",
    name="table")]
)
def rows(spark):
    return spark.readStream.format("rate").load()
"""


def test_a_rewind_with_its_program_and_its_undo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epochs are real; the query that ran them is a fake. The command is a real process."""
    install(monkeypatch)
    (tmp_path / "app.py").write_text(REWOUND.format(folder=tmp_path))
    Identity.create(LocalRepository(tmp_path / "repository"), "repository")
    bench = DiskBench(tmp_path)
    bench.add([1], [2])
    bench.take()
    bench.add([3], [4])
    bench.take()
    control = PageControl(programs={"repository": f"{tmp_path / 'app.py'}:pipeline"})
    with RunningPage([str(tmp_path)], Listening(port=0), control) as page:
        visitor = Visitor(page, control.token.text, pipeline="repository")
        text, ticket = visitor.planned("rewind", to="1", accept_input="1")
        assert not ticket
        assert "Stop it first: holdfast stop" in text
        for lease in (tmp_path / "repository/lease").glob("0*.json"):  # its driver has ended
            closed = tmp_path / "repository/requests" / lease.stem / "closed.json"
            closed.parent.mkdir(parents=True, exist_ok=True)
            closed.write_bytes(b"{}")
        text, ticket = visitor.planned("rewind", to="1")
        assert not ticket
        assert "refuses this plan: source 0" in text, "it is not known whether the input exists"
        text, ticket = visitor.planned("rewind", to="1", accept_input="1", why="a bug")
        assert "2 epochs, 2 rows are abandoned" in text
        assert bench.visible() == [[1, 2, 3, 4]] * 2
        _, stale = visitor.planned("rewind", to="1", accept_input="1")
        end = visitor.applied("rewind", ticket, name="repository")
        assert "went back to checkpoint 1: timeline 2 continues rows after epoch 2" in end
        assert "next: holdfast run" in end
        assert bench.visible() == [[1, 2]] * 2
        assert "on the page: a bug" in visitor.get("/p/repository/timelines")[1]
        end = visitor.applied("rewind", stale, name="repository")
        assert "PlanOutdated" in end
        assert "s-failed" in end
        text, ticket = visitor.planned("undo")
        assert "undoes the rewind of timeline 2" in text
        visitor.applied("undo", ticket, name="repository")
        assert bench.visible() == [[1, 2, 3, 4]] * 2


# --- attacks ---


@pytest.mark.parametrize("step", ["", "/apply"])
@pytest.mark.parametrize("token", ["", "x", "\u00e9" * 43, "a" * 4000])
def test_a_missing_or_wrong_token_does_nothing(
    visitor: Visitor, driver: Callable[[Any], MadeUpDriver], step: str, token: str
) -> None:
    running = driver(TAKEN)
    _, ticket = visitor.planned("checkpoint")
    visitor.token = token
    for action in ACTIONS:
        status, _, text = visitor.post(f"/p/orders/actions/{action}{step}", {**FILLED, "ticket": ticket})
        assert status == 403
        assert "token" in text
    without = urlencode({"ticket": ticket}).encode()
    assert visitor.post(f"/p/orders/actions/checkpoint{step}", without)[0] == 403
    time.sleep(0.2)
    assert running.seen == []


def test_after_many_wrong_tokens_they_are_refused_sooner_and_the_right_one_is_not(visitor: Visitor) -> None:
    right, visitor.token = visitor.token, "wrong"
    codes = [visitor.post("/p/orders/actions/cancel", {})[0] for _ in range(25)]
    assert codes == [403] * 20 + [429] * 5
    visitor.token = right
    assert visitor.post("/p/orders/actions/prune", {})[0] == 200


def test_the_wrong_tokens_of_the_last_minute_count() -> None:
    now = [0.0]
    token = ControlToken("right", clock=lambda: now[0])

    def status() -> int:
        with pytest.raises(FormRefused) as refused:
            token.require("wrong")
        return refused.value.status

    assert [status() for _ in range(21)] == [403] * 20 + [429]
    now[0] = 61.0
    assert status() == 403
    token.require("right")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": None},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost"},
        {"Origin": "file://"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
        {"Host": "evil.example"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Content_Type": "text/plain"},
        {"Content_Type": "multipart/form-data; boundary=x"},
        {"Content_Type": "application/json"},
        {"Content_Type": None},
    ],
)
def test_a_request_of_another_origin_or_kind_does_nothing(
    visitor: Visitor, driver: Callable[[Any], MadeUpDriver], headers: dict[str, str | None]
) -> None:
    running = driver(TAKEN)
    _, ticket = visitor.planned("checkpoint")
    status, _, _ = visitor.post("/p/orders/actions/checkpoint/apply", {"ticket": ticket}, **headers)
    assert status in (403, 415, 421)
    time.sleep(0.1)
    assert running.seen == []


def test_an_origin_is_that_of_the_host() -> None:
    assert is_own_origin("http://localhost:1", "LOCALHOST:1", None)
    assert is_own_origin("https://dash.example", "dash.example", "same-origin")
    for origin in ("http://localhost:1/", "http://a@localhost:1", "ftp://localhost:1", "http://[", "localhost:1", ""):
        assert not is_own_origin(origin, "localhost:1", None), origin


def test_a_form_is_used_once(visitor: Visitor, driver: Callable[[Any], MadeUpDriver]) -> None:
    running = driver(TAKEN)
    _, ticket = visitor.planned("checkpoint")
    visitor.applied("checkpoint", ticket)
    status, _, text = visitor.post("/p/orders/actions/checkpoint/apply", {"ticket": ticket})
    assert status == 409
    assert "used already" in text
    assert len(running.seen) == 1
    for wrong in ("", "x", ticket[:-1]):
        assert visitor.post("/p/orders/actions/checkpoint/apply", {"ticket": wrong})[0] == 409


def test_twenty_copies_of_a_form_at_once_are_carried_out_once(
    visitor: Visitor, driver: Callable[[Any], MadeUpDriver]
) -> None:
    running = driver(TAKEN)
    _, ticket = visitor.planned("checkpoint")
    codes: list[int] = []

    def send() -> None:
        codes.append(visitor.post("/p/orders/actions/checkpoint/apply", {"ticket": ticket})[0])

    threads = [threading.Thread(target=send) for _ in range(20)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert codes.count(303) == 1
    assert set(codes) <= {303, 409, 503}
    time.sleep(0.5)
    assert len(running.seen) == 1


def test_a_ticket_of_one_action_is_not_one_of_another(visitor: Visitor, driver: Callable[[Any], MadeUpDriver]) -> None:
    running = driver(TAKEN)
    _, ticket = visitor.planned("checkpoint")
    assert visitor.post("/p/orders/actions/stop/apply", {"ticket": ticket})[0] == 409
    assert visitor.post("/p/orders/actions/checkpoint/apply", {"ticket": ticket})[0] == 409, "it is used now"
    assert running.seen == []


def test_a_ticket_lasts_ten_minutes_and_old_ones_are_dropped() -> None:
    now = [0.0]
    tickets = PlanTickets(clock=lambda: now[0])
    planned = PlannedAction("orders", "/root/orders", "stop", {}, ActionPlan(text="", command=""))
    first = tickets.issue(planned)
    now[0] = LASTS_S - 1
    second = tickets.issue(planned)
    now[0] = LASTS_S
    assert tickets.take(first) is None
    assert tickets.take(second) == planned
    many = [tickets.issue(planned) for _ in range(300)]
    assert tickets.take(many[0]) is None
    assert tickets.take(many[-1]) == planned


@pytest.mark.parametrize(
    "body",
    [
        b"x" * (LONGEST_FORM + 1),
        b"a=1&" * 2000,
        b"token=x&token=y",
        b"token=%ff%fe",
        b"\xff\xfe\x00",
        b"&".join(b"f%d=1" % n for n in range(30)),
    ],
)
def test_a_form_that_is_too_long_or_malformed_is_refused(visitor: Visitor, body: bytes) -> None:
    assert visitor.post("/p/orders/actions/stop", body)[0] in (400, 413)
    assert visitor.get("/p/orders")[0] == 200


def test_a_huge_body_is_refused_without_being_read(visitor: Visitor) -> None:
    head = (
        f"POST /p/orders/actions/stop HTTP/1.1\r\nHost: 127.0.0.1:{visitor.port}\r\nOrigin: {visitor.origin}\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\n"
    )
    for extra, sent in (("Content-Length: 99999999999\r\n\r\n", b""), ("Transfer-Encoding: chunked\r\n\r\n", None)):
        with socket.create_connection(("127.0.0.1", visitor.port), timeout=20) as sock:
            sock.sendall((head + extra).encode())
            if sent is None:  # an endless body
                try:
                    for _ in range(1000):
                        sock.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
                except OSError:
                    continue  # the server has closed the connection
            assert b" 413 " in sock.recv(65536)


def test_a_body_that_never_ends_is_given_up(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.web.acting.access._FORM_S", 0.5)
    with socket.create_connection(("127.0.0.1", visitor.port), timeout=20) as sock:
        sock.sendall(
            f"POST /p/orders/actions/stop HTTP/1.1\r\nHost: 127.0.0.1:{visitor.port}\r\nOrigin: {visitor.origin}\r\n"
            "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\ntoken=".encode()
        )
        assert b" 408 " in sock.recv(65536)


def test_too_many_forms_at_once_are_refused(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MOST_FORMS", 0)
    assert visitor.post("/p/orders/actions/prune", {})[0] == 503


def test_too_many_actions_at_once_are_refused() -> None:
    jobs, go = ActionJobs(), threading.Event()

    def work(job: str, report: Callable[[str], None]) -> ActionEnd:
        go.wait(20)
        raise ValueError("<b>")

    started = [jobs.start("orders", "stop", "Stop", "", work) for _ in range(MOST_RUNNING + 1)]
    assert started[-1] is None
    go.set()
    until = time.monotonic() + 20
    while any(each.end is None for each in jobs.of("orders")) and time.monotonic() < until:
        time.sleep(0.01)
    assert [each.end.error.kind for each in jobs.of("orders") if each.end and each.end.error] == ["ValueError"] * 8
    assert jobs.of("other") == []


@pytest.mark.parametrize("path", ["/p/nothing/actions/stop", "/p/orders/actions/delete", "/p/..%2f/actions/stop"])
def test_an_action_that_does_not_exist_is_refused(visitor: Visitor, path: str) -> None:
    assert visitor.post(path, {})[0] in (404, 405)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_and_other_addresses_stay_closed(visitor: Visitor, method: str) -> None:
    assert visitor._sent(method, "/p/orders/actions/stop", b"", {"Origin": visitor.origin})[0] == 405
    for path in ("/", "/p/orders", "/api/p/orders/ls", "/metrics", "/events", "/p/orders/actions", "/static/page.js"):
        assert visitor.post(path, {})[0] == 405, path


def test_names_with_html_are_escaped_in_every_step(visitor: Visitor, driver: Callable[[Any], MadeUpDriver]) -> None:
    driver(TAKEN)
    bad = "<img src=x onerror=alert(1)>"
    for action in ACTIONS:
        form = dict.fromkeys(("savepoint", "checkpoint", "to", "only", "leave", "last", "within", "why", "name"), bad)
        _, _, text = visitor.post(f"/p/orders/actions/{action}", form)
        assert "<img src=x" not in text
    plan, ticket = visitor.planned("checkpoint", why=bad)
    assert "<img src=x" not in plan
    assert "<img src=x" not in visitor.applied("checkpoint", ticket)
    assert "<img src=x" not in visitor.get("/p/orders/actions")[1]


def test_an_action_of_one_pipeline_is_not_shown_on_another(visitor: Visitor, sample: Sample) -> None:
    Sample(sample.root, "other").healthy(3, 1)
    _, ticket = visitor.planned("verify", checkpoint="3")
    status, headers, _ = visitor.post("/p/orders/actions/verify/apply", {"ticket": ticket})
    assert status == 303
    assert visitor.get(headers["location"])[0] == 200
    time.sleep(2.1)
    assert visitor.get(headers["location"].replace("orders", "other"))[0] == 404


# --- the command ---


def served(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "serve", str(root), "--port", "0", "--until-closed", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL)


def test_the_command_prints_a_new_token_each_time(sample: Sample) -> None:
    first, second = (served(sample.root, "--allow-control").stdout for _ in range(2))
    tokens = {re.findall(r"token for actions: (\S{40,})", each)[0] for each in (first, second)}
    assert len(tokens) == 2
    assert "token" not in served(sample.root).stdout
    document = served(sample.root, "--allow-control", "--json")
    assert "token for actions" in document.stderr
    assert "token" not in document.stdout


def test_the_command_refuses_control_over_an_open_network(sample: Sample) -> None:
    done = served(sample.root, "--allow-control", "--host", "0.0.0.0", "--allow-host", "x")  # noqa: S104 - it is refused
    assert done.returncode == 2
    assert "unencrypted" in done.stderr
    assert "--allow-control" in served(sample.root, "--program", "orders=app.py").stderr
    assert "NAME=app.py" in served(sample.root, "--allow-control", "--program", "app.py").stderr

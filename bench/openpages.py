"""The cost of the page: for a pipeline whose page is open in ten places, and for the first visitor of a long history.

- Epochs: one pipeline in a process of its own runs the same small epochs as in `bench/triggers.py`. `holdfast serve` is
  another process. In one turn, ten event streams are open and are read all the time. Each has another address, so the
  server renders ten views, as for ten windows of a browser. In the other turn, the server is suspended. The server and
  the pipeline share two cores. The readers run in this process; their cost counts too. The first epoch of each turn
  does not count.
- First view: a repository with 1,000 checkpoints of 3,000 files each, one every ten minutes, and a week of epochs, one
  per second, of which none was pruned. It is generated, not run. Most slots are hard links to a few files, because
  only their names are looked at. Each sample is the first request to a new process that has reported that it serves.
- Memory: that of the process after it has shown all of these views of the same repository.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.compare import Result, in_turn, timed
from bench.group import Group
from bench.rival import Rival, rivals
from bench.scratch import scratch
from bench.spark import OURS
from bench.triggers import Small

if TYPE_CHECKING:
    from webfixture import Sample

GOAL = 1.03
LIMIT_S = 0.5
LIMIT_B = 200e6
EPOCHS, ROUNDS, WARM_UP = 12, 24, 6
QUICK_EPOCHS, QUICK_ROUNDS, QUICK_WARM_UP = 7, 2, 2
CHECKPOINTS, FILES, WEEK = 1_000, 3_000, 7 * 24 * 3600
QUICK_CHECKPOINTS, QUICK_WEEK = 100, 24 * 3600
VIEWS = {
    "all pipelines": "/",
    "one pipeline": "/p/{name}",
    "one stream": "/p/{name}/streams/{stream}",
    "one stream, a day": "/p/{name}/streams/{stream}?span=1d",
    "one stream, a week": "/p/{name}/streams/{stream}?span=7d",
    "the slowest epochs": "/p/{name}/streams/{stream}?sort=slowest",
    "all checkpoints": "/p/{name}/checkpoints",
    "one checkpoint": "/p/{name}/checkpoints/{checkpoint}",
    "runs": "/p/{name}/runs",
    "doubt and gaps": "/p/{name}/ledger",
    "timelines": "/p/{name}/timelines",
}
OPEN = [each for each in VIEWS.values() if "{checkpoint}" not in each]  # a pipeline may have no checkpoint
PAGES = len(OPEN)
_LINKS = 50_000  # hard links of one file; ext4 allows 65,000


class ServedPage:
    """`holdfast serve` in a process group of its own."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-m", "holdfast", "serve", str(root), "--port", "0", "--until-closed"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.group = Group(self._process.pid)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().decode().rsplit(":", 1)[1].strip("/\n "))

    def get(self, address: str) -> None:
        """Open a view, and read all of it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET", address)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        assert answer.status == 200, address

    @property
    def memory(self) -> int:
        """The resident memory of the process."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """End the process."""
        self.group.resume()
        self.group.kill()
        self._process.wait()
        for each in (self._process.stdin, self._process.stdout):
            if each is not None:
                each.close()


@contextlib.contextmanager
def served(root: Path) -> Iterator[ServedPage]:
    """Serve a root in this block."""
    page = ServedPage(root)
    try:
        yield page
    finally:
        page.close()


@contextlib.contextmanager
def opened(page: ServedPage, views: Sequence[str]) -> Iterator[None]:
    """Keep an event stream of each view open in this block, and read what arrives."""
    page.group.resume()
    over, sockets = threading.Event(), []
    for view in views:
        sock = socket.create_connection(("127.0.0.1", page.port), timeout=60)
        sock.sendall(f"GET /events?view={view} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert b"200 OK" in sock.recv(65536)
        sock.settimeout(0.5)
        sockets.append(sock)

    def read(sock: socket.socket) -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                sock.recv(1 << 20)

    threads = [threading.Thread(target=read, args=(each,)) for each in sockets]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for sock in sockets:
            sock.close()
        page.group.suspend()


def open_views(name: str, stream: str) -> list[str]:
    """Return the addresses of the pages that are open at the same time."""
    return [each.format(name=name, stream=stream) for each in OPEN]


def epochs(quick: bool) -> Result:
    number, rounds, warm_up = (QUICK_EPOCHS, QUICK_ROUNDS, QUICK_WARM_UP) if quick else (EPOCHS, ROUNDS, WARM_UP)
    with scratch(__name__) as folder:
        made = {"job": (Small, folder / "job", OURS, False, 2 * rounds * number)}
        with rivals(made) as running, served(folder / "job/root") as page:
            job: Rival = running["job"]
            views = open_views("bench", "job")

            def with_pages() -> Sequence[float]:
                with opened(page, views):
                    found: list[float] = job(number)
                return found

            def without() -> Sequence[float]:
                found: list[float] = job(number)
                return found

            found = in_turn(rounds, {"pages": with_pages, "none": without}, warm_up=warm_up)
            job(0)
    goal = None if quick else GOAL
    return Result(
        "page", f"an epoch, {PAGES} pages open", "no page open", found["pages"], found["none"], goal=goal, alike=True
    )


def history(root: Path, checkpoints: int, week: int) -> Sample:
    """Write the repository."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from webfixture import Sample  # made-up pipelines of the tests  # noqa: PLC0415

    sample = Sample(root, "large", streams=("orders",))
    sample.lease()
    sample.program("orders")
    own = 2_000
    sample.epochs("orders", week, first=week - own + 1)
    folder = sample.folder / "timelines/1/streams/orders/epochs"
    for epoch in range(1, week - own + 1):
        os.link(folder / f"{week - epoch // _LINKS}.1.json", folder / f"{epoch}.1.json")
    for number in range(1, checkpoints + 1):
        sample.checkpoint(number, ago_s=(checkpoints - number) * 600, files=FILES)
    sample.periods(week // 60)
    return sample


def first_views(quick: bool) -> list[Result]:
    checkpoints, week = (QUICK_CHECKPOINTS, QUICK_WEEK) if quick else (CHECKPOINTS, WEEK)
    with scratch(__name__) as folder:
        history(folder / "root", checkpoints, week)
        addresses = {
            name: view.format(name="large", stream="orders", checkpoint=checkpoints) for name, view in VIEWS.items()
        }
        found: dict[str, list[float]] = {name: [] for name in VIEWS}
        for _ in range(3 if quick else 7):
            for name, address in addresses.items():
                with served(folder / "root") as page:
                    time.sleep(0.2)
                    found[name].append(timed(lambda: page.get(address)))  # noqa: B023
        memory = [_memory(folder / "root", list(addresses.values())) for _ in range(1 if quick else 3)]
    size = f"{checkpoints:,} checkpoints, {week:,} epochs"
    return [
        *(
            Result("page", f"first view of {name}, {size}", "half a second", times, [LIMIT_S], goal=1.0)
            for name, times in found.items()
        ),
        Result("page", f"memory of the server, {size}", "200 MB", memory, [LIMIT_B], goal=1.0, unit="B"),
    ]


def _memory(root: Path, addresses: Sequence[str]) -> float:
    """Return the memory of a server that has shown all of the views."""
    with served(root) as page:
        for each in addresses:
            page.get(each)
        return float(page.memory)


def run(quick: bool) -> list[Result]:
    return [epochs(quick), *first_views(quick)]

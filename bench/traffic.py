"""A store whose requests are delayed and counted: the S3 server of the tests, and one proxy per side."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.compare import CannotMeasure

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the server and its proxy are those of the tests

import faultproxy
import s3fixture

_OURS = "object_store"  # in the name that our client gives itself
_BESIDE = re.compile(r"/heads/lease/\d+\.beat$|%2Frequests%2F|/activity/")  # of threads that no epoch waits for
KINDS = {
    "PUT": ("PUT", "CREATE", "COPY", "MULTIPART"),
    "GET": ("GET", "HEAD"),
    "LIST": ("LIST",),
    "DELETE": ("DELETE",),
}


@dataclass(frozen=True)
class Traffic:
    """The requests of a side in some time."""

    seen: Sequence[faultproxy.Seen]

    def counts(self) -> dict[str, int]:
        """Return the number of requests, by the kinds that a store charges for."""
        found = Counter(each.kind for each in self.seen)
        return {name: sum(found[kind] for kind in kinds) for name, kinds in KINDS.items()}

    def round_trips(self) -> int:
        """Return how many groups of our own requests followed each other: those of one group overlap in time."""
        own = [each for each in self.seen if _OURS in each.agent and not _BESIDE.search(each.key)]
        groups, end = 0, 0.0
        for each in sorted(own, key=lambda each: each.began_s):
            groups += each.began_s >= end
            end = max(end, each.ended_s)
        return groups


class Store:
    """One side's view of the server."""

    def __init__(self, proxy: faultproxy.FaultProxy, bucket: str) -> None:
        self._proxy = proxy
        self.bucket = bucket

    @property
    def environment(self) -> dict[str, str]:
        """The variables that name the proxy, and the credentials."""
        found: dict[str, str] = s3fixture.environment(self._proxy.endpoint)
        return found

    def delay(self, seconds: float) -> None:
        """Let each request take so much longer from now on."""
        self._proxy.delay_s = seconds

    def taken(self) -> Traffic:
        """Return the requests since the last call."""
        found = Traffic(tuple(self._proxy.seen))
        self._proxy.reset()
        return found


@contextlib.contextmanager
def stores(names: Sequence[str]) -> Iterator[dict[str, Store]]:
    """Yield a bucket and a proxy for each side, on one server."""
    try:
        server = s3fixture.server()
    except pytest.skip.Exception as missing:
        raise CannotMeasure(f"{missing}\nRun `make test` once, with a network") from None
    with contextlib.ExitStack() as stack:
        yield {
            name: Store(stack.enter_context(faultproxy.FaultProxy(server.endpoint)), server.bucket()) for name in names
        }

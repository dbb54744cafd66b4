"""The sinks of the page about one's own database keep the contract of sinks, with real databases and servers."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast.sinks.base import Sink
from holdfast.testing.sinks import SinkContract, VisibleRows
from ownsinks import Api, RedisServer, class_blocks, page_names, redis_server, sink_of_page

TestDuckDb = page_names()["TestDuckDbSink"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as started:
        yield started


class TestRedis(SinkContract):
    server: RedisServer

    @pytest.fixture(autouse=True)
    def _with(self, server: RedisServer) -> None:
        self.server = server

    def make(self, folder: Path) -> Sink:
        documents = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        return sink_of_page("RedisSink")(self.server.client(), documents, staging=folder / "staging")  # type: ignore[call-arg,arg-type]

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        with self.server.client() as client:
            documents = [json.loads(each) for each in client.lrange(sink.documents, 0, -1)]  # type: ignore[attr-defined]
        return [(each["n"], each["text"]) for each in documents]


class TestApi(SinkContract):
    apis: ClassVar[dict[Path, Api]] = {}

    @pytest.fixture(autouse=True)
    def _closed(self) -> Iterator[None]:
        yield
        while self.apis:
            self.apis.popitem()[1].close()

    def make(self, folder: Path) -> Sink:
        if folder not in self.apis:
            self.apis[folder] = Api()
        return sink_of_page("ApiSink")(self.apis[folder].url, staging=folder / "staging")  # type: ignore[call-arg]

    def visible(self, spark: Any, sink: Sink) -> VisibleRows:
        (api,) = [each for each in self.apis.values() if each.url == sink.url]  # type: ignore[attr-defined]
        return [(each["n"], each["text"]) for each in api.rows()]


def test_each_sink_of_the_page_has_fewer_than_forty_lines() -> None:
    sinks = [block for block in class_blocks() if "(hf.MarkerSink)" in block]
    assert len(sinks) == 3
    assert max(len(block.splitlines()) for block in sinks) < 40

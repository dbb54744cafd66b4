"""An Iceberg table keeps what it promises to a rewind, without Spark: rows are staged by hand."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faultproxy import FaultProxy
from holdfast.errors import HoldfastError, SinkFailed
from icebergstaged import IcebergByHand, sqlite_catalog
from s3fixture import S3Place, with_faults


@pytest.fixture
def spark() -> None:
    return None


class TestIceberg(IcebergByHand):
    pass


class TestIcebergOnS3(IcebergByHand):
    is_spawned = True

    @pytest.fixture(autouse=True)
    def _bucket(self, s3: S3Place) -> None:
        self.root = s3.url("tables")

    def catalog(self, folder: Path) -> dict[str, str]:
        return sqlite_catalog(folder, f"{self.root}/{folder.name}")

    def test_the_whole_protocol_while_requests_fail(self, spark: Any, tmp_path: Path, s3_faults: FaultProxy) -> None:
        """About one request in seven fails. A step that fails is repeated, as a supervisor does."""
        with_faults(s3_faults)
        sink = again(lambda: self._open(spark, tmp_path))
        for epoch in (1, 2, 3, 4):
            key = self._key(epoch)
            for attempt in range(1, 30):
                with contextlib.suppress(HoldfastError):
                    key = self._key(epoch, attempt=attempt)
                    handle = self._stage(spark, sink, key, epoch).handle
                    break
            again(lambda: sink.commit(key, handle))  # noqa: B023 - called at once
        for _ in range(2):
            again(lambda: self.make(tmp_path).take_back(self.owner, (1, 2), 2))
        for _ in range(2):
            again(lambda: self.make(tmp_path).put_back(self.owner, (1, 4), 3, 2))
        s3_faults.clear()
        assert self._seen(spark, sink) == [1, 2, 3, 4]


def again(act: Callable[[], Any]) -> Any:
    """Repeat a step until it succeeds."""
    for _ in range(30):
        with contextlib.suppress(SinkFailed):
            return act()
    raise AssertionError("it never succeeded")

"""A Delta table keeps what it promises to a rewind, without Spark: rows are staged by hand."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from deltastaged import DeltaByHand
from holdfast.errors import SinkFailed
from holdfast.sinks.base import CannotTakeBack, TakeBack
from s3fixture import S3Place


@pytest.fixture
def spark() -> None:
    return None


class TestDelta(DeltaByHand):
    pass


class TestDeltaPartitioned(DeltaByHand):
    options: ClassVar[dict[str, Any]] = {"partition_by": "text"}


class TestDeltaShared(DeltaByHand):
    options: ClassVar[dict[str, Any]] = {"share": True}


class TestDeltaReplace(DeltaByHand):
    output_mode = "complete"


class TestDeltaUpsert(DeltaByHand):
    options: ClassVar[dict[str, Any]] = {"key": "n"}

    def test_it_cannot_go_back_and_a_stamp_ends_its_timeline(self, spark: Any, tmp_path: Path) -> None:
        sink = self._filled(spark, tmp_path)
        for found in (sink.can_take_back(self.owner, (1, 2)), sink.cannot_be_taken_back()):
            assert isinstance(found, CannotTakeBack)
            assert "changelog=True" in found.do
        with pytest.raises(SinkFailed, match="upsert"):
            sink.take_back(self.owner, (1, 2), 2)
        assert sink.can_take_back(self.owner, (1, 4)) == TakeBack(0, 0, "")


class TestDeltaOnS3(DeltaByHand):
    options: ClassVar[dict[str, Any]] = {"partition_by": "text"}

    @pytest.fixture(autouse=True)
    def _bucket(self, s3: S3Place) -> None:
        self.root = s3.url("tables")

    def place(self, folder: Path) -> str:
        return f"{self.root}/{folder.name}"

"""A Delta table keeps what it promises to a rewind, without Spark: rows are staged by hand."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from deltastaged import DeltaByHand
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


class TestDeltaOnS3(DeltaByHand):
    options: ClassVar[dict[str, Any]] = {"partition_by": "text"}

    @pytest.fixture(autouse=True)
    def _bucket(self, s3: S3Place) -> None:
        self.root = s3.url("tables")

    def place(self, folder: Path) -> str:
        return f"{self.root}/{folder.name}"

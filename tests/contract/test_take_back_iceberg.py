"""An Iceberg table keeps what it promises to a rewind, without Spark: rows are staged by hand."""

import pytest

from icebergstaged import IcebergByHand


@pytest.fixture
def spark() -> None:
    return None


class TestIceberg(IcebergByHand):
    pass
